"""`bin/airflow-local` starts a real Airflow, whose scheduler runs DAGs, and ends all its processes."""

import json
import re
import signal
import socket
import subprocess
import time
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import psutil
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.dags.conftest import WAITING
from tests.processes import find_free_ports
from tests.quality.fake_receivers import metrics, webhooks
from tidemark.config import load_pipeline
from tidemark.execution.run import execute
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request as Slices

PROJECT = Path(__file__).parents[2]
COMPONENTS = {"metadatabase", "scheduler", "triggerer", "dag_processor"}
KINDS = ("slice", "range", "reprocess", "repair")
DAGS = {f"clicked_views__{kind}" for kind in (*KINDS, "compare")}
WITHHELD_DAGS = {f"withheld__{kind}" for kind in (*KINDS, "release", "waive")}
WITHHELD = """
quality:
  - {type: expect_column_values_to_be_in_set, column: left_user, value_set: [b], on_failure: quarantine}
  - {type: rows, that: "left_at < TIMESTAMP '2013-01-01 02:00:00'"}
"""
"""Expectations that withhold the rows of user a from the slices 00:00 and 01:00, and reject the slice 02:00."""
STREAMED = [("a", "00:20", "00:15"), ("b", "00:59", "00:58"), ("a", "01:05", "00:58"), ("b", "02:30", "02:21")]


@pytest.fixture
def local_env(pipeline_env, tmp_path):
    """Return variables of a local Airflow with a new home folder and a free port."""
    [port] = find_free_ports(1)
    return pipeline_env | {"TIDEMARK_AIRFLOW_HOME": str(tmp_path / "home"), "AIRFLOW__API__PORT": port}


def start_airflow(environment):
    command, pipe = [PROJECT / "bin/airflow-local"], subprocess.PIPE
    return subprocess.Popen(command, cwd="/", env=environment, stdout=pipe, stderr=subprocess.STDOUT, text=True)


def list_children(process):
    return psutil.Process(process.pid).children(recursive=True)


def list_listening_addresses(processes):
    """Return the IP addresses on which processes accept connections."""
    connections = [each for process in processes for each in process.net_connections("inet")]
    return {each.laddr.ip for each in connections if each.status == psutil.CONN_LISTEN}


def get(url, is_expected, seconds):
    """Read a page until its content is as expected or the time is over; return the last content."""
    end = time.monotonic() + seconds
    content = None
    while time.monotonic() < end and not (content and is_expected(content)):
        with suppress(OSError), urlopen(url, timeout=5) as response:
            content = json.load(response)
        time.sleep(0.5)
    return content


def send(url, method, **content):
    """Send a change to the REST API; return the response."""
    request = Request(url, json.dumps(content).encode(), {"Content-Type": "application/json"}, method=method)
    with urlopen(request, timeout=30) as response:
        return json.load(response)


def list_states(content):
    """Return the states of the runs of a DAG."""
    return [run["state"] for run in content["dag_runs"]]


def is_healthy(content):
    return {name for name, component in content.items() if component["status"] == "healthy"} == COMPONENTS


