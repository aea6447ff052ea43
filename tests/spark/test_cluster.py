"""`make cluster`: submitted jobs run on a real standalone cluster whose executors have no tidemark of their own."""

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.conftest import PROJECT, write_pipeline
from tests.processes import until
from tests.spark.clusters import ask, standalone
from tests.spark.lakes import SETTINGS, land_two_hours, read
from tidemark.config.cluster import SPARK_SECRET_VARIABLE
from tidemark.spark.session import find_delta_jars

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
    """A cluster's pages and the environment of who may use it."""
    with standalone(tmp_path_factory.mktemp("cluster")) as found:
        yield found


def environment(**more):
    inherited = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "JDK_JAVA_OPTIONS"}}
    return inherited | {"PYTHONPATH": str(PROJECT / "include"), **more}


def watched(command, env):
    """Run a command to its end: its code, what it said, and the command lines of all processes meanwhile."""
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    seen = set()
    while process.poll() is None:
        for one in psutil.process_iter():
            with suppress(psutil.Error):
                seen.add(" ".join(one.cmdline()))
        time.sleep(0.5)
    return process.returncode, process.stdout.read(), seen


def submit(cluster, job, *arguments, **more):
    """Run spark-submit to its end, watched."""
    command = [Path(sys.executable).with_name("spark-submit"), "--master", cluster["env"]["TIDEMARK_MASTER"]]
    command += ["--jars", ",".join(map(str, find_delta_jars())), "--conf", "spark.driver.memory=1g"]
    return watched([*command, job, *map(str, arguments)], environment(**(cluster["env"] | more)))


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    return land_two_hours(tmp_path_factory.mktemp("lake"), 200)


@pytest.mark.parametrize("join", JOINS)
def test_a_job_with_a_replay_in_python_gives_what_it_gives_on_one_machine(cluster, lake, tmp_path, join):
    dialect, settings, wanted = JOINS[join]
    given = {"dialect": dialect, "join": settings, **SETTINGS}
    given["cluster"] = {"executors": wanted, "executor_cores": 1, "executor_memory": "600m"}
    files = {where: tmp_path / f"{join}_{where}.yaml" for where in ("local", "cluster")}
    for file in files.values():
        write_pipeline(file, name=file.stem, **given)
    script = "import sys; from tidemark.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", script, "run", files["local"], "--lake", lake]
    local = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert local.returncode == 0, local.stderr
    jobs = f"{cluster['history']}/api/v1/applications"
    before = {one["id"] for one in ask(jobs)}
    code, said, seen = submit(cluster, PROJECT / "jobs/run_slices.py", files["cluster"], "--lake", lake)
    assert code == 0, said
    for table in ("emissions", "late"):
        assert read(lake / f"{join}_cluster" / table) == read(lake / f"{join}_local" / table)
    assert read(lake / f"{join}_cluster" / "emissions").total() > 100

    assert any("CoarseGrainedExecutorBackend" in line for line in seen)
    assert not [line for line in seen if cluster["env"][SPARK_SECRET_VARIABLE] in line]
    newest = until(lambda: [one["id"] for one in ask(jobs) if one["id"] not in before], 60)[0]
    told = f"{jobs}/{newest}"
    known = dict(ask(f"{told}/environment")["sparkProperties"])
    assert known["spark.cores.max"] == "2"
    assert known["spark.sql.shuffle.partitions"] == "8"
    assert known["spark.sql.codegen.cache.maxEntries"] == "2000"
    assert known["spark.executor.memory"] == "600m"
    assert known["spark.dynamicAllocation.enabled"] == str(wanted != 2).lower()
    executors = [one for one in ask(f"{told}/allexecutors") if one["id"] != "driver"]
    assert len(executors) >= (2 if wanted == 2 else 1)
    assert sum(one["completedTasks"] for one in executors) > 10


def test_health_checks_of_compose_tell_who_has_joined_whom(cluster):
    def health(page, wanted):
        command = [sys.executable, PROJECT / "bin/healthy", page, wanted]
        return subprocess.run(command, capture_output=True, check=False).returncode

    assert health(cluster["master"], "status=ALIVE") == 0
    assert health(cluster["master"], "status=STANDBY") == 1
    joined = cluster["env"]["TIDEMARK_MASTER"]
    for worker in ask(cluster["master"])["workers"]:
        assert health(f"{worker['webuiaddress']}/json/", f"masterurl={joined}") == 0
    assert health(f"{cluster['history']}/api/v1/version", "spark") == 0


def test_executors_have_no_tidemark_of_their_own(cluster):
    python = cluster["env"]["PYSPARK_PYTHON"]
    found = subprocess.run([python, "-c", "import tidemark"], env={}, capture_output=True, text=True, check=False)
    assert "No module named 'tidemark'" in found.stderr


def test_a_session_of_its_own_has_the_secret_on_no_command_line_either(cluster):
    script = """
from tidemark.config.cluster import Cluster
from tidemark.spark.session import get_spark_session
small = Cluster(executors=1, executor_cores=1, executor_memory="600m")
print(get_spark_session("own", cluster=small).range(5).count(), "rows")
"""
    code, said, seen = watched([sys.executable, "-c", script], environment(**cluster["env"]))
    assert (code, "5 rows" in said) == (0, True), said
    assert any("spark.authenticate=true" in line for line in seen)
    assert not [line for line in seen if cluster["env"][SPARK_SECRET_VARIABLE] in line]


def test_who_does_not_have_the_secret_gets_nothing_run(cluster, tmp_path):
    job = tmp_path / "count.py"
    job.write_text("from pyspark.sql import SparkSession; SparkSession.builder.getOrCreate().range(9).count()")
    code, said, _ = submit(cluster, job, **{SPARK_SECRET_VARIABLE: ""})
    assert code != 0, said
    state = ask(cluster["master"])
    assert "count.py" not in [app["name"] for app in state["activeapps"] + state["completedapps"]]


def test_a_job_that_asks_for_more_than_the_cluster_has_says_that_it_waits(cluster):
    script = """
from tidemark.config.cluster import Cluster
from tidemark.spark.session import get_spark_session
get_spark_session("large", cluster=Cluster(executor_memory="900g")).range(5).count()
"""
    command = [sys.executable, "-c", script]
    env = environment(TIDEMARK_DEBUG="1", **cluster["env"])
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert any("has not accepted any resources" in line for line in process.stdout)
    finally:
        for child in psutil.Process(process.pid).children(recursive=True):
            child.terminate()
        process.kill()
        process.wait(timeout=30)
