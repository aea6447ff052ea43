"""Small files of settled slices merged: as many rows, in fewer files, by commits that change no data.

A merged file holds the slices of one period. Its folder names the commit of the ledger as of which it was merged, so
that the ledger tells of each slice in it whose rows it has (`Ledger.run_in`): docs/decisions/0043-compaction.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.config import Pipeline
from tidemark.config.maintenance import Compact
from tidemark.config.types import micros
from tidemark.delta.staging import Staged, read_files
from tidemark.delta.table import DataFile, DeltaLog, OvertakenError
from tidemark.errors import FaultError, UserError
from tidemark.formatting import quoted
from tidemark.ledger.ledger import Ledger
from tidemark.ledger.rewrite_verification import prove
from tidemark.tables.run_files import HELD, new_merged, run_of, spans, stage_run
from tidemark.tables.table_changes import TRIES
from tidemark.timegrid.slices import Grid

MERGED = ("emissions", "late", "quality")
"""The tables whose files are merged. Those of a checkpoint expire run by run."""
LARGEST = 256 << 20
"""Bytes that a merged file has at most, about: of more there are several for a period."""


@dataclass(frozen=True)
class Merge:
    """Files of one table and period that become fewer."""

    table: str
    slices: range
    """Those of the period."""
    files: tuple[str, ...]
    bytes: int
    into: int
    """How many files they become."""


@dataclass(frozen=True)
class Compaction:
    """What there is to merge of a pipeline's tables."""

    pipeline: Pipeline
    ledger: Ledger = field(repr=False)
    merges: tuple[Merge, ...]

    def describe(self, merge: Merge) -> dict[str, Any]:
        """Give it to scripts: JSON-ready."""
        start, end = (self.ledger.grid.name(number) for number in (merge.slices.start, merge.slices.stop))
        told = {"table": merge.table, "start": start, "end": end}
        return {**told, "files": len(merge.files), "into": merge.into, "bytes": merge.bytes}


def plan_compaction(pipeline: Pipeline, lake: str) -> Compaction:
    """What can be merged by the pipeline's settings; no file is written.

    Raises:
        UserError: the pipeline file does not say, or a table is not as Tidemark has written it.
    """
    if pipeline.compact is None:
        raise UserError(
            f"pipeline {pipeline.name} does not say what to merge; write `compact: {{after: 2 days, into: 1 day}}` in "
            "its file"
        )
    ledger = Ledger.of(pipeline, lake)
    periods = _settled(ledger, pipeline.compact)
    return Compaction(pipeline, ledger, tuple(one for name in MERGED for one in _merges(ledger, name, periods)))


def merge_files(spark: SparkSession, compaction: Compaction, merge: Merge) -> bool:
    """Write the files of a period once more as fewer, and let the table have these in their place.

    False where another process has replaced these files, or committed their slices anew, meanwhile: the table is left
    as it is.

    Raises:
        FaultError: what was written has not the same rows, or other processes never let go of the table.
    """
    log = DeltaLog.open(getattr(compaction.ledger.tables, merge.table))
    if log is None or not _has(log, merge):
        return False
    source = read_files(spark, log.path, log.schema, merge.files)
    staged = _written(source, compaction, merge, log.path)
    prove(source, staged, HELD[merge.table][0])
    return _commit(compaction.ledger, merge, log.path, staged.files)


def _settled(ledger: Ledger, settings: Compact) -> list[range]:
    """The periods of which all slices are committed, and long enough ago by the pipeline's clock."""
    if ledger.last is None:
        return []
    grid = ledger.grid
    until = grid.start_of(ledger.last.number + 1) - micros(settings.after)
    starts = sorted({_period(grid, settings, number) for number in ledger.entries})
    periods = [_slices_of(grid, settings, start) for start in starts]
    return [one for one in periods if grid.start_of(one.stop) <= until and all(map(ledger.entry, one))]


def _period(grid: Grid, settings: Compact, number: int) -> int:
    """The period in which a slice starts, counted from 1970-01-01 UTC."""
    return grid.start_of(number) // micros(settings.into)


def _slices_of(grid: Grid, settings: Compact, period: int) -> range:
    first, stop = (grid.first_from(n * micros(settings.into)) for n in (period, period + 1))
    return range(max(first, 0), stop)


def _merges(ledger: Ledger, name: str, periods: Sequence[range]) -> Iterator[Merge]:
    log = DeltaLog.open(getattr(ledger.tables, name))
    if log is None or not periods:
        return
    if not log.is_bare:
        raise UserError(
            f"{log.path} has more to it than files of rows: something else than Tidemark has written to it; tidemark "
            "verify says what, and --repair undoes it"
        )
    sizes = dict(zip(log.files["path"], log.files["size"], strict=True))
    inside: dict[int, list[str]] = {}
    of_slice = {number: place for place, period in enumerate(periods) for number in period}
    for path, span in spans(log, name, ledger.grid).items():
        place = of_slice.get(span.start) if span else None
        if span and place is not None and span.stop <= periods[place].stop and _counts(ledger, path, span):
            inside.setdefault(place, []).append(path)
    for place, paths in sorted(inside.items()):
        size = sum(int(sizes[path]) for path in paths)
        into = max(1, ceil(size / LARGEST))
        if into < len(paths):
            yield Merge(name, periods[place], tuple(sorted(paths)), size, into)


def _counts(ledger: Ledger, path: str, span: range) -> bool:
    return all(ledger.holds(run_of(path), number) for number in span)


def _written(source: DataFrame, compaction: Compaction, merge: Merge, path: str) -> Staged:
    """The rows as files in order of slice and keys, which the table does not know."""
    by = [F.col(quoted(name)) for name in _order(compaction.pipeline, merge.table, source.schema)]
    laid = source.coalesce(1) if merge.into == 1 else source.repartitionByRange(merge.into, *by)
    return stage_run(laid.sortWithinPartitions(*by), path, new_merged(compaction.ledger.number))


def _order(pipeline: Pipeline, name: str, schema: T.StructType) -> list[str]:
    wanted = {
        "emissions": ["_slice", *pipeline.join.telling_columns],
        "late": ["_slice", "side", "arrived_at"],
        "quality": ["slice", "expectation"],
    }[name]
    return [one for one in wanted if one in schema.names]


def _commit(ledger: Ledger, merge: Merge, path: str, files: Sequence[DataFile]) -> bool:
    for _ in range(TRIES):
        log = DeltaLog.open(path)
        if log is None or not _has(log, merge) or not _stands(ledger, merge.slices):
            return False
        try:
            log.commit(files, merge.files, changes_data=False)
        except OvertakenError:
            continue
        return True
    raise FaultError(f"other processes keep writing to {path}; run the command again")


def _has(log: DeltaLog, merge: Merge) -> bool:
    return set(merge.files) <= set(log.files["path"])


def _stands(ledger: Ledger, slices: range) -> bool:
    """Whether slices are committed as they were when the ledger was read."""
    log = DeltaLog.open(ledger.tables.ledger)
    if log is not None and log.commit_number == ledger.number:
        return True
    now = Ledger.seen(ledger.tables, ledger.grid)
    return all((entry := now.entry(n)) is not None and entry.run == ledger.entries[n].run for n in slices)
