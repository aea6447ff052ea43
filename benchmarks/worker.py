"""A process that runs peers: those of Spark in one session, any other by itself.

Spark's are run once over few rows before they are measured, so that none pays for starting the session or for compiling
what the next one uses as well.
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
from benchmarks.data import write
from benchmarks.measure import EventLog, measured
from benchmarks.peers import PEERS
from benchmarks.peers.peer import Work
from tidemark.config.cluster import Cluster
from tidemark.spark.session import spark_session

PROJECT = Path(__file__).resolve().parents[1]
Answer = dict[str, Any]
"""What a run took and wrote; or its `error`; or, where it has not come to an end, nothing."""


@dataclass(frozen=True)
class Asked:
    """A case to generate, or with a peer to measure."""

    case: Case
    peer: str | None = None


class Worker:
    """The process as the one that started it sees it."""

    def __init__(self, setup: Setup, folder: Path) -> None:
        context = get_context("spawn")
        self._connection, its = context.Pipe()
        self._process = context.Process(target=serve, args=(its, setup, folder))
        self._process.start()
        its.close()

    def ask(self, asked: Asked, limit: float | None = None) -> Answer:
        """Have something done; a run that takes longer than so many seconds is ended, and nothing answered."""
        self._connection.send(asked)
        with suppress(EOFError):
            answer: Answer | None = self._connection.recv()
            if answer is None and self._connection.poll(limit):
                answer = self._connection.recv()
            if answer is None:
                self.end()
            return answer or {}
        self._process.join()
        return {"error": f"its process ended with exit code {self._process.exitcode}"}

    @property
    def alive(self) -> bool:
        """Whether it can be asked more."""
        return self._process.is_alive()

    def end(self, patience: float = 0) -> None:
        """End the process, and what it has started; an idle one has so many seconds to tidy up."""
        self._connection.close()
        self._process.join(patience)
        assert self._process.pid, "it has been started"
        # It leads a group, in which everything is that it has started.
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, SIGKILL)
        self._process.kill()
        self._process.join()


def serve(connection: Connection, setup: Setup, folder: Path) -> None:
    """Answer what is asked, until nobody is there to ask; before an answer comes None when a measured run begins."""
    os.setsid()
    with suppress(EOFError):
        session = _Session(setup, folder)
        while True:
            asked = connection.recv()
            try:
                if asked.peer:
                    answer = session.measure(asked.case, asked.peer, lambda: connection.send(None))
                else:
                    answer = session.generate(asked.case)
            except Exception as error:  # noqa: BLE001 - one peer's failure is a line of the table
                answer = {"error": f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"}
            connection.send(answer)


@dataclass
class _Session:
    """What lasts from one measurement to the next."""

    setup: Setup
    folder: Path
    warm: set[tuple[str, str]] = field(default_factory=set)
    runs: int = 0
    log: EventLog | None = None

    def generate(self, case: Case) -> Answer:
        """Write a case's inputs, and those to warm up by."""
        for one in (case, case.warm_up):
            lake = self._lake(one)
            lake.mkdir(parents=True, exist_ok=True)
            write(self._spark(), one.shape, lake)
        return {}

    def measure(self, case: Case, name: str, begun: Callable[[], None]) -> Answer:
        """Run a peer; its result is counted and removed."""
        peer = PEERS[name]
        if peer.spark:
            self._spark()
            if (name, case.kind) not in self.warm:
                self._run(case.warm_up, name, lambda: None)
                self.warm.add((name, case.kind))
        return self._run(case, name, begun)

    def _run(self, case: Case, name: str, begun: Callable[[], None]) -> Answer:
        self.runs += 1
        peer, work = PEERS[name], Work(case, self._lake(case), f"out_{os.getpid()}_{self.runs}")
        peer.prepare(work)
        if self.log:
            self.log.shuffles(self._spark())  # of what came before
        begun()
        answer: Answer = measured(lambda: peer.run(work))
        if self.log:
            answer |= self.log.shuffles(self._spark())
        answer |= peer.counted(work)
        shutil.rmtree(work.out)
        return answer

    def _lake(self, case: Case) -> Path:
        return self.folder / case.shape.folder

    def _spark(self) -> SparkSession:
        """The session, which writes an event log."""
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
            given = " ".join(f"--conf {name}={value}" for name, value in settings.items())
            os.environ["PYSPARK_SUBMIT_ARGS"] = f"--driver-memory {self.setup.memory} {given} pyspark-shell"
            if self.setup.workers:
                os.environ |= start_cluster(self.setup.workers, self.folder / "cluster")
        executors = {"executors": self.setup.workers or 1, "executor_cores": 1, "executor_memory": self.setup.memory}
        return spark_session("benchmark", cluster=Cluster.model_validate({**executors, "event_log": False}))


def start_cluster(workers: int, home: Path) -> dict[str, str]:
    """Start a standalone cluster of workers with a core each, which ends with this process's group.

    Gives the environment of who uses it.
    """
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    settings = {"MASTER_PORT": str(port), "WORKERS": str(workers), "SPARK_WORKER_CORES": "1", "CLUSTER_HOME": str(home)}
    cluster = subprocess.Popen(  # noqa: S603 - the project's own
        [PROJECT / "bin" / "spark-cluster"], env=os.environ | settings, stdout=subprocess.PIPE, text=True
    )
    assert cluster.stdout, "as asked for"
    if not any(line.startswith("Ctrl-C") for line in cluster.stdout):
        raise RuntimeError("the cluster did not start; above is why")
    exported = (line.removeprefix("export ") for line in (home / "env").read_text(encoding="utf-8").splitlines())
    return dict(pair.split("=", 1) for line in exported for pair in shlex.split(line))
