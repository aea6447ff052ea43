"""Flink SQL's interval join, row by row in the order of arrival, for lanes whose answer has no closed form."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from tidemark.config.sides import OTHER
from tidemark.watermarks.lanes import Timeline
from tidemark.watermarks.watermarks import NO_WATERMARK

_EXTRA_FIELDS = T.StructType([
    T.StructField("role", T.StringType()),
    T.StructField("left_last_cleanup", T.LongType()),
    T.StructField("right_last_cleanup", T.LongType()),
])  # fmt: skip
_OUTPUT_COLUMNS = ("matched_in", "leaves_at", "timed_from", "gone_in", "eviction_slice")
_INPUT_COLUMNS = (
    "side",
    "key",
    "keyless",
    "event_time",
    "mark",
    "slice",
    "epoch",
    "mates",
    "rejected",
    *_OUTPUT_COLUMNS[:-1],
)
_ARRIVAL_ORDER = ("clock", "tiebreak", "watermark", "side", "event_time")
"""Rows at one place have met one watermark, unless each has recorded its own."""
_Slot = tuple[str, str]


def replay_lanes(rows: DataFrame, timelines: Mapping[int, Timeline], first_slice: int) -> DataFrame:
    """Replay whole lanes; `lines` are theirs, and `first` is the first slice of the job.

    Takes rows of both sides, carried ones too, with the parameters of their lane (`lower`, `upper`, `lateness`,
    `min_cleanup`, `pads_left`, `pads_right`), the `epoch` in which they came, the text of their key (`key`), whether it
    is null (`keyless`), their `mark`, and on the right the marks of all left rows that meet the join's condition
    (`mates`; null without one).

    Rows that are `rejected` take no part, and bring the watermark that they met.

    Gives rows with a `role`: `state` for each row taken, with its labels filled in; `matched`, `padded_left` and
    `padded_right` for emissions; and `end` for each slice, with the watermarks at which each side was last swept.
    """
    schema = T.StructType([*(T.StructField(f.name, f.dataType) for f in rows.schema), *_EXTRA_FIELDS])
    arrow_schema = to_arrow_schema(schema)
    timelines = {
        lane: replace(line, buckets=line.buckets.iloc[:0]) for lane, line in timelines.items()
    }  # sent to each worker

    def replay_table(key: tuple[Any, ...], table: pa.Table) -> pa.Table:
        return _replay_lane(table, timelines[key[0].as_py()], first_slice, arrow_schema)

    return rows.groupBy("lane").applyInArrow(replay_table, schema)


@dataclass(slots=True, eq=False)
class _Row:
    offset: int
    """The row's number in the table."""
    side: str
    key: str
    keyless: bool
    event_time: int
    mark: int
    slice: int
    epoch: int
    mates: frozenset[int] | None
    rejected: str | None
    matched_in: int | None
    leaves_at: int | None
    timed_from: int | None
    gone_in: int | None
    eviction_slice: int | None = None

    @property
    def slot(self) -> _Slot:
        return self.side, self.key

    def can_match(self, partner: _Row) -> bool:
        """Whether keys and the join's condition let two rows of different sides match."""
        left, right = (self, partner) if self.side == "left" else (partner, self)
        return not self.keyless and (right.mates is None or left.mark in right.mates)


