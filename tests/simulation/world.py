"""A lake in memory, a job that is as simple as can be, and workers whose every step someone else decides on.

What decides what runs, what is taken and what counts is Tidemark's own: plans, history, execution. Here are only the
tables, and the join: a slice emits each row that it takes beside the rows that the two slices before have taken.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pandas as pd

from tidemark.commits.ledger import Entry, Ledger
from tidemark.commits.runs import commit_of, new_run
from tidemark.commits.staleness import ConsumedVersions, consumed_versions
from tidemark.errors import CheckFailedError, SliceOrderError
from tidemark.execution.job import JobResult
from tidemark.planning.plan import Plan
from tidemark.watermarks.buckets import Watermarks

Taken = frozenset[tuple[int, int]]
"""Rows with the slices that took them."""


class Killed(BaseException):
    """The process is gone: nothing of it runs any more."""


class LostError(Exception):
    """A call to storage failed, or its answer was lost."""


@dataclass
class World:
    """The tables. Every access is a step, at which another worker may go on, or this one die."""

    chance: random.Random
    rows: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By row: the slice of its clock, and the version of the input that has it."""
    version: int = 0
    emissions: dict[str, dict[int, Counter]] = field(default_factory=dict)
    checkpoint: dict[str, dict[int, Taken]] = field(default_factory=dict)
    promised: dict[str, dict[int, Counter]] = field(default_factory=dict)
    """What each run meant to write; no table, but what readers are checked against."""
    commits: list[tuple[int, Entry]] = field(default_factory=list)
    step: Callable[[Callable[[], object]], object] = lambda act: act()
    """Does what it is given, or something else."""

    def land(self, homes: Iterable[int]) -> None:
        """Rows land in one version of the input."""
        self.version += 1
        for home in homes:
            self.rows[len(self.rows)] = home, self.version

    def ledger(self, grid) -> Ledger:
        """What is committed."""
        known = Ledger(None, SimpleNamespace(root="lake"), grid, pd.DataFrame(), {}, frozenset(), 0)
        for _, entry in self.commits:
            known = known.after([entry])
        return known

    def read(self, ledger: Ledger, n: int) -> Counter:
        """What a reader that goes through the ledger sees of a slice."""
        return self.emissions.get(ledger.entries[n].run, {}).get(n, Counter())

    def append(self, entries: Iterable[Entry], number: int) -> None:
        """Commit, if the number is above the last."""
        if any(last >= number for last, _ in self.commits):
            raise SliceOrderError("another process has committed")
        self.commits += [(number, entry) for entry in entries]

    def remove(self, run: str) -> None:
        """Delete a run's rows from all tables."""
        self.step(lambda: self.emissions.pop(run, None))
        self.step(lambda: self.checkpoint.pop(run, None))

    def sweep(self, committed: Iterable[str], number: int) -> None:
        """Delete what can no longer be committed."""
        known = set(committed)
        for run in [*{*self.emissions, *self.checkpoint}]:
            if run not in known and commit_of(run) <= number:
                self.remove(run)


@dataclass(frozen=True)
class Input:
    """One input at the version that a plan found; `inputs.StoredInput` for the simulation."""

    world: World
    side: SimpleNamespace
    table: SimpleNamespace
    empty: bool

    @classmethod
    def of(cls, world: World, name: str) -> Input:
        """The left input has the rows."""
        version = world.step(lambda: world.version)
        side = SimpleNamespace(name=name, schema=None)
        return cls(world, side, SimpleNamespace(name=name, version=version), name == "right")

    def at(self, first: int, last: int, taken: ConsumedVersions) -> list[tuple[int, int]]:
        """Rows with their homes, as `StoredInput.rows`."""
        due = [(row, home) for row, home, _ in self._rows() if first <= home <= last]
        return due + [(row, home) for row, home in self._unseen(first, taken)]

    def slices_of_changes(self, _grid, first: int, taken: ConsumedVersions) -> set[int]:
        """As `StoredInput.slices_of_changes`."""
        return {home for _, home in self._unseen(first, taken)}

    def refuse_changes(self, *_: object) -> None:
        """Rows only ever land."""

    def extent(self, _grid) -> tuple[int | None, int]:
        """As `StoredInput.extent`."""
        return max((home for _, home, _ in self._rows()), default=None), 0

    def _rows(self) -> list[tuple[int, int, int]]:
        known = {} if self.empty else self.world.rows
        return [(row, home, version) for row, (home, version) in known.items() if version <= self.table.version]

    def _unseen(self, first: int, taken: ConsumedVersions) -> list[tuple[int, int]]:
        if not taken.by_slice:
            return []
        ends = [*(home for home, _ in taken.by_slice[1:]), first]
        parts = list(zip(taken.by_slice, ends, strict=True))

        def known(home: int) -> int:
            return next(version for (start, version), end in parts if (start is None or start <= home) and home < end)

        return [(row, home) for row, home, version in self._rows() if home < first and version > known(home)]


