"""Commands with `--warm` start one Spark server, share it, and leave it running until it is idle or stopped."""

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys

import psutil
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.conftest import PROJECT, write_pipeline
from tests.processes import wait_for
from tests.spark.sample_lake import SETTINGS, read_rows, write_two_hours
from tidemark import api
from tidemark.cli.app import main
from tidemark.errors import UserError
from tidemark.spark.warm_server import WarmServer

TIMEOUT_SECONDS = 600
COMMAND = "import sys; from tidemark.entrypoint import main; sys.exit(main())"
RUN_AS_LARGE_JOB = """
import sys
from dataclasses import replace
from tidemark import api
from tidemark.config import load_pipeline
from tidemark.planning.replay_strategy import ReplayLimits
spark = api.get_spark_session("large job")
plan = api.plan(spark, load_pipeline(sys.argv[1]), sys.argv[2])
api.run(spark, replace(plan, replay_limits=ReplayLimits(max_cached_rows=0, max_carried_share=1.0)))
"""
RUN_UNTIL_IDLE = """
import sys
from pathlib import Path
from tidemark.spark.warm_server import WarmServer, run_until_idle
run_until_idle(WarmServer(Path(sys.argv[1])), ["sleep", "1000"], *map(float, sys.argv[2:]))
"""


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """Return the environment of commands whose warm server has a folder of its own, and end the server."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TIDEMARK_MASTER", raising=False)
    yield os.environ | {"PYTHONPATH": str(PROJECT / "include")}
    if address := WarmServer.from_environment().find():
        os.kill(address.pid, signal.SIGTERM)


@pytest.mark.process
def test_simultaneous_commands_share_one_server(spark, environment, tmp_path):
    lake = write_two_hours(tmp_path / "lake", 100)
    join = {"keys": ["k"], "type": "left", "interval": {"lower": "-5 minutes", "upper": "10 minutes"}}
    settings = {"dialect": "flink-sql", "join": join, **SETTINGS}
    local = write_pipeline(tmp_path / "local.yaml", name="local", **settings)
    names = ["first", "second"]
    for name in (*names, "large"):
        write_pipeline(tmp_path / f"{name}.yaml", name=name, **settings)
    api.run(spark, api.plan(spark, local, lake))

    commands = [[sys.executable, "-c", COMMAND, "run", f"{name}.yaml", "--warm"] for name in names]
    processes = [
        subprocess.Popen([*command, "--lake", str(lake)], env=environment, cwd=tmp_path, stderr=subprocess.PIPE)
        for command in commands
    ]
    outcomes = [(process.communicate(timeout=TIMEOUT_SECONDS)[1], process.returncode) for process in processes]

    assert [code for _, code in outcomes] == [0, 0], outcomes
    large_job = [sys.executable, "-c", RUN_AS_LARGE_JOB, str(tmp_path / "large.yaml"), str(lake)]
    subprocess.run(large_job, env=environment | {"TIDEMARK_MASTER": "warm"}, check=True, timeout=TIMEOUT_SECONDS)
    for name in (*names, "large"):
        assert read_rows(lake / name / "emissions") == read_rows(lake / "local" / "emissions")
    emissions = DeltaTable(str(lake / "first" / "emissions")).to_pyarrow_table()
    write_deltalake(str(lake / "streamed"), emissions.slice(1))
    comparison = [sys.executable, "-c", COMMAND, "compare", "run", "first.yaml", "--with", "streamed", "--warm"]
    compared = subprocess.run(
        [*comparison, "--lake", str(lake)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
    )
    assert compared.returncode == 1, compared.stderr
    assert "1 differ: 1 missing in the stream" in " ".join(compared.stdout.split())
    server = WarmServer.from_environment()
    process = psutil.Process(server.find().pid)
    jvms = [child for child in process.children(recursive=True) if child.name() == "java"]
    assert len(jvms) == 1
    assert server.folder.stat().st_mode & 0o077 == 0
    assert server.stop()
    assert psutil.wait_procs([process, *jvms], timeout=TIMEOUT_SECONDS)[1] == []
    assert server.find() is None


def start_idle_server(folder, max_idle_seconds, check_seconds=0.1):
    """Start a process as `--warm` does that runs `sleep` instead of a server, and return it."""
    folder.mkdir(parents=True)
    with (folder / "server.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = [sys.executable, "-c", RUN_UNTIL_IDLE, str(folder), str(max_idle_seconds), str(check_seconds)]
        process = subprocess.Popen(command, pass_fds=[lock.fileno()])
    address = {"port": 1, "token": "secret", "pid": process.pid}
    (folder / "address.json").write_text(json.dumps(address))
    return process


@pytest.mark.process
def test_server_ends_after_its_last_command(environment):
    server = WarmServer.from_environment()
    process = start_idle_server(server.folder, 1)
    with (server.folder / "commands.lock").open("a") as in_use:
        fcntl.flock(in_use, fcntl.LOCK_SH)
        wait_for(lambda: psutil.Process(process.pid).children(), TIMEOUT_SECONDS)
        with pytest.raises(UserError, match="a command uses the warm server"):
            server.stop()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(3)
        [child] = psutil.Process(process.pid).children()
        assert server.find().pid == process.pid

    assert process.wait(TIMEOUT_SECONDS) == 0

    assert not child.is_running()
    assert server.find() is None
    assert not server.stop()


@pytest.mark.process
def test_idle_server_ends_without_another_check(tmp_path):
    process = start_idle_server(tmp_path / "server", max_idle_seconds=0, check_seconds=10 * TIMEOUT_SECONDS)

    assert process.wait(TIMEOUT_SECONDS) == 0


@pytest.mark.process
def test_command_that_begins_while_the_server_ends_starts_another(tmp_path, monkeypatch):
    server = WarmServer(tmp_path)
    with (tmp_path / "server.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.Popen(["sleep", "1"], pass_fds=[lock.fileno()])
    with (tmp_path / "server.lock").open("a") as lock, socket.create_server(("127.0.0.1", 0)) as listener:

        def start(server):
            fcntl.flock(lock, fcntl.LOCK_EX)
            server.write_address(listener.getsockname()[1], "secret")

        monkeypatch.setattr(WarmServer, "_start", start)

        assert server.find_or_start().token == "secret"


@pytest.mark.process
def test_stop_ends_an_idle_server(environment, capsys):
    server = WarmServer.from_environment()
    process = start_idle_server(server.folder, 1000)
    wait_for(lambda: psutil.Process(process.pid).children(), TIMEOUT_SECONDS)

    assert main(["--json", "server", "show"]) == 0
    assert json.loads(capsys.readouterr().out)["pid"] == process.pid
    assert main(["server", "stop"]) == 0

    assert capsys.readouterr().out.strip() == "stopped"
    assert process.wait(TIMEOUT_SECONDS) == 0
    assert main(["server", "show"]) == 0
    assert capsys.readouterr().out.strip() == "no warm server runs"


def test_message_names_conflicting_master(monkeypatch, capsys):
    monkeypatch.setenv("TIDEMARK_MASTER", "spark://host:7077")

    assert main(["--warm", "status", "orders"]) == 2

    assert "TIDEMARK_MASTER names spark://host:7077" in capsys.readouterr().err
