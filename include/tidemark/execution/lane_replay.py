"""Replay many streams as lanes of the same Spark jobs, one job after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType

from tidemark.config.sides import SIDES
from tidemark.execution.replay import ReplayResult, replay
from tidemark.joins.base import Join
from tidemark.joins.keys import key_columns
from tidemark.ledger.checkpoint_files import filter_buffered_rows
from tidemark.planning.replay_strategy import DEFAULT_LIMITS, ReplayLimits
from tidemark.spark.dataframe_utils import with_columns
from tidemark.watermarks.buckets import Buckets
from tidemark.watermarks.lanes import Lane

LANE = "_lane"
"""Field of the structs `left` and `right` with the number of a row's lane."""


def replay_jobs(
    rows: DataFrame, lanes: Sequence[Lane], join: Join, jobs: Sequence[Buckets], limits: ReplayLimits = DEFAULT_LIMITS
) -> Iterator[ReplayResult]:
    """Replay consecutive jobs from empty state. Each job continues with the state of the job before.

    Evaluate the outputs of a job before the next one starts.

    Args:
        rows: Rows of both inputs of all jobs (`sources.normalization.Side.normalize`), with `lane`.
        lanes: The lanes. They share no keys.
        join: The join.
        jobs: Buckets of each job. The slices of a job follow those of the job before.
        limits: Thresholds for the choice of a strategy.
    """
    carried = None
    for number, buckets in enumerate(jobs):
        slices = buckets.slices
        job_rows = rows if len(jobs) == 1 else rows.where(F.col("slice").between(slices[0], slices[-1]))
        result = replay(job_rows, carried, lanes, join, buckets, limits)
        yield result
        if number == len(jobs) - 1:
            return
        buffers = filter_buffered_rows(result.carried, slices[-1])
        carried = rows.sparkSession.createDataFrame(buffers.toArrow(), buffers.schema)
        lanes = [
            replace(lane, initial_watermarks=timeline.end_watermarks[slices[-1]])
            for lane, timeline in zip(lanes, result.timelines, strict=True)
        ]


def add_lane(rows: DataFrame) -> DataFrame:
    """Add `lane` to an output of a replay whose last key is the lane, and remove `LANE` from its input rows."""
    lanes: list[Column] = []
    restored: dict[str, Column] = {}
    for side in SIDES:
        if isinstance(rows.schema[side].dataType, ArrayType):  # of a coGroup
            lanes.append(F.col(key_columns(rows)[-1]))  # both arrays may be empty
            restored[side] = F.transform(side, lambda row: row.dropFields(LANE))
        else:
            lanes.append(F.col(side)[LANE])
            restored[side] = F.col(side).dropFields(LANE)
    return rows.withColumn("lane", F.coalesce(*lanes)).transform(with_columns, restored)
