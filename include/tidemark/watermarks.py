"""W(x): the watermark that each row met, without sorting the stream.

A running maximum is associative. Rows are grouped into buckets of the clock; the maxima of the buckets (a small
table) are accumulated on the driver, which gives the watermarks before and after each bucket. A row whose event time
is after its bucket's last watermark is on time whatever its place in the bucket; only the others are put in order,
inside their bucket.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from pyspark.ml.feature import Bucketizer
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidemark.joins.flink_datastream import NO_WATERMARK, WatermarkLag
from tidemark.times import floor_div

TARGET_BUCKETS = 1 << 16
"""How many buckets a job's clock is cut into, at most: a table that is cheap to collect and to broadcast."""

_BUCKETS = "slice long, bucket long, left_before long, right_before long, after long, unsettled boolean"
_BUCKET = ["slice", "bucket"]
_PLACE = ["slice", "bucket", "clock", "tiebreak"]
_BROADCAST_ROWS = 500_000


@dataclass(frozen=True)
class Watermarks:
    """Watermarks of both inputs at one instant, ms; `NO_WATERMARK` where an input has had no row."""

    left: int = NO_WATERMARK
    right: int = NO_WATERMARK

    @property
    def combined(self) -> int:
        """The one that the join sees."""
        return min(self.left, self.right)


@dataclass(frozen=True)
class Timeline:
    """Watermarks over the clock of one job."""

    lag: WatermarkLag
    bucket_width: int
    """Microseconds of the clock."""
    buckets: pd.DataFrame
    """slice, bucket, left_before, right_before (ms), after (combined, ms), unsettled (a row needs its exact place)."""
    slice_ends: dict[int, Watermarks]
    """Watermarks after each slice of the job, in order."""


def bucket_maxima(left: DataFrame, right: DataFrame, bucket_width: int) -> DataFrame:
    """Greatest and least event time of each bucket, and row counts: one row per bucket that holds rows."""
    return (
        _in_buckets(left, bucket_width)
        .select(*_BUCKET, "event_time", "floored", "rejected", F.lit(True).alias("is_left"))
        .unionByName(
            _in_buckets(right, bucket_width).select(
                *_BUCKET,
                "event_time",
                "floored",
                "rejected",
                F.lit(False).alias("is_left"),
            )
        )
        .withColumn("usable", F.when(F.col("rejected").isNull(), F.col("event_time")))
        .groupBy(*_BUCKET)
        .agg(
            F.max(F.when(F.col("is_left"), F.col("usable"))).alias("left_newest"),
            F.max(F.when(~F.col("is_left"), F.col("usable"))).alias("right_newest"),
            F.min("usable").alias("oldest"),
            F.count_if("is_left").alias("left_rows"),
            F.count_if(~F.col("is_left")).alias("right_rows"),
            F.count_if(F.col("floored") & F.col("rejected").isNull()).alias("floored"),
        )
    )


def timeline(maxima: pd.DataFrame, before: Watermarks, slices: range, lag: WatermarkLag, bucket_width: int) -> Timeline:
    """Accumulate the buckets' maxima (`bucket_maxima`, collected) from the watermarks before the first slice."""
    maxima = maxima.sort_values(_BUCKET, ignore_index=True)
    left_before, left_after = _running(maxima["left_newest"], lag.left, before.left)
    right_before, right_after = _running(maxima["right_newest"], lag.right, before.right)
    after = np.minimum(left_after, right_after)
    oldest = maxima["oldest"].fillna(np.inf)
    buckets = maxima[_BUCKET].assign(
        left_before=left_before,
        right_before=right_before,
        after=after,
        unsettled=(np.minimum(left_before, right_before) < after) & (oldest <= after),
    )
    last_bucket = np.searchsorted(maxima["slice"].to_numpy(dtype=np.int64), np.asarray(slices), side="right")
    lefts, rights = np.append(before.left, left_after), np.append(before.right, right_after)
    ends = {n: Watermarks(int(lefts[i]), int(rights[i])) for n, i in zip(slices, last_bucket, strict=True)}
    return Timeline(lag, bucket_width, buckets, ends)


@dataclass(frozen=True)
class Labelled:
    """Rows of both inputs with the watermarks they met, kept in Spark's cache until released."""

    left: DataFrame
    right: DataFrame
    exact: DataFrame | None
    """The watermarks that had to be put in order."""

    @property
    def cached(self) -> tuple[DataFrame, ...]:
        """What is in the cache."""
        return (self.left, self.right) if self.exact is None else (self.left, self.right, self.exact)


