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

_OUTPUTS = T.StructType([
    T.StructField("role", T.StringType()),
    T.StructField("left_last_cleanup", T.LongType()),
    T.StructField("right_last_cleanup", T.LongType()),
])  # fmt: skip
_STATE = ("matched_in", "leaves_at", "timed_from", "gone_in", "eviction_slice")
_READ = ("side", "key", "keyless", "event_time", "mark", "slice", "epoch", "mates", "rejected", *_STATE[:-1])
_ORDER = ("clock", "tiebreak", "watermark", "side", "event_time")
"""Rows at one place have met one watermark, unless each has recorded its own."""
_Slot = tuple[str, str]


def replay_lanes(rows: DataFrame, lines: Mapping[int, Timeline], first: int) -> DataFrame:
    """Replay whole lanes; `lines` are theirs, and `first` is the first slice of the job.

    Takes rows of both sides, carried ones too, with the parameters of their lane (`lower`, `upper`, `lateness`,
    `min_cleanup`, `pads_left`, `pads_right`), the `epoch` in which they came, the text of their key (`key`), whether it
    is null (`keyless`), their `mark`, and on the right the marks of all left rows that meet the join's condition
    (`mates`; null without one).

    Rows that are `rejected` take no part, and bring the watermark that they met.

    Gives rows with a `role`: `state` for each row taken, with its labels filled in; `matched`, `padded_left` and
    `padded_right` for emissions; and `end` for each slice, with the watermarks at which each side was last swept.
    """
    schema = T.StructType([*(T.StructField(f.name, f.dataType) for f in rows.schema), *_OUTPUTS])
    arrow = to_arrow_schema(schema)
    lines = {lane: replace(line, buckets=line.buckets.iloc[:0]) for lane, line in lines.items()}  # sent to each worker

    def replayed(key: tuple[Any, ...], table: pa.Table) -> pa.Table:
        return _replayed(table, lines[key[0].as_py()], first, arrow)

    return rows.groupBy("lane").applyInArrow(replayed, schema)


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

    def meets(self, other: _Row) -> bool:
        """Whether keys and the join's condition let two rows of different sides match."""
        left, right = (self, other) if self.side == "left" else (other, self)
        return not self.keyless and (right.mates is None or left.mark in right.mates)


