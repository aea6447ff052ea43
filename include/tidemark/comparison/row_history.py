"""The life of one input row, told from what is committed: when it came, what it met, what became of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.comparison.committed_view import CommittedView
from tidemark.config import Pipeline
from tidemark.config.sides import SIDES, SideName
from tidemark.config.types import format_duration, format_instant, from_micros, micros, parse_instant
from tidemark.delta.pipeline_tables import read_now
from tidemark.errors import UserError, nearest
from tidemark.execution.job_spec import is_tiny
from tidemark.execution.replay import STILL_IN, replay, with_exact_watermarks
from tidemark.formatting import quoted
from tidemark.joins import join_of, lane_of
from tidemark.joins.output_schema import pairs
from tidemark.joins.window_output import HALVES
from tidemark.ledger.checkpoint_files import kept_runs, numbered, restore
from tidemark.ledger.committed_snapshot import committed
from tidemark.ledger.ledger import Entry
from tidemark.ledger.staleness import NOTHING_CONSUMED
from tidemark.ledger.state_fingerprint import content_hash
from tidemark.quality.quarantine import EXPECTATIONS
from tidemark.sources.stored_input import StoredInput, rows_of_slices, schemas_of, trace_of
from tidemark.spark.dataframe_utils import with_columns
from tidemark.spark.expression_sandbox import confined
from tidemark.spark.temporary_settings import tuned_for_tiny_queries
from tidemark.watermarks.buckets import NO_WATERMARK, Buckets, Watermarks
from tidemark.watermarks.row_status import FILTERED

MOST = 5
"""How many rows one question may be about."""
_NO_ARRIVAL = ("null_arrival", "arrival_out_of_range")
_NO_EVENT_TIME = ("null_event_time", "event_time_out_of_range")
_EMITTED = {"matched": "matched", "semi": "emitted, for it has a partner", "anti": "emitted, for it has no partner"}


_IN_A_WINDOW = {
    "lost_at_end": "lost: the input ended before the clock had come to the timer of",
    "no_event_time_for_window": "left out of a firing, since a time evictor fails without its event time, of",
}


@dataclass(frozen=True)
class Life:
    """What happened to one input row, step by step."""

    side: SideName
    row: dict[str, Any]
    steps: tuple[str, ...]

    def describe(self) -> dict[str, Any]:
        """Give it to scripts: JSON-ready."""
        return {**asdict(self), "row": {name: _plain(value) for name, value in self.row.items()}}


def parse_row(text: str) -> dict[str, str]:
    """Read what tells a row, such as `carrier=UA,flight=1545`.

    Raises:
        ValueError: not of that form.

    >>> parse_row("carrier=UA, flight=1545")
    {'carrier': 'UA', 'flight': '1545'}
    """
    parts = [part.partition("=") for part in text.split(",")]
    if not all(name.strip() and equals for name, equals, _ in parts):
        raise ValueError(f"{text!r} does not tell a row; write columns and values, such as 'carrier=UA,flight=1545'")
    return {name.strip(): value.strip() for name, _, value in parts}


def explain(
    spark: SparkSession, pipeline: Pipeline, lake: str, side: SideName, wanted: Mapping[str, str]
) -> tuple[Life, ...]:
    """The lives of the rows of an input that have these values.

    Raises:
        UserError: no such column, no such row, or more than `MOST` of them.
        SliceOrderError: nothing is committed.
    """
    return lives(CommittedView.read(spark, pipeline, lake), side, wanted)


def lives(view: CommittedView, side: SideName, wanted: Mapping[str, str]) -> tuple[Life, ...]:
    """`explain` with a view that is read already."""
    return tuple(_Story(view, side, row).life() for row in _found(view, side, wanted))


def telling(view: CommittedView, side: SideName, row: Mapping[str, str]) -> dict[str, str] | None:
    """The few values of an input row that tell it from others: key and event time, one more if need be, or all.

    None where the input has no such row, or more than `MOST`.
    """
    source, pipeline = view.inputs[SIDES.index(side)], view.pipeline
    usual = {getattr(pipeline, side).event_time.column}.union(*(pair.columns(side) for pair in pipeline.join.keys))
    table = source.table.read()
    meets = {name: _meets(source, name, value) for name, value in row.items()}
    base = {name: value for name, value in row.items() if name in usual}
    among = reduce(Column.__and__, (meets[name] for name in base), F.lit(True))
    each = [F.count_if(among & one) for one in meets.values()]
    counts = table.agg(F.count_if(among), F.count_if(reduce(Column.__and__, meets.values())), *each).first()
    assert counts is not None, "an aggregate has one row"
    alike, same, *narrowed = counts
    if not 0 < same <= MOST:
        return None
    if alike == same:
        return base
    best = min(range(len(narrowed)), key=narrowed.__getitem__)
    name, value = list(row.items())[best]
    return {**base, name: value} if narrowed[best] == same else dict(row)


def _meets(source: StoredInput, name: str, value: str) -> Column:
    """Whether a row of an input has a value, given as text."""
    kind = source.side.schema[name].dataType
    if isinstance(kind, T.TimestampType | T.TimestampNTZType):
        with suppress(ValueError):
            value = parse_instant(value).isoformat()  # Spark reads no time without seconds, as we write them
    return F.col(quoted(name)) == F.lit(value).try_cast(kind)


def _found(view: CommittedView, side: SideName, wanted: Mapping[str, str]) -> list[Row]:
    source = view.inputs[SIDES.index(side)]
    schema = source.side.schema
    for name in wanted:
        if name not in schema.names:
            hint = nearest(name, schema.names, "it has")
            raise UserError(f"--{side}: input {source.table.name} has no column {name}; {hint}")
    meets = (_meets(source, name, value) for name, value in wanted.items())
    table = source.table.read().where(reduce(Column.__and__, meets))
    rows = source.side.told(table, view.grid, view.grid.start)
    found = rows.withColumn("_hash", content_hash(rows, [side])).limit(MOST + 1).collect()
    asked = ", ".join(f"{name}={value}" for name, value in wanted.items())
    if not found:
        raise UserError(f"--{side} {asked}: input {source.table.name} has no such row")
    if len(found) > MOST:
        raise UserError(f"--{side} {asked}: more than {MOST} rows are so; name more of its columns")
    return found


@dataclass(frozen=True)
class _Story:
    view: CommittedView
    side: SideName
    row: Row

    def life(self) -> Life:
        """All that is known of the row."""
        steps = self._steps_left_out() if self.row["rejected"] == FILTERED else self._steps()
        return Life(self.side, self.row[self.side].asDict(), tuple(steps))

    def _steps(self) -> Iterator[str]:
        view, row, label = self.view, self.row, self.view.grid.name
        by_arrival = view.pipeline.clock == "arrival"
        happened = self._happened
        if row["rejected"] in (_NO_ARRIVAL if by_arrival else _NO_EVENT_TIME):
            yield f"{happened}, arrived at no usable time" if by_arrival else happened
            taken = [view.grid.number_at(one["_slice"]) for one in self._aside()]
            where = f"in slice {label(taken[0])}" if taken else "by the next slice that runs"
            yield f"rejected {where}: {row['rejected']}"
            return
        home = view.grid.number_at(row["clock"])
        known = view.inputs[SIDES.index(self.side)].arrivals_known_from()
        if known and row["clock"] < micros(known[0]):
            yield f"{happened}, arrived before {format_instant(known[0])}: when is not known, because {known[1]}"
        else:
            came = f", arrived {_instant(row['clock'])}" if by_arrival else ""
            yield f"{happened}{came}: slice {label(home)}"
        if home not in view.ledger.entries and home >= view.end:
            yield f"has not been read yet: the last committed slice is {label(view.last.number)}"
            return
        aside, held = self._aside(), self._held()
        aside, cut_off = (
            [one for one in aside if one["reason"] not in _IN_A_WINDOW],
            [one for one in aside if one["reason"] in _IN_A_WINDOW],
        )
        slices = [*(one["_slice"] for one in aside), *(one["arrived"] for one in held)]
        arrived = max((view.grid.number_at(slice_of) for slice_of in slices), default=home)
        if arrived > home:
            yield f"landed after that slice was committed, and arrived at the start of slice {label(arrived)}"
        late = [one for one in aside if one["watermark"] is not None]
        if len(late) < len(aside):
            yield f"rejected: {next(one['reason'] for one in aside if one['watermark'] is None)}"
            return
        yield from (self._lateness(one) for one in late)
        if not late:
            yield self._on_time(home) if arrived == home else "on time"
        replayed = self._paired(home, held) if view.pipeline.flatten is not None and arrived == home else None
        emitted = self._emitted() if replayed is None else replayed
        yield from emitted
        if not emitted:
            unknown = view.pipeline.flatten is not None and replayed is None
            yield f"nothing was emitted of it{', or flatten made no row of its pairs' if unknown else ''}"
        if emitted:
            yield from self._taken()
        yield from (_cut_off(one) for one in cut_off)
        if not late or late[0]["reason"] in STILL_IN:
            yield self._end(held)

    @property
    def _happened(self) -> str:
        return f"happened {self._time(self.row['event_time']) or 'at no known time'}"

    def _steps_left_out(self) -> Iterator[str]:
        """Of a row that `where` leaves out: which it does, and whether the watermark has seen it."""
        source = getattr(self.view.pipeline, self.side)
        if self.view.pipeline.filters_at_source(source):
            moves = "at the source, so that it is as if the table did not have it"
        elif self.row["event_time"] is None:
            moves = "and as its times are not to be believed, it does not move the watermark either"
        else:
            moves = "it takes no part, and moves the watermark"
        yield self._happened
        yield f"left out by where ({source.where}): {moves}"

    def _aside(self) -> list[Row]:
        """The row in the side output, once for each window that it was late for; without a watermark if rejected."""
        late = committed(self.view.spark, self.view.ledger, "late").where(F.col("side") == self.side)
        mine = late.where(content_hash(late, [self.side]) == self.row["_hash"])
        names = ("_slice", "watermark", "window_start")
        times = {name: F.unix_micros(F.col(name).cast("timestamp")) for name in names}
        return mine.transform(with_columns, times).collect()

    def _lateness(self, late: Row) -> str:
        sentence = f"{late['reason'].replace('_', ' ')}: {_span(late['behind_ms'])} behind the watermark"
        holder = getattr(self.view.pipeline, late["held_by"])
        recorded = f", as its column {holder.watermark.column} has it" if holder.watermark else ""
        sentence += f" {_instant(late['watermark'])}, which the {late['held_by']} input held{recorded}{self._anew}"
        if late["window_start"] is not None:
            sentence += f", for the window from {self._bound(late['window_start'])}"
        if late["fate"]:
            sentence += f"; {late['fate']}"
        partner = {True: "a partner had come", False: "no partner had come", None: None}[late["would_match"]]
        return f"{sentence}; {partner}" if partner else sentence

    def _bound(self, microseconds: int) -> str:
        """The start of a window, in a time zone the local time."""
        zone = self.view.pipeline.zone_of_windows
        return f"{_instant(microseconds).removesuffix('Z')} {zone}" if zone else _instant(microseconds)

    def _on_time(self, number: int) -> str:
        """How far on time the row was, by the watermark that it met, which a replay of its slice tells."""
        view = self.view
        pipeline, grid, entry = view.pipeline, view.grid, view.ledger.entry(number - 1)
        if pipeline.join.time == "processing":
            return "on time, as all rows are on processing time"
        slices = range(number, number + 1)
        rows = rows_of_slices(view.inputs, grid, slices, (NOTHING_CONSUMED, NOTHING_CONSUMED))
        join = join_of(pipeline, view.spark, schemas_of(view.inputs))
        lane = lane_of(pipeline, entry.watermarks if entry else Watermarks(), None, trace_of(view.inputs))
        rows_with_marks = with_exact_watermarks(rows, lane, join, Buckets.of(grid, slices, join.buckets_per_slice))
        mine = rows_with_marks.where(
            (F.col("side") == self.side) & (content_hash(rows_with_marks, [self.side]) == self.row["_hash"])
        )
        met = mine.select("watermark").first()
        if met is None:
            return "on time"
        if met["watermark"] is None or met["watermark"] <= NO_WATERMARK:
            return f"on time: there was no watermark yet{self._anew}"
        ahead = self.row["event_time"] * pipeline.tick // 1000 - met["watermark"]
        return f"on time by {_span(ahead)}: the watermark was {_instant(met['watermark'] * 1000)}{self._anew}"

    @property
    def _anew(self) -> str:
        """The last restart before the row, with which the watermark that it met had begun anew."""
        restarts = (at for at in map(micros, self.view.pipeline.restarts) if self.view.grid.start < at)
        began = max((at for at in restarts if at <= self.row["clock"]), default=None)
        return "" if began is None else f", the job having restarted at {_instant(began)}"

    def _emitted(self) -> list[str]:
        """A line for each slice and kind of emission."""
        columns = self.view.columns(self.side)
        if not columns:
            return ["its emissions cannot be told: they do not have its columns"]
        rows = self.view.emissions()
        mine = rows.where(content_hash(rows, list(columns)) == self._part(columns))
        counted = mine.groupBy(F.unix_micros("_slice").alias("at"), "_emission").count().orderBy("at", "_emission")
        grid = self.view.grid
        lines = ((one["_emission"], one["count"], grid.name(grid.number_at(one["at"]))) for one in counted.collect())
        published = [
            f"{_EMITTED.get(kind, 'padded')} in slice {start}, rows emitted: {count:,}" for kind, count, start in lines
        ]
        return published + list(self._apart(columns))

    def _paired(self, home: int, held: Sequence[Row]) -> list[str] | None:
        """Under `flatten`: a line for each slice and kind of pairs, by a replay of the slices that had the row.

        None of a coGroup, and where the checkpoint that the first of these slices continued has expired.
        """
        view, pipeline, before = self.view, self.view.pipeline, self.view.ledger.entry(home - 1)
        if pipeline.join.api == "cogroup" or (self.side == "right" and pipeline.join.type in HALVES):
            return None
        carried = before if before and any(before.carried) else None
        if carried and carried.run not in kept_runs(view.tables, [carried], view.grid):
            return None
        gone = max((one["carried_until"] for one in held), default=home)
        slices = range(home, min(gone, view.last.number) + 1)
        read = sum(sum(entry.read) for number in slices if (entry := view.ledger.entry(number)))
        with tuned_for_tiny_queries(view.spark) if is_tiny(read, before) else nullcontext():
            wide = self._replayed(slices, carried)
            schema = view.inputs[SIDES.index(self.side)].side.schema
            columns = {f"{self.side}_{name}": name for name in schema.names}
            mine = wide.where(content_hash(wide, list(columns)) == self._part(columns))
            size = F.size(confined(view.spark, pipeline.flatten or "").column)
            counts = F.count("*").alias("pairs"), F.sum(F.greatest(size, F.lit(0))).alias("made")
            by_slice = mine.groupBy(F.unix_micros("_slice").alias("at"), "_emission").agg(*counts)
            found = by_slice.orderBy("at", "_emission").collect()
        name = view.grid.name
        return [
            f"{_EMITTED.get(one['_emission'], 'padded')} in slice {name(view.grid.number_at(one['at']))}, pairs: "
            f"{one['pairs']:,}, rows that flatten made of them: {one['made']:,}"
            for one in found
        ]

    def _replayed(self, slices: range, carried: Entry | None) -> DataFrame:
        """What slices join, behind the state of the slice before them."""
        view, pipeline, grid = self.view, self.view.pipeline, self.view.grid
        before, last, lane = view.ledger.entry(slices[0] - 1), view.last, F.lit(0)
        rows = rows_of_slices(view.inputs, grid, slices, (NOTHING_CONSUMED, NOTHING_CONSUMED)).withColumn("lane", lane)
        state = restore(view.spark, view.tables, carried.number, grid).withColumn("lane", lane) if carried else None
        join = join_of(pipeline, view.spark, schemas_of(view.inputs))
        marks, drain = before.watermarks if before else Watermarks(), last.number if last.drained else None
        stream = lane_of(pipeline, marks, drain, trace_of(view.inputs))
        answer = replay(rows, state, [stream], join, Buckets.of(grid, slices, join.buckets_per_slice))
        return pairs(answer.joined, pipeline, grid)

    def _apart(self, columns: Mapping[str, str]) -> Iterator[str]:
        """A line for each slice in which rows of it are in quarantine."""
        rows, grid = self.view.quarantined(), self.view.grid
        if rows is None:
            return
        mine = rows.where(content_hash(rows, list(columns)) == self._part(columns))
        breaks = F.array_sort(F.array_distinct(F.flatten(F.collect_list(EXPECTATIONS))))
        counts = F.count("*").alias("rows"), breaks.alias("breaks")
        for one in mine.groupBy(F.unix_micros("_slice").alias("at")).agg(*counts).orderBy("at").collect():
            start = grid.name(grid.number_at(one["at"]))
            yield f"in quarantine in slice {start}, rows: {one['rows']:,}, which break {'; '.join(one['breaks'])}"

    def _taken(self) -> Iterator[str]:
        """A line for each window that the row was emitted in, and that went on without it."""
        join, columns = self.view.pipeline.join, self.view.columns(self.side)
        purging = join.trigger is not None and join.trigger.purging
        names = {getattr(pair, self.side) for pair in join.keys}
        keys = {name: source for name, source in columns.items() if source in names}
        if not (purging or join.evictor) or set(keys.values()) != names:
            return
        row, window = self.row[self.side], ("_window_start", "_window_end")
        rows = self.view.emissions()
        alike = rows.where(
            reduce(Column.__and__, (F.col(quoted(n)) == F.lit(row[source]) for n, source in keys.items()))
        )
        mine = alike.where(content_hash(rows, list(columns)) == self._part(columns))
        last = mine.groupBy(*window).agg(F.max("_pane").alias("last"))
        later = alike.join(last, list(window)).where(F.col("_pane") > F.col("last"))
        start = F.unix_micros("_window_start").alias("start")
        by = " or ".join([*(["the evictor"] if join.evictor else []), *(["a purge"] if purging else [])])
        for one in later.groupBy(start).agg(F.min("_pane").alias("pane")).orderBy("start").collect():
            yield f"left the window from {_instant(one['start'])} by {by} before pane {one['pane']}"

    def _part(self, columns: Mapping[str, str]) -> Column:
        """The hash of those columns of the row that emissions have."""
        spark, schema = self.view.spark, self.view.inputs[SIDES.index(self.side)].side.schema
        alone = spark.createDataFrame([self.row[self.side]], schema)
        hashed = alone.select(content_hash(alone, columns.values()).alias("hash")).first()
        assert hashed is not None, "one row"
        return F.lit(hashed["hash"])

    def _held(self) -> list[Row]:
        """Where checkpoints have the row: the slice of its arrival, and those at whose end it is in the buffers."""
        view = self.view
        held = numbered(read_now(view.spark, view.tables.checkpoint), view.grid)
        mine = held.where((F.col("side") == self.side) & (content_hash(held, [self.side]) == self.row["_hash"]))
        start = self.view.grid.timestamp_column(F.col("slice"))
        return mine.select(F.unix_micros(start).alias("arrived"), "carried_from", "carried_until").collect()

    def _end(self, held: Sequence[Row]) -> str:
        label, last = self.view.grid.name, self.view.last.number
        if not held:
            return "left the buffers before the end of that slice"
        newest = max(held, key=lambda one: one["carried_from"])
        if newest["carried_until"] > last:
            return f"waits in the buffers at the end of slice {label(last)}"
        return f"left the buffers in slice {label(newest['carried_until'])}"

    def _time(self, ticks: int | None) -> str | None:
        return None if ticks is None else _instant(ticks * self.view.pipeline.tick)


def _cut_off(aside: Row) -> str:
    what = "it" if aside["window_start"] is None else f"the window from {_instant(aside['window_start'])}"
    return f"{_IN_A_WINDOW[aside['reason']]} {what}"


def _instant(microseconds: int) -> str:
    return format_instant(from_micros(microseconds))


def _span(milliseconds: int) -> str:
    return format_duration(timedelta(milliseconds=milliseconds))


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str) or value is None else str(value)
