"""`bin/airflow-local` boots a real Airflow, whose scheduler runs what it should, and leaves nothing behind."""

import json
import signal
import socket
import subprocess
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from urllib.request import Request, urlopen

import psutil
import pytest

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


def test_it_boots_compares_what_was_committed_and_ends_with_all_that_it_started(spark, write, local, lake):
    """A range, run by hand, commits slices: the scheduler then runs the comparison by itself."""
    rows = [(user, *(datetime.fromisoformat(f"2013-01-01T{at}Z") for at in times)) for user, *times in STREAMED]
    rows = [(user, left, user, right) for user, left, right in rows]
    write("streamed", rows, "left_user string, left_at timestamp, right_user string, right_at timestamp")
    airflow = start(local)
    api = f"http://localhost:{local['AIRFLOW__API__PORT']}/api/v2"
    try:
        assert healthy(get(f"{api}/monitor/health", healthy, seconds=100))
        shown = get(f"{api}/dags", lambda answer: answer["total_entries"] == len(DAGS), seconds=30)["dags"]
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
    assert (Path(local["TIDEMARK_AIRFLOW_HOME"]) / "standalone.log").stat().st_size > 0
    assert f"Airflow is at http://localhost:{local['AIRFLOW__API__PORT']} " in told
    assert airflow.returncode == 0
    assert len(started) > len(COMPONENTS)
    _, left = psutil.wait_procs(started, timeout=5)
    assert [process for process in left if process.status() != psutil.STATUS_ZOMBIE] == []


def test_a_taken_port_is_refused_in_one_line(local):
    with socket.create_server(("127.0.0.1", int(local["AIRFLOW__API__PORT"]))):
        airflow = start(local)
        told, _ = airflow.communicate(timeout=10)
    assert airflow.returncode == 2
    assert told.startswith(f"airflow: port {local['AIRFLOW__API__PORT']} is taken;")
    assert told.count("\n") == 1
