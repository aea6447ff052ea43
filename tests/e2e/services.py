"""Postgres, and Airflow's services as docker-compose.yml has them, as processes of this machine."""

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
from tests.processes import free_ports, until

SERVICES = ("airflow-api-server", "airflow-dag-processor", "airflow-triggerer", "airflow-scheduler")
VARIABLE = re.compile(r"\$\{(?P<name>\w+)(:-(?P<default>[^}]*)|:\?[^}]*)\}")
ACCOUNT = "postgres"
"""Whom Debian's package makes; Postgres does not run as root."""


def postgres_programs():
    """The folder of Postgres' server programs, None where it is not installed (Debian: postgresql)."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    there = str(found[-1]) if found else shutil.which("initdb")
    return Path(there).resolve().parent if there else None


@contextmanager
def postgres(password):
    """A server of its own, with the database and the user that compose has; its port."""
    programs, (port,) = postgres_programs(), free_ports(1)
    who = {"user": ACCOUNT, "group": pwd.getpwnam(ACCOUNT).pw_gid} if os.geteuid() == 0 else {}
    folder = Path(tempfile.mkdtemp(prefix="tidemark-postgres-"))
    (folder / "password").write_text(password)
    if who:
        for path in (folder, folder / "password"):
            shutil.chown(path, ACCOUNT)
    data = ["-D", folder / "data"]
    made = [programs / "initdb", *data, "-U", "airflow", "-A", "scram-sha-256", "--pwfile", folder / "password"]
    subprocess.run([*made, "--no-sync"], cwd=folder, check=True, stdout=subprocess.DEVNULL, **who)
    options = ["-p", port, "-k", folder, "-h", "127.0.0.1", "-c", "fsync=off"]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen([programs / "postgres", *data, *options], cwd=folder, stderr=log, stdout=log, **who)
    try:
        until(lambda: _database(port, password), 60, "Postgres did not answer")
        yield port
    finally:
        server.terminate()
        server.wait(timeout=60)
        shutil.rmtree(folder)


def _database(port, password):
    with suppress(psycopg2.OperationalError):
        connection = psycopg2.connect(host="127.0.0.1", port=port, user="airflow", password=password, dbname="postgres")
        connection.autocommit = True
        connection.cursor().execute("CREATE DATABASE airflow")
        connection.close()
        return True
    return False


class Airflow:
    """Its services, started one by one, and its REST API as the admin of `.env` uses it."""

    def __init__(self, home, database, password, given):
        """`given` are further variables of all services, such as the lake and the cluster's."""
        self.home, self.parts = Path(home), {}
        self.port, *logs = free_ports(3)
        self.secrets = {
            "POSTGRES_PASSWORD": password,
            "AIRFLOW_FERNET_KEY": urlsafe_b64encode(secrets.token_bytes(32)).decode(),
            **{f"AIRFLOW_{name}": secrets.token_urlsafe(48) for name in ("SECRET_KEY", "JWT_SECRET", "ADMIN_PASSWORD")},
            "SPARK_SECRET": "",
        }
        text = (PROJECT / "docker-compose.yml").read_text()
        text = VARIABLE.sub(lambda found: found["default"] or self.secrets.get(found["name"], ""), text)
        # Hosts and folders of containers, as they are here.
        for there, here in {
            "postgres:5432": f"127.0.0.1:{database}",
            "airflow-api-server:8080": f"127.0.0.1:{self.port}",
            "localhost:8080": f"127.0.0.1:{self.port}",
            "/opt/airflow": str(self.home),
            "/opt/tidemark": str(PROJECT),
            "/tmp/pools.json": str(self.home / "pools.json"),
        }.items():
            text = text.replace(there, here)
        self.services = yaml.safe_load(text)["services"]
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "TIDEMARK_"))}
        self.environment = inherited | {"AIRFLOW_HOME": str(self.home), "PYTHONPATH": str(PROJECT / "include")}
        self.given = given | {
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": self.port,
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": logs[0],
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": logs[1],
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        }
        self.token = ""

    def _environment(self, service):
        own = {name: str(value) for name, value in self.services[service]["environment"].items()}
        return self.environment | own | self.given

    def _command(self, service):
        return [part.replace("$$", "$") for part in self.services[service]["command"]]

    def command(self, *arguments):
        """Run a command of Airflow's to its end, as in the scheduler's container."""
        program = Path(sys.executable).with_name("airflow")
        env = self._environment("airflow-scheduler")
        return subprocess.run([program, *arguments], env=env, capture_output=True, text=True, check=False)

    def log(self, service):
        """What a service has said so far."""
        return (self.home / f"{service}.log").read_text()

    @contextmanager
    def running(self):
        """All services, once they are healthy by their own checks; they leave no process behind."""
        env = self._environment("airflow-migrate")
        done = subprocess.run(self._command("airflow-migrate"), env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        with ExitStack() as stack:
            for service in SERVICES:
                stack.enter_context(self._running(service))
            until(lambda: self._is_healthy("airflow-api-server"), 180, "the API server did not answer")
            until(self._all_healthy, 180, "not all services were healthy")
            login = {"username": "admin", "password": self.secrets["AIRFLOW_ADMIN_PASSWORD"]}
            self.token = self._ask("POST", "/auth/token", login)["access_token"]
            yield self

    @contextmanager
    def _running(self, service):
        with (self.home / f"{service}.log").open("w") as log:
            env = self._environment(service)
            process = subprocess.Popen(
                self._command(service), env=env, cwd=self.home, stdout=log, stderr=log, start_new_session=True
            )
        self.parts[service] = process
        try:
            yield
        finally:
            started = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=30)
            for one in [*started, process]:
                with suppress(psutil.NoSuchProcess):
                    one.kill()
            process.wait(timeout=30)

    def _is_healthy(self, service):
        check = self.services[service]["healthcheck"]["test"][1:]
        return subprocess.run(check, env=self._environment(service), capture_output=True, check=False).returncode == 0

    def _all_healthy(self):
        parts = self._ask("GET", "/api/v2/monitor/health")
        return all(part["status"] == "healthy" for part in parts.values())

    def _ask(self, method, path, content=None):
        data = None if content is None else json.dumps(content).encode()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"}
        request = Request(f"http://127.0.0.1:{self.port}{path}", data, headers, method=method)
        try:
            with urlopen(request, timeout=30) as answer:
                return json.load(answer)
        except HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.code} {error.read().decode()}") from None

    def get(self, path):
        """Ask of the API."""
        return self._ask("GET", f"/api/v2/{path}")

    def send(self, method, path, **content):
        """Change something by the API."""
        return self._ask(method, f"/api/v2/{path}", content)

    def runs(self, dag):
        """Runs of a DAG, oldest first."""
        return self.get(f"dags/{dag}/dagRuns?order_by=id&limit=100")["dag_runs"]

    def tasks(self, dag, run):
        """The tasks of a run, by their names."""
        found = self.get(f"dags/{dag}/dagRuns/{run}/taskInstances")["task_instances"]
        return {one["task_id"]: one for one in found}

    def drivers(self):
        """The processes of Spark's drivers, which run where tasks do."""
        scheduler = psutil.Process(self.parts["airflow-scheduler"].pid)
        found = []
        for one in scheduler.children(recursive=True):
            with suppress(psutil.Error):
                if any(part.endswith("spark_application.py") for part in one.cmdline()):
                    found.append(one)
        return found
