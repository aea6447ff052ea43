"""Compute the exact watermark at a row's arrival, by ordering rows inside their bucket.

Takes rows from `lanes.join_bucket_watermarks`. Few rows are ordered, since most are on time wherever they are in their
bucket. All watermarks are in ms.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidemark.config.sides import SIDES
from tidemark.spark.dataframe_utils import with_columns
from tidemark.timegrid.time_columns import clock_ms
from tidemark.watermarks.row_status import is_filtered, is_rejected, moves_watermark

BUCKET_SCHEMA = """
    bucket long, left_before long, right_before long, combined_before long, combined_after long,
    has_increment boolean, needs_order boolean, left_is_aligned boolean, right_is_aligned boolean,
    left_lag long, right_lag long, late_margin long, watermark_lead long, end_watermark long
"""
"""Schema of the watermarks of buckets.

- `left_before`, `right_before`, `combined_before`, `combined_after`: watermarks before and after the bucket.
- `has_increment`: the watermark of an input rises in the bucket.
- `needs_order`: the bucket has late candidates, and either the combined watermark rises in it, or another input may
  come to limit it.
- `left_is_aligned`, `right_is_aligned`: the input limits the combined watermark. It is not idle, and not lagging in a
  union (`idle_or_partitioned_lane`).
- `left_lag`, `right_lag`: lag of the input's watermark.
- `late_margin`: `Lane.late_margin`.
- `watermark_lead`: within the bucket, the combined watermark rises at most to a row's clock plus this, ms.
- `end_watermark`: the combined watermark at the end of the bucket's slice.
"""
BUCKET_COLUMNS = tuple(field.split()[0] for field in BUCKET_SCHEMA.split(","))
POSITION = ("bucket", "clock", "tiebreak")
"""Columns of a row's position in the stream. Rows at one position arrive at once and see the same watermarks."""


def scale_tiebreak(tiebreak: Column, factor: int) -> Column:
    """Multiply a tiebreak, to leave room for further numbers. The least one, that of null, stays the least.

    The query fails if the result, or a number up to the next one, is no long.
    """
    limit = 2**63 // factor
    message = f" is too large for a chain of joins. It must be below {limit:,}: name a sequence number as the tiebreak."
    error = F.raise_error(F.concat(F.lit("tiebreak "), tiebreak.cast("string"), F.lit(message)))
    return F.greatest(F.when(tiebreak >= limit, error).otherwise(tiebreak), F.lit(-limit)) * F.lit(factor)


def is_late_candidate(*, includes_all_rows: bool) -> Column:
    """Return True for the late candidates: rows that may be late or are rejected.

    Args:
        includes_all_rows: True to compute exact watermarks for every row, filtered ones included, so that all are
            candidates; False only for rows that may be late.
    """
    if includes_all_rows:
        return F.lit(True)
    # An earlier row of the bucket has an earlier clock, and its watermark is later than its clock by the lead at most.
    highest = F.least("combined_after", F.greatest("combined_before", clock_ms() + F.col("watermark_lead")))
    may_be_late = F.col("event_time") <= highest + F.col("late_margin")
    return ~is_filtered() & (is_rejected() | may_be_late)


def advances_watermark(watermark_column: str, *, includes_all_rows: bool) -> Column:
    """Return True for rows that may raise the watermark of late candidates in their bucket; never null.

    Args:
        watermark_column: Column from which the watermark is made, as `Lane.watermark_column`.
        includes_all_rows: True to compute exact watermarks for every row; False only for rows that may be late.
    """
    left_is_higher, right_is_higher = (
        _own_watermark(side, watermark_column) > F.col(f"{side}_before") for side in SIDES
    )
    is_relevant = F.col("has_increment" if includes_all_rows else "needs_order")
    return is_relevant & moves_watermark() & F.coalesce(left_is_higher | right_is_higher, F.lit(False))


def watermark_increments(watermark_column: str, *, includes_all_rows: bool) -> dict[str, Column]:
    """Return, by side, the watermark to which a row raises its input's; null if it raises none."""
    is_increment = advances_watermark(watermark_column, includes_all_rows=includes_all_rows)
    return {side: F.when(is_increment, _own_watermark(side, watermark_column)) for side in SIDES}


