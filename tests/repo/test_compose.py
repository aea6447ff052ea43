"""Tests of docker-compose.yml and the Dockerfile that need no container engine."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from contextlib import suppress
from importlib.metadata import distribution
from importlib.resources import files
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen

import jsonschema
import pytest
import yaml

from tests.conftest import write_pipeline
from tests.processes import find_free_ports, wait_for
from tests.spark.sample_lake import SETTINGS, read_rows, write_two_hours
from tidemark.airflow.connect_job import ConnectJob
from tidemark.config.cluster import CONNECT_TOKEN_VARIABLE, SPARK_SECRET_VARIABLE

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text()
VARIABLE = re.compile(r"\$\{(?P<name>\w+)(:-(?P<default>[^}]*)|:\?run bin/compose-env)\}")
PORT = {"airflow-api-server": 8080, "spark-master": 8090, "spark-history": 18080}
SECRETS = {
    *("POSTGRES_PASSWORD", "AIRFLOW_FERNET_KEY", "AIRFLOW_SECRET_KEY", "AIRFLOW_JWT_SECRET"),
    *("AIRFLOW_ADMIN_PASSWORD", "SPARK_SECRET", "SPARK_CONNECT_TOKEN"),
}


@pytest.fixture(scope="module")
def compose():
    return yaml.safe_load(VARIABLE.sub(lambda variable: variable["default"] or f"the-{variable['name']}", TEXT))


@pytest.fixture(scope="module")
def schema():
    return json.loads((files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json").read_text())


@pytest.fixture(scope="module")
def services(compose):
    return compose["services"]


@pytest.fixture(scope="module")
def own_services(services):
    """Return the services that run this project's image."""
    return {name: service for name, service in services.items() if name != "postgres"}


def test_compose_file_follows_specification(compose, schema):
    jsonschema.validate(compose, schema)


def test_compose_schema_rejects_misspelt_field(compose, schema):
    misspelt = compose | {"services": {"postgres": {"image": "postgres", "depend_on": []}}}
    with pytest.raises(jsonschema.ValidationError, match="depend_on"):
        jsonschema.validate(misspelt, schema)


def test_compose_secrets_have_no_default():
    assert {variable["name"] for variable in VARIABLE.finditer(TEXT) if variable["default"] is None} == SECRETS
    assert "$" not in VARIABLE.sub("", TEXT).replace("$$", "")


def test_compose_env_creates_secrets_readable_by_owner_only(tmp_path):
    both = [run_compose_env(tmp_path / name) for name in "ab"]

    for secrets in both:
        assert secrets.keys() == SECRETS
        assert min(map(len, secrets.values())) >= 32
        assert len(urlsafe_b64decode(secrets["AIRFLOW_FERNET_KEY"])) == 32
        assert quote(secrets["POSTGRES_PASSWORD"]) == secrets["POSTGRES_PASSWORD"]
    assert not set(both[0].values()) & set(both[1].values())
    assert (tmp_path / "a" / ".env").stat().st_mode & 0o077 == 0
    with pytest.raises(subprocess.CalledProcessError, match="exit status 2"):
        run_compose_env(tmp_path / "a")


def test_compose_env_adds_missing_secrets_to_existing_file(tmp_path):
    before = run_compose_env(tmp_path)
    lines = (tmp_path / ".env").read_text().splitlines()
    (tmp_path / ".env").write_text("\n".join(line for line in lines if not line.startswith("SPARK_CONNECT")))

    after = run_compose_env(tmp_path)

    assert after.keys() == SECRETS
    assert {name for name in SECRETS if after[name] != before[name]} == {"SPARK_CONNECT_TOKEN"}


