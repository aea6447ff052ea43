"""Plan and execute the repair of damaged tables.

The ledger lists every committed file, so references are restored from it. Rows that no file has are recomputed by
rerunning their slices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from tidemark.config import Pipeline
from tidemark.config.types import to_micros
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import CommitConflictError, DataFile, DeltaTableHandle
from tidemark.errors import FaultError
from tidemark.integrity.check import IntegrityIssue, IntegrityReport
from tidemark.integrity.committed_files import (
    CommittedFiles,
    get_slices_of_file,
    has_erased_rows,
    list_all_files,
    list_current_files,
    list_expected_rows,
    read_committed_files,
)
from tidemark.integrity.file_checks import RowCounts, check_files, count_rows_by_slice, find_copies, is_undamaged
from tidemark.ledger.ledger import Ledger
from tidemark.planning.request import Request
from tidemark.tables.run_files import list_slices_by_file, parse_merge_commit, parse_run
from tidemark.tables.table_changes import LEDGER_MANAGED_TABLES
from tidemark.timegrid.slices import Grid, group_consecutive

_UNREPAIRABLE = {
    *("missing table", "unreadable log", "table ahead of ledger"),
    *("missing ledger row", "missing input version"),
}
"""Damages that the ledger cannot repair, or that concern other tables."""
_REPAIRED_BY_RERUN = {"state mismatch", "watermark regression"}


@dataclass(frozen=True)
class TableRepair:
    """The commit that repairs a table's references."""

    log: DeltaTableHandle
    table: str
    restored: tuple[DataFile, ...]
    """Committed, undamaged files without a reference, whose rows are current."""
    removed: tuple[str, ...]
    """References to files that are damaged, duplicated, or of no committed run."""


@dataclass(frozen=True)
class Repair:
    """Repair plan. Its steps in order: repair references, apply missing commits, rerun slices."""

    table_repairs: tuple[TableRepair, ...]
    applies_commits: bool
    """True if tables lack commits of the ledger."""
    slices_to_rerun: tuple[int, ...]
    """Slices whose rows are in no file, or that do not continue their predecessor's state."""
    unrepairable: tuple[IntegrityIssue, ...]
    """Issues that cannot be repaired. If there is one, nothing is repaired."""


def plan_repair(pipeline: Pipeline, lake: str, report: IntegrityReport, *, deep: bool) -> Repair:
    """Plan the repair of the issues in a report. Writes nothing.

    Args:
        pipeline: The pipeline.
        lake: The lake root.
        report: Result of `check_integrity`.
        deep: Also check the pages of files.

    Raises:
        SliceOrderError: The committed slices are of another grid.
        FaultError: Another process committed since the check.
    """
    unrepairable = [
        issue for issue in report.damages if issue.damage in _UNREPAIRABLE or (issue.table == "ledger" and issue.file)
    ]
    if unrepairable:
        return Repair(table_repairs=(), applies_commits=False, slices_to_rerun=(), unrepairable=tuple(unrepairable))
    tables, grid = PipelineTables.from_config(pipeline, lake), Grid.from_config(pipeline.slices)
    ledger = Ledger.from_pipeline(pipeline, lake, applies_commits=False)
    slices_to_rerun = {
        number
        for issue in report.damages
        if issue.damage in _REPAIRED_BY_RERUN
        for number in _get_slices_of_issue(grid, issue)
    }
    outdated = {issue.table for issue in report.damages if issue.damage == "table lags ledger"}
    damaged = {issue.table for issue in report.damages} - outdated
    commits = read_committed_files(ledger)
    table_repairs = []
    for name in LEDGER_MANAGED_TABLES:
        log = DeltaTableHandle.open(getattr(tables, name)) if name in damaged else None
        if log is not None and log.txn_version > ledger.last_commit:
            raise FaultError(f"another process has committed to {log.path} meanwhile. Run the command again.")
        if log is not None:
            table_repair, more = _plan_table_repair(log, name, ledger, commits, deep=deep)
            slices_to_rerun |= more
            table_repairs += [table_repair] if table_repair.restored or table_repair.removed else []
    return Repair(tuple(table_repairs), bool(outdated), tuple(sorted(slices_to_rerun)), ())