@dataclass
class _Operator:
    """The engine's operator: semantics as in `flink_sql.IntervalRules`, step by step."""

    waits: dict[str, int]
    padded_sides: frozenset[str]
    lateness: int
    min_cleanup: int
    watermark: int
    last_cleanup: dict[str, int]
    """Per side, the watermark at which expired rows of any key were last removed."""
    combined_by_epoch: Sequence[Mapping[int, int]] = ()
    """How far the watermark of each execution of the job comes by the end of each slice, if it restarts."""
    epoch: int = 0
    """The execution at hand."""
    slice_number: int = 0
    """The slice at hand."""
    emissions: list[tuple[str, int | None, int | None, int]] = field(default_factory=list)
    """Role, offsets of the left and the right row, slice."""
    cache: defaultdict[_Slot, list[_Row]] = field(default_factory=lambda: defaultdict(list))
    timers: dict[_Slot, tuple[int, _Row]] = field(default_factory=dict)
    """A slot's timer and the row that it was set for."""
    timer_queue: list[tuple[int, _Slot]] = field(default_factory=list)

    @property
    def operator_time(self) -> int:
        return max(self.watermark, 0)

    def restore(self, rows: list[_Row]) -> None:
        """The state that the slice before has carried: rows, and the timers that some of them stand for."""
        for row in rows:
            if row.gone_in is None:
                self.cache[row.slot].append(row)
            if row.timed_from is not None:
                self._register_timer(row)
        for row in sorted(rows, key=lambda row: row.event_time):
            if row.slot not in self.timers and row.leaves_at == self._expires_at(row):
                self._register_timer(row)

    def restart_until(self, epoch: int) -> None:
        """The job fails as often as it takes to come to an epoch: caches and timers are recovered, fields are not."""
        for watermarks in self.combined_by_epoch[self.epoch : epoch]:
            self.advance_watermark(watermarks[self.slice_number])
            self.watermark, self.last_cleanup = NO_WATERMARK, dict.fromkeys(OTHER, NO_WATERMARK)
        self.epoch = max(self.epoch, epoch)

    def process_row(self, row: _Row) -> None:
        """A row, before its own watermark."""
        other_side = OTHER[row.side]
        earliest, latest = row.event_time - self.waits[other_side], row.event_time + self.waits[row.side]
        if self._get_expiration_time(other_side) < latest:
            self._record_cleanup(other_side)
            for cached_row in self.cache[other_side, row.key]:  # expired or not: a row still there is still joined
                if earliest <= cached_row.event_time <= latest and row.can_match(cached_row):
                    self._emit_match(row, cached_row)
            self._remove_expired((other_side, row.key))
        if self.operator_time < latest:
            self.cache[row.slot].append(row)
            if row.slot not in self.timers:
                self._register_timer(row)
            row.leaves_at = max(self._expires_at(row), self.timers[row.slot][0])
        else:
            self._remove(row)

    def advance_watermark(self, watermark: int) -> None:
        """Fire the timers that a watermark reaches."""
        self.watermark = max(self.watermark, watermark)
        while self.timer_queue and self.timer_queue[0][0] <= self.watermark:
            self._fire_timer(heapq.heappop(self.timer_queue)[1])

    def _fire_timer(self, slot: _Slot) -> None:
        _, row = self.timers.pop(slot)
        if row.gone_in is not None:
            row.eviction_slice = self.slice_number
        self._record_cleanup(slot[0])
        self._remove_expired(slot)
        oldest: _Row | None = None
        for row in self.cache[slot]:
            if oldest is None or row.event_time < oldest.event_time or oldest.event_time < 0:
                oldest = row
        if oldest and oldest.event_time > 0:
            self._register_timer(oldest)
        else:  # the engine takes a time of 0 or below for "no row left", and loses the rows there are
            for row in self.cache.pop(slot):
                row.eviction_slice = self.slice_number

    def _register_timer(self, row: _Row) -> None:
        time = self._expires_at(row) + self.min_cleanup
        self.timers[row.slot] = time, row
        heapq.heappush(self.timer_queue, (time, row.slot))
        row.timed_from = self.slice_number if row.timed_from is None else row.timed_from

    def _expires_at(self, row: _Row) -> int:
        return row.event_time + self.waits[row.side] + self.lateness + 1

    def _get_expiration_time(self, side: str) -> int:
        """The event time up to which rows of a side have been removed; the engine begins with 0."""
        last_cleanup = self.last_cleanup[side]
        return 0 if last_cleanup == NO_WATERMARK else last_cleanup - self.waits[side] - self.lateness - 1

    def _record_cleanup(self, side: str) -> None:
        self.last_cleanup[side] = self.operator_time

    def _remove_expired(self, slot: _Slot) -> None:
        rows, expiration_time = self.cache[slot], self._get_expiration_time(slot[0])
        self.cache[slot] = [row for row in rows if row.event_time > expiration_time]
        for row in rows:
            if row.event_time <= expiration_time:
                self._remove(row)

    def _remove(self, row: _Row) -> None:
        """Out of the cache, or never in it. A row whose timer still stands is carried on for that."""
        timer = self.timers.get(row.slot)
        if timer and timer[1] is row:
            row.gone_in = self.slice_number
        else:
            row.eviction_slice = self.slice_number
        if row.side in self.padded_sides and row.matched_in is None:
            left, right = (row.offset, None) if row.side == "left" else (None, row.offset)
            self.emissions.append((f"padded_{row.side}", left, right, self.slice_number))

    def _emit_match(self, row: _Row, partner: _Row) -> None:
        for matched_row in (row, partner):
            matched_row.matched_in = self.slice_number if matched_row.matched_in is None else matched_row.matched_in
        left, right = (row, partner) if row.side == "left" else (partner, row)
        self.emissions.append(("matched", left.offset, right.offset, self.slice_number))


