"""Flink SQL's window join, one event at a time, by section d of semantics/flink.md."""

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import product
from operator import itemgetter
from zoneinfo import ZoneInfo

from tests.semantics.recorded_watermarks import parse_lags, split_event

EPOCH, MS = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)
HOUR, DAY = 3_600_000, 86_400_000
FAR = (datetime(2400, 1, 1, tzinfo=UTC) - EPOCH) // MS
PADDED_SIDES = {
    "inner": "",
    "semi": "",
    "left": "L",
    "anti": "L",
    "right": "R",
    "full": "LR",
}  # sides whose unmatched rows are emitted


@dataclass(frozen=True)
class Window:
    start: int
    end: int  # exclusive; with a zone both are local times, as if of UTC
    zone: ZoneInfo | None = None

    def is_closed(self, watermark: float) -> bool:
        return to_timer_instant(self.end - 1, self.zone) <= watermark

    def touches(self, other: "Window") -> bool:
        return self.start <= other.end and other.start <= self.end


@dataclass(frozen=True)
class Event:
    side: str  # L or R
    key: str | None
    ts: int | None
    id: str
    window: Window | None = None  # that of a previous window join, which it keeps


@dataclass(frozen=True)
class Session:
    window: Window
    events: list[Event]  # of one key and one side


@dataclass(frozen=True)
class Copy:
    event: Event
    window: Window  # one of the event's


Pair = tuple[Copy | None, Copy | None]  # left, right
Loss = tuple[str, Window | None]  # reason, and the window if it applies to one only


@dataclass
class Oracle:
    """Feed events in arrival order; each returns the pairs emitted and its losses."""

    join_type: str
    by_session: bool
    windows_at: Callable[[int], list[Window]]  # for sessions: the session of the row alone
    lag: dict[str, float]  # side -> lag of its watermark behind its greatest timestamp
    watermarks: dict[str, float] = field(default_factory=lambda: {"L": -math.inf, "R": -math.inf})
    sessions: dict[str, list[Session]] = field(default_factory=lambda: {"L": [], "R": []})  # open ones
    buffers: dict[tuple, list[Copy]] = field(default_factory=lambda: defaultdict(list))

    @property
    def combined(self) -> float:
        return min(self.watermarks.values())

    def feed(self, event: Event) -> tuple[list[Pair], list[Loss]]:
        if event.ts is None:
            return [], [("null_rowtime", None)]
        losses = self._grow_session(event) if self.by_session else self._copy_into_windows(event)
        return self.advance(event.side, event.ts - self.lag[event.side]), losses

    def drain(self) -> list[Pair]:
        return self.advance("L", math.inf) + self.advance("R", math.inf)

    def _copy_into_windows(self, event: Event) -> list[Loss]:
        windows = [event.window] if event.window else self.windows_at(event.ts)
        for window in windows:
            if not window.is_closed(self.combined):
                self._buffer(Copy(event, window))
        return [("window_join", window) for window in windows if window.is_closed(self.combined)]

    def _grow_session(self, event: Event) -> list[Loss]:
        [alone] = self.windows_at(event.ts)
        opened = self.sessions[event.side]
        touched = [s for s in opened if s.events[0].key == event.key and s.window.touches(alone)]
        spans = [alone, *(s.window for s in touched)]
        bounds = min(w.start for w in spans), max(w.end for w in spans)
        merged = Window(*bounds, alone.zone)  # merging with an open session saves a late row
        if merged.is_closed(self.watermarks[event.side]):  # sessions are built before the join, by this side's time
            return [("session_tvf", None)]
        members = [e for s in touched for e in s.events] + [event]
        self.sessions[event.side] = [s for s in opened if s not in touched] + [Session(merged, members)]
        return []

    def advance(self, side: str, watermark: float) -> list[Pair]:
        self.watermarks[side] = max(self.watermarks[side], watermark)
        self._release_sessions(side)
        due = [group for group, copies in self.buffers.items() if copies[0].window.is_closed(self.combined)]
        due.sort(key=itemgetter(1))  # timers fire in order of time, on which only a next join depends
        return [pair for group in due for pair in self._join(self.buffers.pop(group))]

    def _release_sessions(self, side: str) -> None:
        opened = self.sessions[side]
        self.sessions[side] = [s for s in opened if not s.window.is_closed(self.watermarks[side])]
        for session in opened:
            if session.window.is_closed(self.watermarks[side]):
                for event in session.events:
                    self._buffer(Copy(event, session.window))

    def _buffer(self, copy: Copy) -> None:
        # SQL requires equal starts too, but Flink groups by the end alone: sessions with equal ends join.
        self.buffers[copy.event.key, copy.window.end].append(copy)

    def _join(self, copies: list[Copy]) -> list[Pair]:
        lefts = [(copy, None) for copy in copies if copy.event.side == "L"]
        rights = [(None, copy) for copy in copies if copy.event.side == "R"]
        if not (lefts and rights) or copies[0].event.key is None:  # nulls share a group and match nothing
            padded_sides = PADDED_SIDES[self.join_type]
            return (lefts if "L" in padded_sides else []) + (rights if "R" in padded_sides else [])
        if self.join_type == "anti":
            return []
        if self.join_type == "semi":
            return lefts
        return [(left, right) for (left, _), (_, right) in product(lefts, rights)]


