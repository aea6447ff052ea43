"""Flink SQL's interval join, one event at a time, by section b of semantics/flink.md.

Its words are those of `joins/sql_interval/operator_simulation.py`.

Exact for timestamps above 0. At 0 and below, the result of a cleanup depends on the iteration order of the engine's
state backend (rule b.9). Here it is arrival order, which reproduces the recorded h_zero_ts_* and
h_rows_at_or_below_zero_*, but perhaps not others.

Only a next join depends on the order of the rows that one event emits. Here, matches are before the rows that the
lookup removes, timers are in order of time, and the rows of each too. The engine's state backend has another order.
"""

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import takewhile
from operator import attrgetter
from typing import Any

from tests.semantics.recorded_watermarks import parse_lags, split_event

OTHER = {"L": "R", "R": "L"}
PADDED_SIDES = {"inner": "", "left": "L", "right": "R", "full": "LR"}

Ids = tuple[str | None, str | None]  # left, right; None pads
CacheKey = tuple[str, str | None]  # side, key; rows without a key share one


@dataclass
class Row:
    side: str  # L or R
    key: str | None
    ts: int
    id: str
    recorded: int | None = None  # watermark of its side that it has recorded
    matched: bool = False

    @property
    def padded(self) -> Ids:
        return (self.id, None) if self.side == "L" else (None, self.id)


@dataclass
class Oracle:
    """Feed rows in arrival order; each returns the output up to the end of its own watermark's processing."""

    wait_by_side: dict[str, int]  # side -> time from a row to its last possible partner, ms; may be negative
    padded_sides: str  # sides whose unmatched rows are padded
    lateness: int
    min_cleanup: int
    lag: dict[str, float]  # side -> lag of its watermark behind its greatest timestamp
    meets_condition: Callable[[Any, Any], bool] = lambda _id, _partner_id: True
    """Return True if the rows with two ids, within the bounds, match. The recorded joins have no other condition."""
    watermarks: dict[str, float] = field(default_factory=lambda: {"L": -math.inf, "R": -math.inf})
    met_watermark: float = -math.inf  # combined watermark that the last row met, by its record
    caches: dict[CacheKey, list[Row]] = field(default_factory=lambda: defaultdict(list))
    timers: dict[CacheKey, int] = field(default_factory=dict)
    # One field of the operator per side: a change by one key applies to all keys.
    expiration_times: dict[str, float] = field(default_factory=lambda: {"L": 0, "R": 0})

    @property
    def combined(self) -> float:
        return max(self.met_watermark, min(self.watermarks.values()))

    @property
    def operator_time(self) -> float:
        return max(self.combined, 0)

    @property
    def emitted_watermark(self) -> float | None:
        return None if self.combined == -math.inf else self.combined - max(self.wait_by_side.values()) - self.lateness

    @property
    def is_empty(self) -> bool:
        return self.wait_by_side["L"] + self.wait_by_side["R"] < 0

    def feed(self, row: Row) -> list[Ids]:
        return self.feed_simultaneous([row])

    def feed_simultaneous(self, rows: list[Row]) -> list[Ids]:
        """Feed rows of one position. All see the watermarks before the first of them, and each its own record.

        Rows that meet a lower combined watermark are first, as it never falls. Of the others, left rows are first.
        """
        if self.is_empty:  # the planner omits the operator
            return self._pad(rows)
        emitted = list[Ids]()
        met_watermarks = [self._find_met_watermark(row) for row in rows]
        order = sorted(zip(met_watermarks, rows, strict=True), key=lambda met: (met[0], met[1].side, met[1].ts))
        for met_watermark, row in order:
            if met_watermark > self.combined:
                self.met_watermark = met_watermark
                emitted += self._fire_due_timers()
            emitted += self._look_up(row) + self._cache_or_pad(row)
        advances = [(row.side, row.ts - self.lag[row.side]) for row in rows]
        advances += [(row.side, row.recorded) for row in rows if row.recorded is not None]
        return emitted + self.advance_watermarks(dict(sorted(advances)))  # the greatest of each side

    def _find_met_watermark(self, row: Row) -> float:
        own = {} if row.recorded is None else {row.side: max(row.recorded, self.watermarks[row.side])}
        return min((self.watermarks | own).values())

    def restart(self) -> None:
        """Restart the job from its last checkpoint: caches and timers are recovered, the fields are initial."""
        self.watermarks, self.met_watermark = dict.fromkeys(self.watermarks, -math.inf), -math.inf
        self.expiration_times = dict.fromkeys(self.expiration_times, 0)

    def drain(self) -> list[Ids]:
        return self.advance_watermarks({"L": math.inf, "R": math.inf})

    def _look_up(self, row: Row) -> list[Ids]:
        other = OTHER[row.side]
        earliest, latest = row.ts - self.wait_by_side[other], row.ts + self.wait_by_side[row.side]
        if self.expiration_times[other] >= latest:
            return []
        self._record_cleanup(other)
        pairs = []
        for partner in sorted(self.caches[other, row.key], key=attrgetter("ts")):  # an expired row still matches
            if row.key is not None and earliest <= partner.ts <= latest and self.meets_condition(row.id, partner.id):
                row.matched = partner.matched = True
                pairs.append((row.id, partner.id) if row.side == "L" else (partner.id, row.id))
        return pairs + self._remove_expired((other, row.key))

    def _cache_or_pad(self, row: Row) -> list[Ids]:
        if self.operator_time >= row.ts + self.wait_by_side[row.side]:
            return self._pad([row])
        cache_key = (row.side, row.key)
        self.caches[cache_key].append(row)
        if cache_key not in self.timers:  # a timer set for a newer row stays, so this row may outlive its time
            self._register_timer(cache_key, row.ts)
        return []

    def advance_watermarks(self, watermarks: dict[str, float]) -> list[Ids]:
        for side, watermark in watermarks.items():
            self.watermarks[side] = max(self.watermarks[side], watermark)
        return self._fire_due_timers()

    def _fire_due_timers(self) -> list[Ids]:
        # Every timer was set above the watermark at that time, so a timer that is due became due by this advance.
        due = sorted(
            (cache_key for cache_key, time in self.timers.items() if time <= self.combined), key=self.timers.get
        )
        return [ids for cache_key in due for ids in self._fire_timer(cache_key)]

    def _fire_timer(self, cache_key: CacheKey) -> list[Ids]:
        self._record_cleanup(cache_key[0])
        padded = self._remove_expired(cache_key)
        oldest = -1
        for row in self.caches[cache_key]:
            if row.ts < oldest or oldest < 0:
                oldest = row.ts
        if oldest > 0:
            self._register_timer(cache_key, oldest)
        else:  # the engine takes a time of 0 or below as "no row left", and loses the rows
            del self.timers[cache_key], self.caches[cache_key]
        return padded

    def _register_timer(self, cache_key: CacheKey, ts: int) -> None:
        self.timers[cache_key] = ts + self.wait_by_side[cache_key[0]] + self.min_cleanup + self.lateness + 1

    def _record_cleanup(self, side: str) -> None:
        self.expiration_times[side] = self.operator_time - self.wait_by_side[side] - self.lateness - 1

    def _remove_expired(self, cache_key: CacheKey) -> list[Ids]:
        rows = self.caches[cache_key]
        expiration_time = self.expiration_times[cache_key[0]]
        self.caches[cache_key] = [row for row in rows if row.ts > expiration_time]
        return self._pad(sorted((row for row in rows if row.ts <= expiration_time), key=attrgetter("ts")))

    def _pad(self, rows: list[Row]) -> list[Ids]:
        return [row.padded for row in rows if row.side in self.padded_sides and not row.matched]


