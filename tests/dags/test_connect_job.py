"""Jobs of a worker with a Spark Connect server: how they are stopped, and the errors of their tasks."""

import sys
from threading import Event, Thread

import pytest
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import BaseHook, Connection
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowNotFoundException

from tests.conftest import write_pipeline
from tidemark.airflow import Project, RunSlices, connect_job, metrics, status_queries
from tidemark.airflow.connect_job import ConnectJob

BUSY_JOB = """#!{python}
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("started", flush=True)
time.sleep(60)
"""


@pytest.fixture
def create_task(tmp_path, monkeypatch):
    """Return a function that creates a task for a pipeline file and a connection."""

    def create(command, name, **connection):
        monkeypatch.setattr(RunSlices, "_require_connection", lambda _: Connection(conn_id="spark", **connection))
        file, project = tmp_path / f"{name}.yaml", Project(tmp_path)
        return RunSlices(task_id="run", file=file, project=project, options=[], command=command)

    return create


def test_stopped_job_that_ignores_the_signal_is_killed(tmp_path, monkeypatch):
    python, started, codes = tmp_path / "python", Event(), []
    python.write_text(BUSY_JOB.format(python=sys.executable))
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(connect_job, "STOP_SECONDS", 0.1)
    job = ConnectJob("sc://localhost", None, {})
    thread = Thread(target=lambda: codes.append(job.run([], lambda *_: started.set())))
    thread.start()
    assert started.wait(30)

    job.stop()

    thread.join(30)
    assert codes == [-9]


def test_job_on_connect_server_fails_with_its_error_line(create_task):
    task = create_task(("run",), "no_such", conn_type="spark", host="sc://localhost", port=1)

    with pytest.raises(AirflowFailException, match=r"^there is no pipeline file \S*no_such\.yaml\. Check the path\.$"):
        task.execute({})


@pytest.mark.parametrize(
    ("name", "remedy"), [("my_spark", "or set AIRFLOW_CONN_MY_SPARK="), ("my-spark", "is missing. Add it in Airflow$")]
)
def test_missing_connection_is_advised_as_variable_only_if_a_shell_can_export_it(tmp_path, monkeypatch, name, remedy):
    def raise_not_found(_):
        raise AirflowNotFoundException

    monkeypatch.setattr(BaseHook, "get_connection", raise_not_found)
    file = tmp_path / "orders.yaml"
    task = RunSlices(task_id="run", file=file, project=Project(tmp_path), options=[], conn_id=name)

    with pytest.raises(AirflowFailException, match=remedy):
        task.execute({})


def test_error_of_metrics_does_not_replace_error_of_comparison(create_task, monkeypatch, tmp_path, caplog):
    def fail(error):
        def raise_error(*_):
            raise error

        return raise_error

    write_pipeline(tmp_path / "orders.yaml", name="orders")
    monkeypatch.setattr(SparkSubmitOperator, "execute", fail(AirflowException("the job failed")))
    monkeypatch.setattr(metrics, "_is_enabled", lambda: True)
    monkeypatch.setattr(status_queries, "count_agreement", fail(OSError("no storage")))
    task = create_task(("compare", "run", "--save"), "orders", conn_type="spark", host="local[2]")

    with pytest.raises(AirflowException, match="the job failed"):
        task.execute({})

    assert "metrics of orders were not sent: no storage" in caplog.text