def _replay_lane(table: pa.Table, timeline: Timeline, first_slice: int, schema: pa.Schema) -> pa.Table:
    """One lane, in the order of arrival."""
    table = table.sort_by([(name, "ascending") for name in _ARRIVAL_ORDER])
    params = {name: table[name][0].as_py() for name in ("lower", "upper", "lateness", "min_cleanup")}
    initial = timeline.end_watermarks[first_slice]
    operator = _Operator(
        waits={"left": params["upper"], "right": -params["lower"]},
        padded_sides=frozenset(side for side in OTHER if table[f"pads_{side}"][0].as_py()),
        lateness=params["lateness"],
        min_cleanup=params["min_cleanup"],
        watermark=timeline.combined_at_end[first_slice - 1],
        last_cleanup={"left": initial.left_last_cleanup, "right": initial.right_last_cleanup},
        combined_by_epoch=timeline.combined_by_epoch,
        slice_number=first_slice - 1,
    )
    rows, arrival_watermarks = list(_read_rows(table)), table["watermark"].to_pylist()
    operator.restore([row for row in rows if row.slice < first_slice])
    new_rows = iter([row for row in rows if row.slice >= first_slice])
    row, cleanups = next(new_rows, None), []
    for slice_number in timeline.end_watermarks:
        operator.slice_number = slice_number
        while row and row.slice == slice_number:
            operator.restart_until(row.epoch)
            operator.advance_watermark(arrival_watermarks[row.offset])
            if row.rejected is None:
                operator.process_row(row)
            row = next(new_rows, None)
        operator.restart_until(timeline.epoch_at_end.get(slice_number, 0))
        operator.advance_watermark(timeline.combined_at_end[slice_number])
        cleanups.append((slice_number, operator.last_cleanup["left"], operator.last_cleanup["right"]))
    participating = [row for row in rows if row.rejected is None]
    if not any(table["off_the_path"].to_pylist()):
        for row in participating:
            row.timed_from = None  # timers follow from `leaves_at`, and a state is the same whichever way it came about
    states = _build_states(table.take([row.offset for row in participating]), participating, schema)
    outputs = states, _build_emissions(table, operator, schema), _build_cleanups(cleanups, table, schema)
    return pa.concat_tables(outputs)


def _read_rows(table: pa.Table) -> Iterator[_Row]:
    columns = (table[name].to_pylist() for name in _INPUT_COLUMNS)
    for offset, values in enumerate(zip(*columns, strict=True)):
        fields: dict[str, Any] = dict(zip(_INPUT_COLUMNS, values, strict=True))
        fields["mates"] = None if fields["mates"] is None else frozenset(fields["mates"])
        yield _Row(offset, **fields)


def _build_states(table: pa.Table, rows: list[_Row], schema: pa.Schema) -> pa.Table:
    labels = {name: pa.array([getattr(row, name) for row in rows], pa.int64()) for name in _OUTPUT_COLUMNS}
    return _build_table(table, {**labels, "role": pa.array(["state"] * len(rows))}, schema)


def _build_emissions(table: pa.Table, operator: _Operator, schema: pa.Schema) -> pa.Table:
    left_offsets, right_offsets = (
        pa.array([emitted[side] for emitted in operator.emissions], pa.int64()) for side in (1, 2)
    )
    columns = {
        "role": pa.array([emitted[0] for emitted in operator.emissions], pa.string()),
        "slice": pa.array([emitted[3] for emitted in operator.emissions], pa.int64()),
        "left": table["left"].take(left_offsets),
        "right": table["right"].take(right_offsets),
    }
    return _build_table(table.slice(0, 0), columns, schema)


def _build_cleanups(cleanups: list[tuple[int, int, int]], table: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = dict(
        zip(
            ("slice", "left_last_cleanup", "right_last_cleanup"),
            map(pa.array, zip(*cleanups, strict=True)),
            strict=True,
        )
    )
    lanes = pa.array([table["lane"][0].as_py()] * len(cleanups), schema.field("lane").type)
    return _build_table(
        table.slice(0, 0), {**columns, "lane": lanes, "role": pa.array(["end"] * len(cleanups))}, schema
    )


def _build_table(rows: pa.Table, columns: dict[str, pa.Array], schema: pa.Schema) -> pa.Table:
    """Rows with other columns in place of some, or these columns alone where there are no rows; null for the rest."""
    size = len(columns["role"])
    row_columns = {name: rows[name] for name in rows.column_names} if len(rows) else {}
    all_columns = {**row_columns, **columns}
    arrays = [
        _cast_to(all_columns[f.name], f.type) if f.name in all_columns else pa.nulls(size, f.type) for f in schema
    ]
    return pa.table(arrays, schema=schema)


def _cast_to(column: pa.Array, dtype: pa.DataType) -> pa.Array:
    # Arrow casts no struct that is null somewhere and has a column that must not be, to its own type either.
    return column if column.type == dtype else column.cast(dtype)
