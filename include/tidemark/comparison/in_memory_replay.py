"""Replay slices from empty state in memory, under one or many settings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, is_dataclass, replace
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemark.config import Pipeline
from tidemark.config.sides import SIDES
from tidemark.execution.job_spec import MAX_TINY_JOB_ROWS, repeat_drains
from tidemark.execution.lane_replay import LANE
from tidemark.execution.replay import ReplayResult, replay
from tidemark.joins.factory import create_join, create_lane
from tidemark.joins.keys import key_name
from tidemark.ledger.entry import Entry
from tidemark.ledger.staleness import NOTHING_CONSUMED
from tidemark.sources.resolution import apply_config
from tidemark.sources.stored_input import StoredInput, get_query_trace, get_schemas, read_input_slices
from tidemark.spark.temporary_settings import with_codegen
from tidemark.timegrid.slices import Grid
from tidemark.watermarks.buckets import TARGET_BUCKETS, Buckets
from tidemark.watermarks.values import Watermarks

Inputs = tuple[StoredInput, StoredInput]


def replay_slices(
    pipeline: Pipeline, inputs: Inputs, slices: range, *, drain: bool, committed: Collection[Entry] = ()
) -> ReplayResult:
    """Replay slices from empty state.

    Args:
        inputs: May have been opened for a pipeline with other settings.
        drain: True if the inputs end after the last slice.
        committed: Committed slices, for `repeat_drains`.
    """
    grid, inputs = Grid.from_config(pipeline.slices), apply_config(inputs, pipeline)
    rows = read_input_slices(inputs, grid, slices, (NOTHING_CONSUMED, NOTHING_CONSUMED)).withColumn("lane", F.lit(0))
    join = create_join(pipeline, rows.sparkSession, get_schemas(inputs))
    lane = create_lane(pipeline, Watermarks(), slices[-1] if drain else None, get_query_trace(inputs))
    lane = repeat_drains(lane, committed)
    return replay(rows, None, [lane], join, Buckets.create(grid, slices, join.buckets_per_slice))


def replay_variants(
    pipelines: Sequence[Pipeline],
    inputs: Inputs,
    slices: range,
    *,
    drain: bool,
    committed: Collection[Entry] = (),
    transform: Callable[[DataFrame], DataFrame] = lambda rows: rows,
) -> ReplayResult:
    """Replay slices from empty state under many settings, each as a lane of one job.

    The lane is the last of the join keys. `execution.lane_replay.add_lane` adds it to the rows of an output.

    Args:
        pipelines: May differ in delays, lateness and bounds only.
        committed: Committed slices, for `repeat_drains`.
        transform: May replace the contents of `left` and `right` of the input rows.
    """
    first = pipelines[0]
    grid, inputs = Grid.from_config(first.slices), apply_config(inputs, first)
    rows = transform(read_input_slices(inputs, grid, slices, (NOTHING_CONSUMED, NOTHING_CONSUMED)))
    key = key_name(len(first.join.keys))
    numbers = F.sequence(F.lit(0).cast("long"), F.lit(len(pipelines) - 1).cast("long"))
    rows = rows.withColumn("lane", F.explode(numbers)).withColumn(key, F.col("lane"))
    # Outputs consist of input rows, so these carry the lane too.
    rows = rows.withColumns(
        {side: F.when(F.col("side") == side, F.col(side).withField(LANE, F.col("lane"))) for side in SIDES}
    )
    schemas = get_schemas(inputs)
    join = _select_by_lane([create_join(pipeline, rows.sparkSession, schemas) for pipeline in pipelines], F.col(key))
    per_slice = join.buckets_per_slice or max(1, TARGET_BUCKETS // (len(slices) * len(pipelines)))
    last = slices[-1] if drain else None
    trace = get_query_trace(inputs)
    lanes = [create_lane(pipeline, Watermarks(), last, trace) for pipeline in pipelines]
    lanes = [repeat_drains(lane, committed) for lane in lanes]
    return replay(rows, None, lanes, join, Buckets.create(grid, slices, per_slice))


def tune_for_replays(spark: SparkSession, inputs: Inputs, times: int) -> AbstractContextManager[None]:
    """Enable code generation if so many replays of the inputs read many rows, even inside a tiny tuning.

    Use it around a whole replay, which plans what it caches as it goes.
    """
    return with_codegen(spark) if count_rows(inputs) * times > MAX_TINY_JOB_ROWS else nullcontext()


def count_rows(inputs: Inputs) -> float:
    """Count the rows of both inputs, as far as their Delta logs contain statistics."""
    logs = [source.table.table for source in inputs]
    return sum(float(log.files["rows"].sum()) for log in logs if log)


def _select_by_lane(variants: Sequence[Any], lane: Column) -> Any:
    """Merge variants of an object, one per lane: columns that differ are selected by the lane."""
    first = variants[0]
    if isinstance(first, Column):
        return F.element_at(F.array(*variants), lane.cast("int") + 1)
    if is_dataclass(first) and not isinstance(first, type):
        names = [field.name for field in fields(first)]
        changes = {name: _select_by_lane([getattr(variant, name) for variant in variants], lane) for name in names}
        return replace(first, **changes)
    if isinstance(first, bool):
        return any(variants)
    return first
