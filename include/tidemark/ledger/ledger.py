"""Read and append the ledger, which has one row per committed run of a slice.

A slice is committed once its row is in the ledger. Commits are numbered in sequence, and a process can only commit on
top of the last commit (optimistic concurrency).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import pandas as pd
import pyarrow as pa

from tidemark.config import Pipeline, Slices
from tidemark.config.types import format_instant, to_micros
from tidemark.delta.filesystem import open_filesystem
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import CommitConflictError, DeltaTableHandle, OpenTables, create_internal_table
from tidemark.errors import FaultError, LedgerConflictError, SliceOrderError, UserError
from tidemark.ledger.config_fingerprint import parse_settings
from tidemark.ledger.entry import Entry, parse_entry
from tidemark.ledger.ledger_table import (
    COMPACT_EVERY,
    ROLLED_BACK,
    SCHEMA,
    iterate_rows,
    read_attempts,
    read_table_changes,
    require_supported_format,
)
from tidemark.tables.run_files import parse_merge_commit
from tidemark.tables.table_changes import (
    TableChanges,
    apply_to_tables,
    list_applied_commits,
    to_file_rows,
)
from tidemark.timegrid.slices import Grid


@dataclass(frozen=True)
class Ledger:
    """The ledger of one pipeline as it was read, possibly with entries committed since."""

    tables: PipelineTables
    grid: Grid
    rows: pd.DataFrame = field(repr=False, compare=False)
    """Newest attempt of each slice, in order, as stored when the ledger was read."""
    entries: dict[int, Entry]
    """Newest attempt of each slice by number, in order."""
    runs: frozenset[str]
    """All committed runs of all attempts."""
    last_commit: int
    """Number of the last commit; 0 before the first."""
    rollbacks: Mapping[int, Collection[int]] = field(default_factory=dict)
    """Slices that each rollback to an earlier version restored, by the number of its commit."""

    @classmethod
    def from_pipeline(cls, pipeline: Pipeline, lake: str, *, applies_commits: bool = True) -> Ledger:
        """Read the ledger of a pipeline in a lake, and apply its commits to the tables.

        Args:
            pipeline: The pipeline.
            lake: The lake root.
            applies_commits: False to change no table, for read-only callers.

        Raises:
            UserError: The ledger belongs to another pipeline, or another version of Tidemark wrote it.
            SliceOrderError: The committed slices are of another grid.
        """
        read = cls.read if applies_commits else cls.read_without_sync
        ledger = read(PipelineTables.from_config(pipeline, lake), Grid.from_config(pipeline.slices))
        owners = set(ledger.rows["pipeline"].dropna()) - {pipeline.name} if len(ledger.rows) else set()
        if owners:
            owner = min(owners)
            raise UserError(
                f"output {pipeline.output} belongs to pipeline {owner}, according to its ledger. Set another `output` "
                f"for {pipeline.name}, or rename the pipeline to {owner}."
            )
        ledger.require_same_slices(pipeline)
        return ledger

    @classmethod
    def read(cls, tables: PipelineTables, grid: Grid) -> Ledger:
        """Read the ledger, and apply its commits to tables that lack them.

        Returns:
            The ledger; an empty one if there is none.

        Raises:
            UserError: Another version of Tidemark wrote it, it lacks commits that tables have applied, or a table is
                gone.
            SliceOrderError: Tables lack commits of slices of another grid.
        """
        # Commits are in the ledger before they are in a table. So the ledger is opened last.
        applied = list_applied_commits(tables)
        log = DeltaTableHandle.open(tables.ledger)
        if log is None:
            _require_commits(tables, 0, applied)
            return cls.empty(tables, grid)
        stored = read_attempts(log, grid)
        require_supported_format(tables, stored)
        last_commit = int(stored["commit"].max()) if len(stored) else 0
        _require_commits(tables, last_commit, applied)
        if applied and (first := min(applied.values())) < last_commit:
            _require_same_grid(tables, grid, stored[stored["commit"] > first])
            for missed_commit, changes in read_table_changes(log, grid, first).items():
                apply_to_tables(tables, grid, missed_commit, changes)
        ledger = cls.from_attempts(tables, grid, stored)
        _require_tables(ledger, applied)
        return ledger

    @classmethod
    def read_without_sync(cls, tables: PipelineTables, grid: Grid) -> Ledger:
        """Read the ledger without changing the tables, for read-only commands."""
        log = DeltaTableHandle.open(tables.ledger)
        if log is None:
            return cls.empty(tables, grid)
        stored = read_attempts(log, grid)
        require_supported_format(tables, stored)
        return cls.from_attempts(tables, grid, stored)

    @classmethod
    def empty(cls, tables: PipelineTables, grid: Grid) -> Ledger:
        """Create a ledger without commits."""
        return cls(tables, grid, pd.DataFrame({"number": pd.Series(dtype="int64")}), {}, frozenset(), 0)

    @classmethod
    def from_attempts(cls, tables: PipelineTables, grid: Grid, stored: pd.DataFrame) -> Ledger:
        """Create the ledger from its stored rows (`read_attempts`)."""
        rows = stored.drop_duplicates("number", keep="last").reset_index(drop=True)
        entries = {int(row["number"]): parse_entry(row) for row in iterate_rows(rows, rows.columns)}
        last_commit = int(stored["commit"].max()) if len(stored) else 0
        return cls(tables, grid, rows, entries, frozenset(stored["run"]), last_commit, _find_rollbacks(stored))

    @property
    def last(self) -> Entry | None:
        """The last committed slice."""
        return next(reversed(self.entries.values()), None)

    def entry(self, number: int) -> Entry | None:
        """Return the newest committed run of a slice that may not be committed; None if there is none.

        `entries[number]` is for slices that are known to be committed.
        """
        return self.entries.get(number)

    def resolve_run(self, run: str, number: int) -> str:
        """Return the run that wrote a slice's rows in a file.

        Args:
            run: Run in the file's path, possibly of a merged file.
            number: The slice.

        Returns:
            For a merged file, the slice's run at the time of the merge, or `run` if the slice was rerun since.
        """
        entry, merged = self.entry(number), parse_merge_commit(run)
        return entry.run if entry and merged is not None and entry.commit <= merged else run

    def is_current(self, run: str, number: int) -> bool:
        """Return True if a slice's rows in a file of a run are the committed ones."""
        entry = self.entry(number)
        return entry is not None and entry.run == self.resolve_run(run, number)

    def count_uncommitted(self, slices: Slices, now: datetime) -> int:
        """Count the slices after the last committed slice that have ended by an instant.

        Args:
            slices: Settings of the slices, whose `end` bounds the count.
            now: The instant.
        """
        return max(0, count_ended_slices(self.grid, slices, now) - (self.last.number + 1 if self.last else 0))

    def require_same_slices(self, pipeline: Pipeline) -> None:
        """Check that the committed slices are those of a pipeline, which would take them for others.

        Raises:
            SliceOrderError: They were committed with other settings of `slices`.
        """
        settings = pipeline.output_affecting_settings()["slices"]
        if self.last is None or (committed := parse_settings(self.last.settings)["slices"]) == settings:
            return
        zone = f" in {committed['time_zone']}" if "time_zone" in committed else ""
        raise SliceOrderError(
            f"{self.tables.root} has other slices than the pipeline file: every {committed['every']}{zone}, from "
            f"{committed['start']} on. Restore `slices`, or give the pipeline a new `output`."
        )

    def with_entries(self, entries: Iterable[Entry]) -> Ledger:
        """Return the ledger with further committed entries."""
        added = {entry.number: entry for entry in entries}
        runs = self.runs | {entry.run for entry in added.values()}
        last_commit = max([self.last_commit, *(entry.commit for entry in added.values())])
        return replace(
            self, entries=dict(sorted({**self.entries, **added}.items())), runs=runs, last_commit=last_commit
        )

    def create_conflict_error(self, first: int) -> LedgerConflictError:
        """Create the error for a process whose ledger is outdated; `first` is the first slice it could not commit."""
        return LedgerConflictError(
            f"another process committed slices of {self.tables.root} in the meantime. Slice {self.grid.label(first)} "
            "and later slices were not published. Run the same command again."
        )

    def commit(
        self,
        rows: Sequence[dict[str, Any]],
        number: int,
        changes: TableChanges,
        versions_before: Mapping[str, int],
        open_tables: OpenTables,
    ) -> None:
        """Append rows as one atomic commit; the tables do not change (`LedgerTransaction.commit`).

        Each commit is a transaction of one Delta application, with the commit number as its version.

        Args:
            rows: Ledger rows, in the columns of `ledger_table.SCHEMA`.
            number: Number of the commit.
            changes: The commit's changes of the tables.
            versions_before: The tables' versions before the commit.
            open_tables: Tables that are open, by path. The ledger is replaced by its new version.

        Raises:
            LedgerConflictError: Another process has committed since this ledger was read.
            FaultError: A file of the commit is gone.
        """
        first, *more = rows
        records = [
            {**first, "added_files": to_file_rows(changes), "table_versions_before": dict(versions_before)},
            *more,
        ]
        if changes.removed_files is not None:
            records[0]["removed_files"] = [
                {"table": name, "path": path} for name, all_ in changes.removed_files.items() for path in all_
            ]
        path = self.tables.ledger
        log = open_tables.pop(path, None) or DeltaTableHandle.open(path) or create_internal_table(path, SCHEMA)
        conflict_error = self.create_conflict_error(self.grid.number_at(to_micros(first["slice"])))
        # Delta rejects a version only if it conflicts with a commit since the table was opened.
        if log.txn_version >= number:
            raise conflict_error
        _require_added_files(self.tables, changes)
        try:
            grown = log.append(pa.Table.from_pylist(records, SCHEMA), number)
        except CommitConflictError:
            raise conflict_error from None
        if number % COMPACT_EVERY == 0:
            grown.compact()
        else:
            open_tables[path] = grown


