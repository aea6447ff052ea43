"""Checkpoints: the rows that the join carries from slice to slice, as a Delta table.

One job writes one run of rows, whatever the number of its slices: a row is stored once, with the slices at whose end
it is in the buffers (carried_from <= slice < evicted_in). The state after any slice of the run is a filter.
"""

from __future__ import annotations

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemark.clock.slices import Grid
from tidemark.commits.digest import ROW_HASH, carried_hash
from tidemark.commits.ledger import Entry
from tidemark.commits.runs import RUN, read_runs
from tidemark.delta.lake import PipelineTables, files_in_log
from tidemark.joins import Join

_SLICES = ("slice", "carried_from", "evicted_in")


def buffered_after(carried: DataFrame, number: int) -> DataFrame:
    """The rows in the buffers at the end of slice `number`, of those that a job carried (`Replay.carried`)."""
    return carried.where(held_after(F.lit(number))).drop("carried_from", "evicted_in")


def held_after(slice_: Column) -> Column:
    """Whether a carried row is in the buffers at the end of a slice: a number, or its start as the table has it."""
    still = F.col("evicted_in").isNull() | (F.col("evicted_in") > slice_)
    return (F.col("carried_from") <= slice_) & still


def stored(carried: DataFrame, grid: Grid, join: Join) -> DataFrame:
    """Carried rows (`Replay.carried`) as the checkpoint table holds them: slices as timestamps, and their hash."""
    hashed = carried.withColumn(ROW_HASH, carried_hash(carried, join)).drop("lane")
    return hashed.withColumns({name: grid.timestamp_column(F.col(name)) for name in _SLICES})


def read_carried(spark: SparkSession, tables: PipelineTables, grid: Grid, *runs: str) -> DataFrame:
    """What some runs carried, slices as numbers."""
    rows = read_runs(spark, tables.checkpoint, *runs).drop(RUN)
    return rows.withColumns({name: grid.number_column(F.unix_micros(name)) for name in _SLICES})


def restore(spark: SparkSession, tables: PipelineTables, entry: Entry, grid: Grid) -> DataFrame:
    """The rows in the buffers at the end of a committed slice."""
    return buffered_after(read_carried(spark, tables, grid, entry.run).drop(ROW_HASH), entry.number)


def kept_runs(spark: SparkSession, tables: PipelineTables) -> frozenset[str]:
    """The runs whose checkpoints have not expired; those that carried nothing have none."""
    if not DeltaTable.isDeltaTable(spark, tables.checkpoint):
        return frozenset()
    runs = files_in_log(spark, tables.checkpoint).select(F.col("partitionValues")[RUN].alias(RUN)).distinct()
    return frozenset(row[RUN] for row in runs.collect())