def order_late_candidates(rows: DataFrame, watermark_column: str, *, includes_all_rows: bool) -> DataFrame:
    """Select the late candidates, with the watermarks just before their position as `left_before`, `right_before`."""
    is_candidate = is_late_candidate(includes_all_rows=includes_all_rows)
    relevant = rows.where(is_candidate | advances_watermark(watermark_column, includes_all_rows=includes_all_rows))
    increments = watermark_increments(watermark_column, includes_all_rows=includes_all_rows)
    return with_preceding_watermarks(relevant, increments).where(is_candidate)


def with_exact_watermarks_of_selected(
    rows: DataFrame, selected: DataFrame, watermark_column: str, *, includes_all_rows: bool
) -> DataFrame:
    """Add exact watermarks to selected rows, by ordering them among the rows that raise a watermark.

    Args:
        rows: All rows of the buckets of the selected ones.
        selected: Some of them.
        watermark_column: Column from which the watermark is made, as `Lane.watermark_column`.
        includes_all_rows: True to compute exact watermarks for any row; False if all selected rows may be late.
    """
    by_side = watermark_increments(watermark_column, includes_all_rows=includes_all_rows)
    increments = {f"{side}_increment": column for side, column in by_side.items()}
    advancing = rows.where(advances_watermark(watermark_column, includes_all_rows=includes_all_rows)).select(
        *POSITION,
        "left_before",
        "right_before",
        *(column.alias(name) for name, column in increments.items()),
        F.lit(False).alias("is_selected"),
    )
    null = F.lit(None).cast("long")
    selected = selected.transform(with_columns, {**dict.fromkeys(increments, null), "is_selected": F.lit(True)})
    ordered = with_preceding_watermarks(
        selected.unionByName(advancing, allowMissingColumns=True), {side: F.col(f"{side}_increment") for side in SIDES}
    )
    return with_exact_watermarks(ordered.where("is_selected").drop("is_selected", *increments))


def with_preceding_watermarks(rows: DataFrame, increments: Mapping[str, Column]) -> DataFrame:
    """Raise `left_before` and `right_before` to the running maximum of increments before each row's position.

    Simultaneous rows do not see each other: they all get the watermarks of the first of them.
    """
    in_bucket = Window.partitionBy("bucket").orderBy("clock", "tiebreak")
    earlier = in_bucket.rowsBetween(Window.unboundedPreceding, -1)
    up_to_row = in_bucket.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    # Only the first row of a position is evaluated: a range frame would buffer all rows of a position in memory.
    is_first = F.rank().over(in_bucket) == F.row_number().over(in_bucket)
    preceding = {
        f"{side}_before": F.when(is_first, F.greatest(f"{side}_before", F.max(increment).over(earlier)))
        for side, increment in increments.items()
    }
    at_arrival = {name: F.max(name).over(up_to_row) for name in preceding}
    return rows.transform(with_columns, preceding).transform(with_columns, at_arrival)


def preceding_combined_watermark() -> Column:
    """Return the combined watermark at a row's arrival, given that `left_before` and `right_before` are exact."""
    aligned = (F.when(F.col(f"{side}_is_aligned"), F.col(f"{side}_before")) for side in SIDES)
    return F.greatest("combined_before", F.least(*aligned))


def with_bucket_watermarks(rows: DataFrame) -> DataFrame:
    """Take the watermarks before a row's bucket as those at its arrival, and drop the other bucket columns."""
    sources = {"left_watermark": "left_before", "right_watermark": "right_before", "watermark": "combined_before"}
    return rows.transform(with_columns, {name: F.col(source) for name, source in sources.items()}).drop(*BUCKET_COLUMNS)


def with_exact_watermarks(rows: DataFrame) -> DataFrame:
    """Take `left_before` and `right_before`, which are those at a row's arrival, as its watermarks."""
    return with_bucket_watermarks(rows.withColumn("combined_before", preceding_combined_watermark()))


def _own_watermark(side: str, watermark_column: str) -> Column:
    """Return the watermark that a row of this side calls for; null for rows of the other side."""
    return F.when(F.col("side") == side, F.col(watermark_column) - F.col(f"{side}_lag"))
