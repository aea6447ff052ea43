"""Distinguish rows that take part in the join, filtered rows, and rejected rows.

Rows that the `where` of an input filters take no part, but move the watermark. They pass through a replay with
`rejected` set to `FILTERED`. Filtered rows with times out of bounds have no event time and move nothing.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

FILTERED = "filtered"
"""Value of `rejected` for rows that `where` filters."""
AHEAD = "ahead"
"""Column with the time by which a row's event time is far after its arrival, in microseconds; otherwise null."""


def is_filtered() -> Column:
    """Return True for rows that `where` filters; never null."""
    return F.col("rejected").eqNullSafe(F.lit(FILTERED))


def moves_watermark_only() -> Column:
    """Return True for filtered rows whose event time moves the watermark; never null."""
    return is_filtered() & F.col("event_time").isNotNull()


def is_rejected() -> Column:
    """Return True for invalid rows, which the `late` table reports; never null."""
    return F.col("rejected").isNotNull() & ~is_filtered()


def is_ahead() -> Column:
    """Return True for rows far ahead of their arrival whose event time may move the watermark; never null."""
    return moves_watermark() & F.col("event_time").isNotNull() & F.col(AHEAD).isNotNull()


def moves_watermark() -> Column:
    """Return True for rows whose event time, if any, moves the watermark; never null."""
    return F.col("rejected").isNull() | is_filtered()
