"""`bin/spark-cluster` for tests: a standalone master, two small workers and a history server, on ports of their own."""

import json
import os
import shlex
import subprocess
from contextlib import contextmanager
from urllib.request import urlopen

import psutil

from tests.conftest import PROJECT
from tests.processes import free_ports, until


def ask(url):
    """What a page of Spark says, as JSON."""
    with urlopen(url, timeout=5) as answer:
        return json.load(answer)


@contextmanager
def standalone(home):
    """A cluster's pages, and the environment of who may use it; it leaves no process behind."""
    master, pages, history = free_ports(3)
    settings = {"MASTER_PORT": master, "PAGES_PORT": pages, "HISTORY_PORT": history, "CLUSTER_HOME": str(home)}
    settings |= {"SPARK_WORKER_CORES": "1", "SPARK_WORKER_MEMORY": "1g", "SPARK_DAEMON_MEMORY": "256m"}
    process = subprocess.Popen(
        [PROJECT / "bin/spark-cluster"], env=os.environ | settings, stdout=subprocess.PIPE, text=True
    )
    try:
        url = f"http://127.0.0.1:{pages}/json/"
        until(lambda: ask(url)["aliveworkers"] == 2, 120)
        assert (home / "env").stat().st_mode & 0o077 == 0
        exported = (line.removeprefix("export ") for line in (home / "env").read_text().splitlines())
        given = dict(pair.split("=", 1) for line in exported for pair in shlex.split(line))
        yield {"master": url, "history": f"http://127.0.0.1:{history}", "env": given}
    finally:
        started = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        process.communicate(timeout=60)
        _, left = psutil.wait_procs(started, timeout=10)
        assert left == []
