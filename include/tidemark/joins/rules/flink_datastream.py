"""Boundary rules of Flink's DataStream API (`IntervalJoinOperator` and `WindowOperator`, Flink 2.3).

All times are whole milliseconds UTC. W is the combined watermark, `NO_WATERMARK` until both inputs have one. A window
is [start, end). Every
comparison here is one rule of the engine; nothing else in Tidemark decides a boundary of this dialect.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidemark.config import Interval
from tidemark.joins.rules.flink_common import inclusive_bounds
from tidemark.timegrid.time_columns import whole


@dataclass(frozen=True)
class IntervalRules:
    """The rules of one interval join: `left + lower <= right <= left + upper`, both inclusive, in ms."""

    lower: Column
    upper: Column

    @classmethod
    def of(cls, interval: Interval) -> IntervalRules:
        """The rules of a pipeline file's interval."""
        lower, upper = inclusive_bounds(interval)
        return cls(whole(lower), whole(upper))

    @property
    def left_wait(self) -> Column:
        """How long after its event time a left row is kept."""
        return F.greatest(F.lit(0), self.upper)

    @property
    def right_wait(self) -> Column:
        """How long after its event time a right row is kept."""
        return F.greatest(F.lit(0), -self.lower)

    def within(self, left: Column, right: Column) -> Column:
        """Whether two event times are in bounds."""
        return (right >= left + self.lower) & (right <= left + self.upper)

    @staticmethod
    def late(event_time: Column, watermark: Column) -> Column:
        """A row at W is on time; only one before it is late."""
        return event_time < watermark

    @staticmethod
    def evicted_at(event_time: Column, watermark: Column, wait: Column) -> Column:
        """The least watermark that evicts a row which met `watermark`.

        The clean-up timer stands at event time + wait, inclusive, and fires only when the watermark advances: a row
        that arrives with its timer already due stays until the next advance.
        """
        return F.greatest(event_time + wait, watermark + 1)

    @staticmethod
    def evicted_anew(event_time: Column, wait: Column) -> Column:
        """The same once the row's job has restarted: its timer is recovered, and any watermark is an advance."""
        return event_time + wait

    def evicted_before_match(
        self, left: Column, left_watermark: Column, right: Column, right_watermark: Column
    ) -> Column:
        """Whether the earlier of two on-time rows was evicted just before the other arrived.

        The watermark that each row met tells which came first. Possible only where the later row arrives exactly at a
        watermark equal to the earlier one's timer.
        """
        left_first = (right_watermark > left_watermark) & (right_watermark >= left + self.left_wait)
        right_first = (left_watermark > right_watermark) & (left_watermark >= right + self.right_wait)
        return left_first | right_first


@dataclass(frozen=True)
class WindowRules:
    """The rules of windows with an allowed lateness, in ms: window join and coGroup."""

    lateness: Column

    @staticmethod
    def fires_at(end: Column) -> Column:
        """The least watermark at which a window fires; a row that meets it, or a later one, is not on time."""
        return end - 1

    def purged_at(self, end: Column) -> Column:
        """The least watermark at which a window is gone; a row that meets it, or a later one, does not enter."""
        return end - 1 + self.lateness

    def dropped(self, event_time: Column, watermark: Column) -> Column:
        """Whether a row that entered no window counts as late."""
        return event_time + self.lateness <= watermark
