"""Read the range of clocks in each file of an input from Delta's file statistics."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal
from urllib.parse import unquote

from tidemark.delta.row_commit_times import FileArrival
from tidemark.delta.table import DeltaTableHandle
from tidemark.timegrid.slices import Grid
from tidemark.timegrid.time_columns import ResolvedTimeColumn

STATISTICS_TRUNCATION = 1000
"""Microseconds by which statistics of timestamps may be truncated: Delta writes whole milliseconds."""
_ROUNDING = 1
"""Microseconds by which Spark may exceed a fractional number: it rounds before it floors."""


@dataclass(frozen=True)
class FileTimeRange:
    """The clocks in one file of an input."""

    path: str
    size: int
    """Size in bytes."""
    rows: int | None
    """Number of rows; None without statistics."""
    rows_without_time: int | None
    """Number of rows without a clock; None if unknown, as for floats, whose statistics skip NaN."""
    earliest: int | None
    """Lower bound of the clocks in microseconds, inclusive; None if unknown."""
    latest: int | None
    """Upper bound of the clocks in microseconds, inclusive; None if unknown."""

    @property
    def rows_with_time(self) -> int:
        """Number of rows with a clock; 0 if unknown."""
        if self.rows is None or self.rows_without_time is None:
            return 0
        return self.rows - self.rows_without_time

    @property
    def is_complete(self) -> bool:
        """True if the statistics have all of these figures."""
        if self.rows is None or self.rows_without_time is None:
            return False
        return self.rows == self.rows_without_time or None not in {self.earliest, self.latest}

    def share_in_slices(self, grid: Grid, spans: Iterable[tuple[int | None, int]]) -> float:
        """Estimate the share of rows with a clock in slices start <= n < stop, if they are spread over all slices.

        >>> FileTimeRange("", 1, 8, 0, earliest=2, latest=9).share_in_slices(Grid(0, 1), [(None, 4), (8, 9)])
        0.375
        """
        if self.earliest is None or self.latest is None:
            return 0.0
        first, last = grid.number_at(self.earliest), grid.number_at(self.latest)
        slices = sum(max(0, min(stop - 1, last) - max(start or 0, first) + 1) for start, stop in spans)
        return slices / (last - first + 1)

    def overlaps(self, start: int, end: int) -> bool:
        """Return True if the range of known clocks overlaps [start, end), in microseconds."""
        return self.earliest is not None and self.latest is not None and self.earliest < end and self.latest >= start


def read_time_ranges(log: DeltaTableHandle, clock: ResolvedTimeColumn) -> Iterator[FileTimeRange]:
    """Yield the time range of each file of a table, by a time column."""
    files, name = log.files, clock.name
    statistics = (log.get_null_counts(name), log.get_min_values(name), log.get_max_values(name))
    for path, size, count, nulls, lowest, highest in zip(*(files[key] for key in files), *statistics, strict=True):
        yield FileTimeRange(
            path,
            int(size),
            None if math.isnan(count) else int(count),
            None if isinstance(lowest, float) else nulls,
            _widen(clock, lowest, -1),
            _widen(clock, highest, 1),
        )


def read_commit_time_ranges(log: DeltaTableHandle, arrivals: Mapping[str, FileArrival]) -> Iterator[FileTimeRange]:
    """Yield the range of commit times in each file of a table.

    Args:
        arrivals: Commit times by decoded path.
    """
    for path, size, count in zip(*(log.files[key] for key in ("path", "size", "rows")), strict=True):
        arrival = arrivals[unquote(path)]
        rows = None if math.isnan(count) else int(count)
        yield FileTimeRange(path, int(size), rows, 0, arrival.earliest_us, arrival.latest_us)


def _widen(clock: ResolvedTimeColumn, value: Any, direction: Literal[-1, 1]) -> int | None:
    """Convert a minimum (-1) or maximum (1) to microseconds, widened by the errors of statistics and of Spark."""
    if isinstance(value, float):  # Spark converts the decimal digits that Java prints
        value = math.nextafter(value, direction * math.inf)
    bound = clock.convert_value(value)
    if bound is None:
        return None
    if isinstance(value, float | Decimal):
        return bound + direction * _ROUNDING
    if direction > 0 and clock.units_per_second is None and bound % STATISTICS_TRUNCATION == 0:
        return bound + STATISTICS_TRUNCATION - 1
    return bound
