"""Read and write checkpoints, the rows that the join carries between slices, in a Delta table.

A job stores a row once, with the slices at whose end it is in the buffers: carried_from <= slice < carried_until. The
state after a slice is a filter over the table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.staging import read_files
from tidemark.delta.table import CommitConflictError, DeltaTableHandle
from tidemark.errors import InputError, LedgerConflictError
from tidemark.joins.base import Join
from tidemark.ledger.entry import Entry
from tidemark.ledger.state_fingerprint import ROW_HASH, carried_hash
from tidemark.tables.run_files import filter_slices, list_slices_by_file, parse_run
from tidemark.timegrid.slices import Grid

_SLICES = ("slice", "carried_from", "carried_until")


def filter_buffered_rows(carried: DataFrame, number: int) -> DataFrame:
    """Filter a job's carried rows (`ReplayResult.carried`) to the rows in the buffers at the end of slice `number`."""
    is_buffered = F.col("evicted_in").isNull() | (F.col("evicted_in") > number)
    return carried.where((F.col("carried_from") <= number) & is_buffered).drop("carried_from", "evicted_in")


def to_table_rows(carried: DataFrame, slices: range, grid: Grid, join: Join) -> DataFrame:
    """Convert a job's carried rows (`ReplayResult.carried`) to table rows: slices as timestamps, and a row hash."""
    hashed = carried.withColumn(ROW_HASH, carried_hash(carried, join)).drop("lane")
    until = F.least(F.coalesce("evicted_in", F.lit(slices.stop)), F.lit(slices.stop)).cast("long")
    rows = hashed.withColumn("evicted_in", until).withColumnRenamed("evicted_in", "carried_until")
    return rows.withColumns({name: grid.timestamp_column(F.col(name)) for name in _SLICES})


def with_slice_numbers(stored: DataFrame, grid: Grid) -> DataFrame:
    """Convert the slice columns of table rows from timestamps to numbers."""
    return stored.withColumns({name: _slice_number(name, grid) for name in _SLICES})


def read_buffered_rows(
    spark: SparkSession, tables: PipelineTables, number: int, grid: Grid, expected: Entry | None = None
) -> DataFrame:
    """Read the rows in the buffers at the end of a committed slice, as a replay reads them.

    Args:
        spark: A session.
        tables: The pipeline's tables.
        number: The slice.
        grid: The grid of slices.
        expected: Entry of the slice, if the checkpoint must be of its run.

    Raises:
        InputError: The checkpoint table does not exist.
        CommitConflictError: The table has rows of another run.
        LedgerConflictError: The slice carries rows, and its checkpoint was removed.
    """
    log = DeltaTableHandle.open(tables.checkpoint)
    if log is None:
        raise InputError(
            f"{tables.checkpoint} does not exist, and the next slice needs it. Restore it, or reprocess all."
        )
    spans = list_slices_by_file(log, "checkpoint", grid)
    paths = [path for path, span in spans.items() if span is None or number in span]
    if expected:
        # A file may span slices that other runs have replaced, once wider types have united the files of a run.
        covering_runs = {parse_run(path) for path in paths if spans[path] is not None}
        paths = [path for path in paths if spans[path] is None or parse_run(path) == expected.run]
        if any(expected.carried) and not paths and covering_runs:
            raise CommitConflictError
    if expected and any(expected.carried) and not paths:
        raise LedgerConflictError(
            f"the checkpoint before slice {grid.label(number + 1)} of {tables.root} was removed in the meantime. Run "
            "the same command again."
        )
    rows = read_files(spark, log.path, log.schema, paths)
    return to_replay_rows(filter_slices(rows, "checkpoint", grid, number, number + 1), grid)


def to_replay_rows(rows: DataFrame, grid: Grid) -> DataFrame:
    """Convert table rows of one slice to rows of a replay (`ReplayResult.carried`)."""
    return with_slice_numbers(rows, grid).drop("carried_from", "carried_until", ROW_HASH)


def list_available_checkpoints(tables: PipelineTables, entries: Iterable[Entry], grid: Grid) -> frozenset[str]:
    """Return the runs of committed slices whose checkpoints have not expired. Slices without state have none.

    A file that another program has written may be of any run.
    """
    log = DeltaTableHandle.open(tables.checkpoint)
    if log is None:
        return frozenset()
    spans_by_run, other_spans = defaultdict[str, list[range]](list), list[range]()
    for path, span in list_slices_by_file(log, "checkpoint", grid).items():
        if span:
            run = parse_run(path)
            (other_spans if run == path else spans_by_run[run]).append(span)
    return frozenset(
        entry.run
        for entry in entries
        if any(entry.carried) and any(entry.number in span for span in [*spans_by_run[entry.run], *other_spans])
    )


def _slice_number(name: str, grid: Grid) -> Column:
    return grid.number_column(F.unix_micros(name))
