"""Checkpoints: the rows that the join carries from slice to slice, as a Delta table.

One job stores a row once, with the slices at whose end it is in the buffers: carried_from <= slice < carried_until. The
state after any slice is a filter over the table as it stands.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.staging import read_files
from tidemark.delta.table import CommitConflictError, DeltaTableHandle
from tidemark.errors import InputError
from tidemark.joins.base import Join
from tidemark.ledger.ledger import Entry
from tidemark.ledger.state_fingerprint import ROW_HASH, carried_hash
from tidemark.tables.run_files import run_of, spans, within
from tidemark.timegrid.slices import Grid

_SLICES = ("slice", "carried_from", "carried_until")


def buffered_after(carried: DataFrame, number: int) -> DataFrame:
    """The rows in the buffers at the end of slice `number`, of those that a job carried (`Replay.carried`)."""
    still = F.col("evicted_in").isNull() | (F.col("evicted_in") > number)
    return carried.where((F.col("carried_from") <= number) & still).drop("carried_from", "evicted_in")


def to_table_rows(carried: DataFrame, slices: range, grid: Grid, join: Join) -> DataFrame:
    """Carried rows of a job's slices (`Replay.carried`) as the table holds them: slices as times, and their hash."""
    hashed = carried.withColumn(ROW_HASH, carried_hash(carried, join)).drop("lane")
    until = F.least(F.coalesce("evicted_in", F.lit(slices.stop)), F.lit(slices.stop)).cast("long")
    rows = hashed.withColumn("evicted_in", until).withColumnRenamed("evicted_in", "carried_until")
    return rows.withColumns({name: grid.timestamp_column(F.col(name)) for name in _SLICES})


def with_slice_numbers(stored: DataFrame, grid: Grid) -> DataFrame:
    """Rows as the table holds them, slices as numbers."""
    return stored.withColumns({name: _slice_number(name, grid) for name in _SLICES})


def read_buffered_rows(
    spark: SparkSession, tables: PipelineTables, number: int, grid: Grid, run: str | None = None
) -> DataFrame:
    """The rows in the buffers at the end of a committed slice; with `run` it has to be that one of the slice's runs.

    Raises:
        InputError: the table is gone.
        OvertakenError: the table has the rows of another run by now.
    """
    log = DeltaTableHandle.open(tables.checkpoint)
    if log is None:
        raise InputError(f"{tables.checkpoint} is gone, which the next slice continues; restore it, or reprocess all")
    paths = []
    for path, span in spans(log, "checkpoint", grid).items():
        if span is None or number in span:
            paths.append(path)
            if run is not None and span is not None and run_of(path) != run:
                raise CommitConflictError
    rows = read_files(spark, log.path, log.schema, paths)
    return to_replay_rows(within(rows, "checkpoint", grid, number, number + 1), grid)


def to_replay_rows(rows: DataFrame, grid: Grid) -> DataFrame:
    """Rows of the table, of one slice, as a replay takes them (`Replay.carried`)."""
    return with_slice_numbers(rows, grid).drop("carried_from", "carried_until", ROW_HASH)


def list_available_checkpoints(tables: PipelineTables, entries: Iterable[Entry], grid: Grid) -> frozenset[str]:
    """The runs of committed slices whose checkpoints have not expired; those that carried nothing have none."""
    log = DeltaTableHandle.open(tables.checkpoint)
    if log is None:
        return frozenset()
    ranges_ = sorted((span.start, span.stop) for span in spans(log, "checkpoint", grid).values() if span)
    # Of files that begin up to a slice, how far the furthest reaches.
    starts, reach = [start for start, _ in ranges_], list(accumulate((stop for _, stop in ranges_), max))

    def is_covered(number: int) -> bool:
        before = bisect_right(starts, number)
        return before > 0 and reach[before - 1] > number

    return frozenset(entry.run for entry in entries if any(entry.carried) and is_covered(entry.number))


def _slice_number(name: str, grid: Grid) -> Column:
    return grid.number_column(F.unix_micros(name))
