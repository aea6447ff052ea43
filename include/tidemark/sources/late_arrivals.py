"""Find rows that arrived in, or were deleted from, an input after slices consumed it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property, partial
from urllib.parse import unquote

from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.config.types import format_instant, from_micros
from tidemark.delta.table import DeltaTableHandle
from tidemark.delta.table_reader import DeltaInput
from tidemark.errors import InputError, MissingFilesError
from tidemark.ledger.staleness import ConsumedVersions
from tidemark.sources.commit_time_source import CommitTimeInput
from tidemark.sources.file_pruning import FileStatistics, read_substitute_ranges
from tidemark.sources.file_time_ranges import FileTimeRange, read_time_ranges
from tidemark.sources.input_changes import InputChanges
from tidemark.sources.normalization import Side
from tidemark.spark.missing_files import is_missing_file_error
from tidemark.timegrid.slices import Grid

_MILLISECOND = 1000

ConditionFactory = Callable[[], Column]
"""Function that creates a condition on an input's rows. Only a Spark session can, and some reads need none."""
_START_OF_CLOCK = -(2**63)
_Span = tuple[int | None, int]
"""Slices start <= n < stop. None: from the first slice on."""


@dataclass(frozen=True)
class _ConsumedRows:
    """Rows that slices have consumed at one version of an input."""

    is_consumed: ConditionFactory
    end: int
    """Clock in microseconds from which (inclusive) no row was consumed at this version."""


@dataclass(frozen=True)
class ChangedRows:
    """Rows of an input that slices have read, and that were deleted or changed since."""

    input_name: str
    versions: tuple[int, ...]
    """Versions of the input that deleted or changed rows."""
    first_slice: int
    """First slice that has read such rows."""


def require_unchanged(changed_by_input: Iterable[ChangedRows | None], grid: Grid, reprocess: str) -> None:
    """Require that no input has changed rows, after looking at all of them.

    Args:
        changed_by_input: Result of `ChangeDetector.find_changed_rows` for each input.
        grid: The slices.
        reprocess: Command that the error message suggests.

    Raises:
        InputError: An input has changed rows.
    """
    changed = [rows for rows in changed_by_input if rows]
    if not changed:
        return
    descriptions = (
        f"input {rows.input_name}: version {', '.join(map(str, rows.versions))} deleted or changed rows that slices "
        f"from {grid.label(rows.first_slice)} on have read"
        for rows in changed
    )
    first = grid.label(min(rows.first_slice for rows in changed))
    raise InputError(f"{'; '.join(descriptions)}. Run {reprocess} --from {first}")


