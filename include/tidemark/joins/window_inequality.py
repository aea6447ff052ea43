"""Spark's join on an inequality between the windows of each side."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from typing_extensions import override

from tidemark.joins.keys import key_columns
from tidemark.joins.spark_stream_stream import WINDOW_BOUNDS, Columns, StreamStreamJoin
from tidemark.joins.window import AlignedWindows, to_window
from tidemark.spark.dataframe_utils import choose_by_side


def compare_windows(operator: Column, left: Column, right: Column) -> Column:
    """Return True if two windows are in the relation `operator`: `<`, `<=`, `>` or `>=`.

    Spark compares windows, which are structs (`window.to_window`), by start and then by end.
    """
    relations = {"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}
    return F.coalesce(*(F.when(operator == symbol, relation) for symbol, relation in relations.items()))


@dataclass(frozen=True)
class ComparedWindowAssigner:
    """Assign windows by side, and compare them."""

    left: AlignedWindows
    right: AlignedWindows
    operator: Column
    """Relation of the left row's window to the right row's: `<`, `<=`, `>` or `>=`."""

    def assign(self, event_time: Column) -> Column:
        """Return all windows of an event time, by the row's `side`; see `AlignedWindows.assign`."""
        return choose_by_side(self.left.assign(event_time), self.right.assign(event_time))

    def can_match(self, left: Column, right: Column) -> Column:
        """Return True if some window of a left event time and some window of a right one are in the relation."""
        lefts, rights = self.left.assign(left), self.right.assign(right)
        is_ascending = self.operator.isin("<", "<=")
        left_window = F.when(is_ascending, F.array_min(lefts)).otherwise(F.array_max(lefts))
        right_window = F.when(is_ascending, F.array_max(rights)).otherwise(F.array_min(rights))
        return compare_windows(self.operator, left_window, right_window)


@dataclass(frozen=True)
class WindowInequalityJoin(StreamStreamJoin):
    """A join of row copies, one per window, with equal keys and windows in a relation."""

    windows: ComparedWindowAssigner

    carried_columns = ("first_match_slices", "watermark")
    """The watermark at a carried row's arrival shows which of its copies were late. These may not have been evicted."""

    @override
    def times_match(self, left: Column, right: Column) -> Column:
        return self.windows.can_match(left, right)

    @override
    def _match_keys(self, copies: DataFrame) -> list[str]:
        return key_columns(copies)

    @override
    def _times_of_copies_match(self, left: Columns, right: Columns) -> Column:
        windows = (to_window(*(column(name) for name in WINDOW_BOUNDS)) for column in (left, right))
        return compare_windows(self.windows.operator, *windows)

    @override
    def _window_columns(self, left: Columns | None, right: Columns | None) -> dict[str, Column]:
        null = F.lit(None).cast("bigint")
        left_bounds = {name: left(name) if left else null for name in WINDOW_BOUNDS}
        return left_bounds | {f"right_{name}": right(name) if right else null for name in WINDOW_BOUNDS}
