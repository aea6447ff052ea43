"""A lake in memory, a job that is as simple as can be, and workers whose every step someone else decides on.

What decides what runs, what is taken and what counts is Tidemark's own: plans, history, execution. Here are only the
tables, and the join: a slice emits each row that it takes beside the rows that the two slices before have taken.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import count
from types import SimpleNamespace

import pandas as pd
from pyspark.sql import types as T

from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.staging import StagedFiles
from tidemark.delta.table import CommitConflictError, DataFile
from tidemark.errors import CheckFailedError, SliceOrderError
from tidemark.execution.job import JobResult
from tidemark.ledger.ledger import Entry, Ledger
from tidemark.ledger.staleness import ConsumedVersions, consumed_versions
from tidemark.planning.plan import Plan
from tidemark.tables.run_files import SLICE_COLUMNS, StagedRun, new_merged, new_run
from tidemark.tables.table_changes import TableChanges
from tidemark.timegrid.slices import Grid
from tidemark.watermarks.watermarks import Watermarks

Taken = frozenset[tuple[int, int]]
"""Rows with the slices that took them."""


class Killed(BaseException):
    """The process is gone: nothing of it runs any more."""


class LostError(Exception):
    """A call to storage failed, or its answer was lost."""


@dataclass(frozen=True)
class Version:
    """A version of a table that follows the ledger."""

    paths: frozenset[str]
    number: int
    """The ledger's commit that it has come to."""
    changes_data: bool = True


