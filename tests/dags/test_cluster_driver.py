"""Tasks in cluster deploy mode: what is submitted, how a driver is followed, found again and stopped."""

import json
import sys
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qs, urlsplit

import pytest
from airflow.sdk import BaseHook, Connection
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from tests.conftest import write_pipeline
from tidemark.airflow import Project, RunSlices, cluster_driver

SUBMIT = """#!{python}
import json, os, sys
with open({file!r}, "w") as file:
    json.dump([sys.argv[1:], dict(os.environ)], file)
print("Driver successfully submitted as driver-20240101-0001")
"""
LOGS = {
    "stdout": "committed 2 slices\nerror: there is no table views\n",
    "stderr": "Caused by: org.apache.spark.SparkUserAppException: User application exited with 64\n\t... 6 more\n",
}
SENT = {"JAVA_HOME", "PATH", "PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "_SPARK_AUTH_SECRET"}
SENT |= {"SPARK_CONF_DIR", "SPARK_DRIVER_MEMORY", "SPARK_SUBMIT_OPTS"}


class Store(dict):
    """Airflow's state store of a task."""

    set, delete = dict.__setitem__, dict.__delitem__


class Master:
    """Page of a master, and the page of its only worker. Each poll returns the next state; the last one remains."""

    def __init__(self, *states):
        self.states, self.killed, self.status = list(states), [], "ALIVE"

    def respond(self, path, query):
        """Return the content of a page."""
        if path == "/log/":
            return f"==== Bytes 0-9 of 9 of {query['driverId']} ====\n{LOGS[query['logType']]}"
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        driver = {"id": "driver-20240101-0001", "state": state, "worker": "w"}
        kind = "activedrivers" if state == "RUNNING" else "completeddrivers"
        page = {"status": self.status, "workers": [{"id": "w", "webuiaddress": self.url}]}
        return json.dumps({"activedrivers": [], "completeddrivers": [], **page, kind: [driver] if state else []})

    @contextmanager
    def serve(self):
        """Serve the pages for the block."""
        master = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                url = urlsplit(self.path)
                query = {name: values[0] for name, values in parse_qs(url.query).items()}
                self.send_response(200)
                self.end_headers()
                self.wfile.write(master.respond(url.path, query).encode())

            def do_POST(self):
                master.killed.append(self.path)
                self.send_response(302)
                self.send_header("Location", "/")
                self.end_headers()

            def log_message(self, *_):
                pass

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            self.url = f"http://127.0.0.1:{server.server_port}"
            Thread(target=server.serve_forever, daemon=True).start()
            yield server.server_port
            server.shutdown()


@pytest.fixture
def run_task(tmp_path, monkeypatch):
    """Return a function that runs a task on a master, and returns what it has submitted, None if nothing."""
    monkeypatch.setattr(cluster_driver, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(cluster_driver, "_MAX_FAILURES", 2)
    monkeypatch.setenv("TIDEMARK_LOG_FORMAT", "text")
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", "s3cret of Airflow")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret of another program")
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    submitted, program, jars = tmp_path / "submitted", tmp_path / "spark-submit", tmp_path / ".jars"
    program.write_text(SUBMIT.format(python=sys.executable, file=str(submitted)))
    program.chmod(0o755)
    jars.mkdir()
    for name in ("a.jar", "b.jar"):
        (jars / name).touch()
    write_pipeline(tmp_path / "orders.yaml", notify=[{"slack": {"connection": "tidemark_slack"}}])

    def run(master, store, **settings):
        with master.serve() as port:
            extra = json.dumps({"deploy-mode": "cluster", "ui-port": port})
            spark = Connection(
                conn_id="spark", conn_type="spark", host="spark://127.0.0.1", port=7077, password="s3cret", extra=extra
            )
            slack = Connection(conn_id="tidemark_slack", conn_type="slackwebhook", password="s3cret of a receiver")
            connections = {"spark_default": spark, "tidemark_slack": slack}
            monkeypatch.setattr(BaseHook, "get_connection", staticmethod(connections.__getitem__))
            file, project = tmp_path / "orders.yaml", Project(tmp_path)
            task = RunSlices(
                task_id="run", file=file, project=project, options=["--to", "T"], name="orders", **settings
            )
            task._spark_binary = str(program)
            submitted.unlink(missing_ok=True)
            try:
                task.execute({"task_state_store": store})
            finally:
                run.task = task
                if process := task._hook._submit_sp:
                    process.stdout.close()
                run.submitted = json.loads(submitted.read_text()) if submitted.exists() else None
        return run.submitted

    return run


def test_python_program_is_submitted_by_its_runner_and_with_secrets_in_the_environment_only(run_task, tmp_path):
    store = Store()

    arguments, environment = run_task(
        Master("RUNNING", "FINISHED"), store, conf={"spark.driver.extraJavaOptions": "-Da=b"}
    )

    at = arguments.index(str(tmp_path / ".jars" / "a.jar"))
    program, *rest = arguments[at + 1 :]
    assert program.endswith("spark_application.py")
    assert rest == ["", "run", str(tmp_path / "orders.yaml"), "--lake", str(tmp_path / "lake"), "--to", "T"]
    options = dict(zip(arguments[:at:2], arguments[1:at:2], strict=True))
    assert options["--class"] == "org.apache.spark.deploy.PythonRunner"
    assert options["--deploy-mode"] == "cluster"
    assert options["--jars"] == str(tmp_path / ".jars" / "b.jar")
    java_options = next(value for value in arguments if value.startswith("spark.driver.extraJavaOptions="))
    assert "--add-opens=java.base/java.nio=ALL-UNNAMED" in java_options
    assert java_options.endswith(" -Da=b")
    assert "spark.authenticate=true" in arguments
    assert "s3cret" not in " ".join(arguments)
    assert environment["_SPARK_AUTH_SECRET"] == "s3cret"
    assert json.loads(environment.pop("AIRFLOW_CONN_TIDEMARK_SLACK"))["password"] == "s3cret of a receiver"
    assert environment["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert {name for name in environment if not name.startswith("TIDEMARK_")} <= SENT | {"LC_CTYPE"}
    assert environment["TIDEMARK_LOG_FORMAT"] == "text"
    assert store == {}, "a cleared task runs its job again"


@pytest.mark.parametrize("states", [("RUNNING", "FINISHED"), ("FINISHED",)])
def test_retry_finds_driver_that_runs_or_has_finished(run_task, states):
    store = Store(spark_job_id="driver-20240101-0001")

    assert run_task(Master(*states), store) is None

    assert store == {}


@pytest.mark.parametrize("state", ["FAILED", "KILLED", "ERROR", None])
def test_retry_submits_again_if_driver_has_failed_or_is_lost(run_task, state):
    assert run_task(Master(state, "RUNNING", "FINISHED"), Store(spark_job_id="driver-20240101-0001"))


def test_failed_driver_fails_task_with_error_line_of_its_log_and_without_retry(run_task):
    store = Store()

    with pytest.raises(AirflowFailException, match=r"^there is no table views$"):
        run_task(Master("RUNNING", "FAILED"), store)

    assert store == {"spark_job_id": "driver-20240101-0001"}


def test_killed_driver_is_retried(run_task, monkeypatch):
    monkeypatch.setitem(LOGS, "stderr", "")

    with pytest.raises(
        AirflowException, match=r"driver-20240101-0001 has ended: KILLED\.\ncommitted 2 slices"
    ) as raised:
        run_task(Master("KILLED"), Store())

    assert not isinstance(raised.value, AirflowFailException)


def test_master_that_is_not_active_fails_task_and_keeps_the_driver_for_its_retry(run_task):
    master, store = Master("RUNNING"), Store()
    master.status = "RECOVERING"

    with pytest.raises(AirflowException, match="no active master at http://127.0.0.1:.* Set ui-port"):
        run_task(master, store)

    assert store == {"spark_job_id": "driver-20240101-0001"}


def test_stopped_task_kills_its_driver(run_task):
    master = Master("FINISHED")
    run_task(master, Store())
    with master.serve() as port:
        run_task.task._cluster_driver._pages = [f"http://127.0.0.1:{port}"]

        run_task.task.on_kill()

    assert master.killed == ["/driver/kill/?id=driver-20240101-0001&terminate=true"]
