"""docker-compose.yml and the Dockerfile, as far as they can be checked without a container engine."""

import json
import re
from importlib.metadata import distribution
from importlib.resources import files
from pathlib import Path
from urllib.parse import urlsplit

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text()
VARIABLE = re.compile(r"\$\{(?P<name>\w+)(:-(?P<default>[^}]*))?\}")
PORT = {"airflow-api-server": 8080, "spark-master": 8090}


@pytest.fixture(scope="module")
def compose():
    return yaml.safe_load(VARIABLE.sub(lambda variable: variable["default"] or "", TEXT))


@pytest.fixture(scope="module")
def schema():
    return json.loads((files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json").read_text())


@pytest.fixture(scope="module")
def services(compose):
    return compose["services"]


@pytest.fixture(scope="module")
def ours(services):
    return {name: service for name, service in services.items() if name != "postgres"}


def test_it_follows_the_compose_specification(compose, schema):
    jsonschema.validate(compose, schema)


def test_the_schema_would_reject_a_misspelt_field(compose, schema):
    misspelt = compose | {"services": {"postgres": {"image": "postgres", "depend_on": []}}}
    with pytest.raises(jsonschema.ValidationError, match="depend_on"):
        jsonschema.validate(misspelt, schema)


def test_every_variable_has_a_default():
    assert [variable["name"] for variable in VARIABLE.finditer(TEXT) if variable["default"] is None] == []
    assert "$" not in VARIABLE.sub("", TEXT)


def test_airflow_and_spark_run_one_image_built_here(ours):
    assert {(service["image"], service["build"]) for service in ours.values()} == {("tidemark:0.1.0", ".")}


def test_airflow_has_all_its_parts(ours):
    commands = {tuple(service["command"][:2]) for service in ours.values() if service["command"][0] == "airflow"}
    parts = ("api-server", "dag-processor", "db", "scheduler", "triggerer")
    assert commands == {("airflow", part) for part in parts}


def test_named_volumes_are_declared_and_all_are_used(compose, services):
    used = {volume.partition(":")[0] for service in services.values() for volume in service.get("volumes", [])}
    assert used == set(compose["volumes"])


def test_who_runs_a_job_and_who_executes_it_see_the_lake_at_one_path(services):
    lakes = {
        name: volume for name, service in services.items() for volume in service.get("volumes", []) if "lake" in volume
    }
    assert lakes["airflow-scheduler"] == lakes["spark-worker"]
    lake = services["airflow-scheduler"]["environment"]["TIDEMARK_LAKE"]
    assert lakes["spark-worker"] == f"lake:{lake}"


def test_ports_are_published_once_on_loopback_and_served(services):
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert len(set(published)) == len(published)
    assert all(port.startswith("127.0.0.1:") for port in published)
    served = {name: int(s["ports"][0].rpartition(":")[2]) for name, s in services.items() if "ports" in s}
    assert served == PORT
    for name, port in served.items():
        assert f":{port}" in " ".join(services[name]["healthcheck"]["test"])


def test_what_a_service_waits_for_exists_and_can_become_true(services):
    for service in services.values():
        for name, dependency in service.get("depends_on", {}).items():
            awaited = services[name]
            if dependency["condition"] == "service_healthy":
                assert "healthcheck" in awaited, name
            else:
                assert dependency["condition"] == "service_completed_successfully"
                assert awaited["restart"] == "on-failure", f"{name} would start over after it is done"


def test_airflow_knows_every_setting(services):
    template = Path(str(distribution("apache-airflow-core").locate_file("airflow/config_templates/config.yml")))
    known = yaml.safe_load(template.read_text())
    settings = [name for name in services["airflow-scheduler"]["environment"] if name.startswith("AIRFLOW__")]
    assert settings
    for name in settings:
        _, section, option = name.lower().split("__")
        assert option in known[section]["options"], name


def test_the_connections_lead_to_services(services):
    environment = services["airflow-scheduler"]["environment"]
    spark = json.loads(environment["AIRFLOW_CONN_SPARK_DEFAULT"])
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


def test_the_image_is_built_from_the_lock_and_from_files_that_the_build_can_see():
    dockerfile = (ROOT / "Dockerfile").read_text()
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    sources = re.findall(r"^COPY (.+) \S+$", dockerfile, flags=re.MULTILINE)
    for source in " ".join(sources).split():
        assert (ROOT / source).exists(), source
        assert f"!{source.partition('/')[0]}" in ignore, source
    assert "pip install --require-hashes --requirement requirements.txt" in dockerfile
