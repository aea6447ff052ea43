"""Compute the micro-batches of a Spark query and the watermark of each, on the driver.

A bucket is a micro-batch here. The order of rows within it has no meaning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Literal, Self

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from typing_extensions import override

from tidemark.config.sides import SIDES
from tidemark.spark.dataframe_utils import with_columns
from tidemark.timegrid.time_columns import floor_div, trunc_div
from tidemark.watermarks.buckets import Buckets, compute_bucket_statistics
from tidemark.watermarks.lanes import REJECTED_COLUMNS, Lane, Timeline, Timelines, split_by_lane
from tidemark.watermarks.values import NO_WATERMARK, Watermarks

BATCH_SCHEMA = """
    bucket long, batch long, watermark long, previous_watermark long, left_watermark long, right_watermark long
"""
"""Columns of a micro-batch: its bucket and number, the `watermark` at or below which its rows are late, the watermark
by which the batch before evicted (`previous_watermark`), and those of the inputs before it, all in ms."""
_COLUMNS = tuple(field.split()[0] for field in BATCH_SCHEMA.split(","))


@dataclass(frozen=True)
class MicroBatchLane(Lane):
    """A streaming query. `initial_watermarks.batch` is the watermark of its last batch.

    At the end of slice `drain` no input is waiting, so a no-data batch may follow, also after back-to-back batches.
    """

    watermarked_sides: tuple[str, ...] = SIDES
    """Sides that have a watermark."""
    policy: Literal["min", "max"] = "min"
    late_watermark: Literal["previous_batch", "current_batch"] = "previous_batch"
    is_idle_between_batches: bool = True
    """True if no input is waiting when a batch ends, so that a no-data batch may follow."""
    earlier_drains: frozenset[int] = frozenset()
    """Further slices with such an end: an earlier run ended there."""
    has_eviction: bool = True
    """True if a watermark evicts rows. Only then does Spark run no-data batches."""
    schedule: Mapping[int, int | None] = field(default_factory=dict)
    """Clocks of the batches that ran, empty ones included, with their watermark if the query logged it. After a
    restart it is lower than the rows imply. Rows imply further batches."""

    bucket_schema = BATCH_SCHEMA
    is_determined_by_position = False

    def next_watermark(self, watermarks: Watermarks) -> int:
        """Return the watermark of the next batch, ms. It never goes down; an input without rows so far counts as 0."""
        by_side = [max(0, getattr(watermarks, side)) for side in self.watermarked_sides]
        combine = min if self.policy == "min" else max
        return max(watermarks.batch or 0, combine(by_side, default=0))

    @override
    def with_earlier_drains(self, slices: Iterable[int]) -> Self:
        return replace(self, earlier_drains=frozenset(slices))

    @override
    def is_drained(self, number: int) -> bool:
        return number == self.drain or number in self.earlier_drains

    @classmethod
    @override
    def compute_timelines(cls, rows: DataFrame, lanes: Sequence[Self], buckets: Buckets) -> Timelines:
        """Compute each lane's batches from its rows (event times in microseconds) and its schedule."""
        # pandas turns numbers with nulls into doubles, which hold ms exactly, but not microseconds after the year 2255.
        newest = {f"{side}_newest_ms": floor_div(F.col(f"{side}_newest"), 1000) for side in SIDES}
        ceiling = trunc_div(F.col("oldest"), F.lit(1000)) + (F.col("oldest") % 1000 > 0).cast("long")
        buckets_in_ms = compute_bucket_statistics(rows, has_leads=False).transform(
            with_columns, {**newest, "oldest_ms": ceiling}
        )
        statistics = buckets_in_ms.toPandas()
        timelines = [
            _compute_timeline(part, lane, buckets, number)
            for number, (lane, part) in enumerate(split_by_lane(statistics, lanes, buckets))
        ]
        return Timelines(rows, buckets, statistics, timelines)

    @classmethod
    @override
    def split(cls, rows: DataFrame, *, includes_all_rows: bool) -> tuple[DataFrame, DataFrame]:
        """Split by the late watermark of a row's batch, which is exact for all rows."""
        is_at_watermark = F.coalesce(F.col("event_time") <= F.col("watermark") * 1000, F.lit(False))
        is_candidate = F.col("rejected").isNotNull() | is_at_watermark
        return rows.where(~is_candidate), rows.where(is_candidate)


def _compute_timeline(statistics: pd.DataFrame, lane: MicroBatchLane, buckets: Buckets, lane_number: int) -> Timeline:
    slices = buckets.slices
    scheduled = {}
    for clock, logged in lane.schedule.items():
        if buckets.contains(clock):
            scheduled[buckets.find_bucket(lane_number, clock)] = logged
    rows = statistics.set_index("bucket").reindex(sorted({*scheduled, *statistics["bucket"]}))
    newest = {side: rows[f"{side}_newest_ms"] for side in lane.watermarked_sides}
    watermarks = lane.initial_watermarks
    batches = []
    end_watermarks = {}
    combined_at_end = {slices[0] - 1: watermarks.combined}
    has_late_candidates = bool(rows[REJECTED_COLUMNS].any(axis=None))
    order = enumerate(zip(rows.index, buckets.find_slices(rows.index.to_series()), rows["oldest_ms"], strict=True))
    by_slice = {number: list(group) for number, group in groupby(order, lambda item: item[1][1])}
    for number in slices:
        for batch, (bucket, _, oldest) in by_slice.get(number, ()):
            before = watermarks.batch or 0
            logged = scheduled.get(bucket)
            watermark = lane.next_watermark(watermarks) if logged is None else logged
            late = before if lane.late_watermark == "previous_batch" else watermark
            batches.append((bucket, batch, late, before, watermarks.left, watermarks.right))
            has_late_candidates = has_late_candidates or (not pd.isna(oldest) and oldest <= late)
            for side in lane.watermarked_sides:
                watermarks = _raise_watermark(watermarks, side, newest[side].iloc[batch], lane)
            watermarks = replace(watermarks, batch=watermark)
            watermarks = _after_no_data_batch(watermarks, lane, is_idle=lane.is_idle_between_batches)
        watermarks = _after_no_data_batch(watermarks, lane, is_idle=lane.is_drained(number))
        end_watermarks[number], combined_at_end[number] = watermarks, watermarks.combined
    table = pd.DataFrame(batches, columns=_COLUMNS).astype("int64")
    return Timeline(table, has_late_candidates, end_watermarks, combined_at_end)


def _after_no_data_batch(watermarks: Watermarks, lane: MicroBatchLane, *, is_idle: bool) -> Watermarks:
    """Return the watermarks after the no-data batch that an idle query runs if the watermark has advanced."""
    watermark = lane.next_watermark(watermarks)
    has_advanced = watermarks.batch is not None and watermark > watermarks.batch
    return replace(watermarks, batch=watermark) if is_idle and lane.has_eviction and has_advanced else watermarks


def _raise_watermark(watermarks: Watermarks, side: str, newest: int, lane: MicroBatchLane) -> Watermarks:
    watermark = NO_WATERMARK if pd.isna(newest) else int(newest) - int(getattr(lane.lag, side))
    if side == "left":
        return replace(watermarks, left=max(watermarks.left, watermark))
    return replace(watermarks, right=max(watermarks.right, watermark))
