"""Simulate Flink SQL's interval join row by row, for lanes without a closed form.

A lane is sorted by arrival and simulated in one task. `_Operator` follows the steps of `RowTimeIntervalJoin`: it
advances the watermark, looks up partners, and then caches the row.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from tidemark.config.sides import OTHER, SIDES
from tidemark.joins.base import POSITION_TYPE
from tidemark.joins.emission_order import AFTER_LOOKUP
from tidemark.watermarks.lanes import Timeline
from tidemark.watermarks.recorded_watermark_lane import PRECEDING_WATERMARK
from tidemark.watermarks.values import NO_WATERMARK

_EXTRA_FIELDS = T.StructType([
    T.StructField("role", T.StringType()),
    T.StructField("left_last_cleanup", T.LongType()),
    T.StructField("right_last_cleanup", T.LongType()),
    T.StructField("emitting_row", POSITION_TYPE),
    T.StructField("emitting_watermark", T.LongType()),
    T.StructField("emission_order", T.ArrayType(T.LongType())),
])  # fmt: skip
_OUTPUT_COLUMNS = ("first_match_slice", "cleanup_time", "timer_slice", "removal_slice", "eviction_slice")
_INPUT_COLUMNS = (
    "side",
    "key",
    "has_null_key",
    "event_time",
    "match_hash",
    "slice",
    "clock",
    "tiebreak",
    "order_in_event",
    "epoch",
    "condition_matches",
    "rejected",
    *_OUTPUT_COLUMNS[:-1],
)
_CacheKey = tuple[str, str]
"""Side, and join key as JSON."""


def simulate_lanes(
    rows: DataFrame, timelines: Mapping[int, Timeline], last_cleanups: Mapping[int, dict[str, int]], first_slice: int
) -> DataFrame:
    """Simulate lanes, each in one task.

    Args:
        rows: New and carried rows of both sides with these columns:

            - `lower`, `upper`, `lateness`, `min_cleanup`, `pads_left`, `pads_right`: parameters of the lane.
            - `epoch`: the epoch of the row's arrival.
            - `key`: its key as JSON, and `has_null_key`.
            - `match_hash`: see `match_tracking`.
            - `condition_matches`: for right rows, the match hashes of the left rows that meet the join's condition with
              it; null if there is no condition.
            - `arrival_number`: its number in order of arrival, carried and rejected rows included.
            - `rejected`: not null for rows that only advance the watermark.
            - `watermark`: the watermark at its arrival, ms.
            - `preceding_watermark`: the watermark right before the row raised it by a record of its own, ms.
        timelines: The timelines by lane.
        last_cleanups: Last cleanup of each side before the job, by lane.
        first_slice: First slice of the job.

    Returns:
        Rows with a `role`: `state` for each participating row, with its carried columns and `eviction_slice`;
        `matched`, `padded_left` or `padded_right` for an emission, with `EMITTING_EVENT_COLUMNS`; `end` for each slice,
        with the last cleanup of each side.
    """
    schema = T.StructType([*(T.StructField(f.name, f.dataType) for f in rows.schema), *_EXTRA_FIELDS])
    arrow_schema = to_arrow_schema(schema)
    # Timelines are serialized to each worker, which needs no buckets.
    timelines = {lane: replace(line, buckets=line.buckets.iloc[:0]) for lane, line in timelines.items()}

    def simulate_table(key: tuple[Any, ...], table: pa.Table) -> pa.Table:
        lane = key[0].as_py()
        return _simulate_lane(table, timelines[lane], last_cleanups[lane], first_slice, arrow_schema)

    return rows.groupBy("lane").applyInArrow(simulate_table, schema)


@dataclass(slots=True, eq=False)
class _Row:
    offset: int
    """Row number in the table."""
    side: str
    key: str
    has_null_key: bool
    event_time: int
    match_hash: int
    slice: int
    clock: int
    tiebreak: int
    order_in_event: list[int]
    """Order among the rows that one event of the previous join emits."""
    epoch: int
    condition_matches: frozenset[int] | None
    rejected: str | None
    first_match_slice: int | None
    cleanup_time: int | None
    timer_slice: int | None
    removal_slice: int | None
    eviction_slice: int | None = None

    @property
    def cache_key(self) -> _CacheKey:
        return self.side, self.key

    def order_in_lookup(self, *, is_removed: bool) -> list[int]:
        """Return its order among the cached rows that a lookup matches or removes, as `order_of_lookup` does."""
        return [int(is_removed), self.event_time, self.clock, self.tiebreak, *self.order_in_event]

    def can_match(self, partner: _Row) -> bool:
        """Return True if two rows of equal keys match, times aside."""
        left, right = (self, partner) if self.side == "left" else (partner, self)
        return not self.has_null_key and (right.condition_matches is None or left.match_hash in right.condition_matches)


class _Emission(NamedTuple):
    role: str
    left: int | None
    """Offset of the left row."""
    right: int | None
    """Offset of the right row."""
    slice: int
    emitting_row: dict[str, int] | None
    """Position of the row that emits it."""
    emitting_watermark: int | None
    """Time of the timer that emits it, if no row does, ms."""
    emission_order: list[int]
    """Order among the rows that the event emits."""


@dataclass
class _Operator:
    """State and steps of `RowTimeIntervalJoin`; for the rules see `flink_sql.IntervalRules`."""

    wait_by_side: dict[str, int]
    padded_sides: frozenset[str]
    lateness: int
    min_cleanup: int
    watermark: int
    last_cleanup: dict[str, int]
    """Operator time of the last cleanup by side, shared by all keys."""
    combined_by_epoch: Sequence[Mapping[int, int]] = ()
    """Watermark of each epoch at the end of each slice, if the job restarts."""
    epoch: int = 0
    """Current epoch."""
    slice_number: int = 0
    """Current slice."""
    emissions: list[_Emission] = field(default_factory=list)
    caches: defaultdict[_CacheKey, list[_Row]] = field(default_factory=lambda: defaultdict(list))
    timers: dict[_CacheKey, tuple[int, _Row]] = field(default_factory=dict)
    """Timer of each cache, and the row that it was set for."""
    timer_queue: list[tuple[int, _CacheKey]] = field(default_factory=list)
    current_row: _Row | None = None
    """Row that is processed, if no timer is."""
    current_timer: int | None = None
    """Time of the timer that fires."""

    @property
    def operator_time(self) -> int:
        return max(self.watermark, 0)

    def restore(self, rows: list[_Row]) -> None:
        """Restore the carried rows and their timers.

        A timer without a recorded `timer_slice`, as in the closed form, is that of the oldest row with
        `cleanup_time = expires_at`; see `cleanup_timers`.
        """
        for row in rows:
            if row.removal_slice is None:
                self.caches[row.cache_key].append(row)
            if row.timer_slice is not None:
                self._set_timer(row)
        for row in sorted(rows, key=lambda row: row.event_time):
            if row.cache_key not in self.timers and row.cleanup_time == self._expires_at(row):
                self._set_timer(row)

    def restart_until(self, epoch: int) -> None:
        """Restart the job until it is in an epoch.

        Each epoch ends with its last watermark. Caches and timers are recovered, but the watermark and the last
        cleanups are fields of the operator that no checkpoint contains.
        """
        for watermarks in self.combined_by_epoch[self.epoch : epoch]:
            self.advance_watermark(watermarks[self.slice_number])
            self.watermark = NO_WATERMARK
            self.last_cleanup = dict.fromkeys(SIDES, NO_WATERMARK)
        self.epoch = max(self.epoch, epoch)

    def process_row(self, row: _Row) -> None:
        """Look up a row's partners, and cache the row."""
        self.current_row, self.current_timer = row, None
        other_side = OTHER[row.side]
        earliest, latest = row.event_time - self.wait_by_side[other_side], row.event_time + self.wait_by_side[row.side]
        if self._get_expiration_time(other_side) < latest:
            self._record_cleanup(other_side)
            for cached_row in self.caches[other_side, row.key]:  # an expired row matches once more before it is removed
                if earliest <= cached_row.event_time <= latest and row.can_match(cached_row):
                    self._emit_match(row, cached_row)
            self._remove_expired((other_side, row.key))
        if self.operator_time < latest:
            self.caches[row.cache_key].append(row)
            if row.cache_key not in self.timers:
                self._register_timer(row)
            row.cleanup_time = max(self._expires_at(row), self.timers[row.cache_key][0])
        else:
            self._remove(row)

    def advance_watermark(self, watermark: int) -> None:
        """Advance the watermark, and fire the timers that it reaches (inclusive)."""
        self.watermark = max(self.watermark, watermark)
        while self.timer_queue and self.timer_queue[0][0] <= self.watermark:
            self.current_row = None
            self.current_timer, cache_key = heapq.heappop(self.timer_queue)
            self._fire_timer(cache_key)

    def _fire_timer(self, cache_key: _CacheKey) -> None:
        _, row = self.timers.pop(cache_key)
        if row.removal_slice is not None:
            row.eviction_slice = self.slice_number
        self._record_cleanup(cache_key[0])
        self._remove_expired(cache_key)
        oldest: _Row | None = None
        for row in self.caches[cache_key]:
            if oldest is None or row.event_time < oldest.event_time or oldest.event_time < 0:
                oldest = row
        if oldest and oldest.event_time > 0:
            self._register_timer(oldest)
        else:  # Flink takes a time of 0 or below for "no row left", and drops the whole cache without padding
            for row in self.caches.pop(cache_key):
                row.eviction_slice = self.slice_number

    def _register_timer(self, row: _Row) -> None:
        """Set the timer of a cache for a row, and record its slice if `restore` could not derive it otherwise."""
        self._set_timer(row)
        is_derivable = not self.min_cleanup and all(
            cached_row.event_time > 0 for cached_row in self.caches[row.cache_key]
        )
        if row.timer_slice is None and not is_derivable:
            row.timer_slice = self.slice_number

    def _set_timer(self, row: _Row) -> None:
        time = self._expires_at(row) + self.min_cleanup
        self.timers[row.cache_key] = time, row
        heapq.heappush(self.timer_queue, (time, row.cache_key))

    def _expires_at(self, row: _Row) -> int:
        return row.event_time + self.wait_by_side[row.side] + self.lateness + 1

    def _get_expiration_time(self, side: str) -> int:
        """Return the event time up to which rows of a side have been removed (inclusive), initially 0."""
        last_cleanup = self.last_cleanup[side]
        return 0 if last_cleanup == NO_WATERMARK else last_cleanup - self.wait_by_side[side] - self.lateness - 1

    def _record_cleanup(self, side: str) -> None:
        self.last_cleanup[side] = self.operator_time

    def _remove_expired(self, cache_key: _CacheKey) -> None:
        rows = self.caches[cache_key]
        expiration_time = self._get_expiration_time(cache_key[0])
        self.caches[cache_key] = [row for row in rows if row.event_time > expiration_time]
        for row in rows:
            if row.event_time <= expiration_time:
                self._remove(row)

    def _remove(self, row: _Row) -> None:
        """Evict a row, padded if it has no match. A row with a pending timer is carried until that fires."""
        timer = self.timers.get(row.cache_key)
        if timer and timer[1] is row:
            row.removal_slice = self.slice_number
        else:
            row.eviction_slice = self.slice_number
        if row.side in self.padded_sides and row.first_match_slice is None:
            left, right = (row.offset, None) if row.side == "left" else (None, row.offset)
            is_emitted_by_itself = row is self.current_row
            order = [AFTER_LOOKUP] if is_emitted_by_itself else row.order_in_lookup(is_removed=True)
            self._emit(f"padded_{row.side}", left, right, order)

    def _emit_match(self, row: _Row, partner: _Row) -> None:
        for matched_row in (row, partner):
            matched_row.first_match_slice = (
                self.slice_number if matched_row.first_match_slice is None else matched_row.first_match_slice
            )
        left, right = (row, partner) if row.side == "left" else (partner, row)
        self._emit("matched", left.offset, right.offset, partner.order_in_lookup(is_removed=False))

    def _emit(self, role: str, left: int | None, right: int | None, order: list[int]) -> None:
        row, timer = self.current_row, self.current_timer
        position = {"clock": row.clock, "tiebreak": row.tiebreak} if row else None
        emission_order = [*(row.order_in_event if row else []), *([] if timer is None else [timer]), *order]
        self.emissions.append(_Emission(role, left, right, self.slice_number, position, timer, emission_order))


