"""Cases run by their peers in turns, each within its time."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.cases import Case, Setup
from benchmarks.peers import PEERS
from benchmarks.results import Run
from benchmarks.worker import Answer, Asked, Worker

PATIENCE = 15.0
"""Seconds for a process to tidy up."""


def run_in_turns(cases: Sequence[Case], rounds: int, limit: float, told: Callable[[Run], None]) -> None:
    """Run each case's peers one after another, so many times; `told` is told of each run.

    Peers that are alone are run in the first round, and who did not come to an end is not tried again.
    """
    failed: set[tuple[str, str]] = set()
    with tempfile.TemporaryDirectory() as folder, _Workers.of(Path(folder)) as workers:
        for number in range(rounds):
            for case in cases:
                workers.ask(Asked(case))
                for name in case.peers:
                    if (number and PEERS[name].alone) or (case.name, name) in failed:
                        continue
                    answer = workers.ask(Asked(case, name), limit)
                    error = answer.pop("error", None)
                    if not answer:
                        failed.add((case.name, name))
                    told(Run(case.name, name, number, answer, error))


class _Workers:
    """One process at a time: for all of Spark in one setup, or for a peer that is alone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._worker: Worker | None = None
        self._key: tuple[Setup, str | None] | None = None

    @classmethod
    @contextmanager
    def of(cls, folder: Path) -> Iterator[_Workers]:
        """Workers of which none is left behind."""
        workers = cls(folder)
        try:
            yield workers
        finally:
            workers.end()

    def ask(self, asked: Asked, limit: float | None = None) -> Answer:
        """Ask the process that this is for, which is started where it is not the one that is there.

        Raises:
            RuntimeError: inputs could not be generated.
        """
        key = asked.case.setup, asked.peer if asked.peer and PEERS[asked.peer].alone else None
        if key != self._key:
            self.end()
        if self._worker is None:
            self._worker, self._key = Worker(asked.case.setup, self._folder), key
        answer = self._worker.ask(asked, limit)
        if not self._worker.alive:
            self.end()
        if asked.peer is None and answer:
            raise RuntimeError(f"case {asked.case.name} has no inputs: {answer['error']}")
        return answer

    def end(self) -> None:
        """End the process, if there is one."""
        if self._worker is not None:
            self._worker.end(PATIENCE)
        self._worker, self._key = None, None
