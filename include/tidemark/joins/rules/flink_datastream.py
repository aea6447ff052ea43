"""Boundary rules of Flink's DataStream API (`IntervalJoinOperator` and `WindowOperator`, Flink 2.3).

All times are whole milliseconds UTC. W is the combined watermark, `NO_WATERMARK` until both inputs have one. A window
is [start, end). Every comparison is one rule of the engine, and no other module decides a boundary of this dialect.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidemark.config import Interval
from tidemark.joins.rules.flink_common import IntervalBounds, to_inclusive_bounds
from tidemark.timegrid.time_columns import lit_long


@dataclass(frozen=True)
class IntervalRules(IntervalBounds):
    """Rules of an interval join."""

    @classmethod
    def from_config(cls, interval: Interval) -> IntervalRules:
        """Create the rules of a configured interval."""
        lower, upper = to_inclusive_bounds(interval)
        return cls(lit_long(lower), lit_long(upper))

    @property
    def left_wait(self) -> Column:
        """Time for which a left row is buffered after its event time."""
        return F.greatest(F.lit(0), self.upper)

    @property
    def right_wait(self) -> Column:
        """Time for which a right row is buffered after its event time."""
        return F.greatest(F.lit(0), -self.lower)

    @staticmethod
    def is_late(event_time: Column, watermark: Column) -> Column:
        """Return True if a row is late: strictly before W. A row at W is on time."""
        return event_time < watermark

    @staticmethod
    def eviction_watermark(event_time: Column, watermark: Column, wait: Column) -> Column:
        """Return the least watermark that evicts a row.

        The cleanup timer is set for event time + wait, inclusive. Timers fire only when the watermark advances, so a
        row whose timer is already due at its arrival stays until the next advance.

        Args:
            event_time: Event time of the row.
            watermark: Watermark at the row's arrival.
            wait: `left_wait` or `right_wait`.
        """
        return F.greatest(event_time + wait, watermark + 1)

    @staticmethod
    def eviction_watermark_after_restart(event_time: Column, wait: Column) -> Column:
        """Return the least watermark that evicts a recovered row. Its timer is recovered, and any W is an advance."""
        return event_time + wait

    def is_evicted_before_match(
        self, left: Column, left_watermark: Column, right: Column, right_watermark: Column
    ) -> Column:
        """Return True if the earlier of two on-time rows was evicted just before the other arrived.

        The watermarks at arrival determine which row arrived first. Eviction before the match is possible only if the
        later row arrives exactly when the watermark equals the timer of the earlier one.
        """
        left_first = (right_watermark > left_watermark) & (right_watermark >= left + self.left_wait)
        right_first = (left_watermark > right_watermark) & (left_watermark >= right + self.right_wait)
        return left_first | right_first


@dataclass(frozen=True)
class WindowRules:
    """Rules of windows with an allowed lateness in ms, for window joins and coGroups."""

    lateness: Column

    @staticmethod
    def fires_at(end: Column) -> Column:
        """Return the least watermark at which a window fires. A row arriving at it, or later, is not on time."""
        return end - 1

    def purged_at(self, end: Column) -> Column:
        """Return the least watermark at which a window is purged. A row arriving at it, or later, does not enter."""
        return end - 1 + self.lateness

    def is_dropped(self, event_time: Column, watermark: Column) -> Column:
        """Return True if a row that is in no window counts as late."""
        return event_time + self.lateness <= watermark
