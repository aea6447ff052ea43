"""Run a Spark Connect server for tests, as `make connect` does."""

import os
import shlex
import socket
import subprocess
from contextlib import contextmanager

import psutil

from tests.conftest import PROJECT


@contextmanager
def run_connect_server(home):
    """Run a server for the block and check that all its processes end; yield the environment of a client."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
    settings = {"CONNECT_PORT": port, "CONNECT_HOME": str(home), "CONNECT_MASTER": "local[2]", "CONNECT_MEMORY": "2g"}
    process = subprocess.Popen(
        [PROJECT / "bin/spark-connect"], env=os.environ | settings, stdout=subprocess.PIPE, text=True
    )
    try:
        assert "Spark Connect" in process.stdout.readline(), (home / "server.log").read_text()
        assert (home / "env").stat().st_mode & 0o077 == 0
        exported = (line.removeprefix("export ") for line in (home / "env").read_text().splitlines())
        yield dict(pair.split("=", 1) for line in exported for pair in shlex.split(line))
    finally:
        children = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        process.communicate(timeout=60)
        _, alive = psutil.wait_procs(children, timeout=30)
        assert alive == []
