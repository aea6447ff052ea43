"""The grid of slices: half-open intervals of the pipeline's clock, numbered from its start."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidemark.clock.times import div, floor_div
from tidemark.errors import SliceOrderError
from tidemark.settings import Slices
from tidemark.settings.values import format_duration, format_instant, from_micros, micros


@dataclass(frozen=True)
class Grid:
    """Slices [start + n * every, start + (n + 1) * every) in microseconds, UTC; n >= 0."""

    start: int
    every: int

    @classmethod
    def of(cls, slices: Slices) -> Grid:
        """The grid that a pipeline file describes."""
        return cls(micros(slices.start), micros(slices.every))

    def number_at(self, instant: int) -> int:
        """Number of the slice that holds an instant (microseconds)."""
        return (instant - self.start) // self.every

    def start_of(self, number: int) -> int:
        """Start of a slice in microseconds, inclusive; the end of the one before, exclusive."""
        return self.start + number * self.every

    def name(self, number: int) -> str:
        """A slice's start as people write it."""
        return format_instant(self.datetime_of(number))

    def datetime_of(self, number: int) -> datetime:
        """A slice's start."""
        return from_micros(self.start_of(number))

    def boundary(self, instant: datetime, option: str) -> int:
        """Number of the slice that starts at an instant given by the user.

        Raises:
            SliceOrderError: before the pipeline's start, or not on a slice boundary; names the nearest ones.
        """
        number, off = divmod(micros(instant) - self.start, self.every)
        if number < 0:
            raise SliceOrderError(
                f"{option} {format_instant(instant)} is before the pipeline's first slice; "
                f"slices start at {self.name(0)}"
            )
        if off:
            raise SliceOrderError(
                f"{option} {format_instant(instant)} is not on a slice boundary; slices are "
                f"{format_duration(timedelta(microseconds=self.every))} long: "
                f"use {self.name(number)} or {self.name(number + 1)}"
            )
        return number

    def number_column(self, clock: Column) -> Column:
        """`number_at` for a column of microseconds: a long."""
        return floor_div(clock - F.lit(self.start), self.every)

    def number_since_start(self, clock: Column) -> Column:
        """The same, in less time, for a column without clocks before the start."""
        return div(clock - F.lit(self.start), self.every)

    def timestamp_column(self, number: Column) -> Column:
        """`start_of` for a column of slice numbers: a timestamp."""
        return F.timestamp_micros(F.lit(self.start) + number * F.lit(self.every))


def ranges(numbers: Iterable[int]) -> list[range]:
    """The runs of consecutive numbers.

    >>> ranges([3, 1, 2, 7])
    [range(1, 4), range(7, 8)]
    """
    found: list[range] = []
    for number in sorted(set(numbers)):
        if found and found[-1].stop == number:
            found[-1] = range(found[-1].start, number + 1)
        else:
            found.append(range(number, number + 1))
    return found
