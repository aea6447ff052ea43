"""Boundary rules of Spark's stream-stream join (Structured Streaming, Spark 4.1, state format v2).

Event times are whole microseconds UTC, watermarks and waits whole milliseconds. A row's `value` is the value of its
watermarked column: its event time, or the end of its window. W is the watermark of a micro-batch. Every comparison here
is one rule of the engine, and no other module decides a boundary of this dialect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidemark.config import Interval, Join, Pipeline, WindowInequality
from tidemark.config.dialect_support import TICK_MICROS
from tidemark.config.sides import OTHER, SIDES, SideName
from tidemark.config.types import to_millis
from tidemark.joins.join_type import JoinType
from tidemark.timegrid.time_columns import floor_div, lit_long

FOREVER = 2**52
"""Wait or watermark, in ms, that no query reaches."""


@dataclass(frozen=True)
class TimeRange:
    """A range condition as numbers, all of them defined so that they can be columns of lanes."""

    min_difference: int
    """Minimum of right event time - left event time, microseconds, inclusive."""
    max_difference: int
    """Maximum of the difference, inclusive."""
    waits: Mapping[str, int]
    """Distance from W to the values of a side's rows that it evicts, in ms; `FOREVER` if the side has no bound."""

    @classmethod
    def from_join(cls, join: Join) -> TimeRange:
        """Create the range that limits rows by their times, keys aside."""
        if join.window_inequality:
            return cls.from_window_inequality(join.window_inequality)
        return cls.from_interval(join.interval)

    @classmethod
    def from_window_inequality(cls, windows: WindowInequality) -> TimeRange:
        """Create the range that Spark derives from compared windows: as a bound of 0, strict or not, between times.

        It limits only the side with the greater windows, and applies to the ends of its windows as if these were
        compared. If the other side's windows are longer, a row may be evicted before its last partner arrives.
        """
        waits = {"left": FOREVER, "right": FOREVER, OTHER[windows.lesser_side]: int(windows.is_inclusive)}
        return cls(-FOREVER * 1000, FOREVER * 1000, waits)

    @classmethod
    def from_interval(cls, interval: Interval | None) -> TimeRange:
        """Create the range of an interval: the upper bound limits left rows, the lower bound right rows.

        An inclusive bound waits a whole millisecond longer, where a microsecond would do.
        """
        waits = {"left": FOREVER, "right": FOREVER}
        least, greatest = interval.to_closed(TICK_MICROS["spark"]) if interval else (None, None)
        if interval and interval.lower is not None:
            waits["right"] = -to_millis(interval.lower) + interval.lower_inclusive
        if interval and interval.upper is not None:
            waits["left"] = to_millis(interval.upper) + interval.upper_inclusive
        return cls(-FOREVER * 1000 if least is None else least, FOREVER * 1000 if greatest is None else greatest, waits)