@dataclass
class _Operator:
    """The engine's operator: semantics as in `flink_sql.IntervalRules`, step by step."""

    waits: dict[str, int]
    outer: frozenset[str]
    lateness: int
    min_cleanup: int
    watermark: int
    last_cleanup: dict[str, int]
    """Per side, the watermark at which expired rows of any key were last removed."""
    epochs: Sequence[Mapping[int, int]] = ()
    """How far the watermark of each execution of the job comes by the end of each slice, if it restarts."""
    epoch: int = 0
    """The execution at hand."""
    number: int = 0
    """The slice at hand."""
    emitted: list[tuple[str, int | None, int | None, int]] = field(default_factory=list)
    """Role, offsets of the left and the right row, slice."""
    cache: defaultdict[_Slot, list[_Row]] = field(default_factory=lambda: defaultdict(list))
    timers: dict[_Slot, tuple[int, _Row]] = field(default_factory=dict)
    """A slot's timer and the row that it was set for."""
    queue: list[tuple[int, _Slot]] = field(default_factory=list)

    @property
    def now(self) -> int:
        return max(self.watermark, 0)

    def restore(self, rows: list[_Row]) -> None:
        """The state that the slice before has carried: rows, and the timers that some of them stand for."""
        for row in rows:
            if row.gone_in is None:
                self.cache[row.slot].append(row)
            if row.timed_from is not None:
                self._set_timer(row)
        for row in sorted(rows, key=lambda row: row.event_time):
            if row.slot not in self.timers and row.leaves_at == self._expires_at(row):
                self._set_timer(row)

    def restart_for(self, epoch: int) -> None:
        """The job fails as often as it takes to come to an epoch: caches and timers are recovered, fields are not."""
        for ended in self.epochs[self.epoch : epoch]:
            self.advance(ended[self.number])
            self.watermark, self.last_cleanup = NO_WATERMARK, dict.fromkeys(OTHER, NO_WATERMARK)
        self.epoch = max(self.epoch, epoch)

    def arrive(self, row: _Row) -> None:
        """A row, before its own watermark."""
        other = OTHER[row.side]
        first, last = row.event_time - self.waits[other], row.event_time + self.waits[row.side]
        if self._expired(other) < last:
            self._note_cleanup(other)
            for met in self.cache[other, row.key]:  # expired or not: a row still there is still joined
                if first <= met.event_time <= last and row.meets(met):
                    self._match(row, met)
            self._remove_expired((other, row.key))
        if self.now < last:
            self.cache[row.slot].append(row)
            if row.slot not in self.timers:
                self._set_timer(row)
            row.leaves_at = max(self._expires_at(row), self.timers[row.slot][0])
        else:
            self._leave(row)

    def advance(self, watermark: int) -> None:
        """Fire the timers that a watermark reaches."""
        self.watermark = max(self.watermark, watermark)
        while self.queue and self.queue[0][0] <= self.watermark:
            self._clean(heapq.heappop(self.queue)[1])

    def _clean(self, slot: _Slot) -> None:
        _, row = self.timers.pop(slot)
        if row.gone_in is not None:
            row.eviction_slice = self.number
        self._note_cleanup(slot[0])
        self._remove_expired(slot)
        earliest: _Row | None = None
        for row in self.cache[slot]:
            if earliest is None or row.event_time < earliest.event_time or earliest.event_time < 0:
                earliest = row
        if earliest and earliest.event_time > 0:
            self._set_timer(earliest)
        else:  # the engine takes a time of 0 or below for "no row left", and loses the rows there are
            for row in self.cache.pop(slot):
                row.eviction_slice = self.number

    def _set_timer(self, row: _Row) -> None:
        time = self._expires_at(row) + self.min_cleanup
        self.timers[row.slot] = time, row
        heapq.heappush(self.queue, (time, row.slot))
        row.timed_from = self.number if row.timed_from is None else row.timed_from

    def _expires_at(self, row: _Row) -> int:
        return row.event_time + self.waits[row.side] + self.lateness + 1

    def _expired(self, side: str) -> int:
        """The event time up to which rows of a side have been removed; the engine begins with 0."""
        swept = self.last_cleanup[side]
        return 0 if swept == NO_WATERMARK else swept - self.waits[side] - self.lateness - 1

    def _note_cleanup(self, side: str) -> None:
        self.last_cleanup[side] = self.now

    def _remove_expired(self, slot: _Slot) -> None:
        rows, limit = self.cache[slot], self._expired(slot[0])
        self.cache[slot] = [row for row in rows if row.event_time > limit]
        for row in rows:
            if row.event_time <= limit:
                self._leave(row)

    def _leave(self, row: _Row) -> None:
        """Out of the cache, or never in it. A row whose timer still stands is carried on for that."""
        timed = self.timers.get(row.slot)
        if timed and timed[1] is row:
            row.gone_in = self.number
        else:
            row.eviction_slice = self.number
        if row.side in self.outer and row.matched_in is None:
            left, right = (row.offset, None) if row.side == "left" else (None, row.offset)
            self.emitted.append((f"padded_{row.side}", left, right, self.number))

    def _match(self, row: _Row, met: _Row) -> None:
        for one in (row, met):
            one.matched_in = self.number if one.matched_in is None else one.matched_in
        left, right = (row, met) if row.side == "left" else (met, row)
        self.emitted.append(("matched", left.offset, right.offset, self.number))


