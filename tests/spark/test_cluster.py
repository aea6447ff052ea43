"""Jobs submitted to a real standalone cluster (`make cluster`), whose executors have no tidemark installed."""

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest

from tests.conftest import PROJECT, write_pipeline
from tests.processes import wait_for
from tests.spark.sample_lake import SETTINGS, read_rows, write_two_hours
from tests.spark.standalone_cluster import get_json, run_cluster
from tidemark.config.cluster import SPARK_SECRET_VARIABLE
from tidemark.spark.delta_jars import find_delta_jars

SESSION = {"keys": ["k"], "window": {"session": {"gap": "6 minutes"}}, "allowed_lateness": "20 minutes"}
INTERVAL = {"keys": ["k"], "type": "full", "interval": {"lower": "-5 minutes", "upper": "10 minutes"}}
JOINS = {
    "session": ("flink-datastream", SESSION, 2),
    "interval": ("flink-sql", INTERVAL, {"min": 1, "max": 2}),
}

pytestmark = [pytest.mark.slow, pytest.mark.skipif(
    not (PROJECT / ".venv-worker" / ".installed").exists(), reason="make cluster has not installed .venv-worker"
)]  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with run_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def create_environment(**variables):
    """Create the environment of a process that imports tidemark from the checkout."""
    inherited = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "JDK_JAVA_OPTIONS"}}
    return inherited | {"PYTHONPATH": str(PROJECT / "include"), **variables}


def run_and_list_processes(command, env):
    """Run a command to its end.

    Returns:
        Its exit code, its output, and the command lines of all processes that ran meanwhile.
    """
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    command_lines = set()
    while process.poll() is None:
        for running in psutil.process_iter():
            with suppress(psutil.Error):
                command_lines.add(" ".join(running.cmdline()))
        time.sleep(0.5)
    return process.returncode, process.stdout.read(), command_lines


def submit(cluster, job, *arguments, **variables):
    """Run spark-submit to its end; return the same as `run_and_list_processes`."""
    command = [Path(sys.executable).with_name("spark-submit"), "--master", cluster["env"]["TIDEMARK_MASTER"]]
    command += ["--jars", ",".join(map(str, find_delta_jars())), "--conf", "spark.driver.memory=1g"]
    command += [job, *map(str, arguments)]
    return run_and_list_processes(command, create_environment(**(cluster["env"] | variables)))


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    return write_two_hours(tmp_path_factory.mktemp("lake"), 200)


@pytest.mark.parametrize("join", JOINS)
def test_submitted_python_replay_equals_local_run(cluster, lake, tmp_path, join):
    dialect, settings, executor_count = JOINS[join]
    content = {"dialect": dialect, "join": settings, **SETTINGS}
    content["cluster"] = {"executors": executor_count, "executor_cores": 1, "executor_memory": "600m"}
    files = {master: tmp_path / f"{join}_{master}.yaml" for master in ("local", "cluster")}
    for file in files.values():
        write_pipeline(file, name=file.stem, **content)
    script = "import sys; from tidemark.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", script, "run", files["local"], "--lake", lake]
    local = subprocess.run(command, env=create_environment(), capture_output=True, text=True, check=False)
    assert local.returncode == 0, local.stderr
    applications = f"{cluster['history']}/api/v1/applications"
    earlier = {application["id"] for application in get_json(applications)}

    code, output, command_lines = submit(cluster, PROJECT / "jobs/run_slices.py", files["cluster"], "--lake", lake)

    assert code == 0, output
    for table in ("emissions", "late"):
        assert read_rows(lake / f"{join}_cluster" / table) == read_rows(lake / f"{join}_local" / table)
    assert read_rows(lake / f"{join}_cluster" / "emissions").total() > 100
    assert any("CoarseGrainedExecutorBackend" in line for line in command_lines)
    assert not [line for line in command_lines if cluster["env"][SPARK_SECRET_VARIABLE] in line]

    def list_new_applications():
        return [application["id"] for application in get_json(applications) if application["id"] not in earlier]

    application = f"{applications}/{wait_for(list_new_applications, 60)[0]}"
    properties = dict(get_json(f"{application}/environment")["sparkProperties"])
    assert properties["spark.cores.max"] == "2"
    assert properties["spark.sql.shuffle.partitions"] == "8"
    assert properties["spark.sql.codegen.cache.maxEntries"] == "2000"
    assert properties["spark.executor.memory"] == "600m"
    assert properties["spark.dynamicAllocation.enabled"] == str(executor_count != 2).lower()
    executors = [executor for executor in get_json(f"{application}/allexecutors") if executor["id"] != "driver"]
    assert len(executors) >= (2 if executor_count == 2 else 1)
    assert sum(executor["completedTasks"] for executor in executors) > 10


def test_healthy_script_checks_master_workers_and_history_server(cluster):
    def check_health(page, expected):
        command = [sys.executable, PROJECT / "bin/healthy", page, expected]
        return subprocess.run(command, capture_output=True, check=False).returncode

    assert check_health(cluster["master"], "status=ALIVE") == 0
    assert check_health(cluster["master"], "status=STANDBY") == 1
    master_url = cluster["env"]["TIDEMARK_MASTER"]
    for worker in get_json(cluster["master"])["workers"]:
        assert check_health(f"{worker['webuiaddress']}/json/", f"masterurl={master_url}") == 0
    assert check_health(f"{cluster['history']}/api/v1/version", "spark") == 0


def test_executor_environment_has_no_tidemark(cluster):
    python = cluster["env"]["PYSPARK_PYTHON"]

    process = subprocess.run([python, "-c", "import tidemark"], env={}, capture_output=True, text=True, check=False)

    assert "No module named 'tidemark'" in process.stderr


def test_get_spark_session_secret_is_on_no_command_line(cluster):
    script = """
from tidemark.config.cluster import Cluster
from tidemark.spark.session import get_spark_session
small = Cluster(executors=1, executor_cores=1, executor_memory="600m")
print(get_spark_session("own", cluster=small).range(5).count(), "rows")
"""
    command = [sys.executable, "-c", script]

    code, output, command_lines = run_and_list_processes(command, create_environment(**cluster["env"]))

    assert (code, "5 rows" in output) == (0, True), output
    assert any("spark.authenticate=true" in line for line in command_lines)
    assert not [line for line in command_lines if cluster["env"][SPARK_SECRET_VARIABLE] in line]


def test_submit_without_secret_is_refused(cluster, tmp_path):
    job = tmp_path / "count.py"
    job.write_text("from pyspark.sql import SparkSession; SparkSession.builder.getOrCreate().range(9).count()")

    code, output, _ = submit(cluster, job, **{SPARK_SECRET_VARIABLE: ""})

    assert code != 0, output
    state = get_json(cluster["master"])
    assert "count.py" not in [app["name"] for app in state["activeapps"] + state["completedapps"]]
    with urlopen(cluster["master"].removesuffix("json/"), timeout=30) as page:
        assert "REST URL" not in page.read().decode(), "Spark's REST server would run a driver without the secret"


def test_session_larger_than_the_cluster_warns_that_it_waits(cluster):
    script = """
from tidemark.config.cluster import Cluster
from tidemark.spark.session import get_spark_session
get_spark_session("large", cluster=Cluster(executor_memory="900g")).range(5).count()
"""
    command = [sys.executable, "-c", script]
    env = create_environment(TIDEMARK_DEBUG="1", **cluster["env"])
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert any("has not accepted any resources" in line for line in process.stdout)
    finally:
        for child in psutil.Process(process.pid).children(recursive=True):
            child.terminate()
        process.kill()
        process.wait(timeout=30)
