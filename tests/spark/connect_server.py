"""Run a Spark Connect server for tests, as `make connect` does."""

import socket
from contextlib import contextmanager

from tests.processes import read_client_env, run_script


@contextmanager
def run_connect_server(home):
    """Run a server for the block and check that all its processes end; yield the environment of a client."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
    settings = {"CONNECT_PORT": port, "CONNECT_HOME": str(home), "CONNECT_MASTER": "local[2]", "CONNECT_MEMORY": "2g"}
    with run_script("spark-connect", settings) as process:
        assert "Spark Connect" in process.stdout.readline(), (home / "server.log").read_text()
        yield read_client_env(home)
