"""Run `bin/spark-cluster` for tests: a standalone master, two small workers and a history server on free ports."""

import json
import os
import shlex
import subprocess
from contextlib import contextmanager
from urllib.request import urlopen

import psutil

from tests.conftest import PROJECT
from tests.processes import find_free_ports, wait_for


def get_json(url):
    """Return the JSON content of a page."""
    with urlopen(url, timeout=5) as response:
        return json.load(response)


@contextmanager
def run_cluster(home):
    """Run a cluster for the block and check that all its processes end.

    Yields:
        Addresses of the master's page and of the history server, and the environment of a client.
    """
    master, pages, history = find_free_ports(3)
    settings = {"MASTER_PORT": master, "PAGES_PORT": pages, "HISTORY_PORT": history, "CLUSTER_HOME": str(home)}
    settings |= {"SPARK_WORKER_CORES": "1", "SPARK_WORKER_MEMORY": "1g", "SPARK_DAEMON_MEMORY": "256m"}
    process = subprocess.Popen(
        [PROJECT / "bin/spark-cluster"], env=os.environ | settings, stdout=subprocess.PIPE, text=True
    )
    try:
        url = f"http://127.0.0.1:{pages}/json/"
        wait_for(lambda: get_json(url)["aliveworkers"] == 2, 120)
        assert (home / "env").stat().st_mode & 0o077 == 0
        exported = (line.removeprefix("export ") for line in (home / "env").read_text().splitlines())
        client_env = dict(pair.split("=", 1) for line in exported for pair in shlex.split(line))
        yield {"master": url, "history": f"http://127.0.0.1:{history}", "env": client_env}
    finally:
        children = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        process.communicate(timeout=60)
        _, alive = psutil.wait_procs(children, timeout=10)
        assert alive == []
