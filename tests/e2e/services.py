"""Run Postgres and the Airflow services of docker-compose.yml as processes."""

import json
import os
import pwd
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from base64 import urlsafe_b64encode
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import psutil
import psycopg2
import yaml

from tests.conftest import PROJECT
from tests.processes import find_free_ports, wait_for

SERVICES = ("airflow-api-server", "airflow-dag-processor", "airflow-triggerer", "airflow-scheduler")
VARIABLE = re.compile(r"\$\{(?P<name>\w+)(:-(?P<default>[^}]*)|:\?[^}]*)\}")
ACCOUNT = "postgres"
"""User of Debian's package; Postgres does not run as root."""


def find_postgres_programs():
    """Find the folder of Postgres' server programs, None if it is not installed (Debian: postgresql)."""
    paths = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    path = str(paths[-1]) if paths else shutil.which("initdb")
    return Path(path).resolve().parent if path else None


@contextmanager
def run_postgres(password):
    """Run a server with the database and the user of docker-compose.yml; yield its port."""
    programs, (port,) = find_postgres_programs(), find_free_ports(1)
    account = {"user": ACCOUNT, "group": pwd.getpwnam(ACCOUNT).pw_gid} if os.geteuid() == 0 else {}
    folder = Path(tempfile.mkdtemp(prefix="tidemark-postgres-"))
    (folder / "password").write_text(password)
    if account:
        for path in (folder, folder / "password"):
            shutil.chown(path, ACCOUNT)
    data = ["-D", folder / "data"]
    initdb = [programs / "initdb", *data, "-U", "airflow", "-A", "scram-sha-256", "--pwfile", folder / "password"]
    subprocess.run([*initdb, "--no-sync"], cwd=folder, check=True, stdout=subprocess.DEVNULL, **account)
    options = ["-p", port, "-k", folder, "-h", "127.0.0.1", "-c", "fsync=off"]
    command = [programs / "postgres", *data, *options]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(command, cwd=folder, stderr=log, stdout=log, **account)
    try:
        wait_for(lambda: _create_database(port, password), 60, "Postgres did not answer")
        yield port
    finally:
        server.terminate()
        server.wait(timeout=60)
        shutil.rmtree(folder)


def _create_database(port, password):
    """Create Airflow's database; return False if the server does not accept connections yet."""
    with suppress(psycopg2.OperationalError):
        connection = psycopg2.connect(host="127.0.0.1", port=port, user="airflow", password=password, dbname="postgres")
        connection.autocommit = True
        connection.cursor().execute("CREATE DATABASE airflow")
        connection.close()
        return True
    return False


