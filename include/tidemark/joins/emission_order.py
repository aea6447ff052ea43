"""The order of the rows that one event of a join emits, for the next join of a chain.

One event emits rows at its arrival, and then rows at the timers that its watermark fires. The next join may process
them one by one, so that their order matters. It is an array of longs: Spark compares the first elements, then the
second ones, and so on. `window_output` has the order of the rows that windows emit.
"""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidemark.config.output_stream import EMISSION_ORDER
from tidemark.config.sides import OTHER, SIDES, SideName
from tidemark.joins.base import row_position
from tidemark.spark.dataframe_utils import choose_by_side

EMISSION_ORDER_TYPE = "array<bigint>"
AFTER_LOOKUP = 2**63 - 1
"""Order of a row that is emitted after all rows that its lookup emits."""


def order_in_event(side: SideName, upstream_sides: Collection[SideName]) -> Column:
    """Return the order of a side's row among those that one event of the previous join emits.

    It is empty for a row of a table.

    Args:
        side: The side, whose row is a struct column.
        upstream_sides: Sides whose rows are the output of another join.
    """
    empty = F.array().cast(EMISSION_ORDER_TYPE)
    return F.coalesce(F.col(side)[EMISSION_ORDER], empty) if side in upstream_sides else empty


def own_order_in_event(upstream_sides: Collection[SideName]) -> Column:
    """Return `order_in_event` of rows with `side`, each by its own side."""
    return choose_by_side(*(order_in_event(side, upstream_sides) for side in SIDES))


def order_of_lookup(arriving: Column, buffered: Column, prefix: str = "", *, is_removed: bool = False) -> Column:
    """Return the order of a row that an interval join emits.

    First come the matches of an arriving row, then the buffered rows that it removes, both in the order of event times,
    then of arrivals. (Flink's heap state reads buffered rows in the order of hashes, RocksDB in that of event times.)

    Args:
        arriving: `order_in_event` of the arriving row, or the time of the timer that removes the buffered row.
        buffered: `order_in_event` of the buffered row.
        prefix: Prefix of the columns of the buffered row, such as `left_`.
        is_removed: True if the buffered row is removed, False if both rows match.
    """
    step = F.lit(int(is_removed)).cast("long")
    place = F.array(step, *(F.col(f"{prefix}{name}") for name in ("event_time", "clock", "tiebreak")))
    return F.concat(arriving, place, buffered)


def order_of_pair(upstream_sides: Collection[SideName], is_left_earlier: Column | None = None) -> Column:
    """Return `order_of_lookup` of pairs with `left_*` and `right_*` of their event times and positions.

    Args:
        upstream_sides: Sides whose rows are the output of another join.
        is_left_earlier: Condition for the left row to be the buffered one; by default its position is not later.
    """
    if is_left_earlier is None:
        is_left_earlier = row_position("left_") <= row_position("right_")
    orders = {side: order_in_event(side, upstream_sides) for side in SIDES}
    by_right, by_left = (order_of_lookup(orders[OTHER[side]], orders[side], f"{side}_") for side in SIDES)
    return F.when(is_left_earlier, by_right).otherwise(by_left)


def to_emission_order(order: Column | None) -> Column:
    """Return the column `emission_order`: an order, or null for None."""
    return F.lit(None).cast(EMISSION_ORDER_TYPE) if order is None else order
