"""Spark's join on windows that each side makes of its own rows, and that are compared instead of being the same."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from typing_extensions import override

from tidemark.joins.keys import key_columns
from tidemark.joins.spark_stream_stream import BOUNDS, Columns, MicroBatchJoin
from tidemark.joins.window import Windows


def window(start: Column, end: Column) -> Column:
    """A window as Spark compares it: the lesser one starts earlier, or as early and ends earlier."""
    return F.struct(start.alias("start"), end.alias("end"))


def holds(operator: Column, left: Column, right: Column) -> Column:
    """Whether two windows are as an operator says: `<`, `<=`, `>` or `>=`."""
    known = {"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}
    return F.coalesce(*(F.when(operator == one, found) for one, found in known.items()))


@dataclass(frozen=True)
class ComparedWindows:
    """The windows of each side, and which of two are those of a pair."""

    left: Windows
    right: Windows
    operator: Column
    """`<`, `<=`, `>` or `>=`, between the window of the left row and that of the right one."""

    def of(self, event_time: Column) -> Column:
        """All windows of an event time, of rows that tell their `side`; as `Windows.of`."""
        return F.when(F.col("side") == "left", self.left.of(event_time)).otherwise(self.right.of(event_time))

    def may_hold(self, left: Column, right: Column) -> Column:
        """Whether some window of a left event time and some of a right one are."""
        lefts, rights = self.left.of(left), self.right.of(right)
        least, most = F.array_min, F.array_max
        ascending = self.operator.isin("<", "<=")
        left_window = F.when(ascending, least(lefts)).otherwise(most(lefts))
        right_window = F.when(ascending, most(rights)).otherwise(least(rights))
        return holds(self.operator, left_window, right_window)


@dataclass(frozen=True)
class ComparedWindowJoin(MicroBatchJoin):
    """A copy of a row in each of its windows meets those of equal keys in lesser windows, or in greater ones."""

    windows: ComparedWindows

    carries = ("matched", "watermark")
    """The watermark that a carried row met tells which of its copies were late: these may not have been evicted."""

    @override
    def times_match(self, left: Column, right: Column) -> Column:
        return self.windows.may_hold(left, right)

    @override
    def _keys(self, copies: DataFrame) -> list[str]:
        return key_columns(copies)

    @override
    def _pair_up(self, left: Columns, right: Columns) -> Column:
        return holds(self.windows.operator, *(window(*(of(name) for name in BOUNDS)) for of in (left, right)))

    @override
    def _bounds(self, left: Columns | None, right: Columns | None) -> dict[str, Column]:
        none = F.lit(None).cast("bigint")
        of_left = {name: left(name) if left else none for name in BOUNDS}
        return of_left | {f"right_{name}": right(name) if right else none for name in BOUNDS}
