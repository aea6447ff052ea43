"""Run the peers of each case in turns, within a time limit."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.cases import Case, Setup
from benchmarks.peers import PEERS
from benchmarks.results import Run
from benchmarks.worker import Answer, Task, Worker

SHUTDOWN_SECONDS = 15.0
"""Seconds that a process has to shut down."""


def run_in_turns(cases: Sequence[Case], rounds: int, limit: float, report: Callable[[Run], None]) -> None:
    """Run each case's peers one after another, in several rounds.

    Peers with their own process run in the first round only. A peer that did not finish is not run again.

    Args:
        report: Called with each run.
    """
    failed: set[tuple[str, str]] = set()
    with tempfile.TemporaryDirectory() as folder, _WorkerPool.create(Path(folder)) as workers:
        for number in range(rounds):
            for case in cases:
                workers.request(Task(case))
                for name in case.peers:
                    if (number and PEERS[name].has_own_process) or (case.name, name) in failed:
                        continue
                    answer = workers.request(Task(case, name), limit)
                    error = answer.pop("error", None)
                    if not answer:
                        failed.add((case.name, name))
                    report(Run(case.name, name, number, answer, error))


class _WorkerPool:
    """Manages one process at a time: for Spark in one setup, or for a peer with its own process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._worker: Worker | None = None
        self._key: tuple[Setup, str | None] | None = None

    @classmethod
    @contextmanager
    def create(cls, folder: Path) -> Iterator[_WorkerPool]:
        """Create a pool that stops its worker at the end."""
        workers = cls(folder)
        try:
            yield workers
        finally:
            workers.stop()

    def request(self, task: Task, limit: float | None = None) -> Answer:
        """Run a task in the process for it, which is started if necessary.

        Raises:
            RuntimeError: The inputs could not be generated.
        """
        key = task.case.setup, task.peer if task.peer and PEERS[task.peer].has_own_process else None
        if key != self._key:
            self.stop()
        if self._worker is None:
            self._worker, self._key = Worker(task.case.setup, self._folder), key
        answer = self._worker.request(task, limit)
        if not self._worker.is_alive:
            self.stop()
        if task.peer is None and answer:
            raise RuntimeError(f"case {task.case.name} has no inputs: {answer['error']}")
        return answer

    def stop(self) -> None:
        """Stop the process, if there is one."""
        if self._worker is not None:
            self._worker.stop(SHUTDOWN_SECONDS)
        self._worker, self._key = None, None
