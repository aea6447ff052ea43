"""An input's rows for a range of slices, with event time, clock and slice beside each, bad rows named."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property, partial, reduce

from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.config import Commits, Guard, Input, Pipeline, TimeColumn, Trace
from tidemark.config.allowed_functions import ColumnsOf
from tidemark.config.expressions import check_expression, is_name
from tidemark.config.sides import SideName
from tidemark.config.types import format_instant, from_micros, micros
from tidemark.delta.paths import place
from tidemark.delta.pipeline_tables import DeltaInput
from tidemark.delta.table import DeltaLog, file_name
from tidemark.errors import InputError, PipelineFileError, nearest
from tidemark.formatting import quoted
from tidemark.joins.keys import key_column, key_name, key_path, type_at
from tidemark.ledger.erasure_records import LeftOut, left_out_of
from tidemark.ledger.staleness import ConsumedVersions
from tidemark.sources.commit_time_source import CommittedInput, committed_input
from tidemark.sources.file_time_ranges import FileClocks, committed_clocks, file_clocks
from tidemark.sources.input_changes import InputChanges
from tidemark.sources.streaming_checkpoint_source import ARRIVAL, TracedInput, traced_input
from tidemark.spark.dataframe_utils import has_order, with_columns
from tidemark.spark.engine import engine_of
from tidemark.spark.expression_sandbox import confined, in_one_line
from tidemark.spark.lazy_session import awake
from tidemark.timegrid.slices import Grid
from tidemark.timegrid.time_columns import Clock
from tidemark.watermarks.from_column import RECORDED
from tidemark.watermarks.query_trace import QueryTrace
from tidemark.watermarks.row_status import FILTERED

_MILLISECOND = 1000
_FRACTIONS = (T.FloatType, T.DoubleType)


@dataclass(frozen=True)
class Side:
    """How one input's rows are read: its time columns and keys, checked against its schema.

    `normalized` gives one row per table row, in columns that both sides share:

    | column | meaning |
    | --- | --- |
    | `side` | `left` or `right` |
    | `slice` | number of the slice in which the row arrives, long |
    | `owning_slice` | number of the slice that its clock is in, long; 0 where none can be told |
    | `clock` | effective arrival in microseconds UTC, long |
    | `tiebreak` | order among equal clocks, long, 0 without one |
    | `event_time` | UTC in whole ticks, floored, long; null where `rejected`, or with `null_times`;
                     of rows that `where` leaves out null where it is not to be believed |
    | `floored` | whether the event time had a finer part |
    | `key_0`.. | the join keys, in the type both sides share; fractions as text where zeros have signs |
    | `partition` | of the input, string; absent where neither input has partitions |
    | `recorded` | the input's watermark as the row has recorded it, ms; absent where neither input has any |
    | `rejected` | why the row takes no part, null where it does: `watermarks.row_status` where `where` leaves it out |
    | `left` or `right` | the table's own columns, struct |
    """

    name: SideName
    settings: Input
    guard: Guard | None
    schema: T.StructType
    event: Clock
    clock: Clock
    keys: tuple[tuple[str, T.DataType], ...]
    """Column, or expression, and common type of each join key."""
    null_keys: bool
    """Whether rows with a null key may take part: the join decides."""
    null_times: bool
    """Whether rows with a null event time may."""
    signed_zeros: bool
    """Whether -0.0 and 0.0 are two keys."""
    tick: int
    """Microseconds: what the dialect compares event times in."""
    at_source: bool = False
    """Whether rows that `where` leaves out are as if the table did not have them."""
    recorded: Clock | None = None
    """The column with the watermarks that the job has recorded."""
    left_out: tuple[str, ...] = ()
    """Predicates over the table's columns: rows that meet one are forgotten, and as if the table did not have them."""

    def normalized(self, rows: DataFrame, grid: Grid, start: int) -> DataFrame:
        """The rows with their times, slice, keys and fault; clocks before `start` (microseconds) count as `start`."""
        behind = self.settings.where is not None and not self.at_source
        return self._labelled(self.of_source(rows), grid, start, filters=behind)

    def told(self, rows: DataFrame, grid: Grid, start: int) -> DataFrame:
        """`normalized`, of rows that `where` leaves out at the source too."""
        return self._labelled(self._remembered(rows), grid, start, filters=self.settings.where is not None)

    def of_source(self, rows: DataFrame) -> DataFrame:
        """The rows that the stream's source has: of the table's those that `where` at the source lets through.

        Rows that are forgotten are none of them.
        """
        known = self._remembered(rows)
        return self._of_those_that(known, [self._takes(rows.sparkSession)]) if self.at_source else known

    def _remembered(self, rows: DataFrame) -> DataFrame:
        """The rows that are not forgotten."""
        known = ColumnsOf(tuple(self.schema.names))
        met = (confined(rows.sparkSession, text, known).column for text in self.left_out)
        return self._of_those_that(rows, [~F.coalesce(one, F.lit(False)) for one in met])

    def _of_those_that(self, rows: DataFrame, conditions: Sequence[Column]) -> DataFrame:
        """The rows that meet conditions over the table's columns."""
        if not conditions:
            return rows
        # Of an earlier version of the table, which may have had fewer columns.
        missing = [field for field in self.schema if field.name not in rows.columns]
        whole = rows.transform(with_columns, {field.name: F.lit(None).cast(field.dataType) for field in missing})
        return whole.where(reduce(Column.__and__, conditions)).select(*map(quoted, rows.columns))

    def _takes(self, spark: SparkSession) -> Column:
        """Whether `where` lets a row take part, as it is written, so that a scan can go by it."""
        assert self.settings.where is not None, "there is one"
        return confined(spark, self.settings.where, ColumnsOf(tuple(self.schema.names))).column

    def _labelled(self, rows: DataFrame, grid: Grid, start: int, *, filters: bool) -> DataFrame:
        """The columns of `normalized`; of rows of which `where` leaves out some, if it `filters`."""
        clock = F.when(self.unusable, F.lit(start)).otherwise(F.greatest(self.clock.micros, F.lit(start)))
        owning_slice = F.greatest(F.lit(0), grid.number_column(self.clock.micros))
        tiebreak, event_time, rejected = F.lit(0).cast("long"), self.event.ticks(self.tick), self._rejected
        recorded = [self.recorded.ticks(_MILLISECOND)] if self.recorded else []
        if filters:
            takes = F.coalesce(self._takes(rows.sparkSession), F.lit(False))
            believed = takes | self._bad_times.isNull()
            event_time, recorded = F.when(believed, event_time), [F.when(believed, one) for one in recorded]
            rejected = F.when(~takes, F.lit(FILTERED)).otherwise(rejected)
        if self.settings.tiebreak:
            tiebreak = F.coalesce(F.col(quoted(self.settings.tiebreak)).cast("long"), F.lit(-(2**63)))
        return rows.select(
            F.lit(self.name).alias("side"),
            grid.number_since_start(clock).alias("slice"),
            F.when(self.unusable, F.lit(0).cast("long")).otherwise(owning_slice).alias("owning_slice"),
            clock.alias("clock"),
            tiebreak.alias("tiebreak"),
            event_time.alias("event_time"),
            (F.pmod(self.event.micros, F.lit(self.tick)) != 0).alias("floored"),
            *(self._key(number).alias(key_name(number)) for number in range(len(self.keys))),
            *([self._partition] if self.settings.partition else []),
            *(one.alias(RECORDED) for one in recorded),
            rejected.alias("rejected"),
            F.struct(*(F.col(quoted(name)) for name in self.schema.names)).alias(self.name),
        )

    def _key(self, number: int) -> Column:
        kind, key = self.keys[number][1], self._raw_key(number)
        if isinstance(kind, T.NumericType):  # others are of one type on both sides
            key = key.cast(kind)
        # Flink tells -0.0 from 0.0, where Spark's equality does not; their texts are different, and that of NaN is one.
        # By way of a double, or a float that becomes one between slices would have another text.
        return key.cast("double").cast("string") if self.signed_zeros and isinstance(kind, _FRACTIONS) else key

    def _raw_key(self, number: int) -> Column:
        return key_column(self.schema, self.keys[number][0])

    @property
    def _partition(self) -> Column:
        name = quoted(self.settings.partition or "")
        return F.coalesce(F.col(name).cast("string"), F.lit("null")).alias("partition")

    @cached_property
    def unusable(self) -> Column:
        """Whether the clock cannot place the row in any slice; never null."""
        return _absurd(self.clock, self.guard)

    @cached_property
    def _rejected(self) -> Column:
        if self.null_keys:
            return self._bad_times
        no_key = reduce(Column.__or__, (self._raw_key(number).isNull() for number in range(len(self.keys))))
        return F.coalesce(self._bad_times, F.when(no_key, F.lit("null_key")))

    @cached_property
    def _bad_times(self) -> Column:
        """Which of a row's times is not to be believed, and why; null for none."""
        reasons: list[tuple[str, Column]] = []
        if self.settings.arrival:
            reasons += [("null_arrival", self.clock.raw.isNull()), ("arrival_out_of_range", self.unusable)]
        timeless = self.event.raw.isNull()
        reasons += [
            ("null_event_time", timeless & F.lit(not self.null_times)),
            ("event_time_out_of_range", ~timeless & _absurd(self.event, self.guard)),
        ]
        if self.settings.arrival and self.guard:
            ahead = self.event.micros - self.clock.micros
            reasons.append(("event_time_ahead_of_arrival", ahead > F.lit(micros(self.guard.ahead_of_arrival))))
        return F.coalesce(*(F.when(found, F.lit(reason)) for reason, found in reasons))


