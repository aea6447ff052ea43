"""Compact small files of settled slices, by commits without data change.

A merged file has the slices of one period. Its folder has the ledger's commit at compaction time, by which the ledger
finds the run of each slice in the file: docs/decisions/0003-ledger-and-file-references.md.
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
from tidemark.config.candidate_version import format_cli_arguments
from tidemark.config.maintenance import CompactionSettings
from tidemark.config.output_stream import EMITTED_AT, EMITTED_ORDER, OUTPUT_STREAM
from tidemark.config.types import to_micros
from tidemark.delta.retry import retry_on_conflict
from tidemark.delta.staging import StagedFiles, read_files
from tidemark.delta.table import DataFile, DeltaTableHandle
from tidemark.errors import UserError
from tidemark.formatting import quote_identifier
from tidemark.ledger.ledger import Ledger
from tidemark.ledger.rewrite_verification import verify_same_rows
from tidemark.tables.run_files import SLICE_COLUMNS, create_merged_run_name, list_slices_by_file, parse_run, stage_run
from tidemark.timegrid.slices import Grid

COMPACTED_TABLES = ("emissions", OUTPUT_STREAM, "late", "quality")
"""Tables whose files are merged. Checkpoints expire run by run instead."""
MAX_FILE_BYTES = 256 << 20
"""Approximate maximum size of a merged file in bytes; a larger period becomes several files."""


@dataclass(frozen=True)
class Merge:
    """A merge of the files of one table and period."""

    table: str
    period: range
    """Slices of the period."""
    files: tuple[str, ...]
    bytes: int
    """Total size of the files."""
    target_files: int
    """Number of files after the merge."""


@dataclass(frozen=True)
class CompactionPlan:
    """All merges of a pipeline's tables that its settings allow now."""

    pipeline: Pipeline
    ledger: Ledger = field(repr=False)
    merges: tuple[Merge, ...]

    def merge_to_dict(self, merge: Merge) -> dict[str, Any]:
        """Return a merge as a JSON-ready dictionary."""
        start, end = (self.ledger.grid.label(number) for number in (merge.period.start, merge.period.stop))
        result = {"table": merge.table, "start": start, "end": end}
        return {**result, "files": len(merge.files), "target_files": merge.target_files, "bytes": merge.bytes}


def plan_compaction(pipeline: Pipeline, lake: str) -> CompactionPlan:
    """Plan the merges that the pipeline's setting `compact` allows, without writing.

    Raises:
        UserError: The setting is missing, or something else than Tidemark has written to a table.
    """
    if pipeline.compact is None:
        raise UserError(
            f"pipeline {pipeline.name} has no setting `compact`. Add `compact: "
            f"{{settled_after: 2 days, period: 1 day}}` to its file."
        )
    ledger = Ledger.from_pipeline(pipeline, lake)
    periods = _find_settled_periods(ledger, pipeline.compact)
    return CompactionPlan(
        pipeline,
        ledger,
        tuple(merge for name in COMPACTED_TABLES for merge in _plan_merges(pipeline, ledger, name, periods)),
    )


def merge_files(spark: SparkSession, plan: CompactionPlan, merge: Merge) -> bool:
    """Merge the files of a period and replace them in the table.

    Returns:
        False if another process has replaced the files or recomputed their slices; then the table is unchanged.

    Raises:
        FaultError: The merged files have other rows, or other processes kept writing to the table.
    """
    log = DeltaTableHandle.open(getattr(plan.ledger.tables, merge.table))
    if log is None or not _has_files(log, merge):
        return False
    source = read_files(spark, log.path, log.schema, merge.files)
    staged = _write_merged(source, plan, merge, log.path)
    verify_same_rows(source, staged, SLICE_COLUMNS[merge.table][0])
    return _commit_merge(plan.ledger, merge, log.path, staged.files)


def _find_settled_periods(ledger: Ledger, settings: CompactionSettings) -> list[range]:
    """Find the periods whose slices are all committed and settled by the pipeline's clock."""
    if ledger.last is None:
        return []
    grid = ledger.grid
    until = grid.start_of(ledger.last.number + 1) - to_micros(settings.settled_after)
    starts = sorted({_period_number(grid, settings, number) for number in ledger.entries})
    periods = [_slices_of_period(grid, settings, start) for start in starts]
    return [period for period in periods if grid.start_of(period.stop) <= until and all(map(ledger.entry, period))]


