"""A lake in memory, in place of Delta tables and Spark.

Plans, the rules over ledgers, execution, compaction and promotion are Tidemark's own code. `InMemoryLake.install`
replaces the functions through which they access storage. Each access is a step, at which a schedule may let another
worker go on, or make this one fail.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from itertools import count
from types import ModuleType, SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyspark.sql import types as T

from tidemark.config.candidate_version import CANDIDATES_FOLDER
from tidemark.delta.commit_history import is_data_change
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.staging import StagedFiles, read_data_files, read_files
from tidemark.delta.table import CommitConflictError, DataFile, DeltaTableHandle, create_table
from tidemark.errors import SliceOrderError
from tidemark.ledger.entry import Entry
from tidemark.ledger.ledger import Ledger
from tidemark.ledger.ledger_table import read_attempts, read_newest_rows
from tidemark.ledger.rewrite_verification import verify_same_rows
from tidemark.quality.quarantine import FAILED_EXPECTATIONS_COLUMN, RUN_COLUMN
from tidemark.tables.run_files import SLICE_COLUMNS, run_of, stage_run, within
from tidemark.tables.table_changes import TableChanges, apply_to_tables, list_applied_commits
from tidemark.timegrid.slices import Grid

NO_COLUMNS = T.StructType([])
TIMESTAMP = pa.timestamp("us", "UTC")
LIVE_TABLES = PipelineTables("lake/orders")
_NO_OUTPUT: Mapping[str, Mapping[int, Counter]] = {"emissions": {}, "quarantined": {}}
Contents = Mapping[int, Any]
"""Rows by slice: a Counter of emitted or quarantined rows, or the rows in the buffers after the slice."""


def replace_in_package(monkeypatch: pytest.MonkeyPatch, original: object, substitute: object) -> None:
    """Replace a function or class in each module of the package that has it."""
    for module, name in _find_names(original):
        monkeypatch.setattr(module, name, substitute)


@cache
def _find_names(original: object) -> tuple[tuple[ModuleType, str], ...]:
    modules = [module for name, module in sys.modules.items() if name.startswith("tidemark.")]
    return tuple((module, name) for module in modules for name, value in vars(module).items() if value is original)


def is_candidate(tables: PipelineTables) -> bool:
    """Return True if tables are those of a candidate version."""
    return f"/{CANDIDATES_FOLDER}/" in tables.root


def get_failed_expectation(row: int) -> str | None:
    """Return the name of the expectation that a row fails."""
    return {0: "first", 1: "second"}.get(row % 4)


@dataclass(frozen=True)
class Version:
    """A version of a table that follows the ledger."""

    paths: frozenset[str]
    commit: int
    """Commit of the ledger that the table has applied."""
    changes_data: bool = True


@dataclass(frozen=True)
class Frame:
    """Rows of files, in place of a DataFrame."""

    contents: Contents
    schema = declared_schema = NO_COLUMNS

    def coalesce(self, _partitions: int) -> Frame:
        """Return the rows."""
        return self

    def sortWithinPartitions(self, *_columns: object) -> Frame:  # noqa: N802 - Spark's name
        """Return the rows."""
        return self


@dataclass
class InMemoryLake:
    """The tables of a pipeline, and records of what readers may see in them."""

    rng: random.Random
    grid: Grid
    rows: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Input rows by number: the slice of the row's clock, and the first version of the input that has the row."""
    input_version: int = 0
    contents: dict[str, Contents] = field(default_factory=dict)
    """Contents of files, by path."""
    tables: dict[str, list[Version]] = field(default_factory=dict)
    intended_output: dict[tuple[str, str], dict[int, Counter]] = field(default_factory=dict)
    """Rows that a run intends to write to `emissions` and `quarantined`, by table and run. Only for checks."""
    committed_output: dict[int, Mapping[str, Mapping[int, Counter]]] = field(default_factory=lambda: {0: _NO_OUTPUT})
    """Rows of `emissions` and `quarantined` by slice, by table, by commit of the ledger. Only for checks."""
    standing_promotions: list[int] = field(default_factory=list)
    """Commits of the promotions that were not rolled back. Only for checks."""
    released_rows: int = 0
    """Number of rows that were released."""
    has_expectations: bool = False
    """True if the pipeline has expectations that some rows fail."""
    waivers: set[tuple[int, int]] = field(default_factory=set)
    """Slices and attempts that are waived."""
    waived_runs: set[tuple[int, str]] = field(default_factory=set)
    """Slices and runs that used a waiver, whether they were committed or not."""
    attempts: list[tuple[int, Entry]] = field(default_factory=list)
    """Rows of the ledger: commit and entry."""
    table_changes: dict[int, TableChanges] = field(default_factory=dict)
    """Changes of the tables, by commit of the ledger."""
    promotions: dict[int, str] = field(default_factory=dict)
    """Record of each promotion or rollback, by commit of the ledger."""
    candidate_attempts: list[tuple[int, Entry]] = field(default_factory=list)
    """Rows of the ledger of the candidate version."""
    candidate_contents: dict[str, dict[str, Contents]] = field(default_factory=dict)
    """Rows of the candidate version by slice, by table and run."""
    ids: Iterator[int] = field(default_factory=count)
    step: Callable[[Callable[[], Any]], Any] = lambda access: access()
    """Accesses storage, possibly after other workers or with a failure."""

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Replace the package's storage by this lake."""
        for original, substitute in {
            DeltaTableHandle: SimpleNamespace(open=self.open_table),
            create_table: lambda path, *_, **__: self.create_table(path),
            is_data_change: lambda path, version: self.tables[get_table_name(path)][version].changes_data,
            read_data_files: lambda _table, _schema, paths: describe_files(paths),
            read_files: lambda _spark, _table, _schema, paths: Frame(self.merge_contents(paths)),
            within: lambda frame, _name, _grid, start, stop: Frame(select_slices(frame.contents, start, stop)),
            stage_run: lambda frame, table, run: self.stage(get_table_name(table), run, frame.contents),
            verify_same_rows: lambda source, staged, _column: self.verify_same_rows(source, staged),
            read_attempts: lambda *_: self.step(self._read_attempts),
            read_newest_rows: lambda tables, where=None: self.step(lambda: self._find_newest_rows(tables, where)),
        }.items():
            replace_in_package(monkeypatch, original, substitute)
        for name, method in {
            "read": lambda tables, _grid: self._read_and_apply_ledger(tables),
            "read_without_sync": lambda tables, _grid: self.step(lambda: self.read_ledger(tables)),
            "from_attempts": lambda tables, _grid, rows: self._create_ledger(
                tables, zip(rows["commit"], rows["entry"], strict=True)
            ),
            "commit": lambda _ledger, *arguments: self._commit_rows(*arguments),
        }.items():
            monkeypatch.setattr(Ledger, name, method)

    def append_input(self, slices: Iterable[int]) -> None:
        """Append rows of some slices in one version of the input."""
        self.input_version += 1
        for number in slices:
            self.rows[len(self.rows)] = number, self.input_version

    def read_ledger(self, tables: PipelineTables = LIVE_TABLES, commit: float = float("inf")) -> Ledger:
        """Return the ledger of the live or candidate version as of a commit, by default the last one."""
        attempts = self.candidate_attempts if is_candidate(tables) else self.attempts
        return self._create_ledger(tables, ((number, entry) for number, entry in attempts if number <= commit))

    def get_committed_output(self, name: str, commit: float = float("inf")) -> dict[int, Counter]:
        """Return the rows of `emissions` or `quarantined` as of a commit, of slices that have any."""
        output = self.committed_output[max(number for number in self.committed_output if number <= commit)][name]
        return {number: rows for number, rows in output.items() if rows}

    def append_entries(self, entries: Iterable[Entry], commit: int, changes: TableChanges) -> None:
        """Commit entries to the ledger.

        Raises:
            SliceOrderError: The commit's number is not above the last one.
        """
        if any(last >= commit for last, _ in self.attempts):
            raise SliceOrderError("another process has committed")
        self.attempts += [(commit, entry) for entry in entries]
        self.table_changes[commit] = changes

    def open_table(self, path: str, version: int | None = None) -> InMemoryTable | None:
        """Open a table as `DeltaTableHandle.open`, in one step."""
        name = get_table_name(path)

        def access() -> InMemoryTable | None:
            if name == "ledger":
                return InMemoryTable(self, name, -1) if self.attempts else None
            if name not in self.tables:
                return None
            return InMemoryTable(self, name, len(self.tables[name]) - 1 if version is None else version)

        return self.step(access)

    def create_table(self, path: str) -> InMemoryTable:
        """Create a table as `delta.table.create_table`, in one step."""
        name = get_table_name(path)
        self.step(lambda: self.tables.setdefault(name, [Version(frozenset(), 0)]))
        return InMemoryTable(self, name, len(self.tables[name]) - 1)

    def read_files_by_slice(self, name: str, version: Version | None = None) -> dict[int, list[Any]]:
        """Return the contents of a table's files by slice."""
        by_slice: dict[int, list[Any]] = {}
        for path in (version or self.tables[name][-1]).paths:
            for number, rows in self.contents[path].items():
                by_slice.setdefault(number, []).append(rows)
        return by_slice

    def read_table(self, name: str, version: Version | None = None) -> dict[int, Any]:
        """Return the rows of a plain read by slice; of emitted or quarantined rows without empty slices."""
        by_slice = sorted(self.read_files_by_slice(name, version).items())
        if name != "checkpoint":
            return {number: rows for number, parts in by_slice if (rows := sum(parts, Counter()))}
        assert all(len(parts) == 1 for _, parts in by_slice), f"{name} has a slice twice"
        return {number: rows for number, [rows] in by_slice}

    def merge_contents(self, paths: Iterable[str]) -> dict[int, Any]:
        """Merge the contents of files."""
        merged: dict[int, Any] = {}
        for path in paths:
            for number, rows in self.contents[path].items():
                assert number not in merged or isinstance(rows, Counter), "a checkpoint has a slice twice"
                merged[number] = merged[number] + rows if number in merged else rows
        return merged

    def stage(self, name: str, run: str, contents: Contents) -> StagedFiles:
        """Write a file of a run in two steps; a failure between them leaves a partial file."""
        path = f"run={run}/{next(self.ids)}"
        first_half = dict(list(contents.items())[: len(contents) // 2])
        self.step(lambda: self.contents.setdefault(f"{path}.partial", first_half))
        self.step(lambda: self.contents.setdefault(path, dict(contents)))
        files = tuple(describe_files([path])) if contents else ()
        return StagedFiles(f"lake/{name}", NO_COLUMNS, files)

    def verify_same_rows(self, source: Frame, staged: StagedFiles) -> None:
        """Assert that staged files have the rows of their source."""
        assert self.merge_contents(file.path for file in staged.files) == source.contents

    def _create_ledger(self, tables: PipelineTables, attempts: Iterable[tuple[int, Entry]]) -> Ledger:
        rows = list(attempts)
        entries = {entry.number: entry for _, entry in rows}
        runs, commit = frozenset(entry.run for _, entry in rows), max((number for number, _ in rows), default=0)
        return Ledger(tables, self.grid, pd.DataFrame(), dict(sorted(entries.items())), runs, commit)

    def _read_attempts(self) -> pd.DataFrame:
        """Return rows of the ledger with commit, promotion record and entry."""
        promotions = [self.promotions.get(commit) for commit, _ in self.attempts]
        rows = pd.DataFrame(self.attempts, columns=["commit", "entry"])
        return rows.assign(promotion=pd.Series(promotions, dtype="object"))

    def _find_newest_rows(self, tables: PipelineTables, where: ds.Expression | None) -> dict[datetime, dict[str, Any]]:
        """Return the newest row of each slice among those that satisfy a condition on slice and commit."""
        attempts = self.candidate_attempts if is_candidate(tables) else self.attempts
        starts = [self.grid.datetime_of(entry.number) for _, entry in attempts]
        commits = pa.array([commit for commit, _ in attempts], pa.int64())
        rows = pa.table({"slice": pa.array(starts, TIMESTAMP), "commit": commits, "index": range(len(attempts))})
        indexes = (rows if where is None else rows.filter(where))["index"].to_pylist()
        return {starts[index]: {"entry": attempts[index][1], "emissions": 0, "releases": None} for index in indexes}

    def _read_and_apply_ledger(self, tables: PipelineTables) -> Ledger:
        """Read the ledger and apply its commits to the live tables, as `Ledger.read`."""
        ledger = self.step(lambda: self.read_ledger(tables))
        if is_candidate(tables):
            return ledger
        applied = min(list_applied_commits(tables).values(), default=None)
        for number, changes in sorted(self.table_changes.items()):
            if applied is not None and applied < number <= ledger.number:
                apply_to_tables(tables, self.grid, number, changes)
        return ledger

    def _commit_rows(
        self,
        rows: list[dict[str, Any]],
        commit: int,
        changes: TableChanges,
        versions_before: Mapping[str, int],
        _opened: object,
    ) -> None:
        """Commit rows to the ledger in one step, as `Ledger.commit`."""
        for name, version in versions_before.items():
            applied = self.tables[name][version].commit
            is_unused = name == "quarantined" and not applied
            assert is_unused or applied >= commit - 1, "a prepared table has not applied the commit before"
        self.step(lambda: self._append_rows(rows, commit, changes))

    def _append_rows(self, rows: list[dict[str, Any]], commit: int, changes: TableChanges) -> None:
        released = [row for row in rows if "original_commit" in row and row["promotion"] is None]
        entries = [
            replace(row["entry"], last_change_commit=commit) if row in released else row["entry"] for row in rows
        ]
        if promotion := rows[0].get("promotion"):
            entries = [replace(row["entry"], commit=row["original_commit"], attempt=row["attempt"]) for row in rows]
        self.append_entries(entries, commit, changes)
        if promotion:
            self.promotions[commit] = promotion
        released_rows = self.merge_contents(file.path for file in changes.added["emissions"]) if released else None
        self.committed_output[commit] = self._compute_output(entries, commit, promotion, released_rows)

    def _compute_output(
        self, entries: Iterable[Entry], commit: int, promotion: str | None, released: Mapping[int, Counter] | None
    ) -> dict[str, dict[int, Counter]]:
        """Return the rows of each table after a commit, from the rows after the commit before."""
        output = {name: dict(rows) for name, rows in self.committed_output[commit - 1].items()}
        if released is not None:
            for number, rows in released.items():
                self.released_rows += rows.total()
                output["emissions"][number] = output["emissions"].get(number, Counter()) + rows
                output["quarantined"][number] = output["quarantined"].get(number, Counter()) - rows
            return output
        restored = None
        if promotion and "promoted" in json.loads(promotion):
            self.standing_promotions.append(commit)
        elif promotion:
            restored = self.committed_output[self.standing_promotions.pop() - 1]
        for name, rows_by_slice in output.items():
            for entry in entries:
                source = self.intended_output[name, entry.run] if restored is None else restored[name]
                rows_by_slice[entry.number] = source.get(entry.number, Counter())
        return output


@dataclass(frozen=True)
class InMemoryTable:
    """A table at one version, in place of `DeltaTableHandle`. The ledger has neither versions nor files."""

    lake: InMemoryLake
    name: str
    version: int
    schema = declared_schema = NO_COLUMNS
    partition_columns = ()
    is_plain_parquet = True

    @property
    def path(self) -> str:
        return f"lake/{self.name}"

    @property
    def txn_version(self) -> int:
        if self.name == "ledger":
            return self.lake.attempts[-1][0]
        return self._state.commit

    @property
    def files(self) -> pd.DataFrame:
        return pd.DataFrame({"path": sorted(self._state.paths), "size": 1}).astype({"path": "object"})

    @property
    def _state(self) -> Version:
        return self.lake.tables[self.name][self.version]

    def get_min_values(self, _column: str) -> list[datetime]:
        return [self.lake.grid.datetime_of(min(self.lake.contents[path])) for path in self.files["path"]]

    def get_max_values(self, column: str) -> list[datetime]:
        offset = 1 if column == SLICE_COLUMNS["checkpoint"][1] else 0
        return [self.lake.grid.datetime_of(max(self.lake.contents[path]) + offset) for path in self.files["path"]]

    def add_missing_columns(self, _schema: object) -> InMemoryTable:
        return self

    def read(self, _columns: object, condition: ds.Expression | None = None) -> pa.Table:
        """Read the rows of `quarantined`, in one step."""

        def access() -> pa.Table:
            rows = [
                {"_slice": number, RUN_COLUMN: run_of(path), FAILED_EXPECTATIONS_COLUMN: [get_failed_expectation(row)]}
                for path in self._state.paths
                for number, counter in self.lake.contents[path].items()
                for row, _ in counter.elements()
            ]
            starts = pa.array([self.lake.grid.datetime_of(row["_slice"]) for row in rows], TIMESTAMP)
            table = pa.table(
                {
                    "_slice": starts,
                    RUN_COLUMN: pa.array([row[RUN_COLUMN] for row in rows], pa.string()),
                    FAILED_EXPECTATIONS_COLUMN: pa.array(
                        [row[FAILED_EXPECTATIONS_COLUMN] for row in rows], pa.list_(pa.string())
                    ),
                }
            )
            return table if condition is None else table.filter(condition)

        return self.lake.step(access)

    def open_before_txn(self, commit: int) -> InMemoryTable | None:
        """Open the version before the table applied a commit of the ledger. That version is immutable: no step."""
        versions = self.lake.tables[self.name][: self.version + 1]
        applied_in = next((index for index, version in enumerate(versions) if version.commit >= commit), 0)
        return replace(self, version=applied_in - 1) if applied_in else None

    def commit(
        self,
        added: Iterable[DataFile],
        removed: Iterable[str] = (),
        txn_version: int | None = None,
        *,
        changes_data: bool = True,
    ) -> InMemoryTable:
        """Commit in one step. As in delta-rs, the commit follows later ones unless they conflict with it."""

        def access() -> InMemoryTable:
            versions = self.lake.tables[self.name]
            last, later = versions[-1], versions[self.version + 1 :]
            is_outdated = txn_version is not None and any(version.commit > self._state.commit for version in later)
            if is_outdated or not last.paths.issuperset(removed):
                raise CommitConflictError
            paths = last.paths.difference(removed) | {file.path for file in added}
            versions.append(Version(paths, last.commit if txn_version is None else txn_version, changes_data))
            if not changes_data:
                assert self.lake.read_table(self.name) == self.lake.read_table(self.name, last)
            return replace(self, version=len(versions) - 1)

        return self.lake.step(access)


def get_table_name(path: str) -> str:
    """Return the name of the table with a path."""
    return path.rpartition("/")[2]


def describe_files(paths: Iterable[str]) -> list[DataFile]:
    """Describe files for a commit."""
    return [DataFile(path, 1, 1, 0, "{}") for path in sorted(paths)]


def select_slices(contents: Contents, start: int | None, stop: int | None) -> dict[int, Any]:
    """Select the contents of slices start <= n < stop; None for no bound."""
    return {
        number: rows
        for number, rows in contents.items()
        if (start is None or start <= number) and (stop is None or number < stop)
    }
