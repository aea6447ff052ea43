"""Giving up checkpoints that no plan needs.

What stays, whatever the retention: the checkpoint that the next slice continues; the ones before slices that are stale,
or that rows have landed for; and what other processes have not committed yet. The first slice of a chain continues
nothing, so each slice can be run again from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import SparkSession

from tidemark.config import Pipeline
from tidemark.config.types import micros
from tidemark.delta.table import DeltaLog, OvertakenError
from tidemark.errors import FaultError
from tidemark.ledger.checkpoint_files import kept_runs
from tidemark.ledger.ledger import Ledger, attempts
from tidemark.ledger.staleness import restorable, stale
from tidemark.planning.plan import Plan, Request, make_plan
from tidemark.tables.run_files import run_of
from tidemark.tables.table_changes import TRIES
from tidemark.timegrid.slices import ranges


@dataclass(frozen=True)
class Expired:
    """Checkpoints, by run, that were given up, or would be."""

    pipeline: str
    table: str
    removed: tuple[str, ...]
    kept: tuple[str, ...]
    dry_run: bool
    files: tuple[str, ...]
    """Those of the table that are of these runs: superseded from then on."""
    bytes: int

    def describe(self) -> dict[str, Any]:
        """Give it to scripts: JSON-ready."""
        return asdict(self)


def expire(
    spark: SparkSession,
    pipeline: Pipeline,
    lake: str,
    keep: int | None,
    older_than: timedelta | None,
    *,
    dry_run: bool = False,
) -> Expired:
    """Remove the checkpoints that are not of the last `keep` slices, and were committed longer ago than `older_than`.

    A checkpoint is that of a whole job, and goes or stays as one. The table forgets its files, which stay until
    `tidemark vacuum`, or VACUUM, removes them.

    Raises:
        SliceOrderError: no slice is committed.
        InputError: rows that slices have read are gone, so that it cannot be told what a plan needs.
    """
    plan = make_plan(spark, pipeline, lake, Request(reprocess=True))
    ledger = plan.ledger
    present = kept_runs(plan.tables, ledger.entries.values(), plan.grid)
    newest = sorted(ledger.entries, reverse=True)[: keep or 0]
    needed = {ledger.entries[number].run for number in newest} | set(_needed(plan))
    old = present if older_than is None else present & _older(ledger, older_than)
    removed = sorted(old - needed)
    freed = _files(plan.tables.checkpoint, removed)
    if removed and not dry_run:
        _remove(plan.tables.checkpoint, removed)
    return Expired(
        pipeline.name, plan.tables.checkpoint, tuple(removed), tuple(sorted(present - set(removed))), dry_run, *freed
    )


def slices_within(ledger: Ledger, span: timedelta) -> int:
    """How many committed slices end at most so long before the last one does, itself among them."""
    if ledger.last is None:
        return 0
    until = ledger.grid.start_of(ledger.last.number + 1) - micros(span)
    return sum(ledger.grid.start_of(number + 1) >= until for number in ledger.entries)


def _needed(plan: Plan) -> Iterator[str]:
    """The runs whose checkpoints a plan begins with: those before each slice that may have to run next."""
    ledger, last = plan.ledger, plan.ledger.last
    assert last, "a plan to reprocess has committed slices"
    due = [*stale(ledger), *(number for one in plan.segments for number in one.slices)]
    for first in [last.number + 1, *(slices[0] for slices in ranges(due))]:
        before = ledger.entry(restorable(ledger, first, plan.kept) - 1)
        if before:
            yield before.run


def _older(ledger: Ledger, span: timedelta) -> frozenset[str]:
    """The runs that were committed longer ago than this."""
    log = DeltaLog.open(ledger.tables.ledger)
    assert log is not None, "something is committed"
    last = attempts(log, ledger.grid).groupby("run")["committed_at"].max()
    return frozenset(last[last < datetime.now(UTC) - span].index)


def _files(checkpoint: str, runs: Iterable[str]) -> tuple[tuple[str, ...], int]:
    """The files of a table that are of some runs, and their bytes."""
    log, gone = DeltaLog.open(checkpoint), set(runs)
    sizes = dict(zip(log.files["path"], log.files["size"], strict=True)) if log and gone else {}
    found = {path: int(size) for path, size in sizes.items() if run_of(path) in gone}
    return tuple(sorted(found)), sum(found.values())


def _remove(checkpoint: str, runs: Iterable[str]) -> None:
    """Let a table forget the files of some runs, whatever else is committed to it meanwhile."""
    gone = set(runs)
    for more_tries in reversed(range(TRIES)):
        log = DeltaLog.open(checkpoint)
        if log is None:
            return
        try:
            log.commit((), [path for path in log.files["path"] if run_of(path) in gone])
        except OvertakenError:
            if not more_tries:
                raise FaultError(f"other processes keep writing to {checkpoint}; run the command again") from None
        else:
            return