@dataclass(frozen=True)
class Extent:
    """How far an input's rows reach."""

    newest: int | None
    """The last slice that holds a row; None without any."""
    before: int
    """How many rows lie before the grid's start, if that was asked."""
    by_statistics: bool
    """Whether the log could tell."""


@dataclass(frozen=True)
class StoredInput:
    """One input of a pipeline in its Delta table."""

    side: Side
    table: DeltaInput

    def rows(self, grid: Grid, first: int, last: int, consumed: ConsumedVersions) -> DataFrame:
        """Rows whose clock lies in slices first..last (inclusive), and those of earlier slices not taken yet.

        The latter landed after their slices were committed, and arrive at the start of slice `first`. Rows without a
        usable clock are taken by the first job that finds them, to be rejected.
        """
        self.refuse_untold(grid, first)
        start, end = grid.start_of(first), grid.start_of(last + 1)
        due = self.side.clock.within(start, end) & ~self.side.unusable
        every = consumed.unplaced is None
        paths = self._paths(start, end, unplaced=every)
        rows = self.table.read(paths=paths).where(due | self.side.unusable if every else due)
        for landed in self.landed(grid, first, consumed):
            rows = rows.unionByName(landed, allowMissingColumns=True)
        return self.side.normalized(rows, grid, start)

    def arrivals_known_from(self) -> tuple[datetime, str] | None:
        """From which instant on the arrival of each row is known, and why not before; None where it always is."""
        untold = self.table.untold() if isinstance(self.table, CommittedInput) else None
        return (from_micros(untold.high + _MILLISECOND), str(untold.untold)) if untold else None

    def refuse_untold(self, grid: Grid, first: int, *versions: int) -> None:
        """See that rows arrive before slice `first` or at an instant that is known, in versions, or in the one read.

        Raises:
            InputError: some may have arrived in it, or after, and when is not known; says from which slice on it is.
        """
        untold = self.table.untold(*versions) if isinstance(self.table, CommittedInput) else None
        if untold is None or untold.high < grid.start_of(first):
            return
        since = format_instant(from_micros(untold.high + _MILLISECOND))
        raise InputError(
            f"input {self.table.name}: when rows arrived is known from {since} on, because {untold.untold}; slice "
            f"{grid.name(first)} begins before: let slices begin with {grid.name(grid.number_at(untold.high) + 1)} or "
            "later, or name an arrival column"
        )

    def refuse_changes(self, grid: Grid, first: int, consumed: ConsumedVersions, reprocess: str) -> None:
        """See that rows which slices before `first` have taken are still there; `reprocess` is the command to name.

        Raises:
            InputError: some were deleted or changed, by the versions named; says from which slice to reprocess.
        """
        for version, taken in self._unseen(grid, first, consumed).items():
            changes = self._changes_since(version)
            if changes.changed and (oldest := self._first_of(changes.gone, taken, grid)) is not None:
                start, versions = grid.name(oldest), ", ".join(map(str, changes.changed))
                raise InputError(
                    f"input {self.table.name} is not append-only: version {versions} deleted or changed rows that "
                    f"slices from {start} on have read; {reprocess} --from {start}"
                )

    def refuse_reruns(self, grid: Grid, reads: Iterable[tuple[range, int]]) -> None:
        """See that rows are still there to be read again, of slices that have been read at a version.

        Raises:
            InputError: some were deleted or changed; says in which slice the first ones are.
        """
        by_version: dict[int, list[tuple[int, int]]] = {}
        for slices, version in reads if self.table.lands_late else ():
            by_version.setdefault(version, []).append((slices.start, slices.stop))
        for version, spans in by_version.items():
            changes = self._changes_since(version)
            if (oldest := self._first_to_lose(changes, grid, spans)) is not None:
                raise InputError(
                    f"input {self.table.name} no longer has rows that slices from {grid.name(oldest)} on have read, so "
                    "that running these again would lose what they gave; bring the rows back, or take them out by "
                    "input_deletes: refuse"
                )

    def slices_of_changes(self, grid: Grid, first: int, consumed: ConsumedVersions, *, deleted: bool) -> set[int]:
        """The slices before `first` of rows that have landed and not been taken; if asked, of those taken and gone."""
        found: set[int] = set()
        for rows, unseen in self._changed(grid, first, consumed, deleted=deleted):
            found |= self._owning(rows.where(unseen), grid)
        return found

    def slices_that_lost(self, grid: Grid, first: int, consumed: ConsumedVersions, reprocess: str) -> set[int]:
        """The slices before `first` of rows that were taken and were deleted or changed since.

        Raises:
            InputError: which rows these were cannot be read any more, as `refuse_changes`.
        """
        found: set[int] = set()
        for version, taken in self._unseen(grid, first, consumed).items():
            try:
                if (gone := self._changes_since(version).gone()) is not None:
                    found |= self._owning(self.side.of_source(gone).where(taken()), grid)
            except (PySparkException, Py4JJavaError):  # VACUUM has taken the rows as they were
                self.refuse_changes(grid, first, consumed, reprocess)
                raise
        return found

    def _owning(self, rows: DataFrame, grid: Grid) -> set[int]:
        number = grid.number_column(self.side.clock.micros).alias("owning_slice")
        return {row["owning_slice"] for row in rows.where(~self.side.unusable).select(number).distinct().collect()}

    def _changed(
        self, grid: Grid, first: int, consumed: ConsumedVersions, *, deleted: bool
    ) -> Iterator[tuple[DataFrame, Column]]:
        """The rows that came and those that went since each version, with what tells those that were not taken."""
        for version, unseen in self._unseen(grid, first, consumed).items():
            changes = self._changes_since(version)
            gone = changes.gone() if deleted else None
            for rows in (changes.new(self._of_later_slices(grid, first)), gone):
                if rows is not None:
                    yield self.side.of_source(rows), unseen()

    def landed(self, grid: Grid, first: int, consumed: ConsumedVersions) -> Iterator[DataFrame]:
        """Rows of slices before `first` that were not in the versions up to which they have been taken."""
        for version, unseen in self._unseen(grid, first, consumed).items():
            if (new := self._changes_since(version).new(self._of_later_slices(grid, first))) is not None:
                yield self.side.of_source(new).where(unseen())

    def _unseen(self, grid: Grid, first: int, consumed: ConsumedVersions) -> dict[int, Callable[[], Column]]:
        """Which rows have been taken up to each version that is not the one read now, once Spark is there to ask."""
        if not self.table.lands_late:
            return {}
        self._refuse_blurred(grid, consumed)
        ends = [*(start for start, _ in consumed.by_slice[1:] if start is not None), first]
        parts: dict[int, list[tuple[int | None, int]]] = {}
        if consumed.unplaced is not None:
            parts[consumed.unplaced] = []
        for (start, version), end in zip(consumed.by_slice, ends, strict=True) if consumed.by_slice else ():
            parts.setdefault(version, []).append((start, end))
        return {
            version: partial(self._within, grid, spans, unplaced=version == consumed.unplaced)
            for version, spans in parts.items()
            if version != self.table.version
        }

    def _refuse_blurred(self, grid: Grid, consumed: ConsumedVersions) -> None:
        """See that it is known which slice rows are of, where slices have read several versions and rows changed."""
        known, now = consumed.by_slice, self.table.version
        if len(known) > 1 and isinstance(self.table, CommittedInput):
            seen = {version for _, version in known if version != now}
            if any(self._changes_since(version).changed for version in seen):
                self.refuse_untold(grid, known[1][0] or 0, now, *seen)

    def _within(self, grid: Grid, spans: Sequence[tuple[int | None, int]], *, unplaced: bool) -> Column:
        """Whether a row's clock lies in slices start <= n < end, or, if asked for, nowhere."""
        clock, inside = self.side.clock.micros, F.lit(False)
        for start, end in spans:
            since = F.lit(True) if start is None else clock >= grid.start_of(start)
            inside = inside | (since & (clock < grid.start_of(end)))
        return (~self.side.unusable & inside) | (self.side.unusable & F.lit(unplaced))

    def _of_later_slices(self, grid: Grid, first: int) -> frozenset[str]:
        """Names of files all of whose rows have a clock, in slice `first` or after."""
        start, files = grid.start_of(first), self.files
        known = (one for one in files or () if one.is_known and not one.timeless)
        return frozenset(
            file_name(one.path) for one in known if one.low is not None and one.low >= start and self._is_usable(one)
        )

    def _changes_since(self, version: int) -> InputChanges:
        if version not in self._changes:
            self._changes[version] = InputChanges.since(self.table, version)
        return self._changes[version]

    @cached_property
    def _changes(self) -> dict[int, InputChanges]:
        return {}

    def _first_to_lose(self, changes: InputChanges, grid: Grid, spans: Sequence[tuple[int, int]]) -> int | None:
        """The first of the slices start <= n < end of which rows are gone; None where all are there.

        By the statistics of files that went as a whole, which VACUUM may have removed since, and by other rows.
        """
        files = self._clocks_of_whole(changes)
        gone = partial(changes.gone, () if files is None else changes.whole)
        found = [self._first_of(gone, lambda: self._within(grid, spans, unplaced=False), grid)]
        for one in files or ():
            if one.low is not None and one.high is not None:
                low, high = grid.number_at(one.low), grid.number_at(one.high)
                found += [max(low, start) for start, end in spans if low < end and high >= start]
        return min((number for number in found if number is not None), default=None)

    def _clocks_of_whole(self, changes: InputChanges) -> list[FileClocks] | None:
        """The files that went as a whole, with their clocks; None where the log does not tell, nor which rows count."""
        now = self.table.log
        if now is None or self.side.clock.name not in now.schema.names or not changes.whole or self.side.at_source:
            return None
        if self.side.left_out:
            return None
        try:
            then = DeltaLog.open(now.path, changes.seen)
        except DeltaError:
            return None
        known = file_clocks(then, self.side.clock) if then else ()
        found = [one for one in known if file_name(one.path) in changes.whole]
        return found if then and all(one.is_known for one in found) else None

    def _first_of(self, gone: Callable[[], DataFrame | None], taken: Callable[[], Column], grid: Grid) -> int | None:
        """The first slice of rows that were taken and are gone, 0 where that cannot be told; None without any."""
        try:
            if (rows := gone()) is None:
                return None
            clock = F.when(~self.side.unusable, self.side.clock.micros)
            counted = F.count("*").alias("rows"), F.min(clock).alias("oldest")
            found = self.side.of_source(rows).where(taken()).agg(*counted).first()
            assert found is not None, "an aggregate has one row"
            if not found["rows"]:
                return None
            return max(0, grid.number_at(found["oldest"])) if found["oldest"] is not None else 0
        except (PySparkException, Py4JJavaError):  # VACUUM has taken the rows as they were
            return 0

    def history(self, grid: Grid, last: int, start: int | None, end: int | None) -> DataFrame:
        """Rows that take part, with clocks up to the end of slice `last`, event times in [start, end) microseconds."""
        rows = self.table.read().where(self.side.clock.micros < grid.start_of(last + 1))
        if start is not None and end is not None:
            rows = rows.where(self.side.event.within(start, end))
        return self.side.normalized(rows, grid, grid.start).where(F.col("rejected").isNull())

    def extent(self, grid: Grid, *, count_before: bool) -> Extent:
        """How far the rows reach, by the files' statistics, or counted by Spark where those leave it open."""
        return self._extent_by_files(grid, count_before=count_before) or self._counted_extent(grid)

    @cached_property
    def files(self) -> tuple[FileClocks, ...] | None:
        """The input's files with their clocks; None where its clock is not in them."""
        if self.table.log is None:
            return None
        if isinstance(self.table, CommittedInput):
            return tuple(committed_clocks(self.table.log, self.table.arrivals()))
        if self.side.clock.name not in self.table.schema.names:
            return None
        return tuple(file_clocks(self.table.log, self.side.clock))

    def _paths(self, start: int, end: int, *, unplaced: bool) -> list[str] | None:
        """The files that may have rows with clocks in [start, end), or, if asked for, with none that is usable."""
        if self.files is None:
            return None
        return [
            one.path
            for one in self.files
            if not one.is_known
            or (unplaced and (one.timeless or not self._is_usable(one)))
            or (one.low is not None and one.high is not None and one.low < end and one.high >= start)
        ]

    def _is_usable(self, file: FileClocks) -> bool:
        """Whether all clocks of a file, but for nulls, lie inside the guard."""
        guard = self.side.guard
        if file.low is None or file.high is None:
            return file.rows == file.timeless
        return guard is None or (micros(guard.earliest) <= file.low and file.high < micros(guard.latest))

    def _extent_by_files(self, grid: Grid, *, count_before: bool) -> Extent | None:
        if self.files is None:
            return None
        newest, before = None, 0
        for one in self.files:
            if not one.is_known or not self._is_usable(one):
                return None
            if one.rows is None or one.timeless is None or one.low is None or one.high is None:
                continue
            last = grid.number_at(one.high)
            across = count_before and one.low < grid.start <= one.high
            if across or last != grid.number_at(one.high // 1000 * 1000):
                return None
            if last < 0:
                before += one.rows - one.timeless
            else:
                newest = max(last, newest or 0)
        return Extent(newest, before, by_statistics=True)

    def _counted_extent(self, grid: Grid) -> Extent:
        awake(self.table.spark)
        micros_ = self.side.clock.micros
        found = (
            self.table.read()
            .where(~self.side.unusable)
            .agg(F.max(micros_).alias("newest"), F.count_if(micros_ < grid.start).alias("before"))
            .first()
        )
        assert found is not None, "an aggregate has one row"
        newest = found["newest"]
        last = None if newest is None or newest < grid.start else grid.number_at(newest)
        return Extent(last, found["before"], by_statistics=False)


def stored_inputs(
    spark: SparkSession,
    pipeline: Pipeline,
    lake: str,
    versions: tuple[int | None, int | None] = (None, None),
    left_out: LeftOut | None = None,
) -> tuple[StoredInput, StoredInput]:
    """Both inputs of a pipeline, found and checked: tables, columns, types; at `versions`, by default the newest.

    They are without the rows that are `left_out`, by default those that the pipeline has been told to forget.

    Raises:
        InputError: a table or column is missing, or a type does not serve.
    """
    tables = (pipeline.left.table, pipeline.right.table)
    left, right = (DeltaInput.find(spark, lake, *one) for one in zip(tables, versions, strict=True))
    if isinstance(pipeline.left.arrival, Trace) and isinstance(pipeline.right.arrival, Trace):
        trace = QueryTrace.read(spark, place(lake, pipeline.left.arrival.trace), pipeline)
        left = traced_input(left, trace, "left", pipeline.left.arrival)
        right = traced_input(right, trace, "right", pipeline.right.arrival)
    if isinstance(pipeline.left.arrival, Commits):
        left = committed_input(left, pipeline.left.arrival)
    if isinstance(pipeline.right.arrival, Commits):
        right = committed_input(right, pipeline.right.arrival)
    pairs = pipeline.join.keys
    forgotten = left_out_of(pipeline, lake) if left_out is None else left_out
    _need_columns(left, pipeline.left)
    _need_columns(right, pipeline.right)
    kinds = [_common_type(left, pair.left, right, pair.right) for pair in pairs]
    return (
        StoredInput(_without(side_of(pipeline, "left", left.schema, kinds), forgotten), left),
        StoredInput(_without(side_of(pipeline, "right", right.schema, kinds), forgotten), right),
    )


def _without(side: Side, left_out: LeftOut) -> Side:
    """A side of which rows are forgotten.

    Raises:
        InputError: it no longer has the columns that tell which.
    """
    texts = left_out.get(side.name, ())
    for text in texts:
        try:
            check_expression(text, ColumnsOf(tuple(side.schema.names)))
        except ValueError as error:
            raise InputError(
                f"input {side.settings.table}: rows that are forgotten are told by {text}: {error}"
            ) from None
    return replace(side, left_out=tuple(texts))


def read_as(inputs: tuple[StoredInput, StoredInput], pipeline: Pipeline) -> tuple[StoredInput, StoredInput]:
    """The same tables as a pipeline with other settings reads them: its ticks, its guard, the rows that it rejects."""
    sides = (side_of(pipeline, one.side.name, one.side.schema, [kind for _, kind in one.side.keys]) for one in inputs)
    left, right = (
        StoredInput(replace(side, left_out=one.side.left_out), one.table)
        for side, one in zip(sides, inputs, strict=True)
    )
    return left, right


def rows_of_slices(
    inputs: tuple[StoredInput, StoredInput], grid: Grid, slices: range, consumed: Sequence[ConsumedVersions]
) -> DataFrame:
    """What a replay of slices reads of both inputs (`StoredInput.rows`), as one table."""
    left, right = (
        source.rows(grid, slices[0], slices[-1], known) for source, known in zip(inputs, consumed, strict=True)
    )
    return left.unionByName(right, allowMissingColumns=True)


def schemas_of(inputs: tuple[StoredInput, StoredInput]) -> dict[str, T.StructType]:
    """The columns of both inputs, by side."""
    return {source.side.name: source.side.schema for source in inputs}


def trace_of(inputs: tuple[StoredInput, StoredInput]) -> QueryTrace | None:
    """The query that has read the inputs; None where no trace tells when rows arrived."""
    table = inputs[0].table
    return table.trace if isinstance(table, TracedInput) else None


def side_of(pipeline: Pipeline, which: SideName, schema: T.StructType, kinds: list[T.DataType]) -> Side:
    """One side of a pipeline over rows of this schema, its keys cast to `kinds`.

    Raises:
        InputError: a time column's type does not serve.
    """
    settings: Input = getattr(pipeline, which)
    where = f"input {settings.table}"
    if pipeline.dialect == "spark":
        _refuse_window(schema[settings.event_time.column], where)
    event = Clock.of(settings.event_time, schema, where)
    match settings.arrival:
        case None:
            clock = event
        case Trace() | Commits():
            clock = Clock(ARRIVAL, None)
        case column:
            clock = Clock.of(column, schema, where)
    names = [getattr(pair, which) for pair in pipeline.join.keys]
    return Side(
        which,
        settings,
        pipeline.guard,
        schema,
        event,
        clock,
        tuple(zip(names, kinds, strict=True)),
        null_keys=pipeline.takes_null_keys,
        null_times=pipeline.takes_null_times,
        signed_zeros=pipeline.dialect != "spark",
        tick=pipeline.tick,
        recorded=Clock.of(settings.watermark, schema, where) if settings.watermark else None,
        at_source=pipeline.filters_at_source(settings),
    )


def _refuse_window(field: T.StructField, where: str) -> None:
    """See that the event time is no window: Spark takes a watermark on such a struct, and makes nonsense of it.

    Raises:
        InputError: says how the watermark is said rightly.
    """
    kind = field.dataType
    if isinstance(kind, T.StructType) and kind.names == ["start", "end"]:
        raise InputError(
            f"{where}: event_time {field.name} is a window ({kind.simpleString()}), and of such a struct Spark's "
            "withWatermark reads raw bytes: an instant of 1970, whatever the rows; name the timestamp that the windows "
            "are made of, and let join.window or join.window_inequality make them: rows are late by their ends then"
        )


def _absurd(time: Clock, guard: Guard | None) -> Column:
    """Whether a time is null, does not fit a long of microseconds, or lies outside the guard; never null."""
    absurd = time.micros.isNull()
    if guard:
        absurd = absurd | (time.micros < F.lit(micros(guard.earliest))) | (time.micros >= F.lit(micros(guard.latest)))
    return F.coalesce(absurd, F.lit(True))


def _need_columns(table: DeltaInput, settings: Input) -> None:
    wanted = {"event_time": settings.event_time.column, "tiebreak": settings.tiebreak}
    wanted["partition"] = settings.partition
    wanted["watermark"] = settings.watermark.column if settings.watermark else None
    wanted["arrival"] = settings.arrival.column if isinstance(settings.arrival, TimeColumn) else None
    for role, column in wanted.items():
        if column is not None and column not in table.schema.names:
            hint = nearest(column, table.schema.names, "it has")
            raise InputError(f"input {table.name} has no column {column} (named as {role}); {hint}")
    if settings.where is not None:
        try:
            check_expression(settings.where, ColumnsOf(tuple(table.schema.names)))
        except ValueError as error:
            raise InputError(f"input {table.name}: where: {error}") from None
    if settings.tiebreak and not isinstance(table.schema[settings.tiebreak].dataType, T.IntegralType):
        kind = table.schema[settings.tiebreak].dataType.simpleString()
        raise InputError(f"input {table.name}: tiebreak {settings.tiebreak} is {kind}; it must be an integer column")


def _key_type(table: DeltaInput, name: str) -> T.DataType:
    path = key_path(table.schema, name)
    if (kind := type_at(table.schema, path)) is not None:
        return kind
    if not is_name(name):
        return _type_of_expression(table, name)
    under = type_at(table.schema, path[:-1]) if len(path) > 1 else None
    known = under.names if isinstance(under, T.StructType) else table.schema.names
    missing = next(part for number, part in enumerate(path) if type_at(table.schema, path[: number + 1]) is None)
    hint = nearest(missing, known, "it has")
    raise InputError(f"input {table.name} has no column {name} (named as key {name}); {hint}")


def _type_of_expression(table: DeltaInput, text: str) -> T.DataType:
    """The type of a key that is no column, which Spark alone tells.

    Raises:
        InputError: it is no expression over the input's columns either.
    """
    try:
        key = confined(table.spark, text, ColumnsOf(tuple(table.schema.names))).column
        return engine_of(table.spark).empty(table.schema).select(key.alias("key")).schema["key"].dataType
    except PipelineFileError as error:
        why = str(error)
    except PySparkException as error:
        why = in_one_line(error)
    raise InputError(f"input {table.name} has no column {text} (named as key), and no key is made of it: {why}")


def _common_type(left: DeltaInput, left_key: str, right: DeltaInput, right_key: str) -> T.DataType:
    kinds = _key_type(left, left_key), _key_type(right, right_key)
    for table, column, kind in zip((left, right), (left_key, right_key), kinds, strict=True):
        if not has_order(kind):
            raise InputError(
                f"input {table.name}: key {column} is {kind.simpleString()}, which cannot be compared; "
                "name a column, a field of a struct, or an expression that can be"
            )
    if kinds[0].simpleString() == kinds[1].simpleString():
        return kinds[0]
    if not all(isinstance(kind, T.NumericType) for kind in kinds):
        raise InputError(
            f"keys {left.name}.{left_key} ({kinds[0].simpleString()}) and {right.name}.{right_key} "
            f"({kinds[1].simpleString()}) are of different types; cast one where the table is written"
        )
    spark = awake(left.spark)
    nulls = (F.lit(None).cast(kind) for kind in kinds)
    return spark.range(0).select(F.coalesce(*nulls).alias("key")).schema["key"].dataType
