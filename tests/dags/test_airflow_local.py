"""`bin/airflow-local` boots a real Airflow, whose scheduler runs what it should, and leaves nothing behind."""

import json
import signal
import socket
import subprocess
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from urllib.request import Request, urlopen

import psutil
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.dags.conftest import WAITING
from tests.quality.fake_receivers import metrics, webhooks
from tidemark.config import load_pipeline
from tidemark.execution.run import execute
from tidemark.planning.plan import Request as Slices
from tidemark.planning.plan import create_plan

PROJECT = Path(__file__).parents[2]
COMPONENTS = {"metadatabase", "scheduler", "triggerer", "dag_processor"}
DAGS = {f"clicked_views__{kind}" for kind in ("slice", "range", "reprocess", "compare")}
STREAMED = [("a", "00:20", "00:15"), ("b", "00:59", "00:58"), ("a", "01:05", "00:58"), ("b", "02:30", "02:21")]


@pytest.fixture
def local(there, tmp_path):
    """Variables of a local Airflow whose home and ports are its own."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    api, worker_logs, trigger_logs = (str(one.getsockname()[1]) for one in listeners)
    for one in listeners:
        one.close()
    return there | {
        "TIDEMARK_AIRFLOW_HOME": str(tmp_path / "home"),
        "AIRFLOW__API__PORT": api,
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": worker_logs,
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": trigger_logs,
    }


def start(environment):
    command, pipe = [PROJECT / "bin/airflow-local"], subprocess.PIPE
    return subprocess.Popen(command, cwd="/", env=environment, stdout=pipe, stderr=subprocess.STDOUT, text=True)


def family(process):
    return psutil.Process(process.pid).children(recursive=True)


def get(url, until, seconds):
    """The first answer that will do, or the last one."""
    end = time.monotonic() + seconds
    answer = None
    while time.monotonic() < end and not (answer and until(answer)):
        with suppress(OSError), urlopen(url, timeout=5) as response:
            answer = json.load(response)
        time.sleep(0.5)
    return answer


def send(url, method, **content):
    """Change something."""
    request = Request(url, json.dumps(content).encode(), {"Content-Type": "application/json"}, method=method)
    with urlopen(request, timeout=30) as response:
        return json.load(response)


def states(answer):
    """Of the runs of a DAG."""
    return [run["state"] for run in answer["dag_runs"]]


def healthy(answer):
    return {name for name, part in answer.items() if part["status"] == "healthy"} == COMPONENTS


@pytest.fixture
def seen():
    """Variables of an Airflow that is seen from outside, and what OpenLineage and StatsD have had of it."""
    with webhooks() as (url, events), metrics() as (port, measured):
        transport = {"type": "http", "url": url, "endpoint": "lineage"}
        statsd = {"STATSD_ON": "True", "STATSD_HOST": "127.0.0.1", "STATSD_PORT": str(port)}
        given = {f"AIRFLOW__METRICS__{name}": value for name, value in statsd.items()}
        yield given | {"AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(transport)}, events, measured


def check_lineage(events, lake):
    """The inputs and the tables of each task that is over, and what was committed."""
    over = {e["job"]["name"]: e for _, _, e in events if e["eventType"] == "COMPLETE"}
    run, report, compare = (over[f"clicked_views__{task}"] for task in ("range.run", "range.report", "compare.compare"))
    names = {kind: {one["name"] for one in run[kind]} for kind in ("inputs", "outputs")}
    tables = {str(lake / "clicked_views" / name) for name in ("emissions", "late", "checkpoint", "ledger")}
    assert names == {"inputs": {str(lake / "clicks"), str(lake / "views")}, "outputs": tables}
    assert {one["namespace"] for one in (*run["inputs"], *run["outputs"])} == {"file"}
    rows = {Path(one["name"]).name: one.get("outputFacets", {}) for one in report["outputs"]}
    assert rows["emissions"]["outputStatistics"]["rowCount"] == len(STREAMED)
    told = report["run"]["facets"]["tidemark_slices"]
    assert (told["first"], told["end"], told["slices"]) == ("2013-01-01T00:00Z", "2013-01-01T03:00Z", 3)
    assert {Path(one["name"]).name for one in compare["inputs"]} == {"emissions", "streamed"}
    assert {Path(one["name"]).name for one in compare["outputs"]} == {"agreement"}


def check_metrics(measured):
    """What StatsD has had: name, value, kind."""
    found = dict(line.removeprefix("airflow.").split(":", 1) for line in measured if "tidemark." in line)
    assert found["tidemark.slices.clicked_views"] == "3|c"
    assert found["tidemark.emissions.clicked_views"] == f"{len(STREAMED)}|c"
    assert found["tidemark.rows.late.left.clicked_views"] == "0|c"
    assert found["tidemark.agreement.same.clicked_views"] == f"{len(STREAMED)}|g"
    assert found["tidemark.agreement.unexplained.clicked_views"] == "0|g"
    milliseconds, _, kind = found["tidemark.slice.duration.clicked_views"].partition("|")
    assert float(milliseconds) > 100
    assert kind == "ms"
    assert int(found["tidemark.behind.clicked_views"].removesuffix("|g")) > 24 * 365


def test_airflow_local_boots_runs_comparison_and_stops_all_processes(spark, write, local, lake, seen):
    """A range, run by hand, commits slices: the scheduler then runs the comparison by itself."""
    given, events, measured = seen
    rows = [(user, *(datetime.fromisoformat(f"2013-01-01T{at}Z") for at in times)) for user, *times in STREAMED]
    rows = [(user, left, user, right) for user, left, right in rows]
    write("streamed", rows, "left_user string, left_at timestamp, right_user string, right_at timestamp")
    airflow = start(local | given)
    api = f"http://localhost:{local['AIRFLOW__API__PORT']}/api/v2"
    try:
        assert healthy(get(f"{api}/monitor/health", healthy, seconds=300))
        shown = get(f"{api}/dags", lambda answer: answer["total_entries"] == len(DAGS), seconds=120)["dags"]
        assert {dag["dag_id"] for dag in shown if dag["is_paused"]} == DAGS
        assert get(f"{api}/importErrors", bool, seconds=5)["total_entries"] == 0
        for kind in ("range", "compare"):
            send(f"{api}/dags/clicked_views__{kind}", "PATCH", is_paused=False)
        send(f"{api}/dags/clicked_views__range/dagRuns", "POST", logical_date=None, conf={"to": "2013-01-01T03:00:00Z"})
        runs = f"{api}/dags/clicked_views__compare/dagRuns"
        compared = get(runs, lambda answer: {*states(answer)} & {"success", "failed"}, seconds=600)
        assert states(compared) == ["success"]
        assert compared["dag_runs"][0]["run_type"] == "asset_triggered"
        agreement = spark.read.format("delta").load(str(lake / "clicked_views" / "agreement"))
        assert [row["same"] for row in agreement.orderBy("slice").collect()] == [2, 1, 1]
    finally:
        started = family(airflow)
        airflow.send_signal(signal.SIGINT)
        told, _ = airflow.communicate(timeout=120)
    check_lineage(events, lake)
    check_metrics(measured)
    assert (Path(local["TIDEMARK_AIRFLOW_HOME"]) / "standalone.log").stat().st_size > 0
    assert f"Airflow is at http://localhost:{local['AIRFLOW__API__PORT']} " in told
    assert airflow.returncode == 0
    assert len(started) > len(COMPONENTS)
    _, left = psutil.wait_procs(started, timeout=5)
    assert [process for process in left if process.status() != psutil.STATUS_ZOMBIE] == []


def test_wait_task_defers_without_slot_or_jvm_and_skips_committed_slices(spark, local, lake, record_property):
    """One slot: that all ten wait at a time, and another task runs, shows that none of them holds it."""
    names = [f"w{number}" for number in range(10)]
    folder = Path(local["TIDEMARK_PIPELINES"])
    for name in names:
        (folder / f"{name}.yaml").write_text(WAITING.format(name=name))
    marks = {"feed": names, "until": [datetime(2013, 1, 1, 0, 59, tzinfo=UTC)] * len(names)}
    write_deltalake(lake / "marks", pa.table(marks))
    committed = folder / "clicked_views.yaml"
    text = committed.read_text().replace("slices: {", 'slices: {end: "2013-01-01T01:00:00Z", ')
    committed.write_text(text)
    plan = create_plan(spark, load_pipeline(committed), str(lake), Slices())
    list(execute(spark, plan, lambda *_: None))

    airflow = start(local | {"AIRFLOW__CORE__PARALLELISM": "1"})
    api = f"http://localhost:{local['AIRFLOW__API__PORT']}/api/v2"

    def tasks(dag_id):
        url = f"{api}/dags/{dag_id}/dagRuns/~/taskInstances"
        return {one["task_id"]: one for one in get(url, bool, seconds=120)["task_instances"]}

    def wait_for(dag_ids, task_id, state, seconds):
        """The DAGs whose task has come to that state."""
        end = time.monotonic() + seconds
        found = set()
        while time.monotonic() < end and found != set(dag_ids):
            found = {one for one in dag_ids if tasks(one).get(task_id, {}).get("state") == state}
            time.sleep(1)
        return found

    try:
        assert healthy(get(f"{api}/monitor/health", healthy, seconds=300))
        total = 3 * len(names) + len(DAGS)
        assert get(f"{api}/dags?limit=1", lambda answer: answer["total_entries"] == total, seconds=180)
        found = get(f"{api}/pools", lambda answer: answer["total_entries"] == len(names) + 2, seconds=180)
        assert {one["name"]: one["slots"] for one in found["pools"] if one["name"] in names} == dict.fromkeys(names, 1)
        waiting = [f"{name}__slice" for name in names]
        for dag_id in waiting:
            send(f"{api}/dags/{dag_id}", "PATCH", is_paused=False)
        assert wait_for(waiting, "wait", "deferred", seconds=240) == set(waiting)
        assert not [one for one in family(airflow) if one.name() == "java"]

        send(f"{api}/dags/clicked_views__slice", "PATCH", is_paused=False)
        assert wait_for(["clicked_views__slice"], "wait", "skipped", seconds=180)
        assert wait_for(waiting, "wait", "deferred", seconds=10) == set(waiting)
        record_property("seconds", tasks("clicked_views__slice")["wait"]["duration"])
        assert wait_for(["clicked_views__slice"], "run", "skipped", seconds=180)
        assert not [one for one in family(airflow) if one.name() == "java"]

        more = {"feed": names[:1], "until": [datetime(2013, 1, 1, 1, tzinfo=UTC)]}
        write_deltalake(lake / "marks", pa.table(more), mode="append")
        assert wait_for(waiting[:1], "wait", "success", seconds=180)
        assert wait_for(waiting[1:], "wait", "deferred", seconds=10) == set(waiting[1:])
    finally:
        airflow.send_signal(signal.SIGINT)
        airflow.communicate(timeout=120)


def test_airflow_local_with_port_in_use_ends_with_error_line(local):
    with socket.create_server(("127.0.0.1", int(local["AIRFLOW__API__PORT"]))):
        airflow = start(local)
        told, _ = airflow.communicate(timeout=10)
    assert airflow.returncode == 2
    assert told.startswith(f"airflow: port {local['AIRFLOW__API__PORT']} is taken;")
    assert told.count("\n") == 1