@dataclass
class World:
    """The tables. Every access is a step, at which another worker may go on, or this one die."""

    chance: random.Random
    rows: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By row: the slice of its clock, and the version of the input that has it."""
    version: int = 0
    contents: dict[str, dict[int, object]] = field(default_factory=dict)
    """By path: what a file holds, by slice; emissions, or the state after it."""
    tables: dict[str, list[Version]] = field(default_factory=dict)
    promised: dict[tuple[str, str], dict[int, Counter]] = field(default_factory=dict)
    """What each run meant to write of emissions and `quarantined`; no table, but what readers are checked against."""
    released: list[tuple[int, str, int, Counter]] = field(default_factory=list)
    """What each release has published: its commit, the run, the slice, and the rows."""
    quarantines: bool = False
    """Whether there are expectations that some rows break."""
    waivers: set[tuple[int, int]] = field(default_factory=set)
    """Slices and attempts that are let through."""
    waived: set[tuple[int, str]] = field(default_factory=set)
    """Slices that a run has let through, whether it was committed or not."""
    commits: list[tuple[int, Entry]] = field(default_factory=list)
    references: dict[int, TableChanges] = field(default_factory=dict)
    """What each commit of the ledger makes of the tables."""
    names: Iterator[int] = field(default_factory=count)
    step: Callable[[Callable[[], object]], object] = lambda act: act()
    """Does what it is given, or something else."""

    def land(self, homes: Iterable[int]) -> None:
        """Rows land in one version of the input."""
        self.version += 1
        for home in homes:
            self.rows[len(self.rows)] = home, self.version

    def ledger(self, grid, number: float = float("inf")) -> Ledger:
        """What is committed, or was up to a commit."""
        known = Ledger(PipelineTables("lake"), grid, pd.DataFrame(), {}, frozenset(), 0)
        for commit, entry in self.commits:
            if commit <= number:
                known = replace(known.with_entries([entry]), number=commit)
        return known

    def answer(self, grid, name: str, number: float = float("inf")) -> dict[int, Counter]:
        """The rows of emissions or `quarantined` that are committed, or were up to a commit; slices that have any."""
        found = {}
        for n, entry in self.ledger(grid, number).entries.items():
            out = sum(
                (rows for commit, run, of, rows in self.released if commit <= number and (run, of) == (entry.run, n)),
                Counter(),
            )
            rows = self.promised[name, entry.run].get(n, Counter())
            found[n] = rows + out if name == "emissions" else rows - out
        return {n: rows for n, rows in found.items() if rows}

    def append(self, entries: Iterable[Entry], number: int, references: TableChanges) -> None:
        """Commit, if the number is above the last."""
        if any(last >= number for last, _ in self.commits):
            raise SliceOrderError("another process has committed")
        self.commits += [(number, entry) for entry in entries]
        self.references[number] = references

    def read(self, name: str, version: Version | None = None) -> dict[int, list[object]]:
        """What a plain read of a table gives, by slice and file."""
        found: dict[int, list[object]] = {}
        for path in (version or self.tables[name][-1]).paths:
            for n, held in self.contents[path].items():
                found.setdefault(n, []).append(held)
        return found

    def stage(self, name: str, run: str, held: dict[int, object]) -> StagedFiles:
        """Write a file that no table has; a failure on the way leaves half of it behind."""
        path = f"run={run}/{next(self.names)}"
        half = dict(list(held.items())[: len(held) // 2])
        self.step(lambda: self.contents.setdefault(f"{path}.half", half))
        self.step(lambda: self.contents.setdefault(path, dict(held)))
        return StagedFiles(name, T.StructType([]), (DataFile(path, 1, len(held), 0, "{}"),) if held else ())


@dataclass(frozen=True)
class Log:
    """A table as it stood when it was opened; `delta.table.DeltaTableHandle` for the simulation."""

    world: World
    grid: Grid
    name: str
    version: int
    schema = T.StructType([])
    partition_columns = ()
    is_plain_parquet = True

    @classmethod
    def opener(cls, world: World, grid: Grid) -> SimpleNamespace:
        """What stands for the class."""

        def opened(path: str, version: int | None = None) -> Log | None:
            name = path.rpartition("/")[2]

            def act() -> Log | None:
                if name not in world.tables:
                    return None
                return cls(world, grid, name, len(world.tables[name]) - 1 if version is None else version)

            return world.step(act)

        return SimpleNamespace(open=opened)

    def or_none(self) -> Log | None:
        return self if self.version >= 0 else None

    @property
    def path(self) -> str:
        return f"lake/{self.name}"

    @property
    def state(self) -> Version:
        return self.world.tables[self.name][self.version]

    @property
    def txn_version(self) -> int:
        return self.state.number

    @property
    def files(self) -> pd.DataFrame:
        return pd.DataFrame({"path": sorted(self.state.paths), "size": 1}).astype({"path": "object"})

    def get_min_values(self, _column: str) -> list[datetime]:
        return [self.grid.datetime_of(min(self.world.contents[path])) for path in self.files["path"]]

    def get_max_values(self, column: str) -> list[datetime]:
        more = 1 if column == SLICE_COLUMNS["checkpoint"][1] else 0
        return [self.grid.datetime_of(max(self.world.contents[path]) + more) for path in self.files["path"]]

    def add_missing_columns(self, _schema: object) -> Log:
        return self

    def commit(self, added, removed=(), txn_version=None, *, changes_data=True) -> Log:
        """As delta-rs: a commit goes on top of those that came since, unless they are in its way."""

        def act() -> Log:
            known = self.world.tables[self.name]
            last, since = known[-1], known[self.version + 1 :]
            overtaken = txn_version is not None and any(one.number > self.state.number for one in since)
            if overtaken or not last.paths.issuperset(removed):
                raise CommitConflictError
            paths = last.paths.difference(removed) | {one.path for one in added}
            known.append(Version(paths, last.number if txn_version is None else txn_version, changes_data))
            if not changes_data:
                assert plain(self.world, self.name, known[-1]) == plain(self.world, self.name, last)
            return replace(self, version=len(known) - 1)

        return self.world.step(act)


def create_table(world: World, grid: Grid, path: str) -> Log:
    """`delta.table.create_table` for the simulation."""
    name = path.rpartition("/")[2]
    world.step(lambda: world.tables.setdefault(name, [Version(frozenset(), 0)]))
    return Log(world, grid, name, len(world.tables[name]) - 1)


def plain(world: World, name: str, version: Version | None = None) -> dict[int, object]:
    """The rows of a plain read, by slice; of emissions without slices that have none."""
    found = sorted(world.read(name, version).items())
    if name != "checkpoint":
        return {n: rows for n, parts in found if (rows := sum(parts, Counter()))}
    assert all(len(parts) == 1 for _, parts in found), f"{name} has a slice twice"
    return {n: held for n, [held] in found}


def split(world: World, name: str, run: str, paths: Iterable[str], slices: range) -> list[DataFile]:
    """Files once more, those before some slices, of them, and behind them apart."""
    files: list[DataFile] = []
    for path in paths:
        held = world.contents[path]
        parts = (lambda n: n < slices.start), (lambda n: n in slices), (lambda n: n >= slices.stop)
        for mine in parts:
            files += world.stage(name, run, {n: rows for n, rows in held.items() if mine(n)}).files
    return files


def merged(world: World, name: str, paths: Iterable[str], commit: int) -> StagedFiles:
    """Files once more as one: `compact._written` for the simulation."""
    held: dict[int, Counter] = {}
    for path in paths:
        for n, rows in world.contents[path].items():
            held[n] = held.get(n, Counter()) + rows
    return world.stage(name, new_merged(commit), held)


def described(_table: str, _schema: object, paths: Iterable[str]) -> list[DataFile]:
    """`delta.staging.described` for the simulation."""
    return [DataFile(path, 1, 1, 0, "{}") for path in paths]


def only(world: World, run: StagedRun, slices: range) -> StagedRun:
    """`StagedRun.only` for the simulation."""
    if slices == run.slices:
        return run
    cut = {
        name: world.stage(
            name,
            run.run,
            {n: held for one in staged.files for n, held in world.contents[one.path].items() if n in slices},
        )
        for name, staged in run.tables.items()
    }
    return replace(run, slices=slices, tables=cut)


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
        return cls(
            world,
            side,
            SimpleNamespace(name=name, version=version, spark=None, get_columns_at=lambda _: None),
            name == "right",
        )

    def at(self, first: int, last: int, taken: ConsumedVersions) -> list[tuple[int, int]]:
        """Rows with their homes, as `StoredInput.read_slices`."""
        due = [(row, home) for row, home, _ in self._rows() if first <= home <= last]
        return due + [(row, home) for row, home in self._unseen(first, taken)]

    @property
    def changes(self) -> Input:
        """As `StoredInput.changes`."""
        return self

    def find_changed_slices(self, _grid, first: int, taken: ConsumedVersions, **_: object) -> set[int]:
        """As `ChangeDetector.find_changed_slices`."""
        return {home for _, home in self._unseen(first, taken)}

    def require_exact_arrivals(self, *_: object) -> None:
        """All rows tell when they arrived."""

    def find_exact_arrival_start(self) -> None:
        """Always."""

    def require_unchanged(self, *_: object) -> None:
        """Rows only ever land."""

    def measure_extent(self, _grid) -> tuple[int | None, int]:
        """As `StoredInput.measure_extent`."""
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


def broken(row: int) -> str | None:
    """The expectation that a row breaks."""
    return {0: "one", 1: "other"}.get(row % 4)


def parted(world: World, number: int, run: str, names: Iterable[str]) -> dict[str, StagedFiles]:
    """`quarantined._parted` for the simulation."""
    held = world.step(lambda: world.read("quarantined").get(number, []))
    rows = sum(held, Counter())
    goes = Counter({one: count for one, count in rows.items() if broken(one[0]) in names})
    return {
        "emissions": world.stage("emissions", run, {number: goes}),
        "quarantined": world.stage("quarantined", run, {number: rows - goes} if rows - goes else {}),
    }


def run_job(world: World, plan: Plan, ledger: Ledger, slices: range, uncommitted) -> JobResult:
    """`job.run_job`, with the join of this world."""
    first, carry_in = slices[0], ledger.entry(slices[0] - 1)
    old = {n: ledger.entry(n) for n in slices}
    attempts = {n: entry.attempt + 1 if entry else 1 for n, entry in old.items()}
    number = plan.number_after(ledger)
    run = new_run(plan.grid, first, attempts[first], number)
    landing = plan.pipeline.on_late_arriving_rows if carry_in else "start"
    earlier = [entry for entry in ledger.entries.values() if entry.number < first]
    rows, landed = [], []
    for side, source in enumerate(plan.inputs):
        taken = consumed_versions(earlier, side)
        rows += source.at(first, slices[-1], taken if landing == "append" else replace(taken, by_slice=()))
    landed = [home for _, home in rows if home < first]
    state = frozenset()
    if carry_in and any(carry_in.carried):
        state = _restored(world, carry_in, uncommitted)
    output, aside, states, entries = {}, {}, {}, []
    digest = carry_in.digest if carry_in else None
    for n in slices:
        mine = frozenset((row, n) for row, home in rows if max(home, first) == n)
        output[n], state = emitted(state, mine), state_after(state, mine, n)
        if world.quarantines and (n, attempts[n]) in world.waivers:
            world.waived.add((n, run))
        elif world.quarantines:
            aside[n] = Counter({one: count for one, count in output[n].items() if broken(one[0])})
            output[n] -= aside[n]
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
            waiting=plan.slices_to_reprocess,
        )
        entries.append(entry)
        digest = entry.digest
    world.promised["emissions", run], world.promised["quarantined", run] = output, aside
    tables = {
        "emissions": world.stage("emissions", run, {n: rows for n, rows in output.items() if rows}),
        "checkpoint": world.stage("checkpoint", run, states),
    }
    if any(aside.values()):
        tables["quarantined"] = world.stage("quarantined", run, {n: rows for n, rows in aside.items() if rows})
    rows_of_ledger = tuple({"commit": number, "entry": entry} for entry in entries)
    return JobResult(
        slices,
        StagedRun(run, slices, tables),
        tuple(entries),
        rows_of_ledger,
        SimpleNamespace(gx_result_ids=()),
        0.0,
        {},
    )


def _restored(world: World, entry: Entry, uncommitted) -> Taken:
    if staged := uncommitted.get(entry.run):
        return next(world.contents[one.path][entry.number] for one in staged.tables["checkpoint"].files)
    held = world.step(lambda: world.read("checkpoint").get(entry.number))
    if held is None:
        raise CheckFailedError("rows are unaccounted for: the checkpoint is empty")
    [state] = held
    return state


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