@dataclass(frozen=True)
class StreamStreamRules:
    """Rules of a stream-stream join."""

    join_type: JoinType
    has_watermark: Mapping[str, Column]
    """True for a side with a watermark, by side."""
    is_event_time_key: bool
    """True if event time, or its window, is among the keys."""
    has_range: Column
    """True if there is a range condition."""
    min_difference: Column
    max_difference: Column
    waits: Mapping[str, Column]
    """Like the two differences as in `TimeRange`."""

    @classmethod
    def from_config(cls, pipeline: Pipeline) -> StreamStreamRules:
        """Create the rules of a configured join."""
        join = pipeline.join
        time_range = TimeRange.from_join(pipeline.join)
        has_watermark: dict[str, Column] = {
            side: F.lit(getattr(pipeline, side).watermark_delay is not None) for side in SIDES
        }
        return cls(
            JoinType.from_name(join.type),
            has_watermark,
            is_event_time_key=join.window is not None or join.event_time_equality,
            has_range=F.lit(join.interval is not None),
            min_difference=lit_long(time_range.min_difference),
            max_difference=lit_long(time_range.max_difference),
            waits={side: lit_long(wait) for side, wait in time_range.waits.items()},
        )

    def tracks_matches(self, side: str) -> bool:
        """Return True if the result depends on which rows of a side have matched."""
        return side in self.join_type.padded_sides or (side == "left" and "semi" in self.join_type.types)

    def is_late(self, side: str, value: Column, watermark: Column) -> Column:
        """Return True if a row is at the watermark or before. Rows without a time or a watermark are not late."""
        return self.has_watermark[side] & F.coalesce(value <= watermark * 1000, F.lit(False))

    def eviction_watermark(self, side: str, value: Column, floor: Column) -> Column:
        """Return the least W that evicts a row; `FOREVER` if none does.

        If event time is a key, W evicts rows up to W on both sides, whichever side has the watermark. A range condition
        evicts only if both sides have a watermark, at the distance of the bound.

        Args:
            side: Side of the row.
            value: Event time or window end, microseconds.
            floor: Limit in ms, null for none, that Spark derives from a conjunct such as `left_x >= 5`. Rows of the
                side after it are never evicted.
        """
        any_side = self._combine_watermarks(F.greatest)
        both_sides = self._combine_watermarks(F.least)
        if self.is_event_time_key:
            wait = F.when(any_side, F.lit(0)).otherwise(F.lit(FOREVER))
        else:
            wait = F.when(both_sides, self.waits[side]).otherwise(F.lit(FOREVER))
            is_beyond = self.join_type.pads(side) & (value > floor * 1000)
            wait = F.when(F.coalesce(is_beyond, F.lit(False)), F.lit(FOREVER)).otherwise(wait)
        return F.coalesce(F.when(wait < FOREVER, -floor_div(-value, 1000) + wait), F.lit(FOREVER))

    def is_in_range(self, left: Column, right: Column) -> Column:
        """Return True if the difference of two event times is in the range; null if one is null."""
        return ~self.has_range | (right - left).between(self.min_difference, self.max_difference)

    @staticmethod
    def is_in_state(left: Callable[[str], Column], right: Callable[[str], Column]) -> Column:
        """Return True if the earlier row was still in the state when the other arrived, or both share a batch.

        If both sides have a watermark, a row that arrives after the eviction of its partner is late itself.

        Args:
            left: Function from a name to a column of the left row: `batch`, `eviction_watermark` and
                `previous_watermark`, which is the W of the batch before the row's own.
            right: The same for the right row.
        """
        left_is_evicted = left("eviction_watermark") <= right("previous_watermark")
        right_is_evicted = right("eviction_watermark") <= left("previous_watermark")
        left_missed = (left("batch") < right("batch")) & left_is_evicted
        right_missed = (right("batch") < left("batch")) & right_is_evicted
        return ~left_missed & ~right_missed

    def _combine_watermarks(self, least_or_greatest: Callable[..., Column]) -> Column:
        return least_or_greatest(*self.has_watermark.values())


def has_state_eviction(pipeline: Pipeline) -> bool:
    """Return True if a watermark evicts rows of some side. Otherwise Spark runs no no-data batches."""
    join = pipeline.join
    has_watermark = [getattr(pipeline, side).watermark_delay is not None for side in SIDES]
    if join.window or join.event_time_equality:
        return any(has_watermark)
    return all(has_watermark)


def list_unbounded_sides(pipeline: Pipeline) -> Iterator[tuple[SideName, str]]:
    """Yield the sides whose rows are never evicted, with the reason.

    Rows with a null event time are never evicted either, on any side.
    """
    join = pipeline.join
    if not has_state_eviction(pipeline):
        lacking = " and ".join(side for side in SIDES if getattr(pipeline, side).watermark_delay is None)
        yield from ((side, f"{lacking} has no watermark_delay") for side in SIDES)
    elif not (join.window or join.event_time_equality):
        waits = TimeRange.from_join(join).waits
        yield from ((side, _explain_unbounded(join, side)) for side in SIDES if waits[side] == FOREVER)


def _explain_unbounded(join: Join, side: SideName) -> str:
    if join.window_inequality:
        return f"{join.window_inequality.comparison} holds for any later window of {OTHER[side]}"
    return f"join.interval has no {'upper' if side == 'left' else 'lower'}"
