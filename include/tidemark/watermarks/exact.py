"""Rows put in order inside their buckets: the exact watermark that each one met.

Takes rows `buckets.with_buckets`: those on time whatever their place in the bucket are told from the others first, so
that few are put in order. All watermarks are in ms.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidemark.config.sides import SIDES
from tidemark.spark.dataframe_utils import with_columns
from tidemark.watermarks.row_status import is_filtered, is_rejected, moves_watermark

BUCKETS = """
    bucket long, left_before long, right_before long, before long, after long, moving boolean, unsettled boolean,
    left_counts boolean, right_counts boolean, left_lag long, right_lag long, end long
"""
"""What is known of each bucket: see `buckets.Timeline`."""
BUCKET_COLUMNS = tuple(kind.split()[0] for kind in BUCKETS.split(","))
PLACE = ("bucket", "clock", "tiebreak")
"""Where in the stream a row is: rows with the same place arrive at once, and meet the same watermarks."""


def is_maybe_late(*, exact: bool) -> Column:
    """Whether a row needs the exact watermark that it met."""
    return F.lit(True) if exact else ~is_filtered() & (is_rejected() | (F.col("event_time") <= F.col("after")))


def raises(raising: str, *, exact: bool) -> Column:
    """Whether a row raises a watermark that others of its bucket are asked for; never null."""
    higher = (_mark("left", raising) > F.col("left_before")) | (_mark("right", raising) > F.col("right_before"))
    unsettled = F.col("moving" if exact else "unsettled")
    return unsettled & moves_watermark() & F.coalesce(higher, F.lit(False))


def marks(raising: str, *, exact: bool) -> dict[str, Column]:
    """By side the watermark that a row raises its input's to; null where it raises none."""
    return {side: F.when(raises(raising, exact=exact), _mark(side, raising)) for side in SIDES}


def in_order(rows: DataFrame, raising: str, *, exact: bool) -> DataFrame:
    """The rows maybe late, with the watermarks from just before their place in `left_before` and `right_before`."""
    maybe_late = is_maybe_late(exact=exact)
    asked = rows.where(maybe_late | raises(raising, exact=exact))
    return with_befores(asked, marks(raising, exact=exact)).where(maybe_late)


def with_befores(rows: DataFrame, raised: Mapping[str, Column]) -> DataFrame:
    """Raise `left_before` and `right_before` to the greatest mark of their side before the place of each row.

    Simultaneous rows do not see each other: each has what the first of them has.
    """
    in_bucket = Window.partitionBy("bucket").orderBy("clock", "tiebreak")
    earlier = in_bucket.rowsBetween(Window.unboundedPreceding, -1)
    so_far = in_bucket.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    # The first of a place alone tells what was raised before: a frame of all rows of a place would hold them in memory.
    is_first = F.rank().over(in_bucket) == F.row_number().over(in_bucket)
    before = {
        f"{side}_before": F.when(is_first, F.greatest(f"{side}_before", F.max(mark).over(earlier)))
        for side, mark in raised.items()
    }
    met = {name: F.max(name).over(so_far) for name in before}
    return rows.transform(with_columns, before).transform(with_columns, met)


def combined_before() -> Column:
    """The combined watermark that a row met, where `left_before` and `right_before` are what it met."""
    holding = (F.when(F.col(f"{side}_counts"), F.col(f"{side}_before")) for side in SIDES)
    return F.greatest("before", F.least(*holding))


def with_watermarks_before(rows: DataFrame) -> DataFrame:
    """Name the watermarks from before the bucket of each row, and drop what else is known of it."""
    met = {"left_watermark": "left_before", "right_watermark": "right_before", "watermark": "before"}
    return rows.transform(with_columns, {name: F.col(before) for name, before in met.items()}).drop(*BUCKET_COLUMNS)


def with_watermarks_met(rows: DataFrame) -> DataFrame:
    """The same where `left_before` and `right_before` are what each row itself met."""
    return with_watermarks_before(rows.withColumn("before", combined_before()))


def _mark(side: str, raising: str) -> Column:
    """The watermark that a row of this side asks for; null for another row."""
    return F.when(F.col("side") == side, F.col(raising) - F.col(f"{side}_lag"))
