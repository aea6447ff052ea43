"""Find windows of a stream that all begin earlier or later than the pipeline's by the same duration."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.comparison.multiset_diff import BATCH, STREAM
from tidemark.config.types import format_duration
from tidemark.ledger.row_content import content_hash

WINDOW_COLUMNS = ("_window_start", "_window_end", "_right_window_start", "_right_window_end")
"""Bounds of windows, in emissions that contain them."""
_MIN_SHARE = 0.9
"""Share of the contents that must have the same shift: others may be without a cause for another reason."""
_MAX_SHIFTS = 100
"""Number of different shifts to read, the most frequent first."""


def find_window_shift(unexplained: DataFrame, names: Sequence[str], unordered: Collection[str]) -> timedelta | None:
    """Find how much later the windows of the stream begin, if rows without a cause differ in nothing else.

    Args:
        unexplained: Rows without a cause.
        names: The compared columns.
        unordered: Columns whose arrays have no order.

    Returns:
        None if the windows are not compared, are the same, or are not all shifted by the same duration.
    """
    if WINDOW_COLUMNS[0] not in names:
        return None
    content = content_hash(unexplained, [name for name in names if name not in WINDOW_COLUMNS], unordered)
    # A row is in several sliding windows, so the first ones are compared.
    start = F.unix_micros(WINDOW_COLUMNS[0])
    first = {table: F.min(F.when(F.col("_only_in") == table, start)).alias(table) for table in (BATCH, STREAM)}
    shifts = unexplained.groupBy(content.alias("content")).agg(*first.values())
    counted = shifts.groupBy((F.col(STREAM) - F.col(BATCH)).alias("shift")).agg(F.count("*").alias("contents"))
    rows = counted.orderBy(F.desc("contents")).take(_MAX_SHIFTS)
    if not rows or not rows[0]["shift"] or rows[0]["contents"] < _MIN_SHARE * sum(row["contents"] for row in rows):
        return None
    return timedelta(microseconds=rows[0]["shift"])


def describe_window_shift(shift: timedelta) -> str:
    """Describe a shift of all windows.

    >>> describe_window_shift(timedelta(hours=-1)).partition(". ")[0]
    'rows without a cause are equal but for their windows, which begin 1 hour earlier in the stream'
    """
    distance = f"{format_duration(abs(shift))} {'later' if shift > timedelta() else 'earlier'}"
    return (
        f"rows without a cause are equal but for their windows, which begin {distance} in the stream. Compare the time "
        "zone and the window offset of the stream with those of the pipeline"
    )
