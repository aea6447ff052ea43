"""Tests of the DAGs that Airflow creates from pipeline files."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, time, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from tests.conftest import write_pipeline
from tests.dags.conftest import PIPELINE
from tidemark.airflow import Project, dags, pipeline_dags
from tidemark.airflow.dag_options import OPTIONS
from tidemark.airflow.web.pipeline_files import find_pipeline, list_pipelines
from tidemark.config import load_pipeline
from tidemark.errors import PipelineFileError

PROJECT = Path(__file__).parents[2]
SUBMITTED = str(PROJECT / "include/tidemark/airflow/spark_application.py")
KINDS = ("slice", "range", "reprocess")
COMPARED = "compare: {table: streamed, every: 1 day}\n"
ERRORS = "tidemark_pipeline_errors.py"


@pytest.fixture(scope="module")
def demo(describe):
    return describe()


def test_pipeline_dags_create_four_dags_per_pipeline_and_one_for_its_expectations(demo):
    names = [file.stem for file in (PROJECT / "include/pipelines").glob("*.yaml")]
    assert names
    assert demo["errors"] == {}
    assert set(demo["dags"]) == {f"{name}__{kind}" for name in names for kind in (*KINDS, "repair", "waive")}


def test_dag_files_import_no_spark(demo):
    assert "tidemark.config" in demo["imported"]
    assert [module for module in demo["imported"] if module.startswith(("pyspark", "delta", "pandas"))] == []


def test_dag_page_shows_dialect_inputs_bounds_and_slices(demo):
    doc = demo["dags"]["flights_weather__slice"]["doc"]
    for text in (
        "`flink-datastream`",
        "| arrival clock |",
        "| left | `flights` | `scheduled_departure` | `departed_at` | 30 minutes | nothing, it does not wait |",
        "-1 hour ≤ right time - left time ≤ 0 seconds",
        "every 1 hour from 2013-01-01T00:00Z",
    ):
        assert text in doc
    assert demo["dags"]["flights_weather__slice"]["tags"] == ["flink-datastream", "slice", "tidemark"]


LOCAL_DAYS = {
    "Europe/Berlin": ("2026-10-23T22", "2026-10-24T22", "2026-10-25T23", "2026-10-26T23"),
    "America/Sao_Paulo": ("2018-11-02T03", "2018-11-03T03", "2018-11-04T03", "2018-11-05T02"),
    "Asia/Beirut": ("2026-10-22T21", "2026-10-23T21", "2026-10-24T22", "2026-10-25T22"),
}
"""Starts of three local days, and the end of the last: around a day of 25 hours, a skipped and a repeated midnight."""


def test_slice_dag_data_intervals_are_slices_in_order(describe, pipeline_file):
    grids = {
        "hourly": ("1 hour", timedelta(hours=1), "2013-01-01T00:00:00+00:00"),
        "quarters": ("15 minutes", timedelta(minutes=15), "2013-01-01T00:05:00+00:00"),
        "odd": ("7 hours 30 seconds", timedelta(hours=7, seconds=30), "2013-03-31T01:30:00+02:00"),
        "daily": ("1 day", timedelta(days=1), "2013-10-26T22:00:00+00:00"),
        "fine": ("250 ms", timedelta(milliseconds=250), "2013-01-01T00:00:00.125000+00:00"),
    }
    for name, (every, _, start) in grids.items():
        folder = pipeline_file(f"{name}.yaml", name=name, every=every, start=start)
    for zone, hours in LOCAL_DAYS.items():
        name = zone.partition("/")[2]
        pipeline_file(f"{name}.yaml", name=name, every="1 day", start=f"{hours[0]}:00Z", settings=COMPARED)
        more = f'slices: {{time_zone: {zone}, end: "{hours[-1]}:00Z", '
        (folder / f"{name}.yaml").write_text((folder / f"{name}.yaml").read_text().replace("slices: {", more))
    dags = describe(TIDEMARK_PIPELINES=folder)["dags"]
    for name, (_, length, start) in grids.items():
        dag, first = dags[f"{name}__slice"], datetime.fromisoformat(start)
        expected = [(first + n * length, first + (n + 1) * length) for n in range(3)]
        assert [tuple(map(datetime.fromisoformat, interval)) for interval in dag["intervals"]] == expected
    for zone, hours in LOCAL_DAYS.items():
        starts = [f"{hour}:00:00+00:00" for hour in hours]
        for kind in ("slice", "compare"):
            dag = dags[f"{zone.partition('/')[2]}__{kind}"]
            assert dag["intervals"] == list(map(list, pairwise(starts)))
            assert [option for option in dag["command"] if option in starts] == starts[:2]
        slices = dags[f"{zone.partition('/')[2]}__slice"]
        assert slices["end_date"] == starts[-2], "the scheduler makes no run after it"
        assert f"- slices: days of {zone} from {hours[0]}:00Z to " in slices["doc"]


def test_dag_tasks_have_readable_ids(demo):
    tasks = {"run": ["done", "report"], "report": ["done"], "done": []}
    for kind, first in (("slice", {"wait": ["run"]}), ("reprocess", {})):
        dag = demo["dags"][f"flights_weather__{kind}"]
        assert dag["tasks"] == first | tasks
        assert dag["reads"] == ["tidemark:flights", "tidemark:weather"]


def test_reprocess_dag_params_require_range_and_default_to_dry_run(demo):
    assert demo["dags"]["flights_weather__reprocess"]["params"] == {"from": None, "to": None, "dry_run": True}


def test_repair_dag_plans_waits_for_approval_and_runs_when_started_by_hand(demo):
    dag = demo["dags"]["flights_weather__repair"]
    jobs = {"plan": ["approve"], "approve": ["reprocess"], "reprocess": ["done", "report"]}
    assert dag["tasks"] == jobs | {"report": ["done"], "done": []}
    assert (dag["intervals"], dag["after"], dag["params"], dag["max_active_runs"]) == ([], [], {}, 1)
    assert dag["publishes"] == ["flights_weather__slices"]

    at = dag["command"].index(SUBMITTED)
    file = str(PROJECT / "include/pipelines/flights_weather.yaml")
    arguments = ["reprocess", "--outdated", file, "--lake", str(PROJECT / "lake")]
    assert dag["command"][at:] == [SUBMITTED, *arguments], "the approved plan is added when the task runs"
    approve = dag["approve"]
    assert (approve["options"], approve["defaults"], approve["response_timeout"]) == (["Approve", "Reject"], None, None)
    assert (approve["body"], approve["assigned_users"]) == ("| 1 slice |", None)


def test_repair_dag_has_schedule_and_approvers_of_pipeline_file(describe, pipeline_file):
    repair = "{every: 6 hours, answer_within: 1 hour, approvers: [ada, bob], approve_above: {slices: 24}}"
    settings = f"compare: {{table: s, every: 1 day}}\nairflow: {{repair: {repair}, execution_timeout: 2 hours}}\n"
    folder = pipeline_file("p.yaml", name="p", settings=settings)

    dag = describe(TIDEMARK_PIPELINES=folder)["dags"]["p__repair"]

    start, end = map(datetime.fromisoformat, dag["intervals"][0])
    assert (end - start, dag["catchup"]) == (timedelta(hours=6), False)
    assert datetime.now(UTC) - start < timedelta(days=1), "missed repairs do not run"
    assert dag["tasks"]["reprocess"] == ["compare"]
    assert dag["tasks"]["compare"] == ["done", "report"]
    compare = ["--only-due", "--from", "2013-01-01T00:00Z", "--to", "2013-01-02T00:00:00Z"]
    assert dag["compare"][-5:] == compare, "the planned slices, because the stream may not have later ones"
    assert dag["approve"] == {
        "options": ["Approve", "Reject"],
        "defaults": ["Reject"],
        "response_timeout": 3600,
        "assigned_users": [{"id": name, "name": name} for name in ("ada", "bob")],
        "body": "| 1 slice |",
    }


QUALITY = "quality: [{{type: expect_column_values_to_not_be_null, column: left_user, {}}}]\n"


def test_expectations_decide_dags_for_release_and_waiver(describe, pipeline_file):
    repair = (
        "airflow: {repair: {every: 6 hours, answer_within: 1 hour, approvers: [ada], approve_above: {slices: 9}}}\n"
    )
    rule = "complete: {by: asset, asset: clicked}"
    for name, consequence in {"q": "on_failure: quarantine", "s": "on_failure: stop"}.items():
        file = pipeline_file(f"{name}.yaml", name=name, settings=QUALITY.format(consequence) + repair) / f"{name}.yaml"
        file.write_text(file.read_text().replace("table: clicks,", f"table: clicks, {rule},"))
    pipeline_file("w.yaml", name="w", settings=QUALITY.format("severity: warning"))
    folder = pipeline_file("d.yaml", name="d", settings=QUALITY.format("per: day"))

    dags = describe(TIDEMARK_PIPELINES=folder)["dags"]

    assert {name for name in dags if name.partition("__")[2] not in {*KINDS, "repair"}} == {
        "q__release",
        "q__waive",  # an expectation that raises an error stops its slice
        "s__waive",
    }
    last = {"report": ["done"], "done": []}
    release = {"plan": ["approve"], "approve": ["release"], "release": ["done", "report"]}
    waive = {
        "plan": ["approve"],
        "approve": ["waive"],
        "waive": ["reprocess", "run"],
        "reprocess": ["run"],
        "run": ["done", "report"],
    }
    for dag_id, tasks, command in (
        ("q__release", release, ["quarantine", "release", str(folder / "q.yaml"), "--lake", str(PROJECT / "lake")]),
        ("s__waive", waive, ["run", str(folder / "s.yaml"), "--lake", str(PROJECT / "lake"), "--skip-asset-check"]),
    ):
        dag = dags[dag_id]
        assert dag["tasks"] == tasks | last
        assert dag["command"][dag["command"].index(SUBMITTED) :] == [SUBMITTED, *command], (
            "the rest is added when it runs"
        )
        assert (dag["publishes"], dag["catchup"], dag["max_active_runs"]) == ([f"{dag_id[0]}__slices"], False, 1)
        start, end = map(datetime.fromisoformat, dag["intervals"][0])
        assert end - start == timedelta(hours=6)
        approve = dag["approve"]
        assert (approve["options"], approve["defaults"]) == (["Approve", "Reject"], ["Reject"])
        assert (approve["response_timeout"], approve["body"]) == (3600, "| 1 slice |")
        assert approve["assigned_users"] == [{"id": "ada", "name": "ada"}]


def test_dags_refuse_backfills_on_sqlite_only(demo, describe):
    assert demo["dags"]["flights_weather__slice"]["allowed_run_types"] == ["manual", "scheduled"]
    assert "for committed slices, not a\n  backfill" in demo["dags"]["flights_weather__slice"]["doc"]
    postgres = describe(AIRFLOW__DATABASE__SQL_ALCHEMY_CONN="postgresql+psycopg2://nobody@127.0.0.1:1/none")
    assert postgres["dags"]["flights_weather__slice"]["allowed_run_types"] == []


def test_dag_has_airflow_settings_and_end_of_pipeline_file(describe, pipeline_file):
    airflow = "{owner: clicks, retries: 5, execution_timeout: 1 hour, deadline: 2 hours}"
    folder = pipeline_file("p.yaml", name="p", settings=f"airflow: {airflow}\n")
    file = folder / "p.yaml"
    text = file.read_text().replace("slices: {", 'slices: {end: "2013-01-01T03:00:00Z", ')
    text = text.replace("join:\n", "join:\n  condition: left_user <> 'x'\n")
    file.write_text(text.replace("table: clicks,", "table: clicks, where: page > 1,"))
    dag = describe(TIDEMARK_PIPELINES=folder, TIDEMARK_POOLS=1)["dags"]["p__slice"]

    assert "\n- condition: `left_user <> 'x'`\n- filter of clicks: `page > 1`\n- slices: " in dag["doc"]
    assert (dag["owner"], dag["retries"], dag["execution_timeout"]) == ("clicks", 5, 3600)
    assert (dag["pool"], dag["deadline"], dag["conf"]) == ("p", ["2:00:00"], None)
    assert [start[11:13] for start, _ in dag["intervals"]] == ["00", "01", "02"]
    assert dag["end_date"] == "2013-01-01T02:00:00+00:00", "the scheduler makes no run after it"


def test_partition_settings_decide_published_assets_and_example(describe, pipeline_file):
    folder = pipeline_file("p.yaml", name="p", settings="airflow: {partitions: [day, slice]}\n")
    rule = "complete: {by: asset, asset: p__days, partition: '%Y-%m-%d'}"
    file = pipeline_file("q.yaml", name="q", settings="airflow: {partitions: [slice]}\n") / "q.yaml"
    file.write_text(file.read_text().replace("table: clicks,", f"table: clicks, {rule},"))

    bag = describe("example", TIDEMARK_PIPELINES=folder)

    assert bag["publishes"] == {
        "p__slice": ["p__slices", "p__days", "p__partitions"],
        "q__slice": ["q__slices", "q__partitions"],
    }
    tables = [f"tidemark:{name}" for name in ("clicks", "views")]
    assert bag["reads"] == {"p__slice": tables, "q__slice": ["p__days", tables[1]]}
    assert bag["consumers"] == ["p__daily_example"]


def test_invalid_asset_name_does_not_stop_other_pipelines(describe, pipeline_file):
    file = pipeline_file("p.yaml", name="p") / "p.yaml"
    file.write_text(file.read_text().replace("table: clicks", f"table: {'c' * 1500}"))

    result = describe(TIDEMARK_PIPELINES=file.parent)

    assert result["errors"] == {}
    assert result["dags"]["p__slice"]["reads"] == ["tidemark:views"]


def test_task_process_creates_only_its_own_dag(describe):
    result = describe("task-process", "flights_weather__slice")

    assert (result["dags"], result["files"]) == (["flights_weather__slice"], ["flights_weather.yaml"])


def test_pools_are_created_for_pipelines_that_name_none(pipeline_file):
    pipeline_file("b.yaml", name="b", settings="airflow: {pool: shared}\n")
    folder = pipeline_file("a.yaml", name="a")
    env = os.environ | {"TIDEMARK_PIPELINES": str(folder), "PYTHONPATH": str(PROJECT / "include")}
    command = [sys.executable, "-m", "tidemark.airflow.pools", PROJECT]

    process = subprocess.run(command, env=env, check=True, capture_output=True)

    pools = json.loads(process.stdout)
    assert {name: pool["slots"] for name, pool in pools.items()} == {"a": 1}


def test_slice_dag_runs_in_order_and_stops_at_failure(demo):
    dag = demo["dags"]["flights_weather__slice"]
    assert (dag["catchup"], dag["max_active_runs"], dag["depends_on_past"]) == (True, 1, True)
    assert dag["max_consecutive_failed_dag_runs"] == 1


def test_slice_run_submits_its_data_interval(describe, tmp_path):
    (tmp_path / "delta.jar").touch()
    lake = tmp_path / "lake"
    dag = describe(TIDEMARK_LAKE=lake, TIDEMARK_JARS=tmp_path)["dags"]["flights_weather__slice"]
    binary, *options = dag["command"]

    assert binary == str(Path(sys.executable).with_name("spark-submit"))
    assert options == [
        *("--master", "local[2]"),
        *("--jars", str(tmp_path / "delta.jar")),
        *("--name", "flights_weather 2013-01-01T00:00:00+00:00 to 2013-01-01T01:00:00+00:00"),
        *(SUBMITTED, "run", str(PROJECT / "include/pipelines/flights_weather.yaml"), "--lake", str(lake)),
        *("--from", "2013-01-01T00:00:00+00:00", "--to", "2013-01-01T01:00:00+00:00"),
    ]
    assert dag["env"]["PYSPARK_PYTHON"] == sys.executable


def test_reprocess_run_submits_its_params(demo):
    dag = demo["dags"]["flights_weather__reprocess"]
    assert dag["intervals"] == []
    at = dag["command"].index(SUBMITTED)
    assert dag["command"][at + 1] == "reprocess"
    assert dag["command"][-5:] == ["--from", "2013-01-01T00:00Z", "--to", "2013-01-02T00:00:00Z", "--dry-run"]


def test_range_run_submits_its_params(demo):
    dag = demo["dags"]["flights_weather__range"]
    assert dag["intervals"] == []
    assert dag["command"][-9:] == [
        *("--lake", str(PROJECT / "lake")),
        *("--from", "2013-01-01T00:00Z", "--to", "2013-01-02T00:00:00Z"),
        *("--slices-per-job", "auto", "--no-ignore-completeness"),
    ]


COMPARE = "compare: {{table: streamed/{name}, budget: {{unexplained: 0.1 %}}, {more}}}\n"
CHAINED = "left: {pipeline: hourly}\nairflow: {watch_inputs: true}\n"


@pytest.fixture(scope="module")
def compared_dags(describe, tmp_path_factory):
    """Return DAGs of pipelines that are compared after each commit, each day, and with a reference pipeline.

    The one that is compared each day reads the output of the hourly one.
    """
    folder = tmp_path_factory.mktemp("pipelines")
    for name, more in (("hourly", ""), ("daily", "every: 1 day"), ("referring", "reference: hourly")):
        text = PIPELINE.format(name=name, every="1 hour", start="2013-01-01T00:00:00Z")
        text = text.replace("event_time: at", "event_time: at, arrival: received_at, complete: {by: row}")
        text += COMPARE.format(name=name, more=more)
        if name == "hourly":
            text += "output_stream: true\n"
        elif name == "daily":
            left = next(line for line in text.splitlines() if line.startswith("left:"))
            text = text.replace(f"{left}\n", CHAINED).replace("[user]", "[{left: left_user, right: user}]")
        (folder / f"{name}.yaml").write_text(text)
    result = describe(TIDEMARK_PIPELINES=folder)
    assert result["errors"] == {}
    return result["dags"]


def test_compare_dag_runs_after_each_commit(compared_dags):
    assert set(compared_dags) - {"daily__landed"} == {
        f"{name}__{kind}" for name in ("hourly", "daily", "referring") for kind in (*KINDS, "repair", "compare")
    }

    for kind in (*KINDS, "repair"):
        assert compared_dags[f"hourly__{kind}"]["publishes"] == ["hourly__slices"]
    assert compared_dags["hourly__compare"]["after"] == ["hourly__slices"]
    assert compared_dags["referring__compare"]["after"] == ["hourly__slices", "referring__slices"]

    dag = compared_dags["hourly__compare"]
    assert (dag["intervals"], dag["publishes"], dag["max_active_runs"]) == ([], [], 1)

    at = dag["command"].index(SUBMITTED)
    assert dag["command"][at : at + 4] == [SUBMITTED, "compare", "run", "--save"]
    assert dag["command"][-3:] == ["--lake", str(PROJECT / "lake"), "--only-due"]


def test_dags_of_chain_are_joined_by_assets(compared_dags):
    assert compared_dags["hourly__slice"]["publishes"] == ["hourly__slices"]
    assert compared_dags["daily__slice"]["reads"] == ["hourly__slices", "tidemark:views"]
    assert compared_dags["daily__landed"]["after"] == ["daily__landed", "hourly__slices"]


MARKER = {"by": "marker", "table": "marks", "column": "until"}
BY_QUERY = {"event_time": "happened", "arrival": {"streaming_checkpoint": "query"}, "watermark_delay": "1 minute"}


@pytest.mark.parametrize(
    ("changes", "watched"),
    [
        ({"left__complete": "row", "right__complete": "commit"}, {"left", "right"}),
        ({"left__complete": "row", "right__complete": MARKER}, {"left", "right", "marks"}),
        (
            {
                "dialect": "spark",
                "left": {"table": "left", **BY_QUERY},
                "right": {"table": "right", **BY_QUERY},
            },
            {"query"},
        ),
    ],
    ids=["tables", "marker", "checkpoint"],
)
def test_landed_dag_watches_all_logs_that_can_complete_a_slice(tmp_path, changes, watched):
    file = tmp_path / "orders.yaml"
    pipeline = write_pipeline(file, airflow={"watch_inputs": True}, **changes)

    [landed] = OPTIONS["landed"](pipeline, file, Project(tmp_path))["schedule"].objects

    assert landed.name == "orders__landed"
    assert {watcher.name for watcher in landed.watchers} == watched


def test_daily_compare_run_compares_slices_of_its_interval(compared_dags):
    dag = compared_dags["daily__compare"]
    first = datetime.fromisoformat("2013-01-01T00:00:00+00:00")
    expected = [(first + timedelta(days=n), first + timedelta(days=n + 1)) for n in range(3)]

    assert [tuple(map(datetime.fromisoformat, interval)) for interval in dag["intervals"]] == expected
    assert dag["after"] == []
    assert dag["command"][-5:] == [
        *("--only-due", "--from", "2013-01-01T00:00:00+00:00", "--to", "2013-01-02T00:00:00+00:00"),
    ]


@pytest.mark.parametrize(
    ("zone", "start", "end", "last"),
    [
        ("UTC", "2024-01-01T05:00Z", "2024-01-03T05:00Z", "2024-01-03T05:00Z"),
        ("UTC", "2024-01-01T05:00Z", "2024-01-03T06:00Z", "2024-01-04T05:00Z"),
        ("Europe/Berlin", "2024-03-29T23:00Z", "2024-03-31T22:00Z", "2024-03-31T22:00Z"),
    ],
)
def test_daily_compare_dag_ends_an_interval_after_the_slices(pipeline_file, zone, start, end, last):
    every = "1 hour" if zone == "UTC" else "1 day"
    file = pipeline_file("p.yaml", name="p", every=every, start=start, settings=COMPARED) / "p.yaml"
    file.write_text(file.read_text().replace("slices: {", f'slices: {{time_zone: {zone}, end: "{end}", '))

    options = OPTIONS["compare"](load_pipeline(file), file, Project(file.parent))

    assert options["end_date"] == datetime.fromisoformat(last), "the start of the last interval, inclusive"


def test_maintenance_dag_runs_daily_when_configured(describe, pipeline_file):
    pipeline_file("retained.yaml", name="retained", settings="retention: {replaced_files: 30 days}\n")
    folder = pipeline_file("p.yaml", name="p", settings="compact: {settled_after: 2 days, period: 1 day}\n")
    process = describe("task-process", "retained__maintenance", TIDEMARK_PIPELINES=folder)
    assert process["dags"] == ["retained__maintenance"]

    pipeline_file("retained.yaml", name="retained", settings="retention: {checkpoints: 30 days}\n")
    dags = describe(TIDEMARK_PIPELINES=folder)["dags"]
    assert dags["retained__maintenance"]["tasks"] == {"vacuum": ["verify"], "verify": []}
    command = dags["retained__maintenance"]["command"]
    arguments = ["tables", "vacuum", "--yes", str(folder / "retained.yaml"), "--lake", str(PROJECT / "lake")]
    assert command[command.index(SUBMITTED) :] == [SUBMITTED, *arguments]

    dag = dags["p__maintenance"]
    assert dag["tasks"] == {"compact": ["vacuum"], "vacuum": ["verify"], "verify": []}
    start, end = map(datetime.fromisoformat, dag["intervals"][0])
    assert (end - start, start.time()) == (timedelta(days=1), time())
    assert datetime.now(UTC) - start < timedelta(days=3), "missed days do not run"
    assert dag["max_active_runs"] == 1
    at = dag["command"].index(SUBMITTED)
    compact = ["tables", "compact", str(folder / "p.yaml"), "--lake", str(PROJECT / "lake")]
    assert dag["command"][at:] == [SUBMITTED, *compact]


def test_dag_page_shows_comparison(demo, compared_dags):
    for text, name in (
        ("- compared with `streamed/hourly`, when slices are committed; budget: 0.1 % unexplained", "hourly"),
        ("- compared with `streamed/daily`, every 1 day; budget:", "daily"),
        ("- compared with `streamed/referring`, with the reference `hourly`, when", "referring"),
    ):
        assert text in compared_dags[f"{name}__compare"]["doc"]
    assert "compared with" not in demo["dags"]["flights_weather__slice"]["doc"]


def test_missing_reference_pipeline_is_import_error(describe, pipeline_file):
    folder = pipeline_file("p.yaml", name="p", settings="compare: {table: s, reference: q}\n")

    result = describe(TIDEMARK_PIPELINES=folder)

    assert result["dags"] == {}
    assert "p.yaml: compare.reference: there is no pipeline q in" in result["errors"][ERRORS]


def test_connection_decides_spark_master(demo, describe):
    cluster = json.dumps({"conn_type": "spark", "host": "spark://master", "port": 7077})

    local_command, cluster_command = (
        result["dags"]["flights_weather__slice"]["command"]
        for result in (demo, describe(AIRFLOW_CONN_SPARK_DEFAULT=cluster))
    )

    differences = [pair for pair in zip(local_command, cluster_command, strict=True) if len(set(pair)) > 1]
    assert differences == [("local[2]", "spark://master:7077")]


@pytest.mark.parametrize("host", ["spark://master:7077", "yarn", "local[2]"])
def test_connection_secret_is_absent_from_command_line_and_page(describe, host):
    connection = {"conn_type": "spark", "host": host, "password": "s3cret", "login": "me"}
    dags = describe(AIRFLOW_CONN_SPARK_DEFAULT=json.dumps(connection))["dags"]
    assert dags
    for dag in dags.values():
        assert "s3cret" not in json.dumps([dag["command"], dag["rendered"]])
        assert ("s3cret" in json.dumps(dag["env"])) == host.startswith("spark://")


@pytest.mark.parametrize(("host", "is_passed"), [("spark://master:7077", True), ("local[2]", True), ("yarn", False)])
def test_receiver_secret_reaches_job_only_by_environment(describe, pipeline_file, host, is_passed):
    more = "notify: [{slack: {connection: tidemark_slack}}, {teams: {connection: tidemark_gone}}]\n"
    connections = {
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": host}),
        "AIRFLOW_CONN_TIDEMARK_SLACK": json.dumps({"conn_type": "slackwebhook", "password": "https://x/s3cret"}),
    }
    folder = pipeline_file("p.yaml", name="p", settings=more)

    dags = describe(TIDEMARK_PIPELINES=folder, **connections)["dags"]

    for dag in dags.values():
        assert "s3cret" not in json.dumps([dag["command"], dag["rendered"]])
    connection = json.loads((dags["p__slice"]["env"] or {}).get("AIRFLOW_CONN_TIDEMARK_SLACK", "null"))
    assert (connection == {"conn_type": "slackwebhook", "password": "https://x/s3cret"}) == is_passed


def test_range_dag_validates_params(describe):
    valid = [
        {"to": "2013-01-02T00:00:00Z"},
        {"to": "2013-01-02T00:00+01:00", "slices_per_job": 24},
        {"slices_per_job": "24"},
    ]
    invalid = [
        {"to": "tomorrow"},
        {"from": "2013-01-02"},
        {"from": None},
        {"slices_per_job": 0},
        {"slices_per_job": "all"},
    ]
    refusals = describe("refusals", "flights_weather__range", *map(json.dumps, valid + invalid))["refusals"]

    assert [bool(refusal) for refusal in refusals] == [False] * len(valid) + [True] * len(invalid)


def test_invalid_file_is_import_error_and_does_not_stop_other_pipelines(describe, pipeline_file):
    pipeline_file("good.yaml", name="good")
    pipeline_file("late.yaml", name="late", every="1 fortnight")
    pipeline_file("long.yaml", name="p" * 240)
    pipeline_file("none.yaml", name="none", every="0 seconds")
    folder = pipeline_file("twice.yaml", name="twice", every="1 day", start="2026-01-01T05:00:00Z")
    file = folder / "twice.yaml"
    file.write_text(file.read_text().replace("slices: {", "slices: {time_zone: America/Havana, "))

    result = describe(TIDEMARK_PIPELINES=folder)

    assert set(result["dags"]) == {f"good__{kind}" for kind in (*KINDS, "repair")}
    assert set(result["errors"]) == {ERRORS}
    *_, first, second, third, fourth = result["errors"][ERRORS].splitlines()
    assert "late.yaml: slices.every: 'fortnight' is not a unit of time" in first
    assert "none.yaml: slices.every: must be positive" in second
    assert (
        "twice.yaml: slices.time_zone: Airflow has no timetable for days of America/Havana, where 2026-11-01" in third
    )
    assert f"long.yaml: Airflow cannot create the DAG {'p' * 240}__reprocess: The key has to be less than" in fourth


def test_pipeline_file_is_read_once_for_its_dags(pipeline_file, monkeypatch):
    """It may be saved meanwhile, and then lack its end for a moment."""
    folder = pipeline_file("p.yaml", name="p")
    monkeypatch.setenv("TIDEMARK_PIPELINES", str(folder))
    monkeypatch.setattr(dags, "load_pipeline", lambda file: pytest.fail(f"{file} is read again"))

    assert [dag.dag_id for dag in pipeline_dags(Project(folder))] == [f"p__{kind}" for kind in (*KINDS, "repair")]


def test_invalid_option_of_all_dags_is_raised(pipeline_file, monkeypatch):
    folder = pipeline_file("p.yaml", name="p")
    monkeypatch.setenv("TIDEMARK_PIPELINES", str(folder))

    with pytest.raises(PipelineFileError, match="Airflow cannot create the DAG p__slice: .*max_active_runz"):
        pipeline_dags(Project(folder), max_active_runz=2)


@pytest.mark.parametrize(("files", "owner"), [("ap", "p"), ("pq", "p"), ("ab", "a")])
def test_file_with_its_name_owns_a_pipeline_name_everywhere(pipeline_file, monkeypatch, files, owner):
    for name in files:
        folder = pipeline_file(f"{name}.yaml", name="p", settings=f"airflow: {{owner: {name}}}\n")
    monkeypatch.setenv("TIDEMARK_PIPELINES", str(folder))
    project = Project(folder)

    pipelines, [error] = project.pipelines()

    assert [file.name for file in pipelines] == [f"{owner}.yaml"]
    other = files.replace(owner, "")
    assert error == f"{folder}/{other}.yaml: name: {owner}.yaml already defines p. Choose another name."
    shown = [*list_pipelines(project), find_pipeline(project, "p")]
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", "p__slice")
    [dag] = [dag for dag in pipeline_dags(project) if dag.dag_id == "p__slice"]
    assert [pipeline.airflow.owner for pipeline in shown] == [owner, owner]
    assert dag.get_task("run").file == folder / f"{owner}.yaml"


def test_user_error_fails_task_without_retry(describe, pipeline_file):
    folder = pipeline_file("p.yaml", name="p", settings="compare: {table: s}\n")
    # 1 and 2 are codes of Python and spark-submit: a retry may start the job.
    exceptions = {"0": None, "1": "AirflowException", "2": "AirflowException", "64": "AirflowFailException"}
    exceptions |= {"65": "AirflowFailException", "75": "AirflowException"}
    for dag in ("p__slice", "p__compare"):
        outcomes = describe("outcomes", dag, *exceptions, TIDEMARK_PIPELINES=folder)["outcomes"]
        assert {code: outcome and outcome[0] for code, outcome in outcomes.items()} == exceptions
        assert outcomes["65"][1].endswith("tidemark: the reason")
