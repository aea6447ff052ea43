"""Reconstruct the history of one input row from committed tables: arrival, lateness, emissions, eviction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial, reduce
from typing import Any, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from tidemark.comparison.committed_view import CommittedView
from tidemark.comparison.row_lookup import RowValues, find_rows, hash_row
from tidemark.config.sides import SIDES, SideName
from tidemark.config.types import format_duration, format_instant, format_micros, to_micros
from tidemark.delta.table_reader import read_newest
from tidemark.errors import MissingFilesError
from tidemark.execution.job_spec import is_tiny_job, repeat_drains
from tidemark.execution.replay import LATE_BUT_BUFFERED_REASONS, add_exact_watermarks, replay
from tidemark.formatting import ToDict, quote_identifier
from tidemark.joins.factory import create_join, create_lane
from tidemark.joins.join_type import SEMI_ANTI_TYPES
from tidemark.joins.output_schema import flatten_emissions
from tidemark.ledger.adoption import AdoptedTable
from tidemark.ledger.checkpoint_files import list_available_checkpoints, read_buffered_rows, with_slice_numbers
from tidemark.ledger.committed_snapshot import read_committed_rows
from tidemark.ledger.entry import Entry
from tidemark.ledger.row_content import content_hash
from tidemark.ledger.staleness import compute_consumed_versions
from tidemark.quality.quarantine import FAILED_EXPECTATIONS_COLUMN
from tidemark.sources.job_inputs import JobInputs, split_into_jobs
from tidemark.sources.stored_input import get_query_trace, get_schemas
from tidemark.spark.dataframe_utils import with_columns
from tidemark.spark.expression_sandbox import parse_user_expression
from tidemark.spark.missing_files import is_missing_file_error
from tidemark.spark.temporary_settings import tuned_for_tiny_queries
from tidemark.timegrid.time_columns import to_plain_row
from tidemark.watermarks.buckets import Buckets
from tidemark.watermarks.row_status import FILTERED
from tidemark.watermarks.values import NO_WATERMARK, Watermarks

_T = TypeVar("_T")
_NO_ARRIVAL = ("null_arrival", "arrival_out_of_range")
_NO_EVENT_TIME = ("null_event_time", "event_time_out_of_range")
_EMISSION_LABELS = {
    "matched": "matched",
    "semi": "emitted, because it has a partner",
    "anti": "emitted, because it has no partner",
}
_LATENESS_LABELS = {
    "late_for_window": "late for a window",
    "late_but_processed": "late, but processed by the join",
}
_LATE_OUTCOMES = {
    "matched": "it was matched",
    "padded": "it was padded with nulls",
    "cached": "it was kept in the buffers",
    "lost": "it was neither matched nor kept",
}
"""Texts of the column `outcome` of the table `late`."""
_WINDOW_LOSSES = {
    "lost_at_end_of_input": "lost: the input ended before the clock reached the timer of",
    "no_event_time_for_window": "left out of a firing, because a time evictor fails without its event time, of",
}


@dataclass(frozen=True)
class RowHistory(ToDict):
    """Events in the life of one input row."""

    pipeline: str
    """Name of the pipeline with the input."""
    side: SideName
    row: dict[str, Any]
    """Values by column, JSON-ready; instants in UTC."""
    steps: tuple[str, ...]


def read_row_histories(view: CommittedView, side: SideName, values: RowValues) -> tuple[RowHistory, ...]:
    """Return the histories of the rows of an input with these values, in the join of one pipeline.

    Args:
        view: The pipeline.
        side: The input.
        values: Texts by column, None for null; `parse_row` reads them.

    Raises:
        UserError: No such column, no such row, or more than `MAX_ROWS` rows.
    """
    return tuple(read_row_history(view, side, row) for row in find_rows(view, side, values))


def read_row_history(view: CommittedView, side: SideName, row: Row) -> RowHistory:
    """Return the history of a row that `row_lookup` has found."""
    return _HistoryReader(view, side, row).read()


@dataclass(frozen=True)
class _HistoryReader:
    view: CommittedView
    side: SideName
    row: Row

    def read(self) -> RowHistory:
        """Collect the events of the row."""
        if self.row["rejected"] == FILTERED:
            steps = self._describe_filtered()
        elif adopted := self._find_adopted_entry():
            steps = self._describe_adopted(adopted)
        elif self.row["rejected"] in (_NO_ARRIVAL if self._has_arrival_clock else _NO_EVENT_TIME):
            steps = self._describe_without_clock()
        else:
            steps = self._describe_read()
        schema = self.view.inputs[SIDES.index(self.side)].side.schema
        row = to_plain_row(self.row[self.side], schema)
        return RowHistory(self.view.pipeline.name, self.side, row, tuple(steps))

    @property
    def _has_arrival_clock(self) -> bool:
        return self.view.pipeline.clock == "arrival"

    def _describe_without_clock(self) -> Iterator[str]:
        """Yield the events of a row without a usable clock, which a slice rejects."""
        view, row, label = self.view, self.row, self.view.grid.label
        yield f"{self._happened}, arrived at no usable time" if self._has_arrival_clock else self._happened
        slices = [view.grid.number_at(late["_slice"]) for late in self._read_side_output()]
        planned = max(view.end, view.grid.number_at(row["clock"]))
        where = f"in slice {label(slices[0])}" if slices else f"by slice {label(planned)} when it runs"
        yield f"rejected{self._join_name} {where}: {row['rejected']}"

    def _describe_arrival(self, home: int) -> str:
        """Describe the times of a row, and `home`, the slice of its clock."""
        clock = self.row["clock"]
        exact_arrivals = self.view.inputs[SIDES.index(self.side)].changes.find_exact_arrival_start()
        if exact_arrivals and clock < to_micros(exact_arrivals[0]):
            start, reason = exact_arrivals
            return f"{self._happened}, arrived at an unknown time before {format_instant(start)}, because {reason}"
        arrival = f", arrived {format_micros(clock)}" if self._has_arrival_clock else ""
        return f"{self._happened}{arrival}: slice {self.view.grid.label(home)}"

    def _describe_read(self) -> Iterator[str]:
        """Yield the events of a row with a usable clock: arrival, then rejection, or what the join did with it."""
        view, label = self.view, self.view.grid.label
        home = view.grid.number_at(self.row["clock"])
        yield self._describe_arrival(home)
        if home not in view.ledger.entries and home >= view.end:
            yield f"has not been read yet: the last committed slice is {label(view.last.number)}"
            return
        side_output = self._read_side_output()
        buffered = self._read_buffered()
        losses = [late for late in side_output if late["reason"] in _WINDOW_LOSSES]
        rejected_or_late = [late for late in side_output if late["reason"] not in _WINDOW_LOSSES]
        if home not in view.ledger.entries and not side_output and not buffered:
            yield "has not been read: this slice was skipped, or is before the first committed one"
            return
        if not side_output and not buffered and self._is_unread(home):
            yield "has not been read: it was added to the input after that slice had read it"
            return
        slices = [*(late["_slice"] for late in rejected_or_late), *(rows["arrived"] for rows in buffered)]
        arrived = max((view.grid.number_at(start) for start in slices), default=home)
        if arrived > home:
            yield f"arrived after that slice was committed, so slice {label(arrived)} read it at its start"
        late_rows = [late for late in rejected_or_late if late["watermark"] is not None]
        if len(late_rows) < len(rejected_or_late):
            reason = next(late["reason"] for late in rejected_or_late if late["watermark"] is None)
            yield f"rejected{self._join_name}: {reason}"
            return
        yield from (self._describe_lateness(late) for late in late_rows)
        if not late_rows:
            yield self._describe_on_time(home) if arrived == home else "on time"
        yield from self._describe_emissions(home if arrived == home else None, buffered)
        yield from (_describe_loss(late) for late in losses)
        if not late_rows or late_rows[0]["reason"] in LATE_BUT_BUFFERED_REASONS:
            yield self._describe_end(buffered, arrived)

    def _is_unread(self, home: int) -> bool:
        """Return True if the row, and all rows equal to it, were added to the input after slice `home` had read it."""
        view, index = self.view, SIDES.index(self.side)
        source = view.inputs[index]
        consumed = compute_consumed_versions(view.ledger.entries.values(), index)
        if consumed.get_version(home) == source.table.version:
            return False

        def count_unread() -> int:
            late_arriving = source.changes.read_late_arriving_rows(view.grid, view.end, consumed)
            return sum(self._select_equal(rows).count() for rows in late_arriving)

        unread = _read_earlier_version(count_unread)
        return unread is not None and 0 < unread >= self._select_equal(source.table.read()).count()

    def _select_equal(self, table: DataFrame) -> DataFrame:
        """Select the rows of the input that equal the row."""
        side = self.view.inputs[SIDES.index(self.side)].side
        rows = side.normalize_all(table, self.view.grid, self.view.grid.start)
        return rows.where(content_hash(rows, [self.side]) == self.row["_hash"])

    def _describe_emissions(self, home: int | None, buffered: Sequence[Row]) -> Iterator[str]:
        """Yield the emissions of the row, and the windows that it left.

        Args:
            home: The slice of the row's clock, from which `explode` is replayed; None if a later slice read the row.
            buffered: Result of `_read_buffered`.
        """
        has_explode = self.view.pipeline.explode is not None
        replayed = self._describe_replayed(home, buffered) if has_explode and home is not None else None
        emitted = self._describe_emitted() if replayed is None else replayed
        yield from emitted
        if emitted:
            yield from self._describe_evictions()
        else:
            is_unknown = has_explode and replayed is None
            yield f"no emission contains it{', or explode made no row of it' if is_unknown else ''}"

    def _find_adopted_entry(self) -> Entry | None:
        """Return the slice of the row if it is adopted, and the row has a usable clock."""
        clock = self.row["clock"]
        entry = None if clock is None else self.view.ledger.entry(self.view.grid.number_at(clock))
        return entry if entry and entry.adopted_from else None

    def _describe_adopted(self, entry: Entry) -> Iterator[str]:
        """Yield the events of a row of an adopted slice since the pipeline took over."""
        label = self.view.grid.label
        source = AdoptedTable.from_json(str(entry.adopted_from))
        yield f"{self._happened}: slice {label(entry.number)}"
        until = label(self.view.first_published)
        yield f"that slice is adopted: late rows and emissions before {until} are those of {source.table}"
        yield from (self._describe_lateness(late) for late in self._read_side_output() if late["watermark"] is not None)
        yield from self._describe_emitted()
        if buffered := self._read_buffered():
            yield self._describe_end(buffered, entry.number)

    @property
    def _happened(self) -> str:
        event_time = self.row["event_time"]
        if event_time is None:
            return "happened at no known time"
        side = self.view.inputs[SIDES.index(self.side)].side
        is_substitute = side.null_event_time is not None and self.row[self.side][side.event_time.name] is None
        reading = "at no known time, which Flink reads as " if is_substitute else ""
        return f"happened {reading}{self._format_event_time(event_time)}"

    @property
    def _join_name(self) -> str:
        """The words ` in PIPELINE` in a chain of joins, and otherwise nothing."""
        pipeline = self.view.pipeline
        return f" in {pipeline.name}" if pipeline.upstreams or pipeline.output_stream else ""

    def _describe_filtered(self) -> Iterator[str]:
        """Yield the events of a row that `where` removes, and its effect on the watermark."""
        source = getattr(self.view.pipeline, self.side)
        if self.view.pipeline.has_filter_before_watermark(source):
            effect = "before the watermark, as if the table did not contain it"
        elif self.row["event_time"] is None:
            effect = "it does not take part, nor move the watermark, because its times are out of bounds"
        else:
            effect = "it does not take part, but moves the watermark"
        yield self._happened
        yield f"filtered by where ({source.where}): {effect}"

    def _read_side_output(self) -> list[Row]:
        """Read the row in table `late`, once per window that it was late for; without a watermark if rejected."""
        late = read_committed_rows(self.view.spark, self.view.ledger, "late").where(F.col("side") == self.side)
        matches = late.where(content_hash(late, [self.side]) == self.row["_hash"])
        names = ("_slice", "watermark", "window_start")
        times = {name: F.unix_micros(F.col(name).cast("timestamp")) for name in names}
        return matches.transform(with_columns, times).collect()

    def _describe_lateness(self, late: Row) -> str:
        lateness = late["lateness_ms"]
        reason = _LATENESS_LABELS.get(late["reason"], late["reason"])
        position = "behind" if lateness >= 0 else "ahead of"
        sentence = f"{reason}{self._join_name}: {_span(abs(lateness))} {position} the watermark"
        source = getattr(self.view.pipeline, late["limiting_side"])
        origin = ""
        if source.upstream:
            origin = f" as the output of {source.upstream.pipeline}"
        elif source.recorded_watermark:
            origin = f", as recorded in its column {source.recorded_watermark.column}"
        sentence += (
            f" {format_micros(late['watermark'])}, which the {late['limiting_side']} input held{origin}{self._restart}"
        )
        if late["window_start"] is not None:
            is_closed = ", which had closed" if lateness < 0 else ""
            sentence += f", for the window from {self._format_bound(late['window_start'])}{is_closed}"
        if late["outcome"]:
            sentence += f"; {_LATE_OUTCOMES[late['outcome']]}"
        partner = {True: "a partner had arrived", False: "no partner had arrived", None: None}[late["would_match"]]
        return f"{sentence}; {partner}" if partner else sentence

    def _format_bound(self, microseconds: int) -> str:
        """Format the start of a window, in local time if the windows have a time zone."""
        zone = self.view.pipeline.window_time_zone
        return f"{format_micros(microseconds).removesuffix('Z')} {zone}" if zone else format_micros(microseconds)

    def _describe_on_time(self, number: int) -> str:
        """Describe how far ahead of the watermark the row was, or why no watermark applies to it."""
        pipeline = self.view.pipeline
        if pipeline.join.time == "processing":
            return "on time, as all rows are on processing time"
        if self.row["event_time"] is None:
            return "on time: it has no event time, so it is never late"
        if pipeline.dialect == "spark" and getattr(pipeline, self.side).watermark_delay is None:
            return f"on time: the {self.side} input has no watermark, so its rows are never late"
        match = _read_earlier_version(lambda: self._find_watermark(number))
        return "on time" if match is None else self._describe_margin(match["watermark"])

    def _find_watermark(self, number: int) -> Row | None:
        """Find the watermark that the row met (ms, null before the first one) by a replay of the slice that read it.

        No table stores that. The replay reads the inputs as the slice has read them: rows that were added later did not
        advance its watermark, and late-arriving rows of earlier slices did.
        """
        view, pipeline, grid = self.view, self.view.pipeline, self.view.grid
        before, slices = view.ledger.entry(number - 1), range(number, number + 1)
        inputs = JobInputs.open(view.spark, pipeline, view.lake, view.ledger, [view.ledger.entries[number]])
        join = create_join(pipeline, view.spark, get_schemas(inputs.stored))
        watermarks = before.watermarks if before else Watermarks()
        lane = create_lane(pipeline, watermarks, None, get_query_trace(inputs.stored))
        marked = add_exact_watermarks(inputs.read(), lane, join, Buckets.create(grid, slices, join.buckets_per_slice))
        matches = marked.where((F.col("side") == self.side) & (content_hash(marked, [self.side]) == self.row["_hash"]))
        return matches.select("watermark").first()

    def _describe_margin(self, watermark: int | None) -> str:
        """Describe how far ahead of a watermark (ms) the row was."""
        pipeline = self.view.pipeline
        # Spark's watermark begins at 0, which no event time is lower than.
        if watermark is None or watermark <= (0 if pipeline.dialect == "spark" else NO_WATERMARK):
            return f"on time: there was no watermark yet{self._restart}"
        margin = self.row["event_time"] * pipeline.tick_micros // 1000 - watermark
        met = f"the watermark was {format_micros(watermark * 1000)}{self._restart}"
        if margin < 0:
            return f"behind the watermark by {_span(-margin)}, but not late, because a window was still open: {met}"
        return f"on time by {_span(margin)}: {met}"

    @property
    def _restart(self) -> str:
        """The last restart before the row, which reset its watermark; may be empty."""
        restarts = (
            instant for instant in map(to_micros, self.view.pipeline.restarts) if self.view.grid.start < instant
        )
        latest = max((instant for instant in restarts if instant <= self.row["clock"]), default=None)
        return "" if latest is None else f", the job having restarted at {format_micros(latest)}"

    def _describe_emitted(self) -> list[str]:
        """Return a line per slice and kind of emission."""
        columns = self.view.map_columns(self.side)
        if not columns:
            return ["its emissions are unknown: they do not contain its columns"]
        matches = self._select_matches(self.view.read_emissions(), columns)
        counts = matches.groupBy(F.unix_micros("_slice").alias("start"), "_emission").count()
        lines = [
            f"{describe_emission(row['_emission'])} in slice {self._slice_name(row)}, rows emitted: {row['count']:,}"
            for row in counts.orderBy("start", "_emission").collect()
        ]
        return lines + list(self._describe_quarantined(columns))

    def _describe_replayed(self, home: int, buffered: Sequence[Row]) -> list[str] | None:
        """Return a line per slice and kind of emission under `explode`, by a replay of the slices with the row.

        Returns:
            None for coGroups, and if the checkpoint that the first of these slices continued has expired, or files
            that a slice has read are gone.
        """
        view = self.view
        pipeline = self.view.pipeline
        before = self.view.ledger.entry(home - 1)
        if pipeline.join.api == "cogroup" or (self.side == "right" and pipeline.join.type in SEMI_ANTI_TYPES):
            return None
        carried = before if before and any(before.carried) else None
        if carried and carried.run not in list_available_checkpoints(view.tables, [carried], view.grid):
            return None
        last = max((rows["carried_until"] for rows in buffered), default=home)
        slices = range(home, min(last, self._find_end_of_chain(home).number) + 1)
        read = sum(sum(view.ledger.entries[number].read) for number in slices)
        with tuned_for_tiny_queries(view.spark) if is_tiny_job(read, before) else nullcontext():
            collected = _read_earlier_version(lambda: self._count_replayed(slices, carried))
        if collected is None:
            return None
        return [
            f"{describe_emission(row['_emission'])} in slice {self._slice_name(row)}, "
            f"rows before explode: {row['inputs']:,}, after it: {row['rows']:,}"
            for row in collected
        ]

    def _count_replayed(self, slices: range, carried: Entry | None) -> list[Row]:
        """Count the emissions of the row before and after `explode`, by slice and kind."""
        replayed = self._replay_emissions(slices, carried)
        # A version that a slice has read may lack columns that the input has now.
        columns = self.view.inputs[SIDES.index(self.side)].side.emitted_columns
        columns = {name: source for name, source in columns.items() if name in replayed.columns}
        size = F.size(parse_user_expression(self.view.spark, self.view.pipeline.explode or "").column)
        counts = F.count("*").alias("inputs"), F.sum(F.greatest(size, F.lit(0))).alias("rows")
        matches = self._select_matches(replayed, columns)
        by_slice = matches.groupBy(F.unix_micros("_slice").alias("start"), "_emission").agg(*counts)
        return by_slice.orderBy("start", "_emission").collect()

    def _find_end_of_chain(self, number: int) -> Entry:
        """Find the last slice up to which each slice continued the one before."""
        return self.view.ledger.entries[next(chain[-1] for chain in self.view.chains if number in chain)]

    def _replay_emissions(self, slices: range, carried: Entry | None) -> DataFrame:
        """Replay slices from the state before them, and return their rows before `explode`."""
        view, pipeline, grid = self.view, self.view.pipeline, self.view.grid
        before, last = view.ledger.entry(slices[0] - 1), self._find_end_of_chain(slices[0])
        entries = [view.ledger.entries[number] for number in slices]
        jobs = [JobInputs.open(view.spark, pipeline, view.lake, view.ledger, job) for job in split_into_jobs(entries)]
        lane = F.lit(0)
        read = (inputs.read() for inputs in jobs)
        rows = reduce(partial(DataFrame.unionByName, allowMissingColumns=True), read).withColumn("lane", lane)
        state = (
            read_buffered_rows(view.spark, view.tables, carried.number, grid).withColumn("lane", lane)
            if carried
            else None
        )
        newest = jobs[-1].stored
        join = create_join(pipeline, view.spark, get_schemas(newest))
        watermarks = before.watermarks if before else Watermarks()
        drain = last.number if last.drained else None
        stream = create_lane(pipeline, watermarks, drain, get_query_trace(newest))
        stream = repeat_drains(stream, entries)
        result = replay(rows, state, [stream], join, Buckets.create(grid, slices, join.buckets_per_slice))
        return flatten_emissions(result.joined, pipeline, grid)

    def _describe_quarantined(self, columns: Mapping[str, str]) -> Iterator[str]:
        """Yield a line per slice with emissions of the row in quarantine."""
        rows = self.view.read_quarantined()
        if rows is None:
            return
        matches = self._select_matches(rows, columns)
        failed = F.array_sort(F.array_distinct(F.flatten(F.collect_list(FAILED_EXPECTATIONS_COLUMN))))
        by_slice = matches.groupBy(F.unix_micros("_slice").alias("start"))
        for row in by_slice.agg(F.count("*").alias("rows"), failed.alias("failed")).orderBy("start").collect():
            start = self._slice_name(row)
            yield f"in quarantine in slice {start}, rows: {row['rows']:,}, which fail {'; '.join(row['failed'])}"

    def _describe_evictions(self) -> Iterator[str]:
        """Yield a line per window that the row was emitted in, and that fired again without it."""
        join = self.view.pipeline.join
        columns = self.view.map_columns(self.side)
        is_purging = join.trigger is not None and join.trigger.purging
        names = {getattr(pair, self.side) for pair in join.keys}
        keys = {name: source for name, source in columns.items() if source in names}
        if not (is_purging or join.evictor) or set(keys.values()) != names:
            return
        row = self.row[self.side]
        window = ("_window_start", "_window_end")
        has_same_key = (F.col(quote_identifier(name)) == F.lit(row[source]) for name, source in keys.items())
        same_key = self.view.read_emissions().where(reduce(Column.__and__, has_same_key))
        last = self._select_matches(same_key, columns).groupBy(*window).agg(F.max("_pane").alias("last"))
        later = same_key.join(last, list(window)).where(F.col("_pane") > F.col("last"))
        start = F.unix_micros("_window_start").alias("start")
        reasons = " or ".join([*(["the evictor"] if join.evictor else []), *(["a purge"] if is_purging else [])])
        for pane in later.groupBy(start).agg(F.min("_pane").alias("pane")).orderBy("start").collect():
            yield f"left the window from {format_micros(pane['start'])} by {reasons} before pane {pane['pane']}"

    def _select_matches(self, rows: DataFrame, columns: Mapping[str, str]) -> DataFrame:
        """Select emissions whose `columns` equal the row's."""
        content = hash_row(self.view, self.side, self.row, columns)
        return rows.where(content_hash(rows, list(columns)) == F.lit(content))

    def _read_buffered(self) -> list[Row]:
        """Read from the checkpoints when the row arrived, and the slices at whose end it is buffered."""
        view = self.view
        checkpoint = with_slice_numbers(read_newest(view.spark, view.tables.checkpoint), view.grid)
        is_row = content_hash(checkpoint, [self.side]) == self.row["_hash"]
        matches = checkpoint.where((F.col("side") == self.side) & is_row)
        start = view.grid.timestamp_column(F.col("slice"))
        return matches.select(F.unix_micros(start).alias("arrived"), "carried_from", "carried_until").collect()

    def _describe_end(self, buffered: Sequence[Row], arrived: int) -> str:
        """Describe when a row that slice `arrived` has read left the buffers."""
        view, label, last = self.view, self.view.grid.label, self.view.last.number
        entry = view.ledger.entry(arrived)
        if not buffered:
            if entry and any(entry.carried) and not list_available_checkpoints(view.tables, [entry], view.grid):
                return f"when it left the buffers is unknown: the checkpoint of slice {label(arrived)} has expired"
            return "left the buffers before the end of that slice"
        newest = max(buffered, key=lambda rows: rows["carried_from"])
        if newest["carried_until"] > last:
            return f"waits in the buffers at the end of slice {label(last)}"
        return f"left the buffers in slice {label(newest['carried_until'])}"

    def _slice_name(self, row: Row) -> str:
        return self.view.grid.label(self.view.grid.number_at(row["start"]))

    def _format_event_time(self, ticks: int) -> str:
        return format_micros(ticks * self.view.pipeline.tick_micros)


def describe_emission(kind: str) -> str:
    """Describe a kind of emission in words."""
    return _EMISSION_LABELS.get(kind, "padded")


def _read_earlier_version(read: Callable[[], _T]) -> _T | None:
    """Return the result of a read; None if VACUUM has removed files of an earlier version."""
    try:
        return read()
    except (PySparkException, Py4JJavaError, MissingFilesError) as error:
        if not (isinstance(error, MissingFilesError) or is_missing_file_error(error)):
            raise
        return None


def _describe_loss(late: Row) -> str:
    window = "it" if late["window_start"] is None else f"the window from {format_micros(late['window_start'])}"
    return f"{_WINDOW_LOSSES[late['reason']]} {window}"


def _span(milliseconds: int) -> str:
    return format_duration(timedelta(milliseconds=milliseconds))