def _simulate_lane(
    table: pa.Table, timeline: Timeline, last_cleanups: dict[str, int], first_slice: int, schema: pa.Schema
) -> pa.Table:
    """Simulate one lane in order of arrival."""
    table = table.sort_by("arrival_number")
    params = {name: table[name][0].as_py() for name in ("lower", "upper", "lateness", "min_cleanup")}
    operator = _Operator(
        wait_by_side={"left": params["upper"], "right": -params["lower"]},
        padded_sides=frozenset(side for side in SIDES if table[f"pads_{side}"][0].as_py()),
        lateness=params["lateness"],
        min_cleanup=params["min_cleanup"],
        watermark=timeline.combined_at_end[first_slice - 1],
        last_cleanup=dict(last_cleanups),
        combined_by_epoch=timeline.combined_by_epoch,
        slice_number=first_slice - 1,
    )
    rows = list(_read_rows(table))
    arrival_watermarks = list(zip(table[PRECEDING_WATERMARK].to_pylist(), table["watermark"].to_pylist(), strict=True))
    operator.restore([row for row in rows if row.slice < first_slice])
    new_rows = iter([row for row in rows if row.slice >= first_slice])
    row = next(new_rows, None)
    cleanups = []
    for slice_number in timeline.end_watermarks:
        operator.slice_number = slice_number
        while row and row.slice == slice_number:
            operator.restart_until(row.epoch)
            for watermark in arrival_watermarks[row.offset]:
                operator.advance_watermark(watermark)
            if row.rejected is None:
                operator.process_row(row)
            row = next(new_rows, None)
        operator.restart_until(timeline.epoch_at_end.get(slice_number, 0))
        operator.advance_watermark(timeline.combined_at_end[slice_number])
        cleanups.append((slice_number, operator.last_cleanup["left"], operator.last_cleanup["right"]))
    participating = [row for row in rows if row.rejected is None]
    states = _build_states(table.take([row.offset for row in participating]), participating, schema)
    outputs = states, _build_emissions(table, operator, schema), _build_cleanups(cleanups, table, schema)
    return pa.concat_tables(outputs)


