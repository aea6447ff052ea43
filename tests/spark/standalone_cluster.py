"""Run `bin/spark-cluster` for tests: a standalone master, two small workers and a history server on free ports."""

import json
from contextlib import contextmanager
from urllib.request import urlopen

from tests.processes import find_free_ports, read_client_env, run_script, wait_for


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
    with run_script("spark-cluster", settings):
        url = f"http://127.0.0.1:{pages}/json/"
        wait_for(lambda: get_json(url)["aliveworkers"] == 2, 120)
        yield {"master": url, "history": f"http://127.0.0.1:{history}", "env": read_client_env(home)}