def _require_commits(tables: PipelineTables, last_commit: int, applied: Mapping[str, int]) -> None:
    """Check that a ledger has all commits that tables have applied, because they would skip its next ones.

    Args:
        tables: The pipeline's tables.
        last_commit: Number of the ledger's last commit.
        applied: Last commit that each table has applied.

    Raises:
        UserError: The ledger was deleted, or restored without the tables.
    """
    if ahead := next((name for name, commit in applied.items() if commit > last_commit), None):
        raise UserError(
            f"{getattr(tables, ahead)} follows commit {applied[ahead]} of the ledger, and {tables.ledger} "
            f"{f'ends with commit {last_commit}' if last_commit else 'is gone'}. Restore both from one backup, "
            f"or remove the folder {tables.root} to begin again."
        )


def _require_tables(ledger: Ledger, existing: Collection[str]) -> None:
    """Check that the tables exist in which a ledger has rows, because the next commit would create them without these.

    Raises:
        UserError: A table was deleted.
    """
    entries = ledger.entries.values()
    has_rows = {
        "emissions": bool((ledger.rows["emissions"] > 0).any()),
        "late": any(counts.late + counts.rejected for entry in entries for counts in entry.counts or ()),
        "checkpoint": ledger.last is not None and any(ledger.last.carried),
    }
    for name in (name for name, has in has_rows.items() if has and name not in existing):
        raise UserError(
            f"{getattr(ledger.tables, name)} is gone, and slices have rows in it by {ledger.tables.ledger}. Restore it "
            f"from a backup, or remove the folder {ledger.tables.root} to begin again."
        )


