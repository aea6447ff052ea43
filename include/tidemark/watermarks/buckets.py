"""Group rows into buckets of the clock, so that watermarks are computed without sorting the stream.

A watermark is a running maximum, which is associative. The maxima of the buckets are a small table. The driver
accumulates it, which gives the watermarks before and after each bucket. They bound the watermark at a row's arrival. So
does its clock, because event times are later than the clock by a known lead at most. A row later than these bounds is
on time wherever it is in the bucket. Only the other rows need their exact watermark.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.timegrid.slices import Grid
from tidemark.timegrid.time_columns import clock_ms, trunc_div
from tidemark.watermarks.row_status import AHEAD, is_ahead, is_filtered, is_rejected, moves_watermark

EVENT_TIME = "event_time"
NO_LEAD = -(2**61)
"""Lead of a bucket in which no row moves the watermark, ms."""
TARGET_BUCKETS = 1 << 15
"""Approximate number of buckets per job: a table of this size is cheap to collect and to broadcast."""


@dataclass(frozen=True)
class Buckets:
    """Equal parts of the clock, each within one slice, numbered uniquely over slices and lanes."""

    grid: Grid
    slices: range
    width: int
    """Microseconds."""
    parts: int = 1
    """Maximal number of parts into which a bucket is cut, where a lane has restarts or sources fall idle."""

    @classmethod
    def create(cls, grid: Grid, slices: range, per_slice: int | None = None) -> Buckets:
        """Create the buckets of a job, of equal width if the slice length allows it.

        Args:
            grid: Grid of the slices.
            slices: Slices of the job.
            per_slice: Buckets per slice; by default chosen for about `TARGET_BUCKETS` in total.
        """
        per_slice = per_slice or max(1, min(TARGET_BUCKETS // len(slices), grid.every // 1000))
        if per_slice == 1:
            return cls(grid, slices, max(grid.get_lengths(slices)))
        equal = (count for count in range(per_slice, per_slice // 2, -1) if grid.every % count == 0)
        return cls(grid, slices, -(-grid.every // next(equal, per_slice)))

    @cached_property
    def lengths(self) -> frozenset[int]:
        """Lengths of the job's slices, microseconds."""
        return self.grid.get_lengths(self.slices)

    @property
    def per_slice(self) -> int:
        """Bucket numbers reserved for each slice."""
        return -(-max(self.lengths) // self.width) * self.parts

    def bucket_column(self, lane: Column, slice_number: Column, clock: Column) -> Column:
        """Return the bucket number of a row: a long, so that a broadcast join can use it as an index."""
        if len(self.lengths) == 1 and max(self.lengths) % self.width == 0:
            # Uses the clock alone: Spark evaluates common subexpressions separately and would build structs for them.
            elapsed = trunc_div(clock - self.grid.start_of(self.slices[0]), self.width)
            return lane * (len(self.slices) * self.per_slice) + elapsed * self.parts
        offset = trunc_div(self.grid.offset_column(clock, slice_number), self.width)
        return (lane * len(self.slices) + slice_number - self.slices[0]) * self.per_slice + offset * self.parts

    def find_bucket(self, lane: int, clock: int) -> int:
        """Return the bucket number of a clock, as `bucket_column` does."""
        slice_number = self.grid.number_at(clock)
        offset = clock - self.grid.start_of(slice_number)
        slice_index = lane * len(self.slices) + slice_number - self.slices[0]
        return slice_index * self.per_slice + offset // self.width * self.parts

    def contains(self, clock: int) -> bool:
        """Return True if a clock lies in a slice of the job."""
        return self.grid.number_at(clock) in self.slices

    def find_slices(self, buckets: pd.Series[int]) -> npt.NDArray[np.int64]:
        """Return the slice numbers of bucket numbers."""
        numbers = buckets.to_numpy(dtype=np.int64) // self.per_slice % len(self.slices) + self.slices[0]
        return numbers.astype(np.int64)


def compute_bucket_statistics(
    rows: DataFrame, watermark_column: str = EVENT_TIME, *, has_leads: bool = True
) -> DataFrame:
    """Aggregate each non-empty bucket: newest, oldest and mean event time, and row counts.

    Args:
        rows: Rows with their `bucket`.
        watermark_column: Column from which the watermark is made, as `Lane.watermark_column`.
        has_leads: True to compute leads, from event times in ms.

    Returns:
        One row per bucket. `oldest` and `mean` do not cover the rows that `where` filters, which are counted in
        `left_filtered` and `right_filtered`. `left_rejected` and `right_rejected` count invalid rows.
        A lead is the value of the watermark column less the clock, in ms. `left_lead` and `right_lead` are the greatest
        ones, or `NO_LEAD`. `mean_lead` is the mean event time less the mean clock. `late_arriving_rows` counts rows
        that arrived after their slice was committed, `late_arriving_from` is their earliest slice. If the watermark is
        not made from event times, its maxima are `left_newest_value` and `right_newest_value`. If rows have the column
        `ahead`, `left_rows_ahead` and `right_rows_ahead` count the rows far ahead of their arrival. `left_ahead` and
        `right_ahead` are its maxima.
    """
    is_left = F.col("side") == "left"
    event_time = F.when(moves_watermark(), F.col("event_time"))
    value = F.when(moves_watermark(), F.col(watermark_column))
    values = {"left_newest_value": F.when(is_left, value), "right_newest_value": F.when(~is_left, value)}
    is_accepted = F.col("rejected").isNull()
    is_read = ~is_filtered()
    sides = {"left": is_left, "right": ~is_left} if AHEAD in rows.columns else {}
    leads = {
        "left_lead": F.coalesce(F.when(is_left, value - clock_ms()), F.lit(NO_LEAD)),
        "right_lead": F.coalesce(F.when(~is_left, value - clock_ms()), F.lit(NO_LEAD)),
        "mean_lead": F.when(is_accepted, F.col("event_time") - clock_ms()),
    }
    # A separate projection is pushed down into both inputs, where the side is a constant.
    split = rows.select(
        "bucket",
        F.when(is_left, event_time).alias("left_newest"),
        F.when(~is_left, event_time).alias("right_newest"),
        F.when(is_accepted, F.col("event_time")).alias("oldest"),
        F.when(is_accepted, F.col("event_time")).alias("mean"),
        *(column.alias(name) for name, column in leads.items() if has_leads),
        (is_left & is_read).cast("int").alias("left_rows"),
        (~is_left & is_read).cast("int").alias("right_rows"),
        (is_left & ~is_read).cast("int").alias("left_filtered"),
        (~is_left & ~is_read).cast("int").alias("right_filtered"),
        (is_left & is_rejected()).cast("int").alias("left_rejected"),
        (~is_left & is_rejected()).cast("int").alias("right_rejected"),
        (F.col("floored") & is_accepted).cast("int").alias("floored"),
        (F.col("owning_slice") < F.col("slice")).cast("int").alias("late_arriving_rows"),
        F.when(F.col("owning_slice") < F.col("slice"), F.col("owning_slice")).alias("late_arriving_from"),
        *(column.alias(name) for name, column in values.items() if watermark_column != EVENT_TIME),
        *((is_side & is_ahead()).cast("int").alias(f"{side}_rows_ahead") for side, is_side in sides.items()),
        *(F.when(is_side & is_ahead(), F.col(AHEAD)).alias(f"{side}_ahead") for side, is_side in sides.items()),
    )
    aggregates = {
        "left_newest": F.max,
        "right_newest": F.max,
        "oldest": F.min,
        "mean": F.avg,
        "mean_lead": F.avg,
        "late_arriving_from": F.min,
    }
    aggregates |= dict.fromkeys([*values, "left_lead", "right_lead", "left_ahead", "right_ahead"], F.max)
    return split.groupBy("bucket").agg(
        *(aggregates.get(name, F.sum)(name).alias(name) for name in split.columns if name != "bucket")
    )
