"""Tests of the scripts that start Spark's servers, with fake servers instead of a JVM."""

import json
import os
import shlex
import shutil
import subprocess
import sys

import pytest

from tests.conftest import PROJECT
from tests.processes import find_free_ports, read_client_env, run_script

SERVER = """#!{python}
import socket, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])))
while True:
    server.accept()
    {after_connection}
"""


@pytest.fixture
def clone(tmp_path):
    """Create a clone with fake programs in its environment, under a path with a blank."""
    folder = tmp_path / "a clone"
    shutil.copytree(PROJECT / "bin", folder / "bin")
    (folder / ".venv/bin").mkdir(parents=True)
    return folder


def write_server(path, after_connection):
    """Write a fake server that runs a statement after each connection."""
    path.write_text(SERVER.format(python=sys.executable, after_connection=after_connection))
    path.chmod(0o755)


def test_spark_cluster_in_path_with_blank_writes_environment(clone):
    spark_class = clone / ".venv/bin/spark-class"
    write_server(spark_class, "pass")
    text = spark_class.read_text().replace(
        "import socket, sys",
        "import os, pathlib, socket, sys, time\n"
        "pathlib.Path(sys.argv[0] + '.options').write_text(os.environ['SPARK_HISTORY_OPTS'])\n"
        "if not sys.argv[1].endswith('Master'): time.sleep(60)",
    )
    spark_class.write_text(text)
    (port,) = find_free_ports(1)

    with run_script(clone / "bin/spark-cluster", {"MASTER_PORT": port}) as process:
        lines = [process.stdout.readline() for _ in range(3)]
        environment = read_client_env(clone / ".cache/spark-cluster")

        events = f"{clone}/.cache/spark-cluster/events"
        assert environment["TIDEMARK_MASTER"] == f"spark://127.0.0.1:{port}"
        assert environment["TIDEMARK_EVENT_LOGS"] == f"file:{events}".replace(" ", "%20")
        assert environment["PYSPARK_PYTHON"] == f"{clone}/.venv-worker/bin/python"
        connection = json.loads(environment["AIRFLOW_CONN_SPARK_DEFAULT"])
        assert connection["password"] == environment["_SPARK_AUTH_SECRET"]
        command = lines[1].removeprefix("From a shell").partition(";")[0]
        sourced = subprocess.check_output(["bash", "-c", f"{command}; echo $PYSPARK_DRIVER_PYTHON"], text=True)
        assert sourced == f"{clone}/.venv/bin/python\n"
        assert f"-Dspark.history.fs.logDirectory=file:{events}" in shlex.split(
            (clone / ".venv/bin/spark-class.options").read_text()
        )


def test_spark_connect_server_that_ends_with_any_code_is_an_error(clone):
    write_server(clone / ".venv/bin/python", "sys.exit(7)")
    (port,) = find_free_ports(1)

    process = subprocess.run(
        [clone / "bin/spark-connect"],
        env=os.environ | {"CONNECT_PORT": port},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert process.returncode == 3
    assert f"spark-connect: the server ended. See {clone}/.cache/spark-connect/server.log." in process.stderr
