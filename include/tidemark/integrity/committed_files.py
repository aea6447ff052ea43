"""Read from the ledger which files, and how many rows, its commits have added to the tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any

import pandas as pd

from tidemark.config.types import to_micros
from tidemark.delta.table import DataFile, DeltaTableHandle
from tidemark.ledger.erasure_records import parse_erasure_records
from tidemark.ledger.ledger import Ledger
from tidemark.tables.run_files import SLICE_COLUMNS, parse_merge_commit, parse_run
from tidemark.tables.table_changes import QUARANTINED, files_from_rows
from tidemark.timegrid.slices import Grid

_COUNTED_BY_SLICE = ("emissions", QUARANTINED)
"""Tables whose number of rows per slice is a column of the ledger."""


@dataclass(frozen=True)
class CommittedFiles:
    """The files that one commit of the ledger has added, and the runs that it published."""

    slices_by_run: Mapping[str, tuple[int, ...]]
    """Published slices by run. A release and an erasure publish no run."""
    files: Mapping[str, tuple[DataFile, ...]]
    """Added files, by table."""
    released: tuple[int, ...] = ()
    """Slices whose earlier files were removed from `quarantined` by a release."""


@dataclass(frozen=True)
class ExpectedRows:
    """Number of rows that a table has of one run in some slices."""

    run: str
    slices: tuple[int, ...]
    rows: int


def read_committed_files(ledger: Ledger) -> list[CommittedFiles]:
    """Read the files of each commit, oldest first. Commits whose files the ledger has lost are left out."""
    log = DeltaTableHandle.open(ledger.tables.ledger)
    assert log is not None, "something is committed"
    columns = ["slice", "run", "commit", "original_commit", "promotion", "added_files", "removed_files"]
    rows = sorted(log.read(columns).to_pylist(), key=_get_commit)
    commits = (list(commit_rows) for _, commit_rows in groupby(rows, _get_commit))
    return [
        _parse_commit(ledger, commit) for commit in commits if any(row["added_files"] is not None for row in commit)
    ]


def list_all_files(commits: Iterable[CommittedFiles], name: str) -> list[DataFile]:
    """List every file that the ledger has committed to a table."""
    # Files of a version that was rolled back to were committed twice.
    return list({file.path: file for commit in commits for file in commit.files[name]}.values())


def list_current_files(commits: Sequence[CommittedFiles], name: str, grid: Grid) -> list[DataFile]:
    """List the files of a table whose rows no later commit has published again or released.

    The second promotion of a candidate publishes other copies of its files. A release removes a slice's earlier files
    from `quarantined`.
    """
    published = {run: index for index, commit in enumerate(commits) for run in commit.slices_by_run}
    released = {number: index for index, commit in enumerate(commits) for number in commit.released}
    files: dict[str, DataFile] = {}
    for index, commit in enumerate(commits):
        for file in commit.files[name]:
            slices = get_slices_of_file(file, name, grid) if name == QUARANTINED else ()
            replacing = [published.get(parse_run(file.path), 0), *(released.get(number, 0) for number in slices)]
            if index >= max(replacing):
                files[file.path] = file
    return list(files.values())


def get_slices_of_file(file: DataFile, name: str, grid: Grid) -> range:
    """Return the slices of a file's rows, from the statistics in the ledger."""
    first, last = SLICE_COLUMNS[name]
    stats = json.loads(file.stats)
    low, high = stats["minValues"].get(first), stats["maxValues"].get(last)
    if low is None or high is None:
        return range(0)
    start, stop = (grid.number_at(to_micros(datetime.fromisoformat(bound))) for bound in (low, high))
    return range(start, stop + (1 if first == last else 0))


def list_expected_rows(ledger: Ledger, commits: Sequence[CommittedFiles], name: str) -> list[ExpectedRows]:
    """List how many rows a table has by the ledger: of each slice, or of each run if slices are not counted.

    Without runs whose number of rows is unknown.
    """
    if name == "checkpoint":
        counts = {number: sum(entry.carried) for number, entry in ledger.entries.items()}
    elif name in _COUNTED_BY_SLICE:
        rows = pd.to_numeric(ledger.rows[name]).fillna(0).astype("int64")
        counts = dict(zip(ledger.rows["number"].astype(int), rows, strict=True))
    else:
        return list(_count_rows_of_runs(ledger, commits, name))
    return [ExpectedRows(ledger.entries[number].run, (number,), rows) for number, rows in counts.items()]


def has_erased_rows(ledger: Ledger, name: str, numbers: Iterable[int]) -> bool:
    """Return True if rows of a table were erased in these slices: older files still have them."""
    records = (record for number in numbers for record in parse_erasure_records(ledger.entries[number].erasures))
    return any(record.slice_row_counts.get(name) for record in records)


def _count_rows_of_runs(ledger: Ledger, commits: Sequence[CommittedFiles], name: str) -> Iterator[ExpectedRows]:
    """Count the rows of runs by the files of the last commit that published each.

    The number is unknown if a slice of the run was rerun or lost rows to an erasure, or if files of the commit were
    merged before a promotion, since their paths do not name the run.
    """
    published = {
        run: (numbers, commit.files[name]) for commit in commits for run, numbers in commit.slices_by_run.items()
    }
    for run, (numbers, files) in published.items():
        is_current = all((entry := ledger.entry(number)) and entry.run == run for number in numbers)
        is_merged = any(parse_merge_commit(parse_run(file.path)) is not None for file in files)
        if is_current and not is_merged and not has_erased_rows(ledger, name, numbers):
            yield ExpectedRows(run, numbers, sum(file.rows for file in files if parse_run(file.path) == run))


def _get_commit(row: Mapping[str, Any]) -> int:
    return int(row["commit"])


def _parse_commit(ledger: Ledger, rows: Sequence[Mapping[str, Any]]) -> CommittedFiles:
    slices_by_run: dict[str, list[int]] = {}
    amended: list[int] = []
    for row in rows:
        number = ledger.grid.number_at(to_micros(row["slice"]))
        if row.get("original_commit") is None or row.get("promotion") is not None:
            slices_by_run.setdefault(row["run"], []).append(number)
        else:
            amended.append(number)
    files = files_from_rows(file for row in rows for file in row["added_files"] or ())
    is_erasure = any(row.get("removed_files") is not None for row in rows)
    published = {run: tuple(numbers) for run, numbers in slices_by_run.items()}
    return CommittedFiles(published, files, released=() if is_erasure else tuple(amended))
