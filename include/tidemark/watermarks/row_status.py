"""Rows that `where` of an input leaves out, and that move the watermark all the same.

They go through a replay beside the others, told by `rejected`: who asks for rows that take part leaves them out too.
Those whose times are not to be believed have no event time, and move nothing.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

FILTERED = "filtered"
"""What `rejected` says of them."""


def is_filtered() -> Column:
    """Whether `where` leaves a row out; never null."""
    return F.col("rejected").eqNullSafe(F.lit(FILTERED))


def is_rejected() -> Column:
    """Whether a row takes no part, and its input's table is to blame; never null."""
    return F.col("rejected").isNotNull() & ~is_filtered()


def moves_watermark() -> Column:
    """Whether a row's event time, if it has one, moves the watermark; never null."""
    return F.col("rejected").isNull() | is_filtered()