def _read_rows(table: pa.Table) -> Iterator[_Row]:
    columns = (table[name].to_pylist() for name in _INPUT_COLUMNS)
    for offset, values in enumerate(zip(*columns, strict=True)):
        fields: dict[str, Any] = dict(zip(_INPUT_COLUMNS, values, strict=True))
        fields["condition_matches"] = (
            None if fields["condition_matches"] is None else frozenset(fields["condition_matches"])
        )
        yield _Row(offset, **fields)


def _build_states(table: pa.Table, rows: list[_Row], schema: pa.Schema) -> pa.Table:
    labels = {name: pa.array([getattr(row, name) for row in rows], pa.int64()) for name in _OUTPUT_COLUMNS}
    return _build_table(table, {**labels, "role": pa.array(["state"] * len(rows))}, schema)


def _build_emissions(table: pa.Table, operator: _Operator, schema: pa.Schema) -> pa.Table:
    names = ("role", "slice", "emitting_row", "emitting_watermark", "emission_order")
    columns = {
        name: pa.array([getattr(emission, name) for emission in operator.emissions], schema.field(name).type)
        for name in names
    }
    for side in SIDES:
        offsets = pa.array([getattr(emission, side) for emission in operator.emissions], pa.int64())
        columns[side] = table[side].take(offsets)
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
    """Return rows with some columns replaced, or only these columns if there are no rows; null for the rest."""
    size = len(columns["role"])
    row_columns = {name: rows[name] for name in rows.column_names} if len(rows) else {}
    all_columns = {**row_columns, **columns}
    arrays = [
        _cast_to(all_columns[f.name], f.type) if f.name in all_columns else pa.nulls(size, f.type) for f in schema
    ]
    return pa.table(arrays, schema=schema)


def _cast_to(column: pa.Array, dtype: pa.DataType) -> pa.Array:
    # Arrow refuses to cast a struct with nulls and a non-nullable field, even to its own type.
    return column if column.type == dtype else column.cast(dtype)
