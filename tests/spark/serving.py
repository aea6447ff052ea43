"""A Spark Connect server for the tests of a file, as `make connect` starts it."""

import os
import shlex
import socket
import subprocess
from contextlib import contextmanager

import psutil

from tests.conftest import PROJECT


@contextmanager
def serving(home):
    """The environment of who may use it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
    settings = {"CONNECT_PORT": port, "CONNECT_HOME": str(home), "CONNECT_MASTER": "local[2]", "CONNECT_MEMORY": "2g"}
    started = subprocess.Popen(
        [PROJECT / "bin/spark-connect"], env=os.environ | settings, stdout=subprocess.PIPE, text=True
    )
    try:
        assert "Spark Connect" in started.stdout.readline(), (home / "server.log").read_text()
        assert (home / "env").stat().st_mode & 0o077 == 0
        exported = (line.removeprefix("export ") for line in (home / "env").read_text().splitlines())
        yield dict(pair.split("=", 1) for line in exported for pair in shlex.split(line))
    finally:
        family = psutil.Process(started.pid).children(recursive=True)
        started.terminate()
        started.communicate(timeout=60)
        _, left = psutil.wait_procs(family, timeout=30)
        assert left == []