def execute_repair(pipeline: Pipeline, lake: str, repair: Repair, reprocess: Callable[[Request], object]) -> None:
    """Repair references of tables, apply the ledger's commits that tables lack, and rerun slices.

    Args:
        pipeline: The pipeline.
        lake: The lake root.
        repair: The plan, without unrepairable issues.
        reprocess: Function that runs a request. It is called for each range of consecutive slices to rerun, after
            references and commits are repaired, because the slices read the tables.

    Raises:
        FaultError: Another process committed to a table meanwhile.
    """
    for table_repair in repair.table_repairs:
        log = table_repair.log
        current = DeltaTableHandle.open(log.path)
        is_changed = current is None or current.version != log.version
        try:
            if not is_changed:
                log.commit(table_repair.restored, table_repair.removed, requires_no_removal=True)
        except CommitConflictError:
            is_changed = True
        if is_changed:
            raise FaultError(f"another process has written to {log.path}. Run the command again.")
    Ledger.from_pipeline(pipeline, lake)  # applies missing commits
    grid = Grid.from_config(pipeline.slices)
    for slices in group_consecutive(repair.slices_to_rerun):
        reprocess(Request(grid.datetime_of(slices.start), grid.datetime_of(slices.stop), reprocess=True))


def _plan_table_repair(
    log: DeltaTableHandle, name: str, ledger: Ledger, commits: Sequence[CommittedFiles], *, deep: bool
) -> tuple[TableRepair, set[int]]:
    """Plan the commit that repairs a table's references. Return it with the slices that have to be rerun."""
    checked, committed = check_files(log, deep=deep), list_current_files(commits, name, ledger.grid)
    slices_by_path = list_slices_by_file(log, name, ledger.grid)
    originals = {file.path for file in committed}
    copies = {issue.path for issue in checked.damaged if issue.damage == "duplicate reference"}
    copies |= {copy for _, copy in find_copies(log, name, ledger.grid, checked.paths, originals)}
    removed = copies | {issue.path for issue in checked.damaged}
    removed |= {path for path, span in slices_by_path.items() if not _is_committed(ledger, parse_run(path), span)}
    remaining = set(log.files["path"]) - removed
    rows = count_rows_by_slice(log, name, ledger, remaining)
    restored = []
    for file in committed:
        span = get_slices_of_file(file, name, ledger.grid)
        current = all(entry and entry.run == parse_run(file.path) for entry in map(ledger.entry, span))
        if (
            span
            and current
            and not has_erased_rows(ledger, name, span)
            and file.path not in remaining
            and not any(n in rows for n in span)
            and is_undamaged(log, file)
        ):
            restored.append(file)
    rows_by_slice = _add_rows(rows, count_rows_by_slice(log, name, ledger, (file.path for file in restored)))
    restored_slices = {number for file in restored for number in get_slices_of_file(file, name, ledger.grid)}
    expected = list_expected_rows(ledger, commits, name)
    counted_slices = {number for part in expected for number in part.slices}
    slices_to_rerun = (
        {number for path in removed - copies for number in slices_by_path[path] or () if ledger.entry(number)}
        - restored_slices
        # Other files may have some of a slice's rows. If it is not counted, that is no proof that they have all.
        - (rows.keys() & counted_slices)
    )
    slices_to_rerun -= _list_slices_without_rows(ledger, name, commits)
    for part in expected:
        stored = sum((rows_by_slice.get(number, Counter()) for number in part.slices), Counter[str]())
        may_expire = name == "checkpoint" and not stored
        if not may_expire and stored != Counter({part.run: part.rows}):
            slices_to_rerun.update(part.slices)
    newest = ledger.last
    if name == "checkpoint" and newest and any(newest.carried) and newest.number not in rows_by_slice:
        slices_to_rerun.add(newest.number)
    return TableRepair(log, name, tuple(restored), tuple(sorted(removed))), slices_to_rerun


def _list_slices_without_rows(ledger: Ledger, name: str, commits: Sequence[CommittedFiles]) -> set[int]:
    """Return slices without rows in a table: their runs have committed files in other tables only."""
    runs = {parse_run(file.path) for commit in commits for files in commit.files.values() for file in files}
    slices_with_rows = {
        (number, parse_run(file.path))
        for file in list_all_files(commits, name)
        for number in get_slices_of_file(file, name, ledger.grid)
    }
    return {n for n, entry in ledger.entries.items() if entry.run in runs and (n, entry.run) not in slices_with_rows}


def _is_committed(ledger: Ledger, run: str, span: range | None) -> bool:
    """Return True if a file of a run may have current rows of these slices."""
    is_committed_run = run in ledger.runs or parse_merge_commit(run) is not None
    return is_committed_run and (span is None or any(ledger.is_current(run, number) for number in span))


def _add_rows(*parts: RowCounts) -> RowCounts:
    total: RowCounts = {}
    for part in parts:
        for number, by_run in part.items():
            total[number] = total.get(number, Counter()) + by_run
    return total


def _get_slices_of_issue(grid: Grid, issue: IntegrityIssue) -> Iterator[int]:
    for start, end in issue.slices:
        first, stop = (grid.number_at(to_micros(datetime.fromisoformat(instant))) for instant in (start, end))
        yield from range(first, stop)
