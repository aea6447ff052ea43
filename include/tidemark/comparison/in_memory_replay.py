"""Slices replayed from empty state, in memory: under one pipeline's settings, or under many as lanes of one job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, is_dataclass, replace
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType

from tidemark.config import Pipeline
from tidemark.config.sides import SIDES
from tidemark.execution.job_spec import TINY_ROWS
from tidemark.execution.replay import Replay, replay
from tidemark.joins import join_of, lane_of
from tidemark.joins.keys import key_columns, key_name
from tidemark.ledger.staleness import NOTHING_CONSUMED
from tidemark.sources.stored_input import StoredInput, read_as, rows_of_slices, schemas_of, trace_of
from tidemark.spark.dataframe_utils import with_columns
from tidemark.spark.temporary_settings import compiled
from tidemark.timegrid.slices import Grid
from tidemark.watermarks.buckets import TARGET_BUCKETS, Buckets, Watermarks

Inputs = tuple[StoredInput, StoredInput]


def replayed(pipeline: Pipeline, inputs: Inputs, slices: range, *, drain: bool) -> Replay:
    """A replay of slices from empty state; with `drain` the inputs end behind them.

    The inputs may have been found for a pipeline with other settings.
    """
    grid, inputs = Grid.of(pipeline.slices), read_as(inputs, pipeline)
    rows = rows_of_slices(inputs, grid, slices, (NOTHING_CONSUMED, NOTHING_CONSUMED)).withColumn("lane", F.lit(0))
    join = join_of(pipeline, rows.sparkSession, schemas_of(inputs))
    lane = lane_of(pipeline, Watermarks(), slices[-1] if drain else None, trace_of(inputs))
    return replay(rows, None, [lane], join, Buckets.of(grid, slices, join.buckets_per_slice))


def side_by_side(
    pipelines: Sequence[Pipeline],
    inputs: Inputs,
    slices: range,
    *,
    drain: bool,
    altered: Callable[[DataFrame], DataFrame] = lambda rows: rows,
) -> Replay:
    """`replayed` under the settings of each pipeline, which differ in delays, lateness and bounds alone.

    Each is a lane of one job, whose rows have the lane among their keys; `with_lane` tells it of an output's rows.
    `altered` may put something else into `left` and `right` than the inputs' columns.
    """
    first = pipelines[0]
    grid, inputs = Grid.of(first.slices), read_as(inputs, first)
    rows = altered(rows_of_slices(inputs, grid, slices, (NOTHING_CONSUMED, NOTHING_CONSUMED)))
    key = key_name(len(first.join.keys))
    lanes = F.sequence(F.lit(0).cast("long"), F.lit(len(pipelines) - 1).cast("long"))
    rows = rows.withColumn("lane", F.explode(lanes)).withColumn(key, F.col("lane"))
    # Outputs are made of the inputs' rows, so these have to tell the lane.
    rows = rows.withColumns(
        {side: F.when(F.col("side") == side, F.col(side).withField("_lane", F.col("lane"))) for side in SIDES}
    )
    schemas = schemas_of(inputs)
    join = _by_lane([join_of(one, rows.sparkSession, schemas) for one in pipelines], F.col(key))
    per_slice = join.buckets_per_slice or max(1, TARGET_BUCKETS // (len(slices) * len(pipelines)))
    last, trace = slices[-1] if drain else None, trace_of(inputs)
    of_pipelines = [lane_of(one, Watermarks(), last, trace) for one in pipelines]
    return replay(rows, None, of_pipelines, join, Buckets.of(grid, slices, per_slice))


def tuned_for(spark: SparkSession, inputs: Inputs, times: int) -> AbstractContextManager[None]:
    """Settings for inputs that are replayed so many times: many rows are compiled for, inside a tiny tuning too.

    Around the whole of a replay, which plans what it caches as it goes.
    """
    return compiled(spark) if rows_of(inputs) * times > TINY_ROWS else nullcontext()


def rows_of(inputs: Inputs) -> float:
    """How many rows both inputs have, as far as their logs tell."""
    logs = [source.table.log for source in inputs]
    return sum(float(log.files["rows"].sum()) for log in logs if log)


def with_lane(rows: DataFrame) -> DataFrame:
    """Rows of an output of `side_by_side` with their `lane`, and the input rows as they are."""
    told: list[Column] = []
    plain: dict[str, Column] = {}
    for side in SIDES:
        if isinstance(rows.schema[side].dataType, ArrayType):  # of a coGroup
            told.append(F.col(key_columns(rows)[-1]))  # both arrays may be empty
            plain[side] = F.transform(side, lambda row: row.dropFields("_lane"))
        else:
            told.append(F.col(side)["_lane"])
            plain[side] = F.col(side).dropFields("_lane")
    return rows.withColumn("lane", F.coalesce(*told)).transform(with_columns, plain)


def _by_lane(parts: Sequence[Any], lane: Column) -> Any:
    """What is equal in all lanes as it is, columns that differ chosen by the lane."""
    first = parts[0]
    if isinstance(first, Column):
        return F.element_at(F.array(*parts), lane.cast("int") + 1)
    if is_dataclass(first) and not isinstance(first, type):
        names = [one.name for one in fields(first)]
        changes = {name: _by_lane([getattr(part, name) for part in parts], lane) for name in names}
        return replace(first, **changes)
    if isinstance(first, bool):
        return any(parts)
    return first
