"""A lake in memory, in place of Delta tables, their logs, Spark's DataFrames and the clock.

`InMemoryLake.install` replaces the functions through which the package accesses storage. Each access is a step, at
which a schedule may let another worker go on, or make this one fail.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from itertools import count, pairwise
from types import ModuleType, SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake.exceptions import DeltaError
from pyspark.errors import AnalysisException
from pyspark.sql import types as T

from tidemark.delta.commit_history import is_data_change, read_log_actions
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.staging import StagedFiles, read_data_files, read_files
from tidemark.delta.table import CommitConflictError, DataFile, DeltaTableHandle, create_table
from tidemark.ledger.rewrite_verification import verify_same_rows
from tidemark.quality.quarantine import FAILED_EXPECTATIONS_COLUMN, RUN_COLUMN
from tidemark.sources.file_time_ranges import FileTimeRange, read_time_ranges
from tidemark.spark.dataframe_utils import cast_columns
from tidemark.tables.run_files import SLICE_COLUMNS, filter_slices, parse_run, stage_run
from tidemark.timegrid.slices import Grid

LAKE = "/lake"
CLOCK = "clock"
"""Time column of each table, for the statistics of its files."""
TIMESTAMP = pa.timestamp("us", "UTC")
NO_COLUMNS = T.StructType([])
COLUMNS = T.StructType([T.StructField(CLOCK, T.LongType())])
Contents = Mapping[int, Any]
"""Rows by slice: a Counter of rows, or the rows in the buffers after the slice."""


def replace_in_package(monkeypatch: pytest.MonkeyPatch, original: object, substitute: object) -> None:
    """Replace a function or class in each module of the package that has it."""
    for module, name in _find_names(original):
        monkeypatch.setattr(module, name, substitute)


@cache
def _find_names(original: object) -> tuple[tuple[ModuleType, str], ...]:
    modules = [module for name, module in sys.modules.items() if name.startswith("tidemark.")]
    return tuple((module, name) for module in modules for name, value in vars(module).items() if value is original)


def get_failed_expectation(row: Any) -> str | None:
    """Return the name of the expectation that a row fails."""
    return {0: "first", 1: "second"}.get(row % 4) if isinstance(row, int) else None


@dataclass(frozen=True)
class Version:
    """A version of a table."""

    paths: frozenset[str]
    commit: int
    """Commit of the ledger that the table has applied."""
    changes_data: bool = True
    seconds: int = 0
    """Time of the version."""


@dataclass(frozen=True)
class StoredFile:
    """A file on disk."""

    table: str
    contents: Contents
    seconds: int
    """Time at which it was written."""


@dataclass(frozen=True)
class Frame:
    """Rows of files, in place of a DataFrame."""

    contents: Contents
    schema = declared_schema = NO_COLUMNS

    def where(self, is_selected: Callable[[int], bool]) -> Frame:
        """Return the rows of some slices."""
        return Frame({number: rows for number, rows in self.contents.items() if is_selected(number)})

    def unionByName(self, other: Frame, **_: object) -> Frame:  # noqa: N802 - Spark's name
        """Return the rows of both."""
        return Frame(merge_contents((self.contents, other.contents)))

    def coalesce(self, _partitions: int) -> Frame:
        """Return the rows."""
        return self

    def sortWithinPartitions(self, *_columns: object) -> Frame:  # noqa: N802 - Spark's name
        """Return the rows."""
        return self


@dataclass
class InMemoryLake:
    """Tables, their logs and their files, by path."""

    grid: Grid
    step: Callable[[Callable[[], Any]], Any] = lambda access: access()
    """Accesses storage, possibly after other workers or with a failure."""
    tables: dict[str, list[Version]] = field(default_factory=dict)
    first_versions: dict[str, int] = field(default_factory=dict)
    """First version of each table whose commit the log still has; 0 by default."""
    files: dict[str, StoredFile] = field(default_factory=dict)
    """All files that were ever written."""
    deleted: dict[str, int] = field(default_factory=dict)
    """Files that a vacuum has deleted, with the time."""
    file_lists: dict[tuple[str, int], pd.DataFrame] = field(default_factory=dict)
    """Files by table and version, because creating a data frame is slow."""
    ids: Iterator[int] = field(default_factory=count)
    seconds: int = 0
    """The time."""

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Replace the package's storage by this lake."""
        monkeypatch.setattr(PipelineTables, "require_permission", lambda _: None)
        for original, substitute in {
            DeltaTableHandle: SimpleNamespace(open=self.open_table),
            create_table: lambda path, *_, **__: self.create_table(path),
            read_log_actions: self.read_log_actions,
            is_data_change: lambda path, version: self._read_commit(path, version).changes_data,
            read_data_files: lambda _table, _schema, paths: self.describe_existing_files(paths),
            read_files: lambda _spark, _table, _schema, paths: Frame(self.read_files(paths)),
            read_time_ranges: lambda log, _clock: map(self._measure_time_range, sorted(log.paths)),
            cast_columns: lambda frame, _schema: frame,
            filter_slices: lambda frame, _name, _grid, start, stop: Frame(select_slices(frame.contents, start, stop)),
            stage_run: lambda frame, table, run: self.stage(table, run, frame.contents),
            verify_same_rows: lambda source, staged, _column: self.verify_same_rows(source, staged),
        }.items():
            replace_in_package(monkeypatch, original, substitute)

    @contextmanager
    def restored_afterwards(self) -> Iterator[None]:
        """Undo all commits of the block, which checks what a command would do."""
        tables = {path: list(versions) for path, versions in self.tables.items()}
        file_lists = dict(self.file_lists)
        try:
            yield
        finally:
            self.tables, self.file_lists = tables, file_lists

    def open_table(self, path: str, version: int | None = None) -> InMemoryTable | None:
        """Open a table as `DeltaTableHandle.open`, the newest version in one step. Other versions are immutable."""
        if version is not None:
            if version < self.first_versions.get(path, 0):
                raise DeltaError(f"the log of {path} has no version {version}")
            return InMemoryTable(self, path, version)

        def access() -> InMemoryTable | None:
            versions = self.tables.get(path)
            return InMemoryTable(self, path, len(versions) - 1) if versions else None

        return self.step(access)

    def create_table(self, path: str) -> InMemoryTable:
        """Create a table as `delta.table.create_table`, in one step."""
        self.step(lambda: self.tables.setdefault(path, [Version(frozenset(), 0, seconds=self.seconds)]))
        return InMemoryTable(self, path, len(self.tables[path]) - 1)

    def append_input(self, path: str, rows: Contents) -> None:
        """Append rows to an input, as another program does."""
        versions = self.tables[path]
        name = self._write(path, f"{next(self.ids)}", rows)
        versions.append(Version(versions[-1].paths | {name}, 0, seconds=self.seconds))

    def read_log_actions(self, path: str, version: int) -> list[dict[str, Any]]:
        """Read a commit of a table's log as `commit_history.read_log_actions`."""
        commit, before = self._read_commit(path, version), frozenset[str]()
        if version:
            before = self.tables[path][version - 1].paths
        changes = {"add": commit.paths - before, "remove": before - commit.paths}
        return [{kind: {"path": file, "dataChange": commit.changes_data}} for kind in changes for file in changes[kind]]

    def _read_commit(self, path: str, version: int) -> Version:
        if version < self.first_versions.get(path, 0):
            raise FileNotFoundError(f"{path} version {version}")
        return self.tables[path][version]

    def read_files_by_slice(self, path: str, version: Version | None = None) -> dict[int, list[Any]]:
        """Return the contents of a table's files by slice."""
        by_slice: dict[int, list[Any]] = {}
        for file in (version or self.tables[path][-1]).paths:
            for number, rows in self.files[file].contents.items():
                by_slice.setdefault(number, []).append(rows)
        return by_slice

    def read_table(self, path: str, version: Version | None = None) -> dict[int, Any]:
        """Return the rows of a plain read by slice; of emitted or quarantined rows without empty slices."""
        by_slice = sorted(self.read_files_by_slice(path, version).items())
        if not path.endswith("/checkpoint"):
            return {number: rows for number, parts in by_slice if (rows := sum(parts, Counter()))}
        assert all(len(parts) == 1 for _, parts in by_slice), f"{path} has a slice twice"
        return {number: rows for number, [rows] in by_slice}

    def read_files(self, paths: Iterable[str]) -> dict[int, Any]:
        """Read the contents of files.

        Raises:
            AnalysisException: A file was deleted. This is Spark's error.
        """
        files = list(paths)
        if missing := self.deleted.keys() & files:
            raise AnalysisException(f"[PATH_NOT_FOUND] Path does not exist: {min(missing)}")
        return merge_contents(self.files[path].contents for path in files)

    def describe_existing_files(self, paths: Iterable[str]) -> list[DataFile]:
        """Describe files for a commit.

        Raises:
            FileNotFoundError: A file was deleted.
        """
        files = list(paths)
        if missing := self.deleted.keys() & files:
            raise FileNotFoundError(min(missing))
        return describe_files(files)

    def stage(self, table: str, run: str, contents: Contents) -> StagedFiles:
        """Write a file of a run in two steps; a failure between them leaves a partial file."""
        path = f"run={run}/{next(self.ids)}"
        first_half = dict(list(contents.items())[: len(contents) // 2])
        self.step(lambda: self._write(table, f"{path}.partial", first_half))
        self.step(lambda: self._write(table, path, dict(contents)))
        files = tuple(describe_files([path])) if contents else ()
        return StagedFiles(table, NO_COLUMNS, files)

    def find_end(self, path: str) -> int:
        """Return the time since which no table has a file: that of the commit that removed it, or else its own."""
        file = self.files[path]
        versions = self.tables.get(file.table, ())
        removals = [after.seconds for version, after in pairwise(versions) if path in version.paths - after.paths]
        return max([file.seconds, *removals])

    def _write(self, table: str, path: str, contents: Contents) -> str:
        self.files[path] = StoredFile(table, contents, self.seconds)
        return path

    def verify_same_rows(self, source: Frame, staged: StagedFiles) -> None:
        """Assert that staged files have the rows of their source."""
        assert self.read_files(file.path for file in staged.files) == source.contents

    def _measure_time_range(self, path: str) -> FileTimeRange:
        numbers = self.files[path].contents
        first, last = (self.grid.start_of(number) for number in (min(numbers), max(numbers)))
        return FileTimeRange(path, 1, len(numbers), 0, first, last)


@dataclass(frozen=True)
class InMemoryTable:
    """A table at one version, in place of `DeltaTableHandle`."""

    lake: InMemoryLake
    path: str
    version: int
    schema = declared_schema = COLUMNS
    partition_columns = external_files = ()
    is_plain_parquet = True
    has_exact_statistics = False

    @property
    def paths(self) -> frozenset[str]:
        """Paths of the files."""
        return self._state.paths

    @property
    def txn_version(self) -> int:
        return self._state.commit

    @property
    def files(self) -> pd.DataFrame:
        key = self.path, self.version
        if key not in self.lake.file_lists:
            self.lake.file_lists[key] = pd.DataFrame({"path": pd.Series(sorted(self.paths), dtype="object"), "size": 1})
        return self.lake.file_lists[key]

    @property
    def filesystem(self) -> SimpleNamespace:
        """The file system, which knows which files exist."""
        return SimpleNamespace(
            get_file_info=lambda paths: [SimpleNamespace(is_file=path not in self.lake.deleted) for path in paths]
        )

    @property
    def _state(self) -> Version:
        return self.lake.tables[self.path][self.version]

    def get_min_values(self, _column: str) -> list[datetime]:
        return [self.lake.grid.datetime_of(min(self.lake.files[path].contents)) for path in self.files["path"]]

    def get_max_values(self, column: str) -> list[datetime]:
        offset = 1 if column == SLICE_COLUMNS["checkpoint"][1] else 0
        return [self.lake.grid.datetime_of(max(self.lake.files[path].contents) + offset) for path in self.files["path"]]

    def add_missing_columns(self, _schema: object) -> InMemoryTable:
        return self

    def set_removed_file_retention(self, _retention: object) -> None:
        """Ignore the setting: only Delta's own VACUUM reads it."""

    def read(self, _columns: object, condition: ds.Expression | None = None) -> pa.Table:
        """Read the rows of `quarantined`, in one step."""

        def access() -> pa.Table:
            rows = [
                {
                    "_slice": number,
                    RUN_COLUMN: parse_run(path),
                    FAILED_EXPECTATIONS_COLUMN: [get_failed_expectation(row)],
                }
                for path in self.paths
                for number, counter in self.lake.files[path].contents.items()
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
        versions = self.lake.tables[self.path][: self.version + 1]
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
            versions = self.lake.tables[self.path]
            last, later = versions[-1], versions[self.version + 1 :]
            is_outdated = txn_version is not None and any(version.commit > self._state.commit for version in later)
            if is_outdated or not last.paths.issuperset(removed):
                raise CommitConflictError
            paths = last.paths.difference(removed) | {file.path for file in added}
            commit = last.commit if txn_version is None else txn_version
            versions.append(Version(paths, commit, changes_data, self.lake.seconds))
            if not changes_data:
                assert self.lake.read_table(self.path) == self.lake.read_table(self.path, last)
            return replace(self, version=len(versions) - 1)

        return self.lake.step(access)


def describe_files(paths: Iterable[str]) -> list[DataFile]:
    """Describe files for a commit."""
    return [DataFile(path, 1, 1, 0, "{}") for path in sorted(paths)]


def merge_contents(parts: Iterable[Contents]) -> dict[int, Any]:
    """Merge the contents of files."""
    merged: dict[int, Any] = {}
    for part in parts:
        for number, rows in part.items():
            assert number not in merged or isinstance(rows, Counter), "a checkpoint has a slice twice"
            merged[number] = merged[number] + rows if number in merged else rows
    return merged


def select_slices(contents: Contents, start: int | None, stop: int | None) -> dict[int, Any]:
    """Select the contents of slices start <= n < stop; None for no bound."""
    return {
        number: rows
        for number, rows in contents.items()
        if (start is None or start <= number) and (stop is None or number < stop)
    }
