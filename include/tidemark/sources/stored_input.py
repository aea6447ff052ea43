"""Read the rows of an input that arrive in a range of slices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.delta.table_reader import DeltaInput
from tidemark.ledger.staleness import ConsumedVersions
from tidemark.sources.file_pruning import Extent, FileStatistics
from tidemark.sources.late_arrivals import ChangeDetector
from tidemark.sources.normalization import Side
from tidemark.sources.streaming_checkpoint_source import QueryInput
from tidemark.spark.lazy_session import resolve_session
from tidemark.timegrid.slices import Grid
from tidemark.watermarks.query_trace import QueryTrace


@dataclass(frozen=True)
class StoredInput:
    """One input of a pipeline in its Delta table."""

    side: Side
    table: DeltaInput

    @cached_property
    def statistics(self) -> FileStatistics:
        """Time ranges of the table's files."""
        return FileStatistics(self.side, self.table)

    @cached_property
    def changes(self) -> ChangeDetector:
        """Changes of the table since slices consumed it."""
        return ChangeDetector(self.side, self.table, self.statistics)

    def read_slices(self, grid: Grid, first: int, last: int, consumed: ConsumedVersions) -> DataFrame:
        """Read rows of slices first..last (inclusive), and late-arriving rows of earlier slices.

        Late-arriving rows count as arriving at the start of slice `first`. A row belongs to the slice of its
        `Side.slice_time`. Without one it belongs to the first slice whose input version contains it.
        """
        self.changes.require_exact_arrivals(grid, first)
        start, end = grid.start_of(first), grid.start_of(last + 1)
        rows = self._read_between(start, end, includes_unplaced=consumed.unplaced is None)
        for late_arriving in self.changes.read_late_arriving_rows(grid, first, consumed):
            rows = rows.unionByName(late_arriving, allowMissingColumns=True)
        return self.side.normalize(rows, grid, start)

    def _read_between(self, start: int, end: int, *, includes_unplaced: bool) -> DataFrame:
        """Read rows with a `Side.slice_time` in [start, end) microseconds, and on request those without one."""
        has_clock = self.side.clock.is_between(start, end) & ~self.side.has_unusable_time
        has_substitute = self.side.has_substitute_between(start, end)
        paths = self.statistics.select_paths(start, end)
        other_paths = self.statistics.select_paths_without_clock(start, end, includes_unplaced=includes_unplaced)
        if other_paths is not None and not other_paths:
            return self.table.read(paths=paths).where(has_clock)
        if includes_unplaced:  # These rows may be in any file, so one scan of all is best.
            all_paths = None if paths is None or other_paths is None else list(dict.fromkeys([*paths, *other_paths]))
            return self.table.read(paths=all_paths).where(has_clock | has_substitute | self.side.slice_time.isNull())
        # In two scans, because a disjunction could not skip files and row groups by their statistics.
        without_clock = self.table.read(paths=other_paths).where(has_substitute)
        return self.table.read(paths=paths).where(has_clock).unionByName(without_clock)

    def count_expected_rows(self, grid: Grid, slices: range) -> int:
        """Count the rows that `read_slices` certainly returns, by the files' statistics: a lower bound."""
        if self.side.excluded_predicates or self.side.filters_at_source:
            return 0
        return self.statistics.count_rows_between(grid.start_of(slices[0]), grid.start_of(slices[-1] + 1))

    def read_accepted_rows(self, grid: Grid, last: int, start: int | None, end: int | None) -> DataFrame:
        """Read rows that are not rejected, of slices up to `last` (inclusive).

        Args:
            start: First event time in microseconds, inclusive. None: no bound.
            end: Last event time in microseconds, exclusive. None: no bound.
        """
        rows = self.table.read().where(self.side.clock.is_between(grid.start, grid.start_of(last + 1)))
        if start is not None and end is not None:
            rows = rows.where(self.side.event_time.is_between(start, end))
        return self.side.normalize(rows, grid, grid.start).where(F.col("rejected").isNull())

    def measure_extent(self, grid: Grid, *, count_before: bool) -> Extent:
        """Measure how far the rows reach, by files' statistics or else by a query.

        Args:
            count_before: Also count the rows before the start of the grid.
        """
        return self.statistics.measure_extent(grid, count_before=count_before) or self._query_extent(grid)

    def _query_extent(self, grid: Grid) -> Extent:
        resolve_session(self.table.spark)
        clock = self.side.clock.micros
        totals = (
            self.table.read()
            .where(~self.side.has_unusable_time)
            .agg(F.max(clock).alias("newest"), F.count_if(clock < grid.start).alias("before"))
            .first()
        )
        assert totals is not None, "an aggregate has one row"
        newest = totals["newest"]
        last = None if newest is None or newest < grid.start else grid.number_at(newest)
        return Extent(last, totals["before"], is_from_statistics=False)


def read_input_slices(
    inputs: Sequence[StoredInput], grid: Grid, slices: range, consumed: Sequence[ConsumedVersions]
) -> DataFrame:
    """Read the rows of both inputs that a replay of slices needs (`StoredInput.read_slices`), as one table."""
    left, right = (
        source.read_slices(grid, slices[0], slices[-1], versions)
        for source, versions in zip(inputs, consumed, strict=True)
    )
    return left.unionByName(right, allowMissingColumns=True)


def get_schemas(inputs: Iterable[StoredInput]) -> dict[str, T.StructType]:
    """Return the columns of both inputs, by side."""
    return {source.side.name: source.side.schema for source in inputs}


def get_query_trace(inputs: Sequence[StoredInput]) -> QueryTrace | None:
    """Return the query whose checkpoint has the arrival times of the inputs, if any."""
    table = inputs[0].table
    return table.trace if isinstance(table, QueryInput) else None