class Airflow:
    """Airflow's services and its REST API as the admin of `.env`."""

    def __init__(self, home, database_port, password, variables):
        """Create the environments of all services; `variables` is added to each, as the lake and the cluster."""
        self.home, self.processes = Path(home), {}
        self.port, *logs = find_free_ports(3)
        self.secrets = {
            "POSTGRES_PASSWORD": password,
            "AIRFLOW_FERNET_KEY": urlsafe_b64encode(secrets.token_bytes(32)).decode(),
            **{f"AIRFLOW_{name}": secrets.token_urlsafe(48) for name in ("SECRET_KEY", "JWT_SECRET", "ADMIN_PASSWORD")},
            "SPARK_SECRET": "",
        }
        text = (PROJECT / "docker-compose.yml").read_text()
        text = VARIABLE.sub(lambda match: match["default"] or self.secrets.get(match["name"], ""), text)
        # Replace hosts and folders of containers with those of this machine.
        for in_container, local in {
            "postgres:5432": f"127.0.0.1:{database_port}",
            "airflow-api-server:8080": f"127.0.0.1:{self.port}",
            "localhost:8080": f"127.0.0.1:{self.port}",
            "/opt/airflow": str(self.home),
            "/opt/tidemark": str(PROJECT),
            "/tmp/pools.json": str(self.home / "pools.json"),
        }.items():
            text = text.replace(in_container, local)
        self.services = yaml.safe_load(text)["services"]
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "TIDEMARK_"))}
        self.environment = inherited | {"AIRFLOW_HOME": str(self.home), "PYTHONPATH": str(PROJECT / "include")}
        self.variables = variables | {
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": self.port,
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": logs[0],
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": logs[1],
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        }
        self.token = ""

    def _get_environment(self, service):
        own = {name: str(value) for name, value in self.services[service]["environment"].items()}
        return self.environment | own | self.variables

    def _get_command(self, service):
        return [part.replace("$$", "$") for part in self.services[service]["command"]]

    def run_command(self, *arguments):
        """Run an Airflow command to its end, as in the scheduler's container."""
        program = Path(sys.executable).with_name("airflow")
        env = self._get_environment("airflow-scheduler")
        return subprocess.run([program, *arguments], env=env, capture_output=True, text=True, check=False)

    def read_log(self, service):
        """Read the log of a service."""
        return (self.home / f"{service}.log").read_text()

    @contextmanager
    def run(self):
        """Run all services for the block, which begins once they are healthy; end all their processes."""
        env, migrate = self._get_environment("airflow-migrate"), self._get_command("airflow-migrate")
        process = subprocess.run(migrate, env=env, capture_output=True, text=True, check=False)
        assert process.returncode == 0, process.stderr
        with ExitStack() as stack:
            for service in SERVICES:
                stack.enter_context(self._run_service(service))
            wait_for(lambda: self._is_healthy("airflow-api-server"), 180, "the API server did not answer")
            wait_for(self._are_all_healthy, 180, "not all services were healthy")
            login = {"username": "admin", "password": self.secrets["AIRFLOW_ADMIN_PASSWORD"]}
            self.token = self._request("POST", "/auth/token", login)["access_token"]
            yield self

    @contextmanager
    def _run_service(self, service):
        with (self.home / f"{service}.log").open("w") as log:
            env = self._get_environment(service)
            process = subprocess.Popen(
                self._get_command(service), env=env, cwd=self.home, stdout=log, stderr=log, start_new_session=True
            )
        self.processes[service] = process
        try:
            yield
        finally:
            children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=30)
            for running in [*children, process]:
                with suppress(psutil.NoSuchProcess):
                    running.kill()
            process.wait(timeout=30)

    def _is_healthy(self, service):
        check = self.services[service]["healthcheck"]["test"][1:]
        return (
            subprocess.run(check, env=self._get_environment(service), capture_output=True, check=False).returncode == 0
        )

    def _are_all_healthy(self):
        services = self._request("GET", "/api/v2/monitor/health")
        return all(service["status"] == "healthy" for service in services.values())

    def _request(self, method, path, content=None):
        """Send a request to the API server; return the JSON content of the response."""
        data = None if content is None else json.dumps(content).encode()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"}
        request = Request(f"http://127.0.0.1:{self.port}{path}", data, headers, method=method)
        try:
            with urlopen(request, timeout=30) as response:
                return json.load(response)
        except HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.code} {error.read().decode()}") from None

    def get(self, path):
        """Read from the REST API."""
        return self._request("GET", f"/api/v2/{path}")

    def send(self, method, path, **content):
        """Send a change to the REST API."""
        return self._request(method, f"/api/v2/{path}", content)

    def list_runs(self, dag):
        """List the runs of a DAG, oldest first."""
        return self.get(f"dags/{dag}/dagRuns?order_by=id&limit=100")["dag_runs"]

    def get_tasks(self, dag, run):
        """Return the task instances of a run by task id."""
        instances = self.get(f"dags/{dag}/dagRuns/{run}/taskInstances")["task_instances"]
        return {instance["task_id"]: instance for instance in instances}

    def find_drivers(self):
        """Find the processes of Spark drivers, which are children of the scheduler."""
        scheduler = psutil.Process(self.processes["airflow-scheduler"].pid)
        drivers = []
        for process in scheduler.children(recursive=True):
            with suppress(psutil.Error):
                if any(part.endswith("spark_application.py") for part in process.cmdline()):
                    drivers.append(process)
        return drivers
