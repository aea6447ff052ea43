"""Run peers in a separate process: peers of Spark in one session, others alone.

Peers of Spark run once over few rows before they are measured, so that none pays for starting the session or for code
that the next one uses too.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from signal import SIGKILL
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.cases import Case, Setup
from benchmarks.data import write_inputs
from benchmarks.measure import EventLog, measure
from benchmarks.peers import PEERS
from benchmarks.peers.peer import Work
from tidemark.config.cluster import Cluster
from tidemark.spark.session import get_spark_session

PROJECT = Path(__file__).resolve().parents[1]
Answer = dict[str, Any]
"""Measurements of a run, or its `error`; empty if it did not finish."""


@dataclass(frozen=True)
class Task:
    """A case to generate, or to measure with a peer."""

    case: Case
    peer: str | None = None


class Worker:
    """Handle of the process."""

    def __init__(self, setup: Setup, folder: Path) -> None:
        context = get_context("spawn")
        self._connection, remote = context.Pipe()
        self._process = context.Process(target=serve, args=(remote, setup, folder))
        self._process.start()
        remote.close()

    def request(self, task: Task, limit: float | None = None) -> Answer:
        """Run a task. A run over the limit (seconds) is stopped, and its answer is empty."""
        self._connection.send(task)
        with suppress(EOFError):
            answer: Answer | None = self._connection.recv()
            if answer is None and self._connection.poll(limit):
                answer = self._connection.recv()
            if answer is None:
                self.stop()
            return answer or {}
        self._process.join()
        return {"error": f"its process ended with exit code {self._process.exitcode}"}

    @property
    def is_alive(self) -> bool:
        """True if the process accepts more tasks."""
        return self._process.is_alive()

    def stop(self, patience: float = 0) -> None:
        """Stop the process and its children; an idle one has `patience` seconds to shut down."""
        self._connection.close()
        self._process.join(patience)
        assert self._process.pid, "it has been started"
        # It leads a process group, which contains everything that it has started.
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, SIGKILL)
        self._process.kill()
        self._process.join()


def serve(connection: Connection, setup: Setup, folder: Path) -> None:
    """Run tasks until the connection closes. Sends None when a measured run begins, then the answer."""
    os.setsid()
    with suppress(EOFError):
        session = _Session(setup, folder)
        while True:
            task = connection.recv()
            try:
                if task.peer:
                    answer = session.measure(task.case, task.peer, lambda: connection.send(None))
                else:
                    answer = session.generate(task.case)
            except Exception as error:  # noqa: BLE001 - one peer's failure is a line of the table
                answer = {"error": f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"}
            connection.send(answer)


@dataclass
class _Session:
    """State between measurements."""

    setup: Setup
    folder: Path
    warmed_up: set[tuple[str, str]] = field(default_factory=set)
    runs: int = 0
    log: EventLog | None = None

    def generate(self, case: Case) -> Answer:
        """Write the inputs of a case and of its warm-up."""
        for variant in (case, case.warm_up):
            lake = self._lake_path(variant)
            lake.mkdir(parents=True, exist_ok=True)
            write_inputs(self._get_spark(), variant.shape, lake)
        return {}

    def measure(self, case: Case, name: str, on_start: Callable[[], None]) -> Answer:
        """Run a peer, then count and remove its output."""
        peer = PEERS[name]
        if peer.uses_spark:
            self._get_spark()
            if (name, case.join_description) not in self.warmed_up:
                self._run(case.warm_up, name, lambda: None)
                self.warmed_up.add((name, case.join_description))
        return self._run(case, name, on_start)

    def _run(self, case: Case, name: str, on_start: Callable[[], None]) -> Answer:
        self.runs += 1
        peer, work = PEERS[name], Work(case, self._lake_path(case), f"out_{os.getpid()}_{self.runs}")
        peer.prepare(work)
        if self.log:
            self.log.read_shuffles(self._get_spark())  # discard earlier tasks
        on_start()
        answer: Answer = measure(lambda: peer.run(work))
        if self.log:
            answer |= self.log.read_shuffles(self._get_spark())
        answer |= peer.count_output(work)
        shutil.rmtree(work.output_path)
        return answer

    def _lake_path(self, case: Case) -> Path:
        return self.folder / case.shape.folder

    def _get_spark(self) -> SparkSession:
        """Return the session, which writes an event log."""
        if not self.log:
            self.log = EventLog(self.folder / "events")
            self.log.folder.mkdir(exist_ok=True)
            settings = {
                "spark.eventLog.enabled": "true",
                "spark.eventLog.dir": self.log.folder.as_uri(),
                "spark.eventLog.rolling.enabled": "false",
                "spark.eventLog.compress": "false",
                "spark.local.dir": str(self.folder / "spark"),
            }
            conf_options = " ".join(f"--conf {name}={value}" for name, value in settings.items())
            os.environ["PYSPARK_SUBMIT_ARGS"] = f"--driver-memory {self.setup.memory} {conf_options} pyspark-shell"
            if self.setup.workers:
                os.environ |= start_cluster(self.setup.workers, self.folder / "cluster")
        executors = {"executors": self.setup.workers or 1, "executor_cores": 1, "executor_memory": self.setup.memory}
        return get_spark_session("benchmark", cluster=Cluster.model_validate({**executors, "event_log": False}))


def start_cluster(workers: int, home: Path) -> dict[str, str]:
    """Start a standalone cluster of workers with a core each, which ends with this process group.

    Returns:
        Environment variables for its users.
    """
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    settings = {"MASTER_PORT": str(port), "WORKERS": str(workers), "SPARK_WORKER_CORES": "1", "CLUSTER_HOME": str(home)}
    cluster = subprocess.Popen(  # noqa: S603 - the project's own
        [PROJECT / "bin" / "spark-cluster"], env=os.environ | settings, stdout=subprocess.PIPE, text=True
    )
    assert cluster.stdout, "a pipe"
    if not any(line.startswith("Ctrl-C") for line in cluster.stdout):
        raise RuntimeError("the cluster did not start. Its output is above.")
    exported = (line.removeprefix("export ") for line in (home / "env").read_text(encoding="utf-8").splitlines())
    return dict(pair.split("=", 1) for line in exported for pair in shlex.split(line))
