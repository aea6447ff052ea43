"""Number the slices of a pipeline: half-open intervals of its clock, from its start."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property

import numpy as np
import numpy.typing as npt
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from typing_extensions import override

from tidemark.config import Slices
from tidemark.config.local_days import DAY_MICROS, get_day_start, to_local_day
from tidemark.config.types import format_duration, format_instant, format_micros, from_micros, to_micros
from tidemark.errors import InputError, SliceOrderError
from tidemark.timegrid.time_columns import floor_div, trunc_div


@dataclass(frozen=True)
class Grid:
    """Slices [start + n * every, start + (n + 1) * every) in microseconds, UTC, for n >= 0."""

    start: int
    every: int

    @classmethod
    def from_config(cls, slices: Slices) -> Grid:
        """Create the grid of a pipeline's slice settings."""
        start, every = to_micros(slices.start), to_micros(slices.every)
        return cls(start, every) if slices.time_zone == "UTC" else LocalDayGrid(start, every, slices.time_zone)

    def number_at(self, instant: int) -> int:
        """Return the number of the slice with an instant (microseconds)."""
        return (instant - self.start) // self.every

    def numbers_at(self, instants: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the numbers of the slices with the instants (microseconds)."""
        return (instants - self.start) // self.every

    def start_of(self, number: int) -> int:
        """Return the start of a slice in microseconds (inclusive). It is the end of the slice before (exclusive)."""
        return self.start + number * self.every

    def first_from(self, instant: int) -> int:
        """Return the number of the first slice that starts at an instant or later."""
        return self.number_at(instant - 1) + 1

    def get_lengths(self, slices: range) -> frozenset[int]:  # noqa: ARG002
        """Return the distinct lengths of the slices of a range, in microseconds."""
        return frozenset((self.every,))

    def day_of(self, number: int) -> int:
        """Return the UTC day in which a slice starts, in days since 1970-01-01."""
        return self.start_of(number) // DAY_MICROS

    def start_of_day(self, day: int) -> int:
        """Return the start of a day in microseconds."""
        return day * DAY_MICROS

    @property
    def description(self) -> str:
        """Short description of the slices for messages, such as "1 hour long"."""
        return f"{format_duration(timedelta(microseconds=self.every))} long"

    def label(self, number: int) -> str:
        """Format a slice's start for people."""
        return format_micros(self.start_of(number))

    def datetime_of(self, number: int) -> datetime:
        """Return a slice's start as a datetime, UTC."""
        return from_micros(self.start_of(number))

    def parse_boundary(self, instant: datetime, option: str) -> int:
        """Return the number of the slice that starts at an instant from the user.

        Args:
            instant: The instant.
            option: The option with the instant, for the message.

        Raises:
            SliceOrderError: The instant is before the pipeline's start, or no slice starts at it.
        """
        number = self.number_at(to_micros(instant))
        if number < 0:
            raise SliceOrderError(
                f"{option} {format_instant(instant)} is before the pipeline's first slice, {self.label(0)}. "
                "Use a later instant, or set an earlier slices.start and a new output."
            )
        if self.start_of(number) != to_micros(instant):
            boundaries = self.label(number)
            with suppress(OverflowError):  # after the year 9999
                boundaries += f" or {format_instant(self.datetime_of(number + 1))}"
            raise SliceOrderError(
                f"{option} {format_instant(instant)} is not on a slice boundary; slices are {self.description}: "
                f"use {boundaries}"
            )
        return number

    def number_column(self, clock: Column) -> Column:
        """Return `number_at` for a column of microseconds, as a long."""
        return floor_div(clock - F.lit(self.start), self.every)

    def nonnegative_number_column(self, clock: Column) -> Column:
        """Return `number_column` in less time, for a column with no clocks before the start."""
        return trunc_div(clock - F.lit(self.start), self.every)

    def timestamp_column(self, number: Column) -> Column:
        """Return `start_of` for a column of slice numbers, as a timestamp."""
        return F.timestamp_micros(F.lit(self.start) + number * F.lit(self.every))

    def check_time_zone(self, spark: SparkSession, slices: range) -> None:
        """Check that Spark computes the same starts for the slices of a range.

        Raises:
            InputError: Spark's Java has another version of the time zone database.
        """

    def offset_column(self, clock: Column, number: Column) -> Column:
        """Return the time of clocks since the start of their slice, in microseconds."""
        return clock - self.start - number * self.every

    def end_column(self, start: Column) -> Column:
        """Return the ends of slices for a column of their starts, both in microseconds."""
        return start + self.every

    def day_column(self, start: Column) -> Column:
        """Return `day_of` for a column of starts in microseconds."""
        return floor_div(start, DAY_MICROS)


@dataclass(frozen=True)
class LocalDayGrid(Grid):
    """Slices that are the local days of a time zone. A day with a change of the clocks has 23 or 25 hours."""

    zone: str

    @cached_property
    def first_day(self) -> int:
        """Local day of the first slice, in days since 1970-01-01."""
        return to_local_day(self.start, self.zone)

    @override
    def number_at(self, instant: int) -> int:
        return to_local_day(instant, self.zone) - self.first_day

    @override
    def numbers_at(self, instants: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.array([self.number_at(instant) for instant in instants.tolist()], dtype=np.int64)

    @override
    def start_of(self, number: int) -> int:
        return self.start_of_day(self.first_day + number)

    @override
    def get_lengths(self, slices: range) -> frozenset[int]:
        return frozenset(self.start_of(number + 1) - self.start_of(number) for number in slices)

    @override
    def day_of(self, number: int) -> int:
        """Return the slice's local day, in days since 1970-01-01."""
        return self.first_day + number

    @override
    def start_of_day(self, day: int) -> int:
        return get_day_start(day, self.zone)

    @property
    @override
    def description(self) -> str:
        return f"days of {self.zone}"

    @override
    def number_column(self, clock: Column) -> Column:
        return self.day_column(clock) - F.lit(self.first_day)

    @override
    def nonnegative_number_column(self, clock: Column) -> Column:
        return self.number_column(clock)

    @override
    def timestamp_column(self, number: Column) -> Column:
        midnight = F.timestamp_micros((number + F.lit(self.first_day)) * F.lit(DAY_MICROS))
        return F.to_utc_timestamp(midnight, self.zone)

    @override
    def check_time_zone(self, spark: SparkSession, slices: range) -> None:
        numbers = F.sequence(F.lit(slices.start), F.lit(slices.stop))
        starts = F.transform(numbers, lambda number: F.unix_micros(self.timestamp_column(number)))
        [(spark_starts,)] = spark.range(1).select(starts.alias("starts")).collect()
        for number, start in zip(range(slices.start, slices.stop + 1), spark_starts, strict=True):
            if start != self.start_of(number):
                raise InputError(
                    f"slice {self.label(number)} starts at {format_instant(from_micros(start))} by the time zone "
                    f"database of Spark's Java, whose version of {self.zone} differs from Python's. "
                    "Install the same version of the database for both."
                )

    @override
    def offset_column(self, clock: Column, number: Column) -> Column:
        return clock - F.unix_micros(self.timestamp_column(number))

    @override
    def end_column(self, start: Column) -> Column:
        return F.unix_micros(self.timestamp_column(self.number_column(start) + 1))

    @override
    def day_column(self, start: Column) -> Column:
        return floor_div(F.unix_micros(F.from_utc_timestamp(F.timestamp_micros(start), self.zone)), DAY_MICROS)


SYNTHETIC_GRID = Grid(0, 1 << 20)
"""Grid of rows without real times, in slices of 2**20 µs. Row i of slice n has the clock n * 2**20 + i, so a stream has
less than 2**20 rows."""


def group_consecutive(numbers: Iterable[int]) -> list[range]:
    """Group numbers into ranges of consecutive ones.

    >>> group_consecutive([3, 1, 2, 7])
    [range(1, 4), range(7, 8)]
    """
    groups: list[range] = []
    for number in sorted(set(numbers)):
        if groups and groups[-1].stop == number:
            groups[-1] = range(groups[-1].start, number + 1)
        else:
            groups.append(range(number, number + 1))
    return groups