def assign_windows(params: dict, ts: int) -> list[Window]:
    """Return the windows of a timestamp; for SESSION its session alone."""
    if "time_zone" in params:
        zone = ZoneInfo(params["time_zone"])
        local = assign_windows({k: v for k, v in params.items() if k != "time_zone"}, ts + find_offset(ts, zone))
        return [replace(window, zone=zone) for window in local]

    def floor(unit: int) -> int:
        return ts - (ts - params.get("offset", 0)) % unit

    match params:
        case {"tvf": "TUMBLE", "size": size}:
            return [Window(floor(size), floor(size) + size)]
        case {"tvf": "HOP", "size": size, "slide": slide}:
            return [Window(start, start + size) for start in range(floor(slide), ts - size, -slide)]
        case {"tvf": "CUMULATE", "size": size, "step": step}:
            last = floor(size) + size
            return [Window(floor(size), end) for end in range(floor(step) + step, last + 1, step)]
        case {"tvf": "SESSION", "gap": gap}:
            return [Window(ts, ts + gap)]
    raise ValueError(params)


def find_offset(ts: int, zone: ZoneInfo) -> int:
    return (EPOCH + ts * MS).astimezone(zone).utcoffset() // MS


def to_instant(local: int, zone: ZoneInfo | None) -> int:
    """Return the first instant of a local time; in a gap the one with the offset before it, as java.time does."""
    if zone is None:
        return local
    shown = (EPOCH + local * MS).replace(tzinfo=zone)
    return local - shown.utcoffset() // MS


def to_timer_instant(local: int, zone: ZoneInfo | None) -> int:
    """Return TimeWindowUtil.toEpochMillsForTimer."""
    first, following = to_instant(local, zone), to_instant(local + HOUR, zone)
    if zone is None or not any(
        find_offset(FAR + month * 30 * DAY, zone) != find_offset(FAR, zone) for month in range(12)
    ):
        return first
    if first == following:
        return first - int(math.fmod(first, HOUR))
    return first + HOUR if following - first > HOUR else first


def create_oracle(vector: dict) -> Oracle:
    params = vector["params"]
    return Oracle(
        join_type=params["join_type"],
        by_session=params["tvf"] == "SESSION",
        windows_at=partial(assign_windows, params),
        lag=parse_lags(vector["watermark"]),
    )


def compute_expected(vector: dict) -> dict:
    """Return the expected result of a vector's events, in the form of the vector."""
    oracle, rows, dropped, watermark_out = create_oracle(vector), [], [], []
    for at, event in enumerate(vector["events"]):
        row, recorded = split_event(event)
        if recorded is not None:
            rows += [create_row(pair, oracle, at) for pair in oracle.advance(event["side"], recorded)]
        pairs, losses = oracle.feed(Event(**row))
        rows += [create_row(pair, oracle, at) for pair in pairs]
        for why, window in losses:
            bounds = {"window_start": window.start, "window_end": window.end} if window else {}
            dropped.append({"side": event["side"], "id": event["id"], "at": at, **bounds, "by": why})
        watermark_out.append(None if oracle.combined == -math.inf else oracle.combined)
    if vector["drain"]:
        rows += [create_row(pair, oracle, "drain") for pair in oracle.drain()]
    return {"rows": rows, "dropped": dropped, "watermark_out": watermark_out}


def create_row(pair: Pair, oracle: Oracle, at: int | str) -> dict:
    left, right = pair
    window = (left or right).window
    return {
        "left_id": left.event.id if left else None,
        "right_id": right.event.id if right else None,
        "ts": to_instant(window.end - 1, window.zone),
        "window_start": window.start,
        "window_end": window.end,
        "at": at,
        **({"right_window_start": right.window.start} if oracle.by_session and left and right else {}),
    }
