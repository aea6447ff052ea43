"""Boundary rules of Flink's DataStream API (`IntervalJoinOperator`, Flink 2.3).

All times are whole milliseconds UTC. W is the combined watermark, `NO_WATERMARK` until both inputs have one. Every
comparison here is one rule of the engine; nothing else in Tidemark decides a boundary of this dialect.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidemark.spec import Interval, Pipeline
from tidemark.spec.values import millis

NO_WATERMARK = -(2**63)
"""An input's watermark before its first row."""
END_OF_INPUT = 2**63 - 1
"""The watermark when a bounded input ends."""


@dataclass(frozen=True)
class WatermarkLag:
    """How far each input's watermark stays behind its greatest event time, in ms."""

    left: int
    right: int

    @classmethod
    def of(cls, pipeline: Pipeline) -> WatermarkLag:
        """`forBoundedOutOfOrderness(d)` gives max - d - 1; SQL's `ts - INTERVAL d` gives max - d."""
        extra = 0 if pipeline.watermark_kind == "sql" else 1
        left, right = (millis(side.watermark_delay) + extra for side in (pipeline.left, pipeline.right))
        return cls(left, right)


def inclusive_bounds(interval: Interval) -> tuple[int, int]:
    """Lower and upper in ms. Exclusive ones move by one; lower may then exceed upper: legal, and matches nothing."""
    lower = millis(interval.lower) + (not interval.lower_inclusive)
    return lower, millis(interval.upper) - (not interval.upper_inclusive)


@dataclass(frozen=True)
class IntervalRules:
    """The rules of one interval join: `left + lower <= right <= left + upper`, both inclusive, in ms."""

    lower: Column
    upper: Column

    @classmethod
    def of(cls, interval: Interval) -> IntervalRules:
        """The rules of a pipeline file's interval."""
        lower, upper = inclusive_bounds(interval)
        return cls(F.lit(lower), F.lit(upper))

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