def create_oracle(vector: dict, oracle_type: type[Oracle] = Oracle) -> Oracle:
    params = vector["params"]
    # t_right + lower <= t_left <= t_right + upper: a right row waits for upper, a left row for -lower
    return oracle_type(
        wait_by_side={
            "L": -(params["lower"] + (not params.get("lower_inclusive", True))),
            "R": params["upper"] - (not params.get("upper_inclusive", True)),
        },
        padded_sides=PADDED_SIDES[params["join_type"]],
        lateness=params["allowed_lateness"],
        min_cleanup=params["min_cleanup_interval"],
        lag=parse_lags(vector["watermark"]),
    )


def compute_expected(vector: dict) -> dict:
    """Return the expected result of a vector's events, in the form of the vector. No row is ever dropped."""
    oracle, emitted, watermark_out, error = create_oracle(vector), [], [], {}
    for at, event in enumerate(vector["events"]):
        if event.get("simultaneous"):  # fed with the first row of its position
            continue
        if at in vector.get("restarts", ()):
            oracle.restart()
        if event["ts"] is None:
            error = {"error": f"at event {at}: RowTime field should not be null"}
            break
        others = takewhile(lambda later: later.get("simultaneous"), vector["events"][at + 1 :])
        split_events = (split_event(simultaneous) for simultaneous in (event, *others))
        rows = [Row(**row, recorded=recorded) for row, recorded in split_events]
        emitted += [(ids, at) for ids in oracle.feed_simultaneous(rows)]
        if not oracle.is_empty:
            watermark_out.append(oracle.emitted_watermark)
    if vector["drain"] and not error:
        emitted += [(ids, "drain") for ids in oracle.drain()]
    rows = [{"left_id": left, "right_id": right, "ts": None, "at": at} for (left, right), at in emitted]
    return {"rows": rows, "dropped": [], "watermark_out": watermark_out, **error}
