"""Expire checkpoints that no plan needs.

Independent of retention, the checkpoints that the next slice, stale slices and slices with late-arriving rows start
from are kept, and so are files of other processes that are not committed yet. Each slice can still be reprocessed,
since the first slice of a chain needs no checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyspark.sql import SparkSession

from tidemark.config import Pipeline
from tidemark.config.types import to_micros
from tidemark.delta.retry import retry_on_conflict
from tidemark.delta.table import DeltaTableHandle
from tidemark.formatting import ToDict
from tidemark.ledger.checkpoint_files import list_available_checkpoints
from tidemark.ledger.ledger import Ledger
from tidemark.ledger.ledger_table import read_attempts
from tidemark.ledger.staleness import find_restorable_start, find_stale_slices
from tidemark.planning.plan import Plan
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.tables.run_files import parse_run
from tidemark.timegrid.slices import group_consecutive


@dataclass(frozen=True)
class ExpiryResult(ToDict):
    """Expired checkpoints, by run; in a dry run, those that would expire."""

    pipeline: str
    table: str
    expired_runs: tuple[str, ...]
    remaining_runs: tuple[str, ...]
    dry_run: bool
    files: tuple[str, ...]
    """Files of the expired runs. They become replaced files, which vacuum deletes."""
    bytes: int


def expire_checkpoints(
    spark: SparkSession,
    pipeline: Pipeline,
    lake: str,
    keep: int | None,
    older_than: timedelta | None,
    *,
    dry_run: bool = False,
) -> ExpiryResult:
    """Expire checkpoints that are neither needed nor recent.

    The checkpoint of a job expires as a whole. The files are removed from the table, and stay on disk until `tidemark
    tables vacuum` or Delta's VACUUM removes them.

    Args:
        keep: Number of newest slices whose checkpoints stay.
        older_than: Minimum age of an expiring checkpoint since its commit.
        dry_run: Only return what would expire.

    Raises:
        SliceOrderError: No slice is committed.
        InputError: Rows that slices have read are gone, so the checkpoints that a plan needs are unknown.
    """
    plan = create_plan(spark, pipeline, lake, Request(reprocess=True))
    ledger = plan.ledger
    runs_with_checkpoint = list_available_checkpoints(plan.tables, ledger.entries.values(), plan.grid)
    newest_slices = sorted(ledger.entries, reverse=True)[: keep or 0]
    needed_runs = {ledger.entries[number].run for number in newest_slices} | set(_find_needed_runs(plan))
    expirable_runs = runs_with_checkpoint
    if older_than is not None:
        expirable_runs = runs_with_checkpoint & _find_runs_older_than(ledger, older_than)
    expired_runs = sorted(expirable_runs - needed_runs)
    files = _list_files_of_runs(plan.tables.checkpoint, expired_runs)
    if expired_runs and not dry_run:
        _remove_runs(plan.tables.checkpoint, expired_runs)
    remaining_runs = sorted(runs_with_checkpoint - set(expired_runs))
    return ExpiryResult(
        pipeline.name, plan.tables.checkpoint, tuple(expired_runs), tuple(remaining_runs), dry_run, *files
    )


def count_slices_within(ledger: Ledger, span: timedelta) -> int:
    """Count the committed slices that end within a span before the end of the last, including the last."""
    if ledger.last is None:
        return 0
    until = ledger.grid.start_of(ledger.last.number + 1) - to_micros(span)
    return sum(ledger.grid.start_of(number + 1) >= until for number in ledger.entries)


def _find_needed_runs(plan: Plan) -> Iterator[str]:
    """Yield the runs whose checkpoints a plan may start from: those before each slice that may run next."""
    ledger, last = plan.ledger, plan.ledger.last
    assert last, "a plan to reprocess has committed slices"
    pending = {*find_stale_slices(ledger), *(plan.slices_to_reprocess or ())}
    pending |= {number for segment in plan.slice_ranges for number in segment.slices}
    for first in [last.number + 1, *(slices[0] for slices in group_consecutive(pending))]:
        before = ledger.entry(find_restorable_start(ledger, first, plan.available_checkpoints) - 1)
        if before:
            yield before.run


def _find_runs_older_than(ledger: Ledger, span: timedelta) -> frozenset[str]:
    """Find the runs whose last commit is older than a span."""
    log = DeltaTableHandle.open(ledger.tables.ledger)
    assert log is not None, "something is committed"
    last_commits = read_attempts(log, ledger.grid).groupby("run")["committed_at"].max()
    return frozenset(last_commits[last_commits < datetime.now(UTC) - span].index)


def _list_files_of_runs(checkpoint: str, runs: Iterable[str]) -> tuple[tuple[str, ...], int]:
    """List the files of some runs in a table, and their total bytes."""
    log, run_names = DeltaTableHandle.open(checkpoint), set(runs)
    sizes = dict(zip(log.files["path"], log.files["size"], strict=True)) if log and run_names else {}
    sizes_of_runs = {path: int(size) for path, size in sizes.items() if parse_run(path) in run_names}
    return tuple(sorted(sizes_of_runs)), sum(sizes_of_runs.values())


def _remove_runs(checkpoint: str, runs: Iterable[str]) -> None:
    """Remove the files of some runs from a table; retry on commit conflicts."""
    run_names = set(runs)

    def attempt() -> None:
        log = DeltaTableHandle.open(checkpoint)
        if log is not None:
            log.commit((), [path for path in log.files["path"] if parse_run(path) in run_names])

    retry_on_conflict(attempt, checkpoint)