def state_after(before: Taken, taken: Taken, n: int) -> Taken:
    """Rows wait for two slices."""
    return frozenset(one for one in before | taken if one[1] > n - 2)


def emitted(before: Taken, taken: Taken) -> Counter:
    """Each row beside those that wait."""
    waiting = tuple(sorted(row for row, _ in before))
    return Counter((row, waiting) for row, _ in taken)


def run_job(world: World, plan: Plan, ledger: Ledger, slices: range) -> JobResult:
    """`job.run_job`, with the join of this world."""
    first, carry_in = slices[0], ledger.entry(slices[0] - 1)
    old = {n: ledger.entry(n) for n in slices}
    attempts = {n: entry.attempt + 1 if entry else 1 for n, entry in old.items()}
    number = plan.number_after(ledger)
    run = new_run(plan.grid, first, attempts[first], number)
    landing = plan.pipeline.late_landing if carry_in else "start"
    earlier = [entry for entry in ledger.entries.values() if entry.number < first]
    rows, landed = [], []
    for side, source in enumerate(plan.inputs):
        taken = consumed_versions(earlier, side)
        rows += source.at(first, slices[-1], taken if landing == "append" else replace(taken, by_slice=()))
    landed = [home for _, home in rows if home < first]
    state = frozenset()
    if carry_in and any(carry_in.carried):
        state = world.step(lambda: world.checkpoint.get(carry_in.run, {}).get(carry_in.number))
        if state is None:
            raise CheckFailedError("rows are unaccounted for: the checkpoint is empty")
    output, states, entries = {}, {}, []
    digest = carry_in.digest if carry_in else None
    for n in slices:
        mine = frozenset((row, n) for row, home in rows if max(home, first) == n)
        output[n], state = emitted(state, mine), state_after(state, mine, n)
        states[n] = state
        entry = Entry(
            number=n,
            run=run,
            attempt=attempts[n],
            commit=number,
            settings=plan.settings,
            versions=tuple(source.table.version for source in plan.inputs),
            watermarks=Watermarks(),
            read=(len(mine), 0),
            carried=(len(state), 0),
            drained=False,
            digest=str(sorted(state)),
            carried_in_digest=digest,
            landing=landing,
            landed=len(landed) if n == first else None,
            landed_from=min(landed) if n == first and landed else None,
            waiting=plan.waiting,
        )
        entries.append(entry)
        digest = entry.digest
    world.promised[run] = output
    half = len(slices) // 2
    for part in (slices[:half], slices[half:]):
        world.step(lambda part=part: world.emissions.setdefault(run, {}).update({n: output[n] for n in part}))
    world.step(lambda: world.checkpoint.update({run: states}))
    rows_of_ledger = tuple({"commit": number, "entry": entry} for entry in entries)
    return JobResult(slices, run, tuple(entries), rows_of_ledger, None, 0.0, {})


class Worker:
    """A process, as a thread that does one step when told to."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self.name, self.work = name, work
        self.turn, self.back = threading.Semaphore(0), threading.Semaphore(0)
        self.fate: str | None = None
        self.done = False
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._live, daemon=True)
        self.thread.start()

    def go(self, fate: str | None) -> None:
        """Do the next step, under a fate: None, `killed before`, `killed after`, `lost before`, `lost after`."""
        self.fate = fate
        self.turn.release()
        self.back.acquire()

    def step(self, act: Callable[[], object]) -> object:
        """Wait for the turn, then act or not."""
        self.back.release()
        self.turn.acquire()
        fate, self.fate = self.fate, None
        match fate:
            case "killed before":
                raise Killed
            case "lost before":
                raise LostError("storage does not answer")
        told = act()
        match fate:
            case "killed after":
                raise Killed
            case "lost after":
                raise LostError("storage has not answered")
        return told

    def _live(self) -> None:
        self.turn.acquire()
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001 - a process ends as it will
            self.error = error
        self.done = True
        self.back.release()
