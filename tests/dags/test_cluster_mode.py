"""A real Airflow and a real standalone cluster, whose workers run the drivers of jobs (cluster deploy mode)."""

import json
import os
import signal
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
from deltalake import DeltaTable

from tests.conftest import PROJECT, write_pipeline
from tests.dags.test_airflow_local import get, is_healthy, list_children, send, start_airflow
from tests.processes import find_free_ports, wait_for
from tests.spark.sample_lake import SETTINGS, write_two_hours
from tests.spark.standalone_cluster import run_cluster
from tidemark.config.cluster import SPARK_SECRET_VARIABLE

TIMES = {"from": "2024-01-01T00:00Z", "to": "2024-01-01T02:00Z"}

pytestmark = [pytest.mark.slow, pytest.mark.skipif(
    not (PROJECT / ".venv-worker" / ".installed").exists(), reason="make cluster has not installed .venv-worker"
)]  # fmt: skip


def read(url):
    """Return the JSON content of a page, which can take long on a busy machine."""
    with urlopen(url, timeout=60) as response:
        return json.load(response)


def get_state(task):
    """Return the values that Airflow stores for a task."""
    return [row["value"] for row in read(f"{task}/state-store")["task_state_store"]]


class Airflow:
    """A local Airflow with a pipeline that submits to a cluster."""

    def __init__(self, url, home):
        self.url, self.home = url, home

    def start_run(self, dag, **conf):
        """Start a run of a DAG; return the address of its task `run`."""
        send(f"{self.url}/dags/{dag}", "PATCH", is_paused=False)
        run = send(f"{self.url}/dags/{dag}/dagRuns", "POST", logical_date=None, conf=conf)["dag_run_id"]
        return f"{self.url}/dags/{dag}/dagRuns/{run}/taskInstances/run"

    def wait_for_driver(self, task):
        """Wait until the driver of a task is stored; return its id."""
        [driver] = wait_for(lambda: get_state(task), 600, "no driver was stored", every=2)
        return driver

    def read_log(self):
        """Return the logs of all tasks."""
        return "\n".join(log.read_text() for log in (self.home / "logs").rglob("*.log"))

    def wait_for_end(self, task):
        """Wait for the end of a task; return it."""

        def find_ended_task():
            content = read(task)
            return content if content["state"] in {"success", "failed"} else None

        return wait_for(find_ended_task, 600, f"{task} did not end", every=2)


@contextmanager
def run_airflow(environment):
    """Run a local Airflow for the block."""
    process = start_airflow(environment)
    url = f"http://localhost:{environment['AIRFLOW__API__PORT']}/api/v2"
    try:
        assert is_healthy(get(f"{url}/monitor/health", is_healthy, seconds=300))
        assert get(f"{url}/dags", lambda content: content["total_entries"], seconds=180)["total_entries"]
        yield Airflow(url, Path(environment["TIDEMARK_AIRFLOW_HOME"]))
    finally:
        children = list_children(process)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
        assert children


def list_drivers(cluster):
    """Return the states of all drivers of a cluster by id."""
    master = read(cluster["master"])
    return {driver["id"]: driver["state"] for driver in [*master["activedrivers"], *master["completeddrivers"]]}


@pytest.fixture
def cluster(tmp_path):
    with run_cluster(tmp_path / "cluster") as cluster:
        yield cluster


@pytest.fixture
def airflow(cluster, environment, tmp_path):
    """Run an Airflow whose connection asks for cluster deploy mode."""
    (tmp_path / "pipelines").mkdir()
    write_pipeline(
        tmp_path / "pipelines/orders.yaml",
        airflow={"retry_delay": "5 seconds"},
        cluster={"executors": 1, "executor_cores": 1, "executor_memory": "600m"},
        **SETTINGS,
    )
    write_two_hours(tmp_path / "lake", 200)
    connection = json.loads(cluster["env"]["AIRFLOW_CONN_SPARK_DEFAULT"])
    ui_port = int(cluster["master"].rsplit(":", 1)[1].partition("/")[0])
    connection["extra"] = {"deploy-mode": "cluster", "ui-port": ui_port}
    [port] = find_free_ports(1)
    settings = {name: value for name, value in cluster["env"].items() if name != SPARK_SECRET_VARIABLE}
    settings |= {
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(connection),
        "AIRFLOW__API__PORT": port,
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",  # on a busy machine
        "SPARK_DRIVER_MEMORY": "900m",
        "TIDEMARK_AIRFLOW_HOME": str(tmp_path / "home"),
        "TIDEMARK_LAKE": str(tmp_path / "lake"),
        "TIDEMARK_PIPELINES": str(tmp_path / "pipelines"),
    }
    with run_airflow(environment | settings) as airflow:
        yield airflow


def test_task_finds_its_driver_stops_it_and_reports_its_error(airflow, cluster, tmp_path):
    """Kill a task's process, mark another task as failed, and let a third job fail."""
    task = airflow.start_run("orders__range", to=TIMES["to"], slices_per_job=1)
    driver = airflow.wait_for_driver(task)
    os.kill(read(task)["pid"], signal.SIGKILL)
    ended = airflow.wait_for_end(task)

    assert (ended["state"], ended["try_number"]) == ("success", 2)
    assert list_drivers(cluster) == {driver: "FINISHED"}
    ledger = DeltaTable(str(tmp_path / "lake/orders/ledger")).to_pyarrow_table().to_pylist()
    assert sorted((f"{row['slice']:%H:%M}", row["attempt"]) for row in ledger) == [("00:00", 1), ("01:00", 1)]
    assert get_state(task) == [], "if it is cleared, it runs its job again"

    task = airflow.start_run("orders__reprocess", dry_run=False, **TIMES)
    stopped_driver = airflow.wait_for_driver(task)
    send(task, "PATCH", new_state="failed")

    wait_for(lambda: list_drivers(cluster)[stopped_driver] == "KILLED", 60, "the driver was not killed")

    task = airflow.start_run("orders__reprocess", dry_run=False, **TIMES | {"from": "2024-01-01T00:30Z"})
    ended = airflow.wait_for_end(task)

    assert (ended["state"], ended["try_number"]) == ("failed", 1)
    assert sorted(list_drivers(cluster).values()) == ["FAILED", "FINISHED", "KILLED"]
    log = airflow.read_log()
    assert "2024-01-01T00:30Z is not on a slice boundary" in log
    assert cluster["env"][SPARK_SECRET_VARIABLE] not in log
