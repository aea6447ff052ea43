"""The order in which Flink SQL's interval join processes rows, those at one position among them.

Rows at one position meet the same watermark, unless the stream recorded one for each row. As the watermark of the
operator never falls, rows that meet a lower one are then processed first.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidemark.joins.base import POSITION_TYPE

_MEETING = (*POSITION_TYPE.names, "watermark")
_TIES = ("order_in_event", "event_time")

ARRIVAL_ORDER = (*_MEETING, "side", *_TIES)
"""Order of rows with exact watermarks. Rows that agree in all of these are ordered by `base.compute_row_hash`."""
ARRIVAL_ORDER_OF_SIDE = (*_MEETING, *_TIES)
"""The same order among the rows of one side."""


def is_left_earlier(*, has_exact_watermarks: bool) -> Column:
    """Return True for a pair if its left row arrives before the right one, by `ARRIVAL_ORDER`.

    Args:
        has_exact_watermarks: True if both rows have exact watermarks. False if those of rows on time may be lower, in
            a job whose rows meet equal watermarks at one position (`Lane.applies_to_own_row`).
    """
    names = _MEETING if has_exact_watermarks else POSITION_TYPE.names
    left, right = (F.struct(*(F.col(f"{side}_{name}").alias(name) for name in names)) for side in ("left", "right"))
    return left <= right  # side is next in the order, and left the first one
