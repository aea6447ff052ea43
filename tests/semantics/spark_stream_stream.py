"""Spark's stream-stream join, one micro-batch at a time, by semantics/spark.md.

Event times are microseconds; watermarks, delays and derived values are milliseconds, as in the engine.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from operator import ge, gt, le, lt

MS = 1000
OTHER = {"left": "right", "right": "left"}
PRESERVED = {"inner": (), "leftsemi": (), "left": ("left",), "right": ("right",), "full": ("left", "right")}
ANY_GAP = (-math.inf, math.inf)


@dataclass(eq=False)
class Row:
    side: str
    id: int
    key: str | None
    ts: int | None
    v: int | None
    window_start: int | None = None
    value: int | None = None  # value for lateness and eviction: ts, or the end of the window
    matched: bool = False


Pair = tuple[Row | None, Row | None]  # left, right


@dataclass
class Oracle:
    """Feed batches (a no-data batch is empty); each returns its output and the number of late rows dropped."""

    join_type: str
    policy: Callable[..., int]  # combines the inputs' watermarks: min or max
    is_late_by_previous_batch: bool  # late by the previous batch's watermark, not this batch's
    delay: dict[str, int]  # only sides with a watermark
    windows: dict[str, tuple[int, int]]  # size and slide, by side; none, or both
    compared: Callable[[tuple, tuple], bool] | None  # compares left and right windows; None if they are part of the key
    event_time_equality: bool  # equality on ts is part of the key
    gap: tuple[float, float]  # of right.ts - left.ts, inclusive
    wait: dict[str, int]  # distance from the watermark to evicted rows, for sides with a bound
    at_least: dict[str, int]  # ON conjuncts v >= n, by side
    at_most: dict[str, int]
    v_differs: bool
    watermark: int = 0
    previous_watermark: int = 0
    inputs: dict[str, int] = field(default_factory=lambda: {"left": 0, "right": 0})  # 0 before the first row
    state: dict[str, list[Row]] = field(default_factory=lambda: {"left": [], "right": []})

    @property
    def preserved(self) -> tuple[str, ...]:
        return PRESERVED[self.join_type]

    @property
    def wants_no_data_batch(self) -> bool:
        evicts = any(self._state_watermark(side) is not None for side in OTHER)
        return evicts and self.watermark > self.previous_watermark

    def feed(self, rows: Iterable[Row]) -> tuple[list[Pair], int]:
        unfiltered = [row for row in rows if self._passes_filter(row)]
        prepared = [part for row in unfiltered for part in self._explode(row)]
        accepted = [row for row in prepared if not self._is_late(row)]
        output = []
        for side in ("left", "right"):  # right rows find this batch's left rows in the state
            for row in accepted:
                if row.side == side:
                    output += self._join(row)
        output += self._evict("left") + self._evict("right")
        self._advance(unfiltered)
        return output, len(prepared) - len(accepted)

    def _passes_filter(self, row: Row) -> bool:
        """True unless ON conjuncts over one side filter a row before its watermark, as for sides without padding."""
        if row.side in self.preserved:
            return row.ts is not None or not self.windows  # window() filters null on every side
        compared = self.windows or self.event_time_equality or self.gap != ANY_GAP
        null = row.key is None or (compared and row.ts is None) or (self.v_differs and row.v is None)
        return not (null or self._fails_alone(row))

    def _fails_alone(self, row: Row) -> bool:
        if row.v is None:
            return row.side in self.at_least or row.side in self.at_most
        return not self.at_least.get(row.side, row.v) <= row.v <= self.at_most.get(row.side, row.v)

    def _explode(self, row: Row) -> Iterable[Row]:
        if not self.windows:
            return [replace(row, value=row.ts)]
        size, slide = self.windows[row.side]
        starts = range(row.ts // slide * slide, row.ts - size, -slide)
        return [replace(row, window_start=start, value=start + size) for start in starts]

    def _is_late(self, row: Row) -> bool:
        watermark = self.previous_watermark if self.is_late_by_previous_batch else self.watermark
        return row.side in self.delay and row.value is not None and row.value <= watermark * MS

    def _join(self, row: Row) -> list[Pair]:
        if self._fails_alone(row):  # only preserved sides have such rows here: they are emitted at once, never stored
            return [_pair(row)]
        partners = [other for other in self.state[OTHER[row.side]] if self._matches(*_pair(row, other))]
        if self.join_type != "leftsemi":
            output = [_pair(row, other) for other in partners]
        elif row.side == "left":
            output = [_pair(row)] if partners else []
        else:
            output = [_pair(left) for left in partners if not left.matched]
        for matched_row in (row, *partners):
            matched_row.matched |= bool(partners)
        if not (self.join_type == "leftsemi" and row.side == "left" and row.matched):
            self.state[row.side].append(row)
        return output

    def _matches(self, left: Row, right: Row) -> bool:
        if self._join_key(left) != self._join_key(right):  # null equals null, which only full outer joins admit
            return False
        if self.v_differs and (left.v is None or right.v is None or left.v == right.v):
            return False
        if self.compared:
            return self.compared(*((row.window_start, row.value) for row in (left, right)))
        if self.gap == ANY_GAP:
            return True
        return None not in {left.ts, right.ts} and self.gap[0] <= right.ts - left.ts <= self.gap[1]

    def _join_key(self, row: Row) -> tuple:
        return row.key, None if self.compared else row.window_start, row.ts if self.event_time_equality else None

    def _state_watermark(self, side: str) -> int | None:
        """Return the value up to which rows of a side are evicted, None for never."""
        if (self.windows and not self.compared) or self.event_time_equality:
            # The key has the watermark, for the side without one too.
            return self.watermark if self.delay else None
        if len(self.delay) < len(OTHER):  # eviction needs a column of this side and a watermark of the other
            return None
        limits = [self.watermark - self.wait[side]] if side in self.wait else []
        if side in self.at_least and side in self.preserved:
            # Spark takes a conjunct v >= n that stays in ON as a bound of the event time, in seconds.
            limits.append(self.at_least[side] * 1000 - 1)
        return min(limits, default=None)

    def _evictable(self, row: Row) -> bool:
        limit = self._state_watermark(row.side)
        return limit is not None and row.value is not None and row.value <= limit * MS

    def _evict(self, side: str) -> list[Pair]:
        evicted = [row for row in self.state[side] if self._evictable(row)]
        self.state[side] = [row for row in self.state[side] if not self._evictable(row)]
        return [_pair(row) for row in evicted if side in self.preserved and not row.matched]

    def _advance(self, rows: list[Row]) -> None:
        for row in rows:
            if row.side in self.delay and row.ts is not None:  # the engine reads null as the epoch, which moves nothing
                self.inputs[row.side] = max(self.inputs[row.side], row.ts // MS - self.delay[row.side])
        self.previous_watermark = self.watermark
        self.watermark = self.policy((self.inputs[side] for side in self.delay), default=0)


def _pair(row: Row, other: Row | None = None) -> Pair:
    return (row, other) if row.side == "left" else (other, row)


def _starts(oracle: Oracle, left: Row | None, right: Row | None) -> dict[str, int | None]:
    if not oracle.compared:
        return {"window_start_ms": (left or right).window_start // MS} if oracle.windows else {}
    rows = {"window_start_ms": left, "right_window_start_ms": right}
    return {name: row and row.window_start // MS for name, row in rows.items()}


def create_oracle(vector: dict) -> Oracle:
    def by_side(name: str) -> dict[str, int]:
        values = {side: vector.get(name.format(side)) for side in OTHER}
        return {side: number for side, number in values.items() if number is not None}

    (least, greatest), wait, windows, bounds = (
        ANY_GAP,
        {},
        dict.fromkeys(OTHER, vector["window"]),
        vector["bounds"] or {},
    )
    if (lower := bounds.get("lower_ms")) is not None:
        least = lower * MS + (not bounds["lower_inclusive"])
        wait["right"] = -lower + bounds["lower_inclusive"]  # a whole ms longer, where a us would do
    if (upper := bounds.get("upper_ms")) is not None:
        greatest = upper * MS - (not bounds["upper_inclusive"])
        wait["left"] = upper + bounds["upper_inclusive"]
    if compared := vector.get("window_inequality"):
        windows = {side: compared[side] for side in OTHER}
        # As a bound of 0 between event times, although starts are compared and ends are evicted.
        limited = "right" if compared["operator"].startswith("<") else "left"
        wait[limited] = int(compared["operator"].endswith("="))
    return Oracle(
        join_type=vector["join_type"],
        policy={"min": min, "max": max}[vector["policy"]],
        is_late_by_previous_batch=vector["late_watermark"] == "previous_batch",
        delay=by_side("delay_{}_ms"),
        windows={s: (w["size_ms"] * MS, (w["slide_ms"] or w["size_ms"]) * MS) for s, w in windows.items() if w},
        compared={"<": lt, "<=": le, ">": gt, ">=": ge}[compared["operator"]] if compared else None,
        event_time_equality=vector.get("event_time_equality", False),
        gap=(least, greatest),
        wait=wait,
        at_least=by_side("{}_min_v"),
        at_most=by_side("{}_max_v"),
        v_differs=vector.get("v_differs", False),
    )


def read_rows(vector: dict, index: int | None) -> Iterable[Row]:
    unit = 1 if vector.get("ts_unit") == "us" else MS
    for side, rows in ({} if index is None else vector["batches"][index]).items():
        for row in rows:
            ts = None if row["ts"] is None else row["ts"] * unit
            yield Row(side=side, id=row["id"], key=row["key"], ts=ts, v=row.get("v"))


def schedule(vector: dict, oracle: Oracle) -> Iterable[int | None]:
    """Yield the input steps to feed, None for a no-data batch. Feed each before taking the next."""
    for index in range(len(vector["batches"])):
        yield index
        drained = vector["mode"] == "idle" or index + 1 == len(vector["batches"])
        if drained and oracle.wants_no_data_batch:
            yield None


def compute_expected(vector: dict) -> dict:
    """Return the expected result of a vector's batches, in the form of the vector."""
    oracle, expected, executed = create_oracle(vector), [], []
    for batch, index in enumerate(schedule(vector, oracle)):
        batch_info = {"batch": batch, "input_index": index, "watermark_ms": oracle.watermark if oracle.delay else None}
        output, dropped = oracle.feed(read_rows(vector, index))
        for left, right in output:
            row = {"batch": batch, "left_id": left and left.id, "right_id": right and right.id}
            expected.append(row | _starts(oracle, left, right))
        stored = sum(len(rows) for rows in oracle.state.values())
        executed.append({**batch_info, "rows_dropped_by_watermark": dropped, "state_rows_total": stored})
    return {"expected": expected, "watermarks": [done["watermark_ms"] for done in executed], "executed": executed}
