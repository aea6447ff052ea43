"""The micro-batches that a Spark query runs, and the watermark of each: computed on the driver, batch by batch.

A bucket is a micro-batch here. Within one, the order of rows has no meaning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Self

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from typing_extensions import override

from tidemark.config.sides import SIDES
from tidemark.watermarks.buckets import (
    NO_WATERMARK,
    Buckets,
    Lane,
    Timeline,
    Timelines,
    Watermarks,
    bucket_maxima,
    by_lane,
)

BATCHES = """
    bucket long, batch long, watermark long, previous_watermark long, left_watermark long, right_watermark long
"""
_COLUMNS = tuple(kind.split()[0] for kind in BATCHES.split(","))


@dataclass(frozen=True)
class QueryLane(Lane):
    """A streaming query: `before.batch` is the watermark of its last batch; from the slice `drain` no input waits."""

    watermarked: tuple[str, ...] = SIDES
    """The sides that have a watermark."""
    policy: Literal["min", "max"] = "min"
    late_watermark: Literal["previous_batch", "current_batch"] = "previous_batch"
    idle: bool = True
    """Whether no input waits when a batch ends, so that one without data may follow it."""
    evicts: bool = True
    """Whether a watermark evicts rows: only then does a batch without data run."""
    schedule: Mapping[int, int | None] = field(default_factory=dict)
    """Clocks of the batches that ran, those without rows too, each with its watermark where the query has logged it:
    one that was restarted has a lower one than its rows say. The rows alone tell of other batches."""

    def next_watermark(self, marks: Watermarks) -> int:
        """W of the next batch: an input without a row yet counts as 0, and W never goes down."""
        marks_of_sides = [max(0, getattr(marks, side)) for side in self.watermarked]
        combine = min if self.policy == "min" else max
        return max(marks.batch or 0, combine(marks_of_sides, default=0))

    known_of_buckets = BATCHES
    told_by_place = False

    @classmethod
    @override
    def timelines(cls, rows: DataFrame, lanes: Sequence[Self], buckets: Buckets) -> Timelines:
        """Each lane's batches, by its rows (in microseconds) and by its schedule."""
        maxima = bucket_maxima(rows).toPandas()
        lines = [
            _timeline(part, lane, buckets, number)
            for number, (lane, part) in enumerate(by_lane(maxima, lanes, buckets))
        ]
        return Timelines(rows, buckets, maxima, lines)

    @classmethod
    @override
    def split(cls, rows: DataFrame, *, exact: bool) -> tuple[DataFrame, DataFrame]:
        """A row's batch tells all: late at the most is what the batch's late watermark has passed."""
        passed = F.coalesce(F.col("event_time") <= F.col("watermark") * 1000, F.lit(False))
        maybe_late = F.col("rejected").isNotNull() | passed
        return rows.where(~maybe_late), rows.where(maybe_late)


def _timeline(maxima: pd.DataFrame, lane: QueryLane, buckets: Buckets, number: int) -> Timeline:
    slices = buckets.slices
    ran = {
        buckets.number_of(number, clock): watermark
        for clock, watermark in lane.schedule.items()
        if buckets.holds(clock)
    }
    rows = maxima.set_index("bucket").reindex(sorted({*ran, *maxima["bucket"]}))
    newest = {side: (rows[f"{side}_newest"].astype("Int64") // 1000) for side in lane.watermarked}
    marks, described, ends, maybe_late = lane.before, [], {}, bool(rows["rejected"].any())
    order = list(enumerate(zip(rows.index, buckets.slice_of(rows.index.to_series()), rows["oldest"], strict=True)))
    last = order[-1][1][1] if order else slices[-1]
    for batch, (bucket, slice_number, oldest) in order:
        before, known = marks.batch or 0, ran.get(bucket)
        watermark = lane.next_watermark(marks) if known is None else known
        late = before if lane.late_watermark == "previous_batch" else watermark
        described.append((bucket, batch, late, before, marks.left, marks.right))
        maybe_late = maybe_late or (not pd.isna(oldest) and oldest <= late * 1000)
        for side in lane.watermarked:
            marks = _grown(marks, side, newest[side].iloc[batch], lane)
        marks = replace(marks, batch=watermark)
        ends[int(slice_number)] = marks = _after(marks, lane, runs=lane.idle)
    ends[int(last)] = _after(marks, lane, runs=lane.drain is not None and lane.drain <= slices[-1])
    so_far, reached = lane.before, {slices[0] - 1: lane.before.combined}
    for n in slices:
        so_far = ends[n] = ends.get(n, so_far)
        reached[n] = so_far.combined
    table = pd.DataFrame(described, columns=_COLUMNS).astype("int64")
    return Timeline(table, maybe_late, {n: ends[n] for n in slices}, reached)


def _after(marks: Watermarks, lane: QueryLane, *, runs: bool) -> Watermarks:
    """The watermarks once the batch without data has run that follows if the watermark has advanced."""
    watermark = lane.next_watermark(marks)
    advanced = marks.batch is not None and watermark > marks.batch
    return replace(marks, batch=watermark) if runs and lane.evicts and advanced else marks


def _grown(marks: Watermarks, side: str, newest: int, lane: QueryLane) -> Watermarks:
    mark = NO_WATERMARK if pd.isna(newest) else int(newest) - int(getattr(lane.lag, side))
    if side == "left":
        return replace(marks, left=max(marks.left, mark))
    return replace(marks, right=max(marks.right, mark))