@dataclass(frozen=True)
class ChangeDetector:
    """Changes of an input since the versions that slices have consumed."""

    side: Side
    table: DeltaInput
    statistics: FileStatistics

    def find_exact_arrival_start(self) -> tuple[datetime, str] | None:
        """Find the instant from which each row's arrival is exact, and the reason why not before.

        Returns:
            None if all arrivals are exact.
        """
        file = self.table.find_latest_ambiguous_file() if isinstance(self.table, CommitTimeInput) else None
        return (from_micros(file.latest_us + _MILLISECOND), str(file.ambiguity_reason)) if file else None

    def require_exact_arrivals(self, grid: Grid, first: int, *versions: int) -> None:
        """Require that each row arrived before slice `first` or at an exactly known instant.

        Args:
            versions: Versions of the input to check. Default: the version that is read.

        Raises:
            InputError: The arrival of some rows in slice `first` or later is ambiguous.
        """
        table = self.table
        file = table.find_latest_ambiguous_file(*versions) if isinstance(table, CommitTimeInput) else None
        if file is None or file.latest_us < grid.start_of(first):
            return
        exact_from = format_instant(from_micros(file.latest_us + _MILLISECOND))
        raise InputError(
            f"input {self.table.name}: arrival times are exact only from {exact_from} on, because "
            f"{file.ambiguity_reason}, and slice {grid.label(first)} begins before. Let slices begin with "
            f"{grid.label(grid.number_at(file.latest_us) + 1)} or later, or name an arrival column."
        )

    def find_changed_rows(self, grid: Grid, first: int, consumed: ConsumedVersions) -> ChangedRows | None:
        """Find deleted or changed rows among those consumed by slices before `first`; None if all still exist."""
        found: ChangedRows | None = None
        for version, rows in self._list_consumed_rows(grid, first, consumed).items():
            changes = self._read_changes(version)
            if not changes.mutating_versions:
                continue
            read_removed = partial(self._read_before, rows.end, changes.read_removed_rows, changes)
            first_lost = self._find_first_slice(read_removed, rows.is_consumed, grid)
            if first_lost is not None and (found is None or first_lost < found.first_slice):
                found = ChangedRows(self.table.name, changes.mutating_versions, first_lost)
        return found

    def require_rereadable(self, grid: Grid, reads: Iterable[tuple[range, int]]) -> None:
        """Require that rows which slices have read at a version can be read again.

        Args:
            reads: Ranges of slices, each with the version that they have read.

        Raises:
            InputError: Rows that slices have read were deleted or changed.
        """
        spans_by_version: dict[int, list[tuple[int, int]]] = {}
        for slices, version in reads if self.table.can_have_late_arriving_rows else ():
            spans_by_version.setdefault(version, []).append((slices.start, slices.stop))
        for version, spans in spans_by_version.items():
            first_lost = self._find_first_slice_with_lost_rows(self._read_changes(version), grid, spans)
            if first_lost is not None:
                raise InputError(
                    f"input {self.table.name} no longer has rows that slices from {grid.label(first_lost)} on have "
                    "read, so rerunning these slices would lose results. Restore the rows, or set "
                    "on_input_delete: refuse to remove the results too."
                )

    def find_changed_slices(
        self, grid: Grid, slices: range, consumed: ConsumedVersions, *, includes_deleted: bool
    ) -> set[int]:
        """Find the committed slices with late-arriving rows that no slice has consumed.

        Args:
            grid: The slices.
            slices: From the first to the last committed slice.
            consumed: Versions of the input that they have consumed.
            includes_deleted: Also find the slices whose consumed rows were deleted.
        """
        found: set[int] = set()
        for version, rows in self._list_consumed_rows(grid, slices.stop, consumed).items():
            changes = self._read_changes(version)
            if (added := self._read_before(rows.end, changes.read_added_rows, changes)) is not None:
                owning_slices = self._collect_owning_slices(self._select_consumed(added, rows), grid)
                found |= {number for number in owning_slices if number is not None}
            if includes_deleted:
                found |= self._find_slices_of_removed_rows(rows, changes, grid, slices.start)
        return found

    def find_slices_with_lost_rows(
        self, grid: Grid, slices: range, consumed: ConsumedVersions, reprocess: str
    ) -> set[int]:
        """Find the committed slices whose consumed rows were deleted or changed since.

        Args:
            grid: The slices.
            slices: From the first to the last committed slice.
            consumed: Versions of the input that they have consumed.
            reprocess: Command that the error message suggests.

        Raises:
            InputError: VACUUM has removed the files of the deleted rows.
        """
        found: set[int] = set()
        for version, rows in self._list_consumed_rows(grid, slices.stop, consumed).items():
            try:
                found |= self._find_slices_of_removed_rows(rows, self._read_changes(version), grid, slices.start)
            except (PySparkException, Py4JJavaError, MissingFilesError):  # VACUUM has removed the earlier files
                require_unchanged([self.find_changed_rows(grid, slices.stop, consumed)], grid, reprocess)
                raise
        return found

    def read_late_arriving_rows(self, grid: Grid, first: int, consumed: ConsumedVersions) -> Iterator[DataFrame]:
        """Yield rows of slices before `first` that were not in the versions which these slices consumed."""
        for version, rows in self._list_consumed_rows(grid, first, consumed).items():
            changes = self._read_changes(version)
            added = self._read_before(rows.end, changes.read_added_rows, changes)
            if added is not None:
                yield self._select_consumed(added, rows)

    def estimate_late_arriving_rows(self, grid: Grid, first: int, consumed: ConsumedVersions) -> float:
        """Estimate how many rows `read_late_arriving_rows` yields, by files' statistics, without a Spark query.

        Rewritten rows count by how many more there are than before. Rows without a usable clock do not count, nor does
        a version whose lost rows are unknown.
        """
        total = 0.0
        for version, spans in self._list_consumed_spans(grid, first, consumed).items():
            changes = self._read_changes(version)
            lost = self._count_rows(version, changes.list_lost_files(), grid, spans)
            if lost is None:
                continue  # the log may no longer have the version, so all rows of a rewritten file would seem new
            written = (self._count_rows(at, paths, grid, spans) for at, paths in changes.list_new_files().items())
            total += max(0.0, sum(count or 0.0 for count in written) - lost)
        return total

    def _count_rows(self, version: int, paths: Collection[str], grid: Grid, spans: Sequence[_Span]) -> float | None:
        """Estimate the rows of files at a version in slices start <= n < stop, each file's spread over its slices.

        Returns:
            None if the files' clocks at this version are unknown.
        """
        files = self._read_statistics(version).files if paths else ()
        if files is None:
            return None
        return sum(
            file.rows_with_time * file.share_in_slices(grid, spans) for file in files if unquote(file.path) in paths
        )

    def _read_statistics(self, version: int) -> FileStatistics:
        if version == self.table.version:
            return self.statistics
        return FileStatistics(self.side, replace(self.table, pinned_version=version))

    def _collect_owning_slices(self, rows: DataFrame, grid: Grid) -> set[int | None]:
        """Collect the slices of rows, None among them if a row has no usable clock."""
        number = F.when(self.side.slice_time.isNotNull(), grid.number_column(self.side.slice_time))
        return {row["owning_slice"] for row in rows.select(number.alias("owning_slice")).distinct().collect()}

    def _find_slices_of_removed_rows(
        self, rows: _ConsumedRows, changes: InputChanges, grid: Grid, first_committed: int
    ) -> set[int]:
        """Find the slices of consumed rows that were removed.

        Rows without a usable clock are those of the first committed slice: a slice that has rejected such rows is
        stale once the first one has run again.
        """
        removed = self._read_before(rows.end, changes.read_removed_rows, changes)
        if removed is None:
            return set()
        owning_slices = self._collect_owning_slices(self._select_consumed(removed, rows), grid)
        return {first_committed if number is None else number for number in owning_slices}

    def _select_consumed(self, changed: DataFrame, rows: _ConsumedRows) -> DataFrame:
        """Select the changed rows of the slices that consumed a version."""
        return self.side.drop_rows_outside_source(changed).where(rows.is_consumed())

    def _list_consumed_rows(self, grid: Grid, first: int, consumed: ConsumedVersions) -> dict[int, _ConsumedRows]:
        """Return, by consumed version, the rows whose slices before `first` consumed it."""
        return {
            version: _ConsumedRows(
                partial(self._is_in_slices, grid, spans, includes_unplaced=version == consumed.unplaced),
                max((grid.start_of(stop) for _, stop in spans), default=_START_OF_CLOCK),
            )
            for version, spans in self._list_consumed_spans(grid, first, consumed).items()
        }

    def _list_consumed_spans(self, grid: Grid, first: int, consumed: ConsumedVersions) -> dict[int, list[_Span]]:
        """Return, by consumed version, the slices before `first` that consumed it.

        The version that is read now is left out: nothing has changed since.
        """
        if not self.table.can_have_late_arriving_rows:
            return {}
        self._require_unambiguous_slices(grid, consumed)
        stops = [*(start for start, _ in consumed.by_slice[1:] if start is not None), first]
        spans_by_version: dict[int, list[_Span]] = {}
        if consumed.unplaced is not None:
            spans_by_version[consumed.unplaced] = []
        for (start, version), stop in zip(consumed.by_slice, stops, strict=True) if consumed.by_slice else ():
            spans_by_version.setdefault(version, []).append((start, stop))
        return {version: spans for version, spans in spans_by_version.items() if version != self.table.version}

    def _require_unambiguous_slices(self, grid: Grid, consumed: ConsumedVersions) -> None:
        """Require exact arrivals if slices have consumed several versions and rows were changed since."""
        consumed_by_slice, current = consumed.by_slice, self.table.version
        if len(consumed_by_slice) > 1 and isinstance(self.table, CommitTimeInput):
            earlier = {version for _, version in consumed_by_slice if version != current}
            if any(self._read_changes(version).mutating_versions for version in earlier):
                self.require_exact_arrivals(grid, consumed_by_slice[1][0] or 0, current, *earlier)

    def _is_in_slices(self, grid: Grid, spans: Sequence[_Span], *, includes_unplaced: bool) -> Column:
        """Return a condition: the row's slice is start <= n < stop, or it has none if these rows are included.

        Rows before the first slice are in no slice.
        """
        time, is_inside = self.side.slice_time, F.lit(False)
        for start, stop in spans:
            is_inside = is_inside | ((time >= grid.start_of(start or 0)) & (time < grid.start_of(stop)))
        return F.coalesce(is_inside, F.lit(False)) | (time.isNull() & F.lit(includes_unplaced))

    def _read_before(
        self, end: int, read: Callable[[Collection[str]], DataFrame | None], changes: InputChanges
    ) -> DataFrame | None:
        """Read changed rows, without files in which each row has a clock of `end` (microseconds) or later.

        Args:
            end: The clock.
            read: Method of `changes`, which takes decoded paths of files to leave out.
            changes: Changes of the table.

        Raises:
            MissingFilesError: Files with other rows were vacuumed.
        """
        later = self.statistics.select_paths_from(end)
        try:
            return read(later)
        except MissingFilesError:
            # The log has the clocks of files that the table no longer has, which need no reading if they are later.
            for version in changes.list_replaced_files():
                later |= self._read_statistics(version).select_paths_from(end)
            return read(later)

    def _read_changes(self, version: int) -> InputChanges:
        if version not in self._changes_by_version:
            self._changes_by_version[version] = InputChanges.read_log(self.table, version)
        return self._changes_by_version[version]

    @cached_property
    def _changes_by_version(self) -> dict[int, InputChanges]:
        return {}

    def _find_first_slice_with_lost_rows(
        self, changes: InputChanges, grid: Grid, spans: Sequence[tuple[int, int]]
    ) -> int | None:
        """Find the first of the slices start <= n < stop that lost rows; None if all rows exist.

        Files that were removed with all of their rows count by their statistics, as VACUUM may have removed them.
        Other removed rows are read.
        """
        files = self._read_fully_removed_files(changes)
        read_removed = partial(changes.read_removed_rows, () if files is None else changes.fully_removed)
        numbers = [
            self._find_first_slice(read_removed, lambda: self._is_in_slices(grid, spans, includes_unplaced=False), grid)
        ]
        for file in files or ():
            if file.earliest is not None and file.latest is not None:
                low, high = grid.number_at(file.earliest), grid.number_at(file.latest)
                numbers += [max(low, start) for start, stop in spans if low < stop and high >= start]
        return min((number for number in numbers if number is not None), default=None)

    def _read_fully_removed_files(self, changes: InputChanges) -> list[FileTimeRange] | None:
        """Return the files removed with all rows; None if the log lacks their clocks or some rows do not count."""
        current = self.table.table
        if current is None or self.side.clock.name not in current.schema.names or not changes.fully_removed:
            return None
        if self.side.filters_at_source or self.side.excluded_predicates:
            return None
        try:
            earlier = DeltaTableHandle.open(current.path, changes.since_version)
        except DeltaError:
            return None
        files = read_time_ranges(earlier, self.side.clock) if earlier else ()
        removed = [file for file in files if unquote(file.path) in changes.fully_removed]
        if self.side.substitute_clock is not None and any(file.rows_without_time for file in removed):
            event_times = read_substitute_ranges(self.side, earlier)
            if any(file.path not in event_times for file in removed):
                return None
            removed += [event_times[file.path] for file in removed if file.rows_without_time]
        return removed if earlier and all(file.is_complete for file in removed) else None

    def _find_first_slice(
        self, read_rows: Callable[[], DataFrame | None], is_consumed: ConditionFactory, grid: Grid
    ) -> int | None:
        """Find the first slice of consumed rows; 0 if it cannot be determined, None without rows."""
        try:
            if (rows := read_rows()) is None:
                return None
            aggregates = F.count("*").alias("rows"), F.min(self.side.slice_time).alias("oldest")
            totals = self.side.drop_rows_outside_source(rows).where(is_consumed()).agg(*aggregates).first()
            assert totals is not None, "an aggregate has one row"
            if not totals["rows"]:
                return None
            return grid.number_at(totals["oldest"]) if totals["oldest"] is not None else 0
        except MissingFilesError:  # VACUUM has removed the earlier files
            return 0
        except (PySparkException, Py4JJavaError) as error:
            if not is_missing_file_error(error):
                raise
            return 0
