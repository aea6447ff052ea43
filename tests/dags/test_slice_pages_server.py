"""The pages of slices in a real API server, with Airflow's own login."""

import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import psutil
import pytest

from tests.dags.slice_lake import SliceLake
from tests.processes import find_free_ports, wait_for

AIRFLOW = Path(sys.executable).with_name("airflow")
PASSWORD = "a password of the test"


@pytest.fixture
def server_env(provider_env, tmp_path):
    """Write a pipeline with slices; return variables of an Airflow whose user may only view."""
    lake = SliceLake.create(tmp_path / "pipelines", tmp_path / "lake")
    lake.add(range(30), late=2)
    lake.write()
    passwords = tmp_path / "passwords.json"
    passwords.write_text(json.dumps({"vera": PASSWORD}))
    [port] = find_free_ports(1)
    return provider_env | {
        "TIDEMARK_LAKE": str(lake.lake),
        "TIDEMARK_PIPELINES": str(lake.file.parent),
        "AIRFLOW__API__PORT": port,
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}/below",
        "AIRFLOW__API__WORKERS": "2",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "vera:viewer",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
    }


@contextmanager
def run_api_server(environment, log):
    """Run Airflow's API server; yield the address of Airflow."""
    subprocess.run([AIRFLOW, "db", "migrate"], env=environment, check=True, stdout=subprocess.DEVNULL)
    url = environment["AIRFLOW__API__BASE_URL"]
    with log.open("w") as output:
        server = subprocess.Popen([AIRFLOW, "api-server"], env=environment, stdout=output, stderr=output)
    try:
        wait_for(lambda: read(f"{url}/api/v2/version")[0] == 200, 300, "the API server did not answer")
        yield url
    finally:
        processes = [server, *psutil.Process(server.pid).children(recursive=True)]
        for process in processes:
            process.terminate()
        server.wait(timeout=120)


def read(url, token=None, **content):
    """Send a request; return the status code and the text. The code is 0 while no server listens."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urlopen(Request(url, json.dumps(content).encode() if content else None, headers), timeout=120) as response:
            return response.status, response.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


def test_pages_of_api_server_need_login(server_env, tmp_path):
    with run_api_server(server_env, tmp_path / "log") as url:
        token = json.loads(read(f"{url}/auth/token", username="vera", password=PASSWORD)[1])["access_token"]
        plugins = json.loads(read(f"{url}/api/v2/plugins", token)[1])["plugins"]
        errors = json.loads(read(f"{url}/api/v2/plugins/importErrors", token)[1])["import_errors"]
        pages = [f"{url}/tidemark/{path}" for path in ("", "pipelines/orders", "pipelines/nothing", "slices.css", "x")]

        assert [read(page)[0] for page in pages] == [401] * 5
        assert [read(page, f"{token}x")[0] for page in pages] == [403] * 5
        assert [read(page, token)[0] for page in pages] == [200, 200, 404, 200, 404]
        answers = [read(f"{url}/tidemark/pipelines/orders", token)[1] for _ in range(8)]

    [plugin] = [plugin for plugin in plugins if plugin["name"] == "tidemark"]
    assert {view["destination"] for view in plugin["external_views"]} == {"nav", "dag"}
    assert not [
        error for error in errors if "tidemark" in error["error"] and "already registered" not in error["error"]
    ]
    assert all('href="/below/tidemark/pipelines/orders/slices/2025-01-01T05:00Z"' in answer for answer in answers)
