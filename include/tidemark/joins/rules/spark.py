"""Boundary rules of Spark's stream-stream join (Structured Streaming, Spark 4.1, state format v2).

Event times are whole microseconds UTC, watermarks and waits whole milliseconds. A row's `value` is what its watermarked
column holds: its event time, or the end of its window. W is the watermark of a micro-batch. Every comparison here is
one rule of the engine; nothing else in Tidemark decides a boundary of this dialect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidemark.config import Interval, Join, Pipeline, WindowInequality
from tidemark.config.dialect_support import TICK
from tidemark.config.sides import OTHER, SIDES, SideName
from tidemark.config.types import millis
from tidemark.joins.window_output import PADDING, JoinType
from tidemark.timegrid.time_columns import floor_div, whole

FOREVER = 2**52
"""A wait, or a watermark, in ms, that no query reaches."""


@dataclass(frozen=True)
class Range:
    """A range condition in numbers; all of them are there, so that they can be columns of a lane."""

    least: int
    """The least of right event time - left event time, in us, inclusive."""
    greatest: int
    waits: Mapping[str, int]
    """How far behind W a side's rows are evicted, in ms: `FOREVER` where its bound is absent."""

    @classmethod
    def of_join(cls, join: Join) -> Range:
        """What limits rows by their times, keys aside."""
        return cls.between_windows(join.window_inequality) if join.window_inequality else cls.of(join.interval)

    @classmethod
    def between_windows(cls, windows: WindowInequality) -> Range:
        """What Spark derives where windows are compared: as of a bound of 0, strict or not, between event times.

        It limits the side with the greater windows alone, and holds for the ends of its windows, as if these were what
        is compared. Where the other side's windows are the longer ones, a row may go before its last partner comes.
        """
        waits = {"left": FOREVER, "right": FOREVER, OTHER[windows.lesser]: int(windows.inclusive)}
        return cls(-FOREVER * 1000, FOREVER * 1000, waits)

    @classmethod
    def of(cls, interval: Interval | None) -> Range:
        """The upper bound limits how long left rows are wanted, the lower one right rows.

        An inclusive bound waits a whole millisecond more, where a microsecond would do.
        """
        waits = {"left": FOREVER, "right": FOREVER}
        least, greatest = interval.closed(TICK["spark"]) if interval else (None, None)
        if interval and interval.lower is not None:
            waits["right"] = -millis(interval.lower) + interval.lower_inclusive
        if interval and interval.upper is not None:
            waits["left"] = millis(interval.upper) + interval.upper_inclusive
        return cls(-FOREVER * 1000 if least is None else least, FOREVER * 1000 if greatest is None else greatest, waits)


@dataclass(frozen=True)
class Rules:
    """The rules of one join."""

    join_type: JoinType
    watermarked: Mapping[str, Column]
    """Whether a side has a watermark, by side."""
    keyed: bool
    """Whether event time, or its window, is among the keys."""
    ranged: Column
    """Whether there is a range condition."""
    least: Column
    greatest: Column
    waits: Mapping[str, Column]
    """These three as in `Range`."""

    @classmethod
    def of(cls, pipeline: Pipeline) -> Rules:
        """The rules of a pipeline file's join."""
        join, range_ = pipeline.join, Range.of_join(pipeline.join)
        watermarked: dict[str, Column] = {
            side: F.lit(getattr(pipeline, side).watermark_delay is not None) for side in SIDES
        }
        return cls(
            JoinType.of(join.type),
            watermarked,
            keyed=join.window is not None or join.event_time_equality,
            ranged=F.lit(join.interval is not None),
            least=whole(range_.least),
            greatest=whole(range_.greatest),
            waits={side: whole(wait) for side, wait in range_.waits.items()},
        )

    def preserved(self, side: str) -> Column:
        """Whether the join type keeps a side's rows that find no partner."""
        return self.join_type.is_one_of(*PADDING[side])

    def tracks(self, side: str) -> bool:
        """Whether it matters which rows of a side have met a partner."""
        telling = {"semi"} if side == "left" else set()
        return bool(self.join_type.types & (telling | set(PADDING[side])))

    def late(self, side: str, value: Column, watermark: Column) -> Column:
        """A row at the watermark is late, one without a time never; a side without a watermark has no late rows."""
        return self.watermarked[side] & F.coalesce(value <= watermark * 1000, F.lit(False))

    def evicted_at(self, side: str, value: Column, floor: Column) -> Column:
        """The least W that evicts a row; `FOREVER` where none does.

        By the key: rows up to W go, on both sides, whichever has the watermark. By a range: only where both sides have
        a watermark, and as far behind W as the bound says. `floor` (ms, null for none) is a limit that Spark takes
        from a conjunct such as `left_x >= 5`: rows of the side after it are never evicted.
        """
        one, both = self._watermarks(F.greatest), self._watermarks(F.least)
        if self.keyed:
            wait = F.when(one, F.lit(0)).otherwise(F.lit(FOREVER))
        else:
            wait = F.when(both, self.waits[side]).otherwise(F.lit(FOREVER))
            beyond = self.preserved(side) & (value > floor * 1000)
            wait = F.when(F.coalesce(beyond, F.lit(False)), F.lit(FOREVER)).otherwise(wait)
        return F.coalesce(F.when(wait < FOREVER, -floor_div(-value, 1000) + wait), F.lit(FOREVER))

    def in_range(self, left: Column, right: Column) -> Column:
        """Whether two event times are as far apart as the range says; null where one is null."""
        return ~self.ranged | (right - left).between(self.least, self.greatest)

    @staticmethod
    def in_state(left: Callable[[str], Column], right: Callable[[str], Column]) -> Column:
        """Whether the row of the earlier batch was still in the state when the other came; same batch: always.

        Rows come with `batch`, `level` (the W that evicts them) and `previous_watermark`, W of the batch before theirs.
        Where both sides have a watermark a row that came too late for this is late itself.
        """
        left_gone = (left("batch") < right("batch")) & (left("level") <= right("previous_watermark"))
        right_gone = (right("batch") < left("batch")) & (right("level") <= left("previous_watermark"))
        return ~left_gone & ~right_gone

    def _watermarks(self, least_or_greatest: Callable[..., Column]) -> Column:
        return least_or_greatest(*self.watermarked.values())


def evicts(pipeline: Pipeline) -> bool:
    """Whether a watermark evicts rows of some side: without that Spark runs no batch that has no data."""
    join = pipeline.join
    given = [getattr(pipeline, side).watermark_delay is not None for side in SIDES]
    if join.window or join.event_time_equality:
        return any(given)
    return all(given)


def kept_for_ever(pipeline: Pipeline) -> Iterator[tuple[SideName, str]]:
    """The sides of which no row is ever evicted, each with why.

    An event time that is null is kept for ever too, whatever the side.
    """
    join = pipeline.join
    if not evicts(pipeline):
        lacking = " and ".join(side for side in SIDES if getattr(pipeline, side).watermark_delay is None)
        yield from ((side, f"{lacking} has no watermark_delay") for side in SIDES)
    elif not (join.window or join.event_time_equality):
        waits = Range.of_join(join).waits
        yield from ((side, _unlimited(join, side)) for side in SIDES if waits[side] == FOREVER)


def _unlimited(join: Join, side: SideName) -> str:
    if join.window_inequality:
        return f"{join.window_inequality.holds} holds for any later window of {OTHER[side]}"
    return f"join.interval has no {'upper' if side == 'left' else 'lower'}"
