"""Boundary rules of Flink SQL (`RowTimeIntervalJoin`, window TVFs and `WindowJoinOperator`, Flink 2.3).

All times are whole milliseconds UTC. W is the combined watermark, `NO_WATERMARK` until both inputs have one. A window
is [start, end).
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidemark.config import Interval
from tidemark.joins.rules.flink_common import IntervalBounds, to_inclusive_bounds
from tidemark.spark.dataframe_utils import choose_by_side
from tidemark.timegrid.time_columns import lit_long
from tidemark.timegrid.zones import Zone


@dataclass(frozen=True)
class IntervalRules(IntervalBounds):
    """Rules of an interval join.

    A row's `wait` is the time from its event time to that of its last possible partner. It is negative if all partners
    are earlier.
    """

    lateness: Column
    min_cleanup: Column

    @classmethod
    def from_config(cls, interval: Interval, min_cleanup: int) -> IntervalRules:
        """Create the rules of a configured interval. The planner allows no lateness."""
        lower, upper = to_inclusive_bounds(interval)
        return cls(lit_long(lower), lit_long(upper), lit_long(0), lit_long(min_cleanup))

    @property
    def is_empty(self) -> Column:
        """True if no two rows can match, so that the planner omits the operator."""
        return self.lower > self.upper

    @property
    def left_wait(self) -> Column:
        """Wait of left rows."""
        return self.upper

    @property
    def right_wait(self) -> Column:
        """Wait of right rows."""
        return -self.lower

    def wait_for_side(self, side: Column) -> Column:
        """Return the wait of rows of a side."""
        return choose_by_side(self.left_wait, self.right_wait, side=side)

    @staticmethod
    def operator_time(watermark: Column) -> Column:
        """Return the operator time O, which starts at 0."""
        return F.greatest(watermark, F.lit(0))

    def is_cached(self, event_time: Column, wait: Column, operator_time: Column) -> Column:
        """Return True if a row is cached for later partners. Otherwise it is padded at once if it has no match."""
        return (operator_time < event_time + wait) & ~self.is_empty

    def expires_at(self, event_time: Column, wait: Column) -> Column:
        """Return the least O at which the engine may remove a cached row. Until it does, the row still matches."""
        return event_time + wait + self.lateness + 1

    @staticmethod
    def is_cached_in_processing_time(wait: Column) -> Column:
        """Return True if a row on processing time is cached. A row at the last clock of its partners is not."""
        return wait > 0

    def cleanup_delay(self, wait: Column) -> Column:
        """Return the time from a row's clock until the cleanup timer it sets removes rows, in ms (processing time).

        The timer is set for expiry plus the cleanup interval. It runs once the clock has left that millisecond.
        """
        return wait + self.min_cleanup + 2

    def lookup_skipped_at(self, event_time: Column) -> Column:
        """Return the least O of the other side's last cleanup at which a row skips its lookup of partners.

        The engine compares O - other wait - lateness - 1 with event time + own wait.
        """
        return event_time + (self.upper - self.lower) + self.lateness + 1

    def requires_simulation(self, event_time: Column, wait: Column) -> Column:
        """Return True if only a row-by-row simulation is exact.

        With a cleanup interval, removals depend on every advance of the watermark. Times of 0 and below clash with two
        special meanings of 0 in the engine: no row left after a cleanup, and no cleanup so far.
        """
        return ~self.is_empty & ((self.min_cleanup > 0) | (event_time <= 0) | (event_time + wait <= 0))


HOUR_MS = 3_600_000
"""Flink shifts timers of local times by whole hours, at most by one."""


@dataclass(frozen=True)
class WindowRules:
    """Rules of window joins. No lateness is allowed, and a row may be late for some of its windows only.

    In a time zone, window bounds are local times and timers are instants (`TimeWindowUtil`).
    """

    zone: Zone | None = None

    def fires_at(self, end: Column) -> Column:
        """Return the least watermark at which a window fires, once."""
        return self._to_timer_instant(end - 1)

    def purged_at(self, end: Column) -> Column:
        """Return the least watermark at which a window is purged. A row arriving at it, or later, does not enter."""
        return self._to_timer_instant(end - 1)

    def _to_timer_instant(self, local: Column) -> Column:
        """Return the instant of the timer for a local time.

        For a local time in a gap it is the preceding full hour, for one in an overlap the second occurrence. The engine
        detects either by the hour that follows, and only in zones whose clocks change every year. In other zones it
        takes the first occurrence in an overlap, and in a gap the instant with the offset before it.
        """
        if self.zone is None:
            return local
        at, next_hour = self.zone.to_instant(local), self.zone.to_instant(local + HOUR_MS)
        in_gap = F.when(at == next_hour, at - at % HOUR_MS)
        changed = in_gap.when(next_hour - at > HOUR_MS, at + HOUR_MS)
        return F.when(self.zone.has_yearly_changes, changed.otherwise(at)).otherwise(at)

    @staticmethod
    def is_dropped(event_time: Column, watermark: Column) -> Column:  # noqa: ARG004 - of all window rules
        """Return false: a row is late only for a window, never by its own event time."""
        return F.lit(False)