def _period_number(grid: Grid, settings: CompactionSettings, number: int) -> int:
    """Return the number of the period in which a slice starts, counted from 1970-01-01 UTC."""
    return grid.start_of(number) // to_micros(settings.period)


def _slices_of_period(grid: Grid, settings: CompactionSettings, period: int) -> range:
    first, stop = (grid.first_from(n * to_micros(settings.period)) for n in (period, period + 1))
    return range(max(first, 0), stop)


def _plan_merges(pipeline: Pipeline, ledger: Ledger, name: str, periods: Sequence[range]) -> Iterator[Merge]:
    log = DeltaTableHandle.open(getattr(ledger.tables, name))
    if log is None or not periods:
        return
    if not log.is_plain_parquet:
        arguments = format_cli_arguments(pipeline)
        raise UserError(
            f"{log.path} has more than plain data files: another program has written to it. Run tidemark tables "
            f"verify {arguments} to see what, or tidemark tables repair {arguments} to undo it."
        )
    sizes = dict(zip(log.files["path"], log.files["size"], strict=True))
    files_by_period: dict[int, list[str]] = {}
    period_of_slice = {number: index for index, period in enumerate(periods) for number in period}
    for path, span in list_slices_by_file(log, name, ledger.grid).items():
        index = period_of_slice.get(span.start) if span else None
        if span and index is not None and span.stop <= periods[index].stop and _is_current(ledger, path, span):
            files_by_period.setdefault(index, []).append(path)
    for index, paths in sorted(files_by_period.items()):
        size = sum(int(sizes[path]) for path in paths)
        target_files = max(1, ceil(size / MAX_FILE_BYTES))
        if target_files < len(paths):
            yield Merge(name, periods[index], tuple(sorted(paths)), size, target_files)


def _is_current(ledger: Ledger, path: str, span: range) -> bool:
    return all(ledger.is_current(parse_run(path), number) for number in span)


def _write_merged(source: DataFrame, plan: CompactionPlan, merge: Merge, path: str) -> StagedFiles:
    """Write rows as uncommitted files in order of slice and keys."""
    sort_columns = [
        F.col(quote_identifier(name)) for name in _list_sort_columns(plan.pipeline, merge.table, source.schema)
    ]
    distributed = (
        source.coalesce(1) if merge.target_files == 1 else source.repartitionByRange(merge.target_files, *sort_columns)
    )
    return stage_run(
        distributed.sortWithinPartitions(*sort_columns), path, create_merged_run_name(plan.ledger.last_commit)
    )


def _list_sort_columns(pipeline: Pipeline, name: str, schema: T.StructType) -> list[str]:
    candidates = {
        "emissions": ["_slice", *pipeline.join.key_output_columns],
        OUTPUT_STREAM: ["_slice", EMITTED_AT, EMITTED_ORDER],
        "late": ["_slice", "side", "arrived_at"],
        "quality": ["slice", "expectation"],
    }[name]
    return [column for column in candidates if column in schema.names]


def _commit_merge(ledger: Ledger, merge: Merge, path: str, files: Sequence[DataFile]) -> bool:
    def attempt() -> bool:
        log = DeltaTableHandle.open(path)
        if log is None or not _has_files(log, merge) or not _is_unchanged(ledger, merge.period):
            return False
        log.commit(files, merge.files, changes_data=False)
        return True

    return retry_on_conflict(attempt, path)


def _has_files(log: DeltaTableHandle, merge: Merge) -> bool:
    return set(merge.files) <= set(log.files["path"])


def _is_unchanged(ledger: Ledger, slices: range) -> bool:
    """Return True if no slice was recomputed since the ledger was read."""
    log = DeltaTableHandle.open(ledger.tables.ledger)
    if log is not None and log.txn_version == ledger.last_commit:
        return True
    current = Ledger.read_without_sync(ledger.tables, ledger.grid)
    return all((entry := current.entry(n)) is not None and entry.run == ledger.entries[n].run for n in slices)