def _require_same_grid(tables: PipelineTables, grid: Grid, rows: pd.DataFrame) -> None:
    """Check that rows of the ledger have slices of a grid, by which a commit finds the files that it removes.

    Raises:
        SliceOrderError: A row has another slice.
    """
    for number, *bounds in rows[["number", "slice", "slice_end"]].itertuples(index=False):
        if bounds != [grid.datetime_of(int(number)), grid.datetime_of(int(number) + 1)]:
            committed_slice = " to ".join(map(format_instant, bounds))
            raise SliceOrderError(
                f"the tables in {tables.root} lack a commit of the slice {committed_slice}, which is none by `slices` "
                "in the pipeline file. Restore `slices` and run the command again."
            )


def _require_added_files(tables: PipelineTables, changes: TableChanges) -> None:
    """Check that the files of a commit exist with their size: a vacuum may have taken them for those of a failed run.

    Raises:
        FaultError: A file is missing or has another size.
    """
    for name, files in changes.added.items():
        table = getattr(tables, name)
        infos = open_filesystem(table).get_file_info([file.path for file in files]) if files else []
        for file, info in zip(files, infos, strict=True):
            if info.size != file.size:
                raise FaultError(
                    f"{table}/{file.path} is gone or not complete, so nothing was committed. Set "
                    "retention.uncommitted_files in the pipeline file longer than the longest job (with --atomic: the "
                    "longest run), and run the same command again."
                )


def count_ended_slices(grid: Grid, slices: Slices, now: datetime) -> int:
    """Count the slices of a pipeline that have ended by an instant; 0 or less before the end of the first one."""
    return grid.number_at(to_micros(min(now, slices.end) if slices.end else now))


def _find_rollbacks(stored: pd.DataFrame) -> dict[int, set[int]]:
    """Return the slices that each rollback restored, by the number of its commit."""
    rollbacks = defaultdict[int, set[int]](set)
    records = stored[["commit", "number", "promotion"]].dropna() if "promotion" in stored else stored.iloc[:0]
    for commit, number, record in records.itertuples(index=False):
        if ROLLED_BACK in json.loads(record):
            rollbacks[int(commit)].add(int(number))
    return dict(rollbacks)
