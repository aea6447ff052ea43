"""Boundary rules of Flink SQL (`RowTimeIntervalJoin`, window TVFs and `WindowJoinOperator`, Flink 2.3).

All times are whole milliseconds UTC. W is the combined watermark, `NO_WATERMARK` until both inputs have one. A window
is [start, end).
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidemark.config import Interval
from tidemark.joins.rules.flink_common import inclusive_bounds
from tidemark.timegrid.time_columns import whole
from tidemark.timegrid.zones import Zone


@dataclass(frozen=True)
class IntervalRules:
    """The rules of one interval join: `left + lower <= right <= left + upper`, both inclusive, in ms.

    A row's `wait` is how long after its event time its last partner may be; negative where all partners are before it.
    """

    lower: Column
    upper: Column
    lateness: Column
    min_cleanup: Column

    @classmethod
    def of(cls, interval: Interval, min_cleanup: int) -> IntervalRules:
        """The rules of a pipeline file's interval: the planner allows no lateness."""
        lower, upper = inclusive_bounds(interval)
        return cls(whole(lower), whole(upper), whole(0), whole(min_cleanup))

    @property
    def empty(self) -> Column:
        """Whether the planner leaves the operator out, because no two rows can meet."""
        return self.lower > self.upper

    @property
    def left_wait(self) -> Column:
        """The wait of a left row."""
        return self.upper

    @property
    def right_wait(self) -> Column:
        """The wait of a right row."""
        return -self.lower

    def wait_of(self, side: Column) -> Column:
        """The wait of a row of either side."""
        return F.when(side == "left", self.left_wait).otherwise(self.right_wait)

    def within(self, left: Column, right: Column) -> Column:
        """Whether two event times are in bounds."""
        return (right >= left + self.lower) & (right <= left + self.upper)

    @staticmethod
    def now(watermark: Column) -> Column:
        """The operator's time O, which begins at 0."""
        return F.greatest(watermark, F.lit(0))

    def cached(self, event_time: Column, wait: Column, now: Column) -> Column:
        """Whether a row waits for partners to come; if not, it is padded at once when it found none."""
        return (now < event_time + wait) & ~self.empty

    def expires_at(self, event_time: Column, wait: Column) -> Column:
        """The least O at which the engine may remove a cached row; until it does, the row is joined."""
        return event_time + wait + self.lateness + 1

    @staticmethod
    def waits_by_clock(wait: Column) -> Column:
        """Whether a row on processing time waits for partners: one that comes at the last of their clocks does not."""
        return wait > 0

    def timer_after(self, wait: Column) -> Column:
        """How long after the clock of the row that it was set for a timer takes rows, on processing time, in ms.

        It stands at expiry plus the clean-up interval, and runs once the clock has left that millisecond.
        """
        return wait + self.min_cleanup + 2

    def stale_at(self, event_time: Column) -> Column:
        """The least O of the other side's last removal of expired rows at which a row skips its search for partners.

        The engine compares that O - other wait - lateness - 1 with event time + own wait.
        """
        return event_time + (self.upper - self.lower) + self.lateness + 1

    def off_the_path(self, event_time: Column, wait: Column) -> Column:
        """Whether only a replay row by row is exact.

        A clean-up interval makes removals depend on every advance of the watermark, and times of 0 and below meet
        what the engine takes 0 for: `nothing left` in a clean-up, `nothing removed yet` before the first.
        """
        return ~self.empty & ((self.min_cleanup > 0) | (event_time <= 0) | (event_time + wait <= 0))


HOUR = 3_600_000
"""By how many ms a timer of local time is apart from what it is set for, at the most."""


@dataclass(frozen=True)
class WindowRules:
    """The rules of window joins: no lateness is allowed, and a row counts as late for each window by itself.

    In a time zone the bounds of windows are local times, and their timers instants (`TimeWindowUtil`).
    """

    zone: Zone | None = None

    def fires_at(self, end: Column) -> Column:
        """The least watermark at which a window fires, once."""
        return self._timer_at(end - 1)

    def purged_at(self, end: Column) -> Column:
        """The least watermark at which a window is gone; a row that meets it, or a later one, does not enter."""
        return self._timer_at(end - 1)

    def _timer_at(self, local: Column) -> Column:
        """The instant of the timer for a local time.

        Of one that the clocks skip, the full hour before it would be; of one that they show twice, the second time. The
        engine knows either by the hour that follows, and only in zones whose clocks change every year; elsewhere it
        takes the first time, and for one that is skipped what it would have been.
        """
        if self.zone is None:
            return local
        at, next_hour = self.zone.instant(local), self.zone.instant(local + HOUR)
        changed = F.when(at == next_hour, at - at % HOUR).when(next_hour - at > HOUR, at + HOUR)
        return F.when(self.zone.changes, changed.otherwise(at)).otherwise(at)

    @staticmethod
    def dropped(event_time: Column, watermark: Column) -> Column:
        """Only for a window is a row late, never by its own time."""
        return F.lit(False) & (event_time <= watermark)