def _replayed(table: pa.Table, line: Timeline, first: int, schema: pa.Schema) -> pa.Table:
    """One lane, in the order of arrival."""
    table = table.sort_by([(name, "ascending") for name in _ORDER])
    param = {name: table[name][0].as_py() for name in ("lower", "upper", "lateness", "min_cleanup")}
    begin = line.end_watermarks[first]
    operator = _Operator(
        waits={"left": param["upper"], "right": -param["lower"]},
        outer=frozenset(side for side in OTHER if table[f"pads_{side}"][0].as_py()),
        lateness=param["lateness"],
        min_cleanup=param["min_cleanup"],
        watermark=line.combined_at_end[first - 1],
        last_cleanup={"left": begin.left_last_cleanup, "right": begin.right_last_cleanup},
        epochs=line.combined_by_epoch,
        number=first - 1,
    )
    rows, met = list(_rows(table)), table["watermark"].to_pylist()
    operator.restore([row for row in rows if row.slice < first])
    new = iter([row for row in rows if row.slice >= first])
    row, ends = next(new, None), []
    for number in line.end_watermarks:
        operator.number = number
        while row and row.slice == number:
            operator.restart_for(row.epoch)
            operator.advance(met[row.offset])
            if row.rejected is None:
                operator.arrive(row)
            row = next(new, None)
        operator.restart_for(line.epoch_at_end.get(number, 0))
        operator.advance(line.combined_at_end[number])
        ends.append((number, operator.last_cleanup["left"], operator.last_cleanup["right"]))
    took = [row for row in rows if row.rejected is None]
    if not any(table["off_the_path"].to_pylist()):
        for row in took:
            row.timed_from = None  # timers follow from `leaves_at`, and a state is the same whichever way it came about
    states = _states(table.take([row.offset for row in took]), took, schema)
    parts = states, _emissions(table, operator, schema), _ends(ends, table, schema)
    return pa.concat_tables(parts)


def _rows(table: pa.Table) -> Iterator[_Row]:
    columns = (table[name].to_pylist() for name in _READ)
    for offset, values in enumerate(zip(*columns, strict=True)):
        known: dict[str, Any] = dict(zip(_READ, values, strict=True))
        known["mates"] = None if known["mates"] is None else frozenset(known["mates"])
        yield _Row(offset, **known)


def _states(table: pa.Table, rows: list[_Row], schema: pa.Schema) -> pa.Table:
    labels = {name: pa.array([getattr(row, name) for row in rows], pa.int64()) for name in _STATE}
    return _table(table, {**labels, "role": pa.array(["state"] * len(rows))}, schema)


def _emissions(table: pa.Table, operator: _Operator, schema: pa.Schema) -> pa.Table:
    lefts, rights = (pa.array([emitted[side] for emitted in operator.emitted], pa.int64()) for side in (1, 2))
    columns = {
        "role": pa.array([emitted[0] for emitted in operator.emitted], pa.string()),
        "slice": pa.array([emitted[3] for emitted in operator.emitted], pa.int64()),
        "left": table["left"].take(lefts),
        "right": table["right"].take(rights),
    }
    return _table(table.slice(0, 0), columns, schema)


def _ends(ends: list[tuple[int, int, int]], table: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = dict(
        zip(("slice", "left_last_cleanup", "right_last_cleanup"), map(pa.array, zip(*ends, strict=True)), strict=True)
    )
    lane = pa.array([table["lane"][0].as_py()] * len(ends), schema.field("lane").type)
    return _table(table.slice(0, 0), {**columns, "lane": lane, "role": pa.array(["end"] * len(ends))}, schema)


def _table(rows: pa.Table, columns: dict[str, pa.Array], schema: pa.Schema) -> pa.Table:
    """Rows with other columns in place of some, or these columns alone where there are no rows; null for the rest."""
    size = len(columns["role"])
    taken = {name: rows[name] for name in rows.column_names} if len(rows) else {}
    known = {**taken, **columns}
    arrays = [_of_type(known[f.name], f.type) if f.name in known else pa.nulls(size, f.type) for f in schema]
    return pa.table(arrays, schema=schema)


def _of_type(column: pa.Array, kind: pa.DataType) -> pa.Array:
    # Arrow casts no struct that is null somewhere and has a column that must not be, to its own type either.
    return column if column.type == kind else column.cast(kind)