@pytest.fixture
def telemetry():
    """Run servers for OpenLineage and StatsD; return the variables that enable both, the events and the metrics."""
    with webhooks() as (url, events), metrics() as (port, lines):
        transport = {"type": "http", "url": url, "endpoint": "lineage"}
        statsd = {"STATSD_ON": "True", "STATSD_HOST": "127.0.0.1", "STATSD_PORT": str(port)}
        variables = {f"AIRFLOW__METRICS__{name}": value for name, value in statsd.items()}
        yield variables | {"AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(transport)}, events, lines


def check_lineage(events, lake):
    """Check the inputs and outputs of each completed task, and the committed slices."""
    completed = {event["job"]["name"]: event for _, _, event in events if event["eventType"] == "COMPLETE"}
    run, report, compare = (
        completed[f"clicked_views__{task}"] for task in ("range.run", "range.report", "compare.compare")
    )
    names = {kind: {dataset["name"] for dataset in run[kind]} for kind in ("inputs", "outputs")}
    tables = {str(lake / "clicked_views" / name) for name in ("emissions", "late", "checkpoint", "ledger")}
    assert names == {"inputs": {str(lake / "clicks"), str(lake / "views")}, "outputs": tables}
    assert {dataset["namespace"] for dataset in (*run["inputs"], *run["outputs"])} == {"file"}
    facets = {Path(dataset["name"]).name: dataset.get("outputFacets", {}) for dataset in report["outputs"]}
    assert facets["emissions"]["outputStatistics"]["rowCount"] == len(STREAMED)
    slices = report["run"]["facets"]["tidemark_slices"]
    assert (slices["first"], slices["end"], slices["slices"]) == ("2013-01-01T00:00Z", "2013-01-01T03:00Z", 3)
    assert {Path(dataset["name"]).name for dataset in compare["inputs"]} == {"emissions", "streamed"}
    assert {Path(dataset["name"]).name for dataset in compare["outputs"]} == {"agreement"}


def check_metrics(lines):
    """Check name, value and type of each metric as the range and its comparison sent it, before the repair."""
    values = dict(line.removeprefix("airflow.").split(":", 1) for line in reversed(lines) if "tidemark." in line)
    assert values["tidemark.slices.clicked_views"] == "3|c"
    assert values["tidemark.emissions.clicked_views"] == f"{len(STREAMED)}|c"
    assert values["tidemark.rows.late.left.clicked_views"] == "0|c"
    assert values["tidemark.agreement.same.clicked_views"] == f"{len(STREAMED)}|g"
    assert values["tidemark.agreement.unexplained.clicked_views"] == "0|g"
    milliseconds, _, metric_type = values["tidemark.slice.duration.clicked_views"].partition("|")
    assert float(milliseconds) > 100
    assert metric_type == "ms"
    assert int(values["tidemark.uncommitted_slices.clicked_views"].removesuffix("|g")) > 24 * 365


class ApprovedRun:
    """A run of a DAG that asks a person, over the REST API."""

    def __init__(self, api, dag_id, **conf):
        """Trigger the run."""
        self.dag = f"{api}/dags/{dag_id}"
        send(self.dag, "PATCH", is_paused=False)
        self.run_id = send(f"{self.dag}/dagRuns", "POST", logical_date=None, conf=conf)["dag_run_id"]
        self.run = f"{self.dag}/dagRuns/{quote(self.run_id, safe='')}"
        self.question = f"{self.run}/taskInstances/approve/-1/hitlDetails"
        self.last_answer = None

    def answer(self, option, **fields):
        """Answer the question as a person does."""
        self.last_answer = {"chosen_options": [option], "params_input": fields}
        send(self.question, "PATCH", **self.last_answer)

    def clear(self, task):
        """Clear a task and the tasks after it, as a person does who has changed their mind."""
        tasks = {"task_ids": [task], "include_downstream": True, "only_failed": False}
        send(f"{self.dag}/clearTaskInstances", "POST", dag_run_id=self.run_id, dry_run=False, **tasks)

    def get_states(self):
        """Return the state of each task."""
        tasks = get(f"{self.run}/taskInstances", bool, seconds=120)["task_instances"]
        return {task["task_id"]: task["state"] for task in tasks}

    def wait_for_question(self):
        """Wait until a person is asked; return the plan as that person reads it."""
        end = time.monotonic() + 1200
        while self.get_states().get("approve") != "awaiting_input" and time.monotonic() < end:
            assert get(self.run, bool, seconds=120)["state"] in {"queued", "running"}, self.get_states()
            time.sleep(1)
        return get(self.question, bool, seconds=120)["body"]

    def wait_for_end(self):
        """Wait for the end of the run; return its state and the states of its tasks.

        Airflow can lose an answer that comes within a loop of its scheduler. It asks again, and gets the same answer.
        """

        def is_ended(run):
            if self.last_answer and self.get_states()["approve"] == "awaiting_input":
                send(self.question, "PATCH", **self.last_answer)
            return run["state"] in {"success", "failed"}

        return get(self.run, is_ended, seconds=1200)["state"], self.get_states()


def check_repair(api, write, read_emissions):
    """Let rows land late, reject their repair, then approve it over the REST API."""
    for table in ("clicks", "views"):
        write(table, [("c", datetime.fromisoformat("2013-01-01T01:20Z"))], "user string, at timestamp")
    before, last_tasks = read_emissions(), ("reprocess", "compare", "report")
    repair = ApprovedRun(api, "clicked_views__repair")
    body = repair.wait_for_question()
    assert "**clicked_views: 1 outdated slice would run again**" in body
    assert "| 2013-01-01T01:00Z to 2013-01-01T02:00Z | 1 | late arrival: rows of these slices arrived" in body
    assert "| slices that may follow | at most 1 slice, up to 2013-01-01T03:00Z" in body

    repair.answer("Reject")
    state, tasks = repair.wait_for_end()
    skipped = dict.fromkeys(last_tasks, "skipped")
    assert (state, tasks) == ("success", {"plan": "success", "approve": "success", **skipped, "done": "success"})
    assert read_emissions() == before, "nothing runs"

    repair.clear("approve")
    repair.wait_for_question()
    repair.answer("Approve")
    state, tasks = repair.wait_for_end()
    assert (state, tasks) == ("success", dict.fromkeys(("plan", "approve", *last_tasks, "done"), "success"))
    assert read_emissions() - before == Counter([("c", "01:20", "01:20")])

    state, tasks = ApprovedRun(api, "clicked_views__repair").wait_for_end()
    assert state == "success"
    skipped = dict.fromkeys(("plan", "approve", *last_tasks), "skipped")
    assert tasks == skipped | {"done": "success"}, "nothing to do"


def check_waiver(api, lake, read_emissions):
    """Let a person publish a rejected slice, over the REST API."""
    state, _ = ApprovedRun(api, "withheld__range", to="2013-01-01T03:00:00Z", slices_per_job=1).wait_for_end()
    assert (state, read_emissions()) == ("failed", Counter([("b", "00:59", "00:58")]))

    waiver = ApprovedRun(api, "withheld__waive")
    body = waiver.wait_for_question()
    assert "**withheld: 1 slice rejected by the quality gate**" in body
    assert "| 2013-01-01T02:00Z | no | " in body
    waiver.answer("Approve")
    time.sleep(2)
    waiver.wait_for_question()  # again, because the answer has no reason
    waiver.answer("Approve", reason="a known fault")
    state, tasks = waiver.wait_for_end()
    succeeded = dict.fromkeys(("plan", "approve", "waive", "run", "report", "done"), "success")
    assert (state, tasks) == ("success", succeeded | {"reprocess": "skipped"})
    assert read_emissions() == Counter([("b", "00:59", "00:58"), ("b", "02:30", "02:21")])
    assert list_used_waivers(lake) == [[("Anonymous", "a known fault")]]

    bounds = {"from": "2013-01-01T02:00:00Z", "to": "2013-01-01T03:00:00Z"}
    state, _ = ApprovedRun(api, "withheld__reprocess", **bounds, dry_run=False).wait_for_end()
    assert state == "failed", "its waiver is used"
    again = ApprovedRun(api, "withheld__waive")
    assert "| 2013-01-01T02:00Z | an earlier run | " in again.wait_for_question()
    again.answer("Approve", reason="the same fault")
    state, tasks = again.wait_for_end()
    assert (state, tasks) == ("success", succeeded | {"reprocess": "success", "run": "skipped"})
    assert list_used_waivers(lake)[1:] == [[("Anonymous", "the same fault")]]


def list_used_waivers(lake):
    """List user and reason of the waivers of each waived run."""
    ledger = DeltaTable(lake / "withheld" / "ledger").to_pyarrow_table().sort_by("commit").to_pylist()
    waivers = [json.loads(row["applied_waivers"]) for row in ledger if row["quality"] == "waived"]
    return [[(waiver["user"], waiver["reason"]) for waiver in used] for used in waivers]


def check_release(api, read_emissions):
    """Let a person publish one of two slices with rows in quarantine, over the REST API."""
    before, released = read_emissions(), Counter([("a", "01:05", "00:58"), ("c", "01:20", "01:20")])
    release = ApprovedRun(api, "withheld__release")
    body = release.wait_for_question()
    assert "**withheld: 3 rows of 2 slices in quarantine**" in body
    release.answer("Approve", slices=["2013-01-01T01:00Z"])
    state, tasks = release.wait_for_end()
    assert (state, tasks) == ("success", dict.fromkeys(("plan", "approve", "release", "report", "done"), "success"))
    assert read_emissions() - before == released

    release.clear("plan")
    state, tasks = release.wait_for_end()
    assert (state, tasks["plan"], tasks["approve"], tasks["release"]) == (
        "failed",
        "success",
        "failed",
        "upstream_failed",
    )
    assert get(release.question, bool, seconds=120)["body"] == body, "Airflow keeps the text of the first question"

    rejected = ApprovedRun(api, "withheld__release")
    assert "**withheld: 1 row of 1 slice in quarantine**" in rejected.wait_for_question()
    rejected.answer("Reject")
    state, tasks = rejected.wait_for_end()
    assert (state, tasks["release"], tasks["report"]) == ("success", "skipped", "skipped")
    assert read_emissions() - before == released


def count_rows_of_run_from_scratch(spark, environment, lake):
    """Count the rows of a new pipeline over the same inputs."""
    file = lake / "scratch.yaml"
    text = Path(environment["TIDEMARK_PIPELINES"], "clicked_views.yaml").read_text()
    file.write_text(text.replace("name: clicked_views", "name: scratch"))
    plan = create_plan(spark, load_pipeline(file), str(lake), Slices(end=datetime(2013, 1, 1, 3, tzinfo=UTC)))
    list(execute(spark, plan, lambda *_: None))
    return count_emissions(spark, lake, "scratch")


def count_emissions(spark, lake, name="clicked_views"):
    """Count the emissions of a pipeline by left user, and the times of both rows."""
    rows = spark.read.format("delta").load(str(lake / name / "emissions"))
    times = (f"date_format({side}_at, 'HH:mm')" for side in ("left", "right"))
    return Counter(map(tuple, rows.selectExpr("left_user", *times).collect()))


def check_slice_pages(url):
    """Check that the page of a pipeline shows its slices, and that a wrong token is refused, although all are admins.

    `test_slice_pages_server.py` has an Airflow with a login.
    """
    with urlopen(f"{url}?show=match", timeout=120) as response:
        page = response.read().decode()
    slices = [f"2013-01-01T0{hour}:00Z" for hour in range(3)]
    assert re.findall(r'class="match-equal" href="[^"]*/slices/([^"]+)"', page) == slices
    with pytest.raises(HTTPError, match="403"):
        urlopen(Request(url, headers={"Authorization": "Bearer wrong"}), timeout=120)


def test_airflow_local_boots_runs_comparison_and_approvals_and_stops_all_processes(
    spark, write, local_env, lake, telemetry
):
    """Start a range manually; after its commit the scheduler starts the comparison.

    Then a person approves the repair of late-landing rows, a waiver and a release.
    """
    variables, events, lines = telemetry
    file = Path(local_env["TIDEMARK_PIPELINES"], "clicked_views.yaml")
    text = file.read_text()
    file.write_text(text + "on_late_arriving_rows: reprocess\n")
    withheld = text.replace("name: clicked_views", "name: withheld").partition("compare:")[0] + WITHHELD
    file.with_name("withheld.yaml").write_text(withheld)
    rows = [(user, *(datetime.fromisoformat(f"2013-01-01T{at}Z") for at in times)) for user, *times in STREAMED]
    rows = [(user, left, user, right) for user, left, right in rows]
    schema = "left_user string, left_at timestamp, right_user string, right_at timestamp"
    write("streamed", rows, schema)
    airflow = start_airflow(local_env | variables)
    api = f"http://localhost:{local_env['AIRFLOW__API__PORT']}/api/v2"
    try:
        assert is_healthy(get(f"{api}/monitor/health", is_healthy, seconds=300))
        expected = DAGS | WITHHELD_DAGS
        dags = get(f"{api}/dags", lambda content: content["total_entries"] == len(expected), seconds=120)["dags"]
        assert {dag["dag_id"] for dag in dags if dag["is_paused"]} == expected
        assert get(f"{api}/importErrors", bool, seconds=5)["total_entries"] == 0
        for kind in ("range", "compare"):
            send(f"{api}/dags/clicked_views__{kind}", "PATCH", is_paused=False)
        send(f"{api}/dags/clicked_views__range/dagRuns", "POST", logical_date=None, conf={"to": "2013-01-01T03:00:00Z"})
        runs = f"{api}/dags/clicked_views__compare/dagRuns"
        compare_runs = get(runs, lambda content: {*list_states(content)} & {"success", "failed"}, seconds=600)
        assert list_states(compare_runs) == ["success"]
        assert compare_runs["dag_runs"][0]["run_type"] == "asset_triggered"
        agreement = spark.read.format("delta").load(str(lake / "clicked_views" / "agreement"))
        assert [row["same"] for row in agreement.orderBy("slice").collect()] == [2, 1, 1]
        check_slice_pages(api.removesuffix("/api/v2") + "/tidemark/pipelines/clicked_views")
        send(f"{api}/dags/clicked_views__compare", "PATCH", is_paused=True)
        instant = datetime.fromisoformat("2013-01-01T01:20Z")
        write("streamed", [("c", instant, "c", instant)], schema)
        check_repair(api, write, lambda: count_emissions(spark, lake))
        assert count_emissions(spark, lake) == count_rows_of_run_from_scratch(spark, local_env, lake)
        check_waiver(api, lake, lambda: count_emissions(spark, lake, "withheld"))
        check_release(api, lambda: count_emissions(spark, lake, "withheld"))
        assert list_listening_addresses(list_children(airflow)) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    finally:
        children = list_children(airflow)
        airflow.send_signal(signal.SIGINT)
        output, _ = airflow.communicate(timeout=120)

    check_lineage(events, lake)
    check_metrics(lines)
    assert (Path(local_env["TIDEMARK_AIRFLOW_HOME"]) / "airflow.log").stat().st_size > 0
    assert f"Airflow is at http://localhost:{local_env['AIRFLOW__API__PORT']} " in output
    assert airflow.returncode == 0
    assert len(children) > len(COMPONENTS)
    _, alive = psutil.wait_procs(children, timeout=5)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


def test_wait_task_defers_without_slot_or_jvm_and_skips_committed_slices(spark, local_env, lake, record_property):
    """Run Airflow with a single task slot: ten slices wait at a time, and another task still runs."""
    names = [f"w{number}" for number in range(10)]
    folder = Path(local_env["TIDEMARK_PIPELINES"])
    for name in names:
        (folder / f"{name}.yaml").write_text(WAITING.format(name=name))
    marks = {"feed": names, "until": [datetime(2013, 1, 1, 0, 59, tzinfo=UTC)] * len(names)}
    write_deltalake(lake / "marks", pa.table(marks))
    committed_file = folder / "clicked_views.yaml"
    text = committed_file.read_text().replace("slices: {", 'slices: {end: "2013-01-01T01:00:00Z", ')
    committed_file.write_text(text)
    plan = create_plan(spark, load_pipeline(committed_file), str(lake), Slices())
    list(execute(spark, plan, lambda *_: None))

    airflow = start_airflow(local_env | {"AIRFLOW__CORE__PARALLELISM": "1"})
    api = f"http://localhost:{local_env['AIRFLOW__API__PORT']}/api/v2"

    def get_tasks(dag_id):
        url = f"{api}/dags/{dag_id}/dagRuns/~/taskInstances"
        return {task["task_id"]: task for task in get(url, bool, seconds=120)["task_instances"]}

    def wait_for_state(dag_ids, task_id, state, seconds):
        """Wait until a task of each DAG has a state; return the DAGs whose task has it."""
        end = time.monotonic() + seconds
        reached = set()
        while time.monotonic() < end and reached != set(dag_ids):
            reached = {dag_id for dag_id in dag_ids if get_tasks(dag_id).get(task_id, {}).get("state") == state}
            time.sleep(1)
        return reached

    try:
        assert is_healthy(get(f"{api}/monitor/health", is_healthy, seconds=300))
        total = 4 * len(names) + len(DAGS)
        assert get(f"{api}/dags?limit=1", lambda content: content["total_entries"] == total, seconds=180)
        pools = get(f"{api}/pools", lambda content: content["total_entries"] == len(names) + 2, seconds=180)["pools"]
        assert {pool["name"]: pool["slots"] for pool in pools if pool["name"] in names} == dict.fromkeys(names, 1)
        waiting = [f"{name}__slice" for name in names]
        for dag_id in waiting:
            send(f"{api}/dags/{dag_id}", "PATCH", is_paused=False)
        assert wait_for_state(waiting, "wait", "deferred", seconds=240) == set(waiting)
        assert not [process for process in list_children(airflow) if process.name() == "java"]

        send(f"{api}/dags/clicked_views__slice", "PATCH", is_paused=False)
        assert wait_for_state(["clicked_views__slice"], "wait", "skipped", seconds=180)
        assert wait_for_state(waiting, "wait", "deferred", seconds=10) == set(waiting)
        record_property("seconds", get_tasks("clicked_views__slice")["wait"]["duration"])
        assert wait_for_state(["clicked_views__slice"], "run", "skipped", seconds=180)
        assert not [process for process in list_children(airflow) if process.name() == "java"]

        marks = {"feed": names[:1], "until": [datetime(2013, 1, 1, 1, tzinfo=UTC)]}
        write_deltalake(lake / "marks", pa.table(marks), mode="append")
        assert wait_for_state(waiting[:1], "wait", "success", seconds=180)
        assert wait_for_state(waiting[1:], "wait", "deferred", seconds=10) == set(waiting[1:])
    finally:
        airflow.send_signal(signal.SIGINT)
        airflow.communicate(timeout=120)


def test_airflow_local_with_port_in_use_ends_with_error_line(local_env):
    with socket.create_server(("127.0.0.1", int(local_env["AIRFLOW__API__PORT"]))):
        airflow = start_airflow(local_env)
        output, _ = airflow.communicate(timeout=10)

    assert airflow.returncode == 2
    assert output.startswith(f"airflow: port {local_env['AIRFLOW__API__PORT']} is in use.")
    assert output.count("\n") == 1