def label(left: DataFrame, right: DataFrame, line: Timeline) -> Labelled:
    """Add `left_watermark`, `right_watermark` and their least, `watermark` (ms, long), that each row met.

    They are exact where the event time is at or before the last watermark of the row's bucket. Elsewhere they are
    those from before the bucket: lower than the exact ones, and like these before the row's event time.
    """
    buckets = F.broadcast(left.sparkSession.createDataFrame(line.buckets, _BUCKETS))
    left, right = (_in_buckets(rows, line.bucket_width).join(buckets, _BUCKET) for rows in (left, right))
    exact = None
    if line.buckets["unsettled"].any():
        exact = _exact_watermarks(left, right, line.lag).persist()
        few = exact.count() <= _BROADCAST_ROWS
        left, right = (rows.join(F.broadcast(exact) if few else exact, _PLACE, "left") for rows in (left, right))
    else:
        none = {name: F.lit(None).cast("long") for name in ("left_exact", "right_exact")}
        left, right = (rows.withColumns(none) for rows in (left, right))
    # Four queries read these rows; labelling them once also keeps the plans small, most of a small job's time.
    return Labelled(_labelled(left).persist(), _labelled(right).persist(), exact)


def first_slice_reaching(rows: DataFrame, watermark: Column, line: Timeline, name: str) -> DataFrame:
    """Add column `name`: the first slice of the job at whose end the combined watermark is at least `watermark`.

    Null where none is. A binary search (`Bucketizer`), in doubles: exact for times within 285,000 years of 1970.
    """
    levels: dict[int, int] = {}
    for number, ends in line.slice_ends.items():
        levels.setdefault(ends.combined, number)
    search = Bucketizer(
        splits=[-float("inf"), *map(float, levels), float("inf")], inputCol="_below", outputCol="_level"
    )
    numbers = rows.sparkSession.createDataFrame(
        pd.DataFrame(
            {"_level": np.arange(len(levels), dtype=float), name: np.array(list(levels.values()), dtype=np.int64)}
        )
    )
    found = search.transform(rows.withColumn("_below", (watermark - 1).cast("double")))
    return found.join(F.broadcast(numbers), "_level", "left").drop("_level", "_below")


def _in_buckets(rows: DataFrame, width: int) -> DataFrame:
    return rows.withColumn("bucket", floor_div(F.col("clock"), width))


def _running(newest: pd.Series[float], lag: int, start: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The watermark of one input before and after each bucket."""
    marks = newest.astype("Int64").sub(lag).fillna(NO_WATERMARK).to_numpy(dtype=np.int64)
    running = np.maximum.accumulate(np.append(np.int64(start), marks))
    return running[:-1], running[1:]


def _exact_watermarks(left: DataFrame, right: DataFrame, lag: WatermarkLag) -> DataFrame:
    """`left_exact`, `right_exact` at each place (slice, bucket, clock, tiebreak) that needs them.

    Only two kinds of rows matter in an unsettled bucket: those whose watermark is asked for, and those that raise a
    watermark. At equal places the former sort first, so that simultaneous rows do not see each other.
    """
    usable = F.col("unsettled") & F.col("rejected").isNull()
    asked, raised = [], []
    for rows, own, behind in ((left, "left", lag.left), (right, "right", lag.right)):
        rows = rows.where(usable)  # noqa: PLW2901
        asked.append(rows.where(F.col("event_time") <= F.col("after")).select(*_PLACE, "left_before", "right_before"))
        mark = F.col("event_time") - behind
        raised.append(rows.where(mark > F.col(f"{own}_before")).select(*_PLACE, mark.alias(f"{own}_mark")))
    asked_places = asked[0].unionByName(asked[1]).distinct()
    raised_places = (
        raised[0]
        .unionByName(raised[1], allowMissingColumns=True)
        .groupBy(*_PLACE)
        .agg(F.max("left_mark").alias("left_mark"), F.max("right_mark").alias("right_mark"), F.lit(1).alias("raises"))
    )
    so_far = (
        Window.partitionBy(*_BUCKET)
        .orderBy("clock", "tiebreak", "raises")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    return (
        asked_places.withColumn("raises", F.lit(0))
        .unionByName(raised_places, allowMissingColumns=True)
        .withColumns({f"{own}_mark": F.max(f"{own}_mark").over(so_far) for own in ("left", "right")})
        .where(F.col("raises") == 0)
        .select(
            *_PLACE, *(F.greatest(f"{own}_before", f"{own}_mark").alias(f"{own}_exact") for own in ("left", "right"))
        )
    )


def _labelled(rows: DataFrame) -> DataFrame:
    met = {f"{own}_watermark": F.coalesce(f"{own}_exact", f"{own}_before") for own in ("left", "right")}
    added = ("bucket", "left_before", "right_before", "after", "unsettled", "left_exact", "right_exact")
    return rows.withColumns(met).withColumn("watermark", F.least("left_watermark", "right_watermark")).drop(*added)
