"""The ledger of a pipeline in memory, and records of what readers may see in its tables."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from tests.simulation.in_memory_lake import (
    LAKE,
    TIMESTAMP,
    Contents,
    InMemoryLake,
    InMemoryTable,
    Version,
    replace_in_package,
)
from tidemark.config import Pipeline
from tidemark.config.candidate_version import CANDIDATES_FOLDER
from tidemark.config.output_stream import OUTPUT_STREAM
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.errors import FaultError, SliceOrderError
from tidemark.ledger.entry import Entry
from tidemark.ledger.ledger import Ledger
from tidemark.ledger.ledger_table import read_attempts, read_newest_rows
from tidemark.tables.table_changes import (
    LEDGER_MANAGED_TABLES,
    OPTIONAL_TABLES,
    TableChanges,
    apply_to_tables,
    list_applied_commits,
)
from tidemark.timegrid.slices import Grid

NO_ROWS = pd.DataFrame()
OUTPUT_TABLES = ("emissions", "quarantined", OUTPUT_STREAM)
"""Tables whose rows are recorded for checks."""


def is_candidate(tables: PipelineTables) -> bool:
    """Return True if tables are those of a candidate version."""
    return f"/{CANDIDATES_FOLDER}/" in tables.root


@dataclass
class InMemoryLedger:
    """The ledger of a pipeline, and records for checks."""

    lake: InMemoryLake
    pipeline: Pipeline
    input_path: str
    """Path of the input that is a table."""
    has_expectations: bool = False
    """True if the pipeline has expectations that some rows fail."""
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
    waivers: set[tuple[int, int]] = field(default_factory=set)
    """Slices and attempts that are waived."""
    waived_runs: set[tuple[int, str]] = field(default_factory=set)
    """Slices and runs that used a waiver, whether they were committed or not."""
    input_rows: dict[int, int] = field(default_factory=dict)
    """Slice of each row of the input that is a table. Only for checks."""
    rows_read: dict[tuple[int, str], frozenset[Any]] = field(default_factory=dict)
    """Rows that a run of a slice has read, whether it was committed or not. Only for checks."""
    intended_output: dict[tuple[str, str], dict[int, Counter]] = field(default_factory=dict)
    """Rows that a run intends to write, by table and run. Only for checks."""
    committed_output: dict[int, Mapping[str, Mapping[int, Counter]]] = field(
        default_factory=lambda: {0: {name: {} for name in OUTPUT_TABLES}}
    )
    """Rows by slice, by table, by commit of the ledger. Only for checks."""
    standing_promotions: list[int] = field(default_factory=list)
    """Commits of the promotions that were not rolled back. Only for checks."""
    expired_runs: set[str] = field(default_factory=set)
    """Runs whose checkpoints have expired. Only for checks."""
    released_rows: int = 0
    """Number of rows that were released."""

    @property
    def tables(self) -> PipelineTables:
        """The tables of the live version."""
        return PipelineTables(f"{LAKE}/{self.pipeline.output}")

    @property
    def versions(self) -> dict[str, list[Version]]:
        """Versions of the tables that the ledger manages, by name."""
        versions = {name: self.lake.tables.get(getattr(self.tables, name)) for name in LEDGER_MANAGED_TABLES}
        return {name: versions_of_table for name, versions_of_table in versions.items() if versions_of_table}

    def read_table(self, name: str, version: Version | None = None) -> dict[int, Any]:
        """Return the rows of a plain read of a table by slice; without the table none."""
        return self.lake.read_table(getattr(self.tables, name), version) if name in self.versions else {}

    def is_unused(self, name: str, version: Version) -> bool:
        """Return True if a version of an optional table is from before its first commit of the ledger."""
        return name in OPTIONAL_TABLES and not version.commit

    def read(self, tables: PipelineTables | None = None, commit: float = float("inf")) -> Ledger:
        """Return the ledger of the live or candidate version as of a commit, by default the last one."""
        live_or_candidate = tables or self.tables
        attempts = self.candidate_attempts if is_candidate(live_or_candidate) else self.attempts
        return self.create_ledger(
            live_or_candidate, ((number, entry) for number, entry in attempts if number <= commit)
        )

    def get_committed_output(self, name: str, commit: float = float("inf")) -> dict[int, Counter]:
        """Return the rows of a table as of a commit, of slices that have any."""
        output = self.committed_output[max(number for number in self.committed_output if number <= commit)][name]
        return {number: rows for number, rows in output.items() if rows}

    def append_entries(self, entries: Iterable[Entry], commit: int, changes: TableChanges) -> None:
        """Commit entries to the ledger.

        Raises:
            SliceOrderError: The commit's number is not above the last one.
            FaultError: A vacuum has deleted a file of the commit.
        """
        if any(last >= commit for last, _ in self.attempts):
            raise SliceOrderError("another process committed")
        if self.lake.deleted.keys() & {file.path for files in changes.added.values() for file in files}:
            raise FaultError("a file is gone, so nothing was committed")
        self.attempts += [(commit, entry) for entry in entries]
        self.table_changes[commit] = changes
        versions = self.lake.tables.setdefault(self.tables.ledger, [Version(frozenset(), 0)])
        versions.append(Version(frozenset(), commit, seconds=self.lake.seconds))

    def create_ledger(self, tables: PipelineTables, attempts: Iterable[tuple[int, Entry]]) -> Ledger:
        """Create the ledger from its rows."""
        rows = list(attempts)
        entries = {entry.number: entry for _, entry in rows}
        runs, commit = frozenset(entry.run for _, entry in rows), max((number for number, _ in rows), default=0)
        return Ledger(tables, self.lake.grid, NO_ROWS, dict(sorted(entries.items())), runs, commit)

    def read_attempts(self) -> pd.DataFrame:
        """Return rows of the ledger with commit, promotion record and entry."""
        promotions = [self.promotions.get(commit) for commit, _ in self.attempts]
        rows = pd.DataFrame(self.attempts, columns=["commit", "entry"])
        return rows.assign(promotion=pd.Series(promotions, dtype="object"))

    def find_newest_rows(self, tables: PipelineTables, where: ds.Expression | None) -> dict[datetime, dict[str, Any]]:
        """Return the newest row of each slice among those that satisfy a condition on slice and commit."""
        attempts, grid = self.candidate_attempts if is_candidate(tables) else self.attempts, self.lake.grid
        starts = [grid.datetime_of(entry.number) for _, entry in attempts]
        commits = pa.array([commit for commit, _ in attempts], pa.int64())
        rows = pa.table({"slice": pa.array(starts, TIMESTAMP), "commit": commits, "index": range(len(attempts))})
        indexes = (rows if where is None else rows.filter(where))["index"].to_pylist()
        return {starts[index]: {"entry": attempts[index][1], "emissions": 0, "releases": None} for index in indexes}

    def read_and_apply(self, tables: PipelineTables) -> Ledger:
        """Read the ledger and apply its commits to the live tables, as `Ledger.read`."""
        ledger = self.lake.step(lambda: self.read(tables))
        if is_candidate(tables):
            return ledger
        applied = min(list_applied_commits(tables).values(), default=None)
        for number, changes in sorted(self.table_changes.items()):
            if applied is not None and applied < number <= ledger.last_commit:
                apply_to_tables(tables, self.lake.grid, number, changes)
        return ledger

    def commit_rows(
        self,
        rows: list[dict[str, Any]],
        commit: int,
        changes: TableChanges,
        versions_before: Mapping[str, int],
        _opened: object,
    ) -> None:
        """Commit rows to the ledger in one step, as `Ledger.commit`."""
        for name, number in versions_before.items():
            version = self.versions[name][number]
            is_prepared = self.is_unused(name, version) or version.commit >= commit - 1
            assert is_prepared, "a prepared table has not applied the commit before"
        self.lake.step(lambda: self._append_rows(rows, commit, changes))

    def _append_rows(self, rows: list[dict[str, Any]], commit: int, changes: TableChanges) -> None:
        released = [row for row in rows if "original_commit" in row and row["promotion"] is None]
        entries = [
            replace(row["entry"], last_change_commit=commit) if row in released else row["entry"] for row in rows
        ]
        if promotion := rows[0].get("promotion"):
            entries = [
                replace(row["entry"], commit=row["original_commit"], attempt=row["attempt"], last_change_commit=commit)
                for row in rows
            ]
        self.append_entries(entries, commit, changes)
        if promotion:
            self.promotions[commit] = promotion
        released_rows = self.lake.read_files(file.path for file in changes.added["emissions"]) if released else None
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


def install_ledgers(ledgers: Iterable[InMemoryLedger], monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the ledgers of the package by those of some pipelines."""
    by_root = {ledger.tables.root: ledger for ledger in ledgers}

    def find(tables: PipelineTables) -> InMemoryLedger:
        return by_root[tables.root.partition(f"/{CANDIDATES_FOLDER}/")[0]]

    def read_rows(log: InMemoryTable, *_: object) -> pd.DataFrame:
        return log.lake.step(find(PipelineTables(log.path.removesuffix("/ledger"))).read_attempts)

    def read_newest(tables: PipelineTables, where: ds.Expression | None = None) -> dict[datetime, dict[str, Any]]:
        ledger = find(tables)
        return ledger.lake.step(lambda: ledger.find_newest_rows(tables, where))

    def read_without_sync(tables: PipelineTables, _grid: Grid) -> Ledger:
        ledger = find(tables)
        return ledger.lake.step(lambda: ledger.read(tables))

    replace_in_package(monkeypatch, read_attempts, read_rows)
    replace_in_package(monkeypatch, read_newest_rows, read_newest)
    for name, method in {
        "read": lambda tables, _grid: find(tables).read_and_apply(tables),
        "read_without_sync": read_without_sync,
        "from_attempts": lambda tables, _grid, rows: find(tables).create_ledger(
            tables, zip(rows["commit"], rows["entry"], strict=True)
        ),
        "commit": lambda ledger, *arguments: find(ledger.tables).commit_rows(*arguments),
    }.items():
        monkeypatch.setattr(Ledger, name, method)


def find_ledger(ledgers: Iterable[InMemoryLedger], tables: PipelineTables) -> InMemoryLedger:
    """Return the ledger of a pipeline's live tables."""
    return next(ledger for ledger in ledgers if ledger.tables == tables)