def test_compose_env_pins_images_by_digest(tmp_path):
    first = run_compose_env(tmp_path, docker='echo sha256:$(echo "$*" | cksum | cut -c 1-5)')
    assert first.keys() == SECRETS | {"PYTHON_IMAGE", "POSTGRES_IMAGE"}
    assert re.fullmatch(r"python@sha256:\d+", first["PYTHON_IMAGE"])
    assert re.fullmatch(r"postgres@sha256:\d+", first["POSTGRES_IMAGE"])

    second = run_compose_env(tmp_path, "--digests", docker="echo sha256:beef")
    assert second == first | {"PYTHON_IMAGE": "python@sha256:beef", "POSTGRES_IMAGE": "postgres@sha256:beef"}

    defaults = {match["name"]: match["default"] for match in VARIABLE.finditer(TEXT) if "_IMAGE" in match[0]}
    script = (ROOT / "bin/compose-env").read_text()
    images = re.findall(r"^(?:python|postgres)=(.*)", script, re.MULTILINE)
    assert images == [defaults["PYTHON_IMAGE"], defaults["POSTGRES_IMAGE"]]
    assert f"ARG PYTHON_IMAGE={defaults['PYTHON_IMAGE']}" in (ROOT / "Dockerfile").read_text()


def test_compose_env_digests_keep_all_lines_of_user(tmp_path):
    run_compose_env(tmp_path)
    users = [
        "TIDEMARK_IMAGE=registry/tidemark:1",
        "NOTE=POSTGRES_IMAGE=x",
        "POSTGRES_IMAGE=mirror/postgres:17-bookworm",
    ]
    with (tmp_path / ".env").open("a") as file:
        file.write("\n".join(["PYTHON_IMAGE=python@sha256:01d", *users]))
    (tmp_path / ".env").chmod(0o640)
    before = (tmp_path / ".env").read_text().splitlines()

    run_compose_env(tmp_path, "--digests", docker="echo sha256:beef")

    lines = (tmp_path / ".env").read_text().splitlines()
    assert lines == [line for line in before if "01d" not in line] + ["PYTHON_IMAGE=python@sha256:beef"]
    assert (tmp_path / ".env").stat().st_mode & 0o777 == 0o640
    assert not (tmp_path / ".env.new").exists()


def run_compose_env(folder, *options, docker="exit 1"):
    """Run the script in a folder with a fake `docker`; return the variables of the `.env` file that it writes."""
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "bin/compose-env", folder / "bin")
    (folder / "bin/docker").write_text(f"#!/bin/sh\n{docker}\n")
    (folder / "bin/docker").chmod(0o755)
    path = f"{folder}/bin:{os.environ['PATH']}"
    subprocess.run([folder / "bin/compose-env", *options], env=os.environ | {"PATH": path}, check=True)
    return dict(line.split("=", 1) for line in (folder / ".env").read_text().splitlines())


def test_compose_services_share_an_image(own_services):
    assert {service["image"] for service in own_services.values()} == {"tidemark:0.1.0"}
    policies = {name: (service["pull_policy"], "build" in service) for name, service in own_services.items()}
    assert policies.pop("airflow-migrate") == ("build", True)
    assert set(policies.values()) == {("never", False)}


def test_compose_services_have_memory_limit_and_no_privileges(services, own_services):
    assert all("mem_limit" in service for service in services.values())
    assert all(service["cap_drop"] == ["ALL"] for service in own_services.values())


def test_compose_networks_separate_services(compose, services):
    networks = {name: service["networks"] for name, service in services.items() if "networks" in service}
    assert services.keys() - networks.keys() == {"spark-connect"}
    assert set(compose["networks"]) == {network for names in networks.values() for network in names}

    services_on = {
        network: {service for service, names in networks.items() if network in names} for network in compose["networks"]
    }
    assert compose["networks"]["database"] == {"internal": True}
    assert services_on["spark"] == {"spark-master", "spark-worker", "spark-history", "airflow-scheduler"}
    assert not services_on["database"] & {"spark-master", "spark-worker", "spark-history"}


def test_compose_spark_services_require_secrets(services):
    assert services["spark-worker"]["deploy"] == {"replicas": 2}

    for name in ("spark-master", "spark-worker", "spark-history"):
        assert services[name]["environment"][SPARK_SECRET_VARIABLE] == "the-SPARK_SECRET"
        assert "-Dspark.authenticate=true" in services[name]["environment"]["SPARK_DAEMON_JAVA_OPTS"]
    assert services["spark-master"]["environment"]["SPARK_MASTER_OPTS"] == "-Dspark.master.rest.enabled=false"
    assert services["spark-connect"]["environment"][CONNECT_TOKEN_VARIABLE] == "the-SPARK_CONNECT_TOKEN"

    passwords = {name: get_connection(services, name)["password"] for name in ("default", "submit")}
    assert passwords == {"default": "the-SPARK_CONNECT_TOKEN", "submit": "the-SPARK_SECRET"}

    for name, service in services.items():
        assert "the-" not in json.dumps(service.get("command")), name


