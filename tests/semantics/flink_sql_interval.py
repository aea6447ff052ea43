"""Flink SQL's interval join, one event at a time, by section b of semantics/flink.md.

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
OUTER_SIDES = {"inner": "", "left": "L", "right": "R", "full": "LR"}

Ids = tuple[str | None, str | None]  # left, right; None pads
Slot = tuple[str, str | None]  # side, key; rows without a key share one


@dataclass
class Row:
    side: str  # L or R
    key: str | None
    ts: int
    id: str
    matched: bool = False

    @property
    def padded(self) -> Ids:
        return (self.id, None) if self.side == "L" else (None, self.id)


@dataclass
class Oracle:
    """Feed rows in arrival order; each returns the output up to the end of its own watermark's processing."""

    reach: dict[str, int]  # side -> time from a row to its last possible partner, ms; may be negative
    outer: str  # sides whose unmatched rows are padded
    lateness: int
    min_cleanup: int
    lag: dict[str, float]  # side -> lag of its watermark behind its greatest timestamp
    meets_condition: Callable[[Any, Any], bool] = lambda _id, _partner_id: True
    """Return True if the rows with two ids, within the bounds, match. The recorded joins have no other condition."""
    watermarks: dict[str, float] = field(default_factory=lambda: {"L": -math.inf, "R": -math.inf})
    cache: dict[Slot, list[Row]] = field(default_factory=lambda: defaultdict(list))
    timers: dict[Slot, int] = field(default_factory=dict)
    # One field of the operator per side: a change by one key applies to all keys.
    expired: dict[str, float] = field(default_factory=lambda: {"L": 0, "R": 0})

    @property
    def combined(self) -> float:
        return min(self.watermarks.values())

    @property
    def now(self) -> float:
        return max(self.combined, 0)

    @property
    def emitted_watermark(self) -> float | None:
        return None if self.combined == -math.inf else self.combined - max(self.reach.values()) - self.lateness

    @property
    def is_empty(self) -> bool:
        return self.reach["L"] + self.reach["R"] < 0

    def feed(self, row: Row) -> list[Ids]:
        return self.feed_simultaneous([row])

    def feed_simultaneous(self, rows: list[Row]) -> list[Ids]:
        """Feed rows of one position. All see the watermark before the first of them, left rows are first."""
        if self.is_empty:  # the planner omits the operator
            return self._pad(rows)
        emitted = list[Ids]()
        for row in sorted(rows, key=lambda row: (row.side, row.ts)):
            emitted += self._probe(row) + self._cache_or_pad(row)
        newest = {side: [row.ts for row in rows if row.side == side] for side in self.lag}
        return emitted + self.advance({side: max(ts) - self.lag[side] for side, ts in newest.items() if ts})

    def restart(self) -> None:
        """Restart the job from its last checkpoint: caches and timers are recovered, the fields are initial."""
        self.watermarks = dict.fromkeys(self.watermarks, -math.inf)
        self.expired = dict.fromkeys(self.expired, 0)

    def drain(self) -> list[Ids]:
        return self.advance({"L": math.inf, "R": math.inf})

    def _probe(self, row: Row) -> list[Ids]:
        other = OTHER[row.side]
        first, last = row.ts - self.reach[other], row.ts + self.reach[row.side]
        if self.expired[other] >= last:
            return []
        self._update_expiry(other)
        pairs = []
        for partner in sorted(self.cache[other, row.key], key=attrgetter("ts")):  # an expired row still matches
            if row.key is not None and first <= partner.ts <= last and self.meets_condition(row.id, partner.id):
                row.matched = partner.matched = True
                pairs.append((row.id, partner.id) if row.side == "L" else (partner.id, row.id))
        return pairs + self._remove_expired((other, row.key))

    def _cache_or_pad(self, row: Row) -> list[Ids]:
        if self.now >= row.ts + self.reach[row.side]:
            return self._pad([row])
        slot = (row.side, row.key)
        self.cache[slot].append(row)
        if slot not in self.timers:  # a timer set for a newer row stays, so this row may outlive its time
            self._set_timer(slot, row.ts)
        return []

    def advance(self, watermarks: dict[str, float]) -> list[Ids]:
        for side, watermark in watermarks.items():
            self.watermarks[side] = max(self.watermarks[side], watermark)
        # Every timer was set above the watermark at that time, so a timer that is due became due by this advance.
        due = sorted((slot for slot, time in self.timers.items() if time <= self.combined), key=self.timers.get)
        return [ids for slot in due for ids in self._clean_up(slot)]

    def _clean_up(self, slot: Slot) -> list[Ids]:
        self._update_expiry(slot[0])
        padded = self._remove_expired(slot)
        earliest = -1
        for row in self.cache[slot]:
            if row.ts < earliest or earliest < 0:
                earliest = row.ts
        if earliest > 0:
            self._set_timer(slot, earliest)
        else:  # the engine takes a time of 0 or below as "no row left", and loses the rows
            del self.timers[slot], self.cache[slot]
        return padded

    def _set_timer(self, slot: Slot, ts: int) -> None:
        self.timers[slot] = ts + self.reach[slot[0]] + self.min_cleanup + self.lateness + 1

    def _update_expiry(self, side: str) -> None:
        self.expired[side] = self.now - self.reach[side] - self.lateness - 1

    def _remove_expired(self, slot: Slot) -> list[Ids]:
        rows, limit = self.cache[slot], self.expired[slot[0]]
        self.cache[slot] = [row for row in rows if row.ts > limit]
        return self._pad(sorted((row for row in rows if row.ts <= limit), key=attrgetter("ts")))

    def _pad(self, rows: list[Row]) -> list[Ids]:
        return [row.padded for row in rows if row.side in self.outer and not row.matched]


def create_oracle(vector: dict, oracle_type: type[Oracle] = Oracle) -> Oracle:
    params = vector["params"]
    # t_right + lower <= t_left <= t_right + upper: a right row waits for upper, a left row for -lower
    return oracle_type(
        reach={
            "L": -(params["lower"] + (not params.get("lower_inclusive", True))),
            "R": params["upper"] - (not params.get("upper_inclusive", True)),
        },
        outer=OUTER_SIDES[params["join_type"]],
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
        row, recorded = split_event(event)
        if recorded is not None:
            emitted += [(ids, at) for ids in oracle.advance({event["side"]: recorded})]
        others = takewhile(lambda later: later.get("simultaneous"), vector["events"][at + 1 :])
        rows = [Row(**row), *(Row(**split_event(other)[0]) for other in others)]
        emitted += [(ids, at) for ids in oracle.feed_simultaneous(rows)]
        if not oracle.is_empty:
            watermark_out.append(oracle.emitted_watermark)
    if vector["drain"] and not error:
        emitted += [(ids, "drain") for ids in oracle.drain()]
    rows = [{"left_id": left, "right_id": right, "ts": None, "at": at} for (left, right), at in emitted]
    return {"rows": rows, "dropped": [], "watermark_out": watermark_out, **error}
