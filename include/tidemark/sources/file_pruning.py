"""Select an input's files and measure its extent by the statistics in its Delta log.

Skipping a file must never skip a row. It is skipped only by the minimum and maximum of its clock, on these assumptions:

- The statistics contain every row of the file. Their writers may truncate timestamps to milliseconds, and Spark may
  round fractional numbers: `file_time_ranges` widens the ranges by both.
- A file without statistics, or with statistics that may include deleted rows, is always read.
- Statistics are instants in UTC. So are partition values of the clock itself: if one lacks a time zone, it is UTC for
  this session and for delta-rs alike. Values of generated partition columns are not used, because they are in the time
  zone of the session that wrote them. Delta's own filters by generated columns are off (`spark.session`).

`count_rows_between` is the check on these assumptions: a job compares its rows with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import unquote

from tidemark.config.types import to_micros
from tidemark.delta.table import DeltaTableHandle
from tidemark.delta.table_reader import DeltaInput
from tidemark.sources.commit_time_source import CommitTimeInput
from tidemark.sources.file_time_ranges import FileTimeRange, read_commit_time_ranges, read_time_ranges
from tidemark.sources.normalization import Side
from tidemark.timegrid.slices import Grid

_MILLISECOND = 1000


@dataclass(frozen=True)
class Extent:
    """The slices that an input's rows reach."""

    newest_slice: int | None
    """Last slice with a row; None for an empty input."""
    rows_before_start: int
    """Number of rows before the start of the grid, if it was requested."""
    is_from_statistics: bool
    """True if the log's statistics were sufficient."""


def read_substitute_ranges(side: Side, log: DeltaTableHandle | None) -> dict[str, FileTimeRange]:
    """Read the event times in each file of a table, by path; nothing if they are no substitute for clocks."""
    column = side.substitute_clock
    if log is None or column is None or column.name not in log.schema.names:
        return {}
    return {file.path: file for file in read_time_ranges(log, column)}


@dataclass(frozen=True)
class FileStatistics:
    """The range of clocks in each file of an input."""

    side: Side
    table: DeltaInput

    @cached_property
    def files(self) -> tuple[FileTimeRange, ...] | None:
        """The input's files with their clocks; None if no log or column has the clock."""
        if self.table.table is None:
            return None
        if isinstance(self.table, CommitTimeInput):
            return tuple(read_commit_time_ranges(self.table.table, self.table.arrivals()))
        if self.side.clock.name not in self.table.schema.names:
            return None
        return tuple(read_time_ranges(self.table.table, self.side.clock))

    def select_paths(self, start: int, end: int) -> list[str] | None:
        """Select the files that may have rows with a clock in [start, end), in microseconds.

        Returns:
            Paths, or None if the files' clocks are unknown.
        """
        if self.files is None:
            return None
        return [file.path for file in self.files if not file.is_complete or file.overlaps(start, end)]

    def select_paths_without_clock(self, start: int, end: int, *, includes_unplaced: bool) -> list[str] | None:
        """Select the files that may have rows without a usable clock whose event time is in [start, end).

        Args:
            start: First event time in microseconds, inclusive.
            end: Last event time in microseconds, exclusive.
            includes_unplaced: Also select files that may have rows which belong to no slice by their times.

        Returns:
            Paths, or None if the files' clocks are unknown.
        """
        if self.side.substitute_clock is None and not includes_unplaced:
            return []
        if self.files is None:
            return None
        return [
            file.path
            for file in self.files
            if self._may_have_rows_without_clock(file, start, end, includes_unplaced=includes_unplaced)
        ]

    def select_paths_from(self, start: int) -> frozenset[str]:
        """Select the decoded paths of files in which every row has a clock of `start` (microseconds) or later."""
        return frozenset(
            unquote(file.path)
            for file in self.files or ()
            if file.is_complete and not file.rows_without_time
            if file.earliest is not None and file.earliest >= start and self._has_usable_times(file)
        )

    def count_rows_between(self, start: int, end: int) -> int:
        """Count the rows that certainly have a usable clock in [start, end), in microseconds.

        Returns:
            A lower bound: the rows of files whose range lies within these bounds. 0 if deleted rows may be included.
        """
        if self.files is None or self.table.table is None or not self.table.table.has_exact_statistics:
            return 0
        return sum(
            file.rows_with_time
            for file in self.files
            if file.is_complete and self._has_usable_times(file)
            if file.earliest is not None and file.latest is not None
            if start <= file.earliest and file.latest < end
        )

    def measure_extent(self, grid: Grid, *, count_before: bool) -> Extent | None:
        """Measure how far the rows reach; None if the statistics leave it open."""
        if self.files is None:
            return None
        newest, before = None, 0
        for file in self.files:
            if not file.is_complete or not self._has_usable_times(file):
                return None
            if file.earliest is None or file.latest is None:
                continue
            last = grid.number_at(file.latest)
            spans_start = count_before and file.earliest < grid.start <= file.latest
            # Statistics may be truncated to milliseconds, so the real maximum may be in the slice before.
            if spans_start or last != grid.number_at(file.latest // _MILLISECOND * _MILLISECOND):
                return None
            if last < 0:
                before += file.rows_with_time
            else:
                newest = max(last, newest or 0)
        return Extent(newest, before, is_from_statistics=True)

    @cached_property
    def _event_times(self) -> Mapping[str, FileTimeRange]:
        """The event times in each file, by path; empty if they are unknown or no substitute for clocks."""
        return read_substitute_ranges(self.side, self.table.table)

    def _may_have_rows_without_clock(
        self, file: FileTimeRange, start: int, end: int, *, includes_unplaced: bool
    ) -> bool:
        if file.is_complete and not file.rows_without_time and self._has_usable_times(file):
            return False
        if self.side.substitute_clock is None:
            return includes_unplaced
        event_times = self._event_times.get(file.path)
        if event_times is None or not event_times.is_complete or event_times.overlaps(start, end):
            return True
        is_each_usable = not event_times.rows_without_time and self._has_usable_times(event_times)
        is_before_start = event_times.earliest is None or event_times.earliest < self.side.first_substitute
        return includes_unplaced and (is_before_start or not is_each_usable)

    def _has_usable_times(self, file: FileTimeRange) -> bool:
        """Return True if all times of a file, except nulls, are within the time bounds."""
        bounds = self.side.time_bounds
        if file.earliest is None or file.latest is None:
            return file.rows == file.rows_without_time
        return bounds is None or (
            to_micros(bounds.earliest) <= file.earliest and file.latest < to_micros(bounds.latest)
        )