def get_connection(services, name):
    """Return the connection `spark_NAME` of Airflow's services."""
    return json.loads(services["airflow-scheduler"]["environment"][f"AIRFLOW_CONN_SPARK_{name.upper()}"])


def test_compose_api_server_requires_login(services):
    environment = services["airflow-api-server"]["environment"]
    assert "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS" not in environment
    assert environment["AIRFLOW_ADMIN_PASSWORD"] == "the-AIRFLOW_ADMIN_PASSWORD"
    assert all("AIRFLOW_ADMIN_PASSWORD" not in service["environment"] for name, service in services.items()
               if name != "airflow-api-server")  # fmt: skip


def test_compose_runs_all_airflow_components(own_services):
    commands = {
        tuple(service["command"][:2]) for service in own_services.values() if service["command"][0] == "airflow"
    }
    assert own_services["airflow-api-server"]["command"][-1].endswith("exec airflow api-server")
    assert own_services["airflow-migrate"]["command"][-1].startswith("airflow db migrate &&")

    commands |= {("airflow", "api-server"), ("airflow", "db")}
    subcommands = ("api-server", "dag-processor", "db", "scheduler", "triggerer")

    assert commands == {("airflow", subcommand) for subcommand in subcommands}


@pytest.mark.slow
def test_api_server_command_accepts_password(services, tmp_path):
    """Run the command as a process on SQLite, and use its health check and login."""
    (port,) = find_free_ports(1)
    service = services["airflow-api-server"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    env |= {name: str(value) for name, value in service["environment"].items()}
    env |= {"AIRFLOW_HOME": str(tmp_path), "AIRFLOW__API__PORT": str(port), "AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path)}
    env |= {"AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(tmp_path / "passwords.json")}
    env |= {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{tmp_path}/airflow.db"}
    env |= {"AIRFLOW__CORE__FERNET_KEY": urlsafe_b64encode(bytes(32)).decode()}
    subprocess.run(["airflow", "db", "migrate"], env=env, check=True)
    command = [part.replace("$$", "$") for part in service["command"]]
    health = [part.replace("8080", str(port)) for part in service["healthcheck"]["test"][1:]]
    health = [part.replace("/opt/tidemark", str(ROOT)) for part in health]
    server = subprocess.Popen(command, env=env, start_new_session=True)
    try:
        for _ in range(60):
            if subprocess.run(health, capture_output=True, check=False).returncode == 0:
                break
            time.sleep(2)
        assert [log_in(port, password) for password in ("wrong", env["AIRFLOW_ADMIN_PASSWORD"])] == [401, 201]
        assert (tmp_path / "passwords.json").stat().st_mode & 0o077 == 0
        with pytest.raises(HTTPError, match="401"):
            urlopen(f"http://127.0.0.1:{port}/api/v2/dags", timeout=10)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(timeout=60)


@pytest.mark.slow
def test_connect_server_command_runs_slices(services, tmp_path):
    """Run the command as a process; use its health check, which needs the token, and run a job by its connection."""
    (port,) = find_free_ports(1)
    service = services["spark-connect"]
    commands = (service["command"], service["healthcheck"]["test"][1:])
    command, health = ([part.replace("15002", port) for part in parts] for parts in commands)
    env = os.environ | {"PYTHONPATH": str(ROOT / "include"), "TIDEMARK_JARS": str(ROOT / ".jars")}
    lake, file = write_two_hours(tmp_path / "lake", 60), tmp_path / "orders.yaml"
    write_pipeline(file, name="orders", **SETTINGS)

    def is_healthy(**variables):
        return subprocess.run(health, env=env | variables, capture_output=True, check=False).returncode == 0

    with (tmp_path / "log").open("w") as log:
        server_env = env | service["environment"]
        server = subprocess.Popen(command, env=server_env, cwd=tmp_path, stderr=log, stdout=log)
    try:
        wait_for(lambda: is_healthy(**service["environment"]), 120)
        assert not is_healthy()
        connection, lines = get_connection(services, "default"), []
        job = ConnectJob(f"{connection['host']}:{port}", connection["password"], {"PYTHONPATH": env["PYTHONPATH"]})
        code = job.run(["run", str(file), "--lake", str(lake)], lambda _, line: lines.append(line))
        assert code == 0, lines
        assert read_rows(lake / "orders" / "emissions").total() > 10
    finally:
        server.terminate()
        server.wait(timeout=60)


def log_in(port, password):
    """Log in to the API server; return the HTTP status."""
    content = json.dumps({"username": "admin", "password": password}).encode()
    request = Request(f"http://127.0.0.1:{port}/auth/token", content, {"Content-Type": "application/json"})
    with suppress(HTTPError), urlopen(request, timeout=10) as response:
        return response.status
    return 401


def test_compose_volumes_are_declared_and_used(compose, services):
    used = {volume.partition(":")[0] for service in services.values() for volume in service.get("volumes", [])}
    assert used == set(compose["volumes"])


def test_compose_services_mount_lake_at_same_path(services):
    lakes = {
        name: volume
        for name, service in services.items()
        for volume in service.get("volumes", [])
        if volume.startswith("lake")
    }
    assert lakes["airflow-scheduler"] == lakes["spark-worker"]
    assert lakes["airflow-triggerer"] == lakes["airflow-api-server"] == f"{lakes['spark-worker']}:ro"
    lake = services["airflow-scheduler"]["environment"]["TIDEMARK_LAKE"]
    assert lakes["spark-worker"] == f"lake:{lake}"


def test_compose_ports_are_published_on_loopback(services):
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert len(set(published)) == len(published)
    assert all(port.startswith("127.0.0.1:") for port in published)

    ports = {name: int(s["ports"][0].rpartition(":")[2]) for name, s in services.items() if "ports" in s}
    assert ports == PORT

    for name, port in ports.items():
        assert f":{port}" in " ".join(services[name]["healthcheck"]["test"])


def test_compose_dependencies_exist_with_conditions_that_can_hold(services):
    for service in services.values():
        for name, dependency in service.get("depends_on", {}).items():
            required = services[name]
            if service.get("network_mode") == f"service:{name}":
                assert dependency == {"condition": "service_started", "restart": True}
            elif dependency["condition"] == "service_healthy":
                assert "healthcheck" in required, name
            else:
                assert dependency["condition"] == "service_completed_successfully"
                assert required["restart"] == "on-failure", f"{name} would restart after its end"


def test_compose_airflow_settings_exist(services):
    template = Path(str(distribution("apache-airflow-core").locate_file("airflow/config_templates/config.yml")))
    sections = yaml.safe_load(template.read_text())
    settings = [name for name in services["airflow-scheduler"]["environment"] if name.startswith("AIRFLOW__")]
    assert settings
    for name in settings:
        _, section, option = name.lower().split("__")
        assert option in sections[section]["options"], name


def test_compose_connections_point_to_services(services):
    environment = services["airflow-scheduler"]["environment"]
    connect, server = get_connection(services, "default"), services["spark-connect"]
    assert server["network_mode"] == "service:airflow-scheduler"
    assert connect["host"] == "sc://localhost"
    assert str(connect["port"]) == server["command"][server["command"].index("--port") + 1]

    spark = get_connection(services, "submit")
    master = services["spark-master"]["command"]
    url = f"{spark['host']}:{spark['port']}"
    assert url == f"spark://{master[master.index('--host') + 1]}:{master[master.index('--port') + 1]}"
    assert url in services["spark-worker"]["command"]
    assert urlsplit(url).hostname in services

    database = urlsplit(environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"])
    postgres = services[database.hostname]["environment"]
    assert (database.username, database.password) == (postgres["POSTGRES_USER"], postgres["POSTGRES_PASSWORD"])
    assert database.path == f"/{postgres['POSTGRES_DB']}"

    execution = urlsplit(environment["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"])
    assert execution.port == PORT[execution.hostname]


def test_image_copies_files_in_build_context():
    dockerfile = (ROOT / "Dockerfile").read_text()
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    sources = re.findall(r"^COPY (.+) \S+$", dockerfile, flags=re.MULTILINE)
    for source in " ".join(sources).split():
        assert (ROOT / source).exists(), source
        assert f"!{source.partition('/')[0]}" in ignore, source
    assert "pip install --require-hashes --requirement requirements.txt" in dockerfile
