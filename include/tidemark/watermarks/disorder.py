"""Measure the disorder of a sample in memory: the shares of late rows under different delays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tidemark.config.pipeline import Dialect
from tidemark.watermarks.values import NO_WATERMARK

Longs = npt.NDArray[np.int64]
_MS = 1000
_MARGIN = {"flink-datastream": 2, "flink-sql": 1, "spark": 0}
"""Ms between the newest event time less the delay and the newest late row. DataStream: W = newest - delay - 1. The
other dialects: W = newest - delay. In Flink a row is late strictly before W, in Spark also at W."""
ON_TIME = -1
"""Disorder of a row that is late under no delay, because no earlier row is newer."""


@dataclass(frozen=True)
class Arrivals:
    """Valid rows of an input, in any order. The arrays are of equal length."""

    clock: Longs
    """Arrival: microseconds since 1970 UTC, or the number of the micro-batch in dialect spark."""
    event_time: Longs
    """Microseconds since 1970 UTC."""
    tiebreak: Longs
    """Order among equal clocks. Rows with equal clock and tiebreak see the same watermark."""
    partition: Longs
    """Number of the row's partition. The input's watermark is the minimum over its partitions."""

    @classmethod
    def create(
        cls, clock: Longs, event_time: Longs, tiebreak: Longs | None = None, partition: Longs | None = None
    ) -> Arrivals:
        """Create the rows of an input, by default without tiebreak and in one partition."""
        zeros = np.zeros(len(clock), np.int64)
        return cls(
            clock, event_time, zeros if tiebreak is None else tiebreak, zeros if partition is None else partition
        )

    def __len__(self) -> int:
        return len(self.clock)

    def select_between(self, start: int, end: int) -> Arrivals:
        """Return the rows with a clock from start to end, both inclusive."""
        selected = (self.clock >= start) & (self.clock <= end)
        return Arrivals(*(values[selected] for values in (self.clock, self.event_time, self.tiebreak, self.partition)))


def measure_disorder(rows: Arrivals, dialect: Dialect) -> Longs:
    """Return the greatest watermark delay in ms under which each row is late for the watermark of its own input.

    A row is late under a delay if its disorder is the delay or more. `ON_TIME` for rows that are never late.
    """
    order = np.lexsort((rows.tiebreak, rows.clock))
    newest = np.empty(len(rows), np.int64)
    newest[order] = _find_newest_before(rows, order, np.ones(len(rows), np.bool_))
    disorder = newest - _MARGIN[dialect] - _to_ticks(rows.event_time, dialect)
    return np.where((newest == NO_WATERMARK) | (disorder < 0), ON_TIME, disorder)


def find_late_rows(
    left: Arrivals, right: Arrivals, delays: tuple[int, int], dialect: Dialect
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return the rows that are late for the combined watermark: the lower watermark of both inputs.

    Args:
        left: Rows of the left input.
        right: Rows of the right input, on the same clock.
        delays: Watermark delays of both inputs, ms.
        dialect: The dialect.
    """
    pairs = zip(
        (left.clock, left.event_time, left.tiebreak, left.partition),
        (right.clock, right.event_time, right.tiebreak, right.partition),
        strict=True,
    )
    rows = Arrivals(*(np.concatenate(pair) for pair in pairs))
    is_left = np.arange(len(rows)) < len(left)
    order = np.lexsort((rows.tiebreak, rows.clock))
    newest = [_find_newest_before(rows, order, is_side) for is_side in (is_left, ~is_left)]
    has_watermark = (newest[0] != NO_WATERMARK) & (newest[1] != NO_WATERMARK)
    combined = np.minimum(newest[0] - delays[0], newest[1] - delays[1])
    ticks = _to_ticks(rows.event_time, dialect)[order]
    is_late = np.zeros(len(rows), np.bool_)
    is_late[order] = has_watermark & (ticks <= combined - _MARGIN[dialect])
    return is_late[: len(left)], is_late[len(left) :]


def _to_ticks(event_time: Longs, dialect: Dialect) -> Longs:
    """Convert microseconds to ms for a comparison with a watermark in ms. Spark compares the microseconds."""
    return -(-event_time // _MS) if dialect == "spark" else event_time // _MS


def _find_newest_before(rows: Arrivals, order: npt.NDArray[np.intp], is_member: npt.NDArray[np.bool_]) -> Longs:
    """Return the newest event time (ms) of member rows before the position of each row, in the given order.

    With partitions: the minimum of the partitions' newest, over the partitions with rows so far. It never goes down.
    """
    if not len(rows):
        return np.zeros(0, np.int64)
    clock = rows.clock[order]
    tiebreak = rows.tiebreak[order]
    is_first = np.append(True, (clock[1:] != clock[:-1]) | (tiebreak[1:] != tiebreak[:-1]))
    first_of_position = np.maximum.accumulate(np.where(is_first, np.arange(len(order)), 0))
    partition = rows.partition[order]
    newest = rows.event_time[order] // _MS
    least = np.full(len(order), np.iinfo(np.int64).max)
    for number in np.unique(partition[is_member[order]]):
        own = np.where((partition == number) & is_member[order], newest, NO_WATERMARK)
        running = np.append(NO_WATERMARK, np.maximum.accumulate(own))[first_of_position]
        least = np.where(running == NO_WATERMARK, least, np.minimum(least, running))
    least[least == np.iinfo(np.int64).max] = NO_WATERMARK
    return np.maximum.accumulate(least)
