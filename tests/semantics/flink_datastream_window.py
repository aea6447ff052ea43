"""Flink's DataStream window join and coGroup, one event at a time, by section c of semantics/flink.md."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import takewhile

from tests.semantics.recorded_watermarks import parse_lags, split_event

LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1  # watermarks before the first and after the last row


class JobFailedError(Exception):
    """Flink's message when a row fails the job."""


@dataclass(frozen=True)
class Event:
    side: str  # L or R
    key: str | None
    ts: int  # LONG_MIN for none, as in Flink
    id: str


@dataclass(frozen=True)
class Window:
    start: int
    end: int

    @property
    def last(self) -> int:
        return self.end - 1

    def touches(self, other: "Window") -> bool:
        return self.start <= other.end and other.start <= self.end


@dataclass(frozen=True)
class Firing:
    window: Window
    contents: list[Event]

    def ids(self, side: str) -> list[str]:
        return sorted(event.id for event in self.contents if event.side == side)


@dataclass
class Oracle:
    """Feed events in arrival order; each gives the firings it causes and whether it was dropped as late."""

    assign: Callable[[int], list[Window]]  # windows of a timestamp
    merges: Callable[[Window, Window], bool]  # a new row's window merges with an open one
    lateness: int
    lag: dict[str, float]  # side -> lag of its watermark behind its greatest timestamp
    watermarks: dict[str, int] = field(default_factory=lambda: {"L": LONG_MIN, "R": LONG_MIN})
    open_windows: dict[tuple[str, Window], list[Event]] = field(default_factory=dict)

    @property
    def combined(self) -> int:
        return min(self.watermarks.values())

    def feed(self, event: Event) -> tuple[list[Firing], bool]:
        firings, dropped = self.add(event)
        return firings + self.deliver(event.side, event.ts - self.lag[event.side]), dropped

    def add(self, event: Event) -> tuple[list[Firing], bool]:
        """Add a row before its watermark is delivered."""
        if event.key is None:
            raise JobFailedError("java.lang.NullPointerException: Assigned key must not be null!")
        firings, accepted = [], False
        for assigned in self.assign(event.ts):
            window, contents = self._merge(event.key, assigned)
            if self._is_purged(window):
                continue
            accepted = True
            self.open_windows[event.key, window] = contents = [*contents, event]
            if window.last <= self.combined:  # late but allowed: emits all again, even if the row adds no pair
                firings.append(Firing(window, contents))
        # A row in no window at all (slide > size) is late by its own timestamp.
        return firings, not accepted and event.ts + self.lateness <= self.combined

    def drain(self) -> list[Firing]:
        return self.deliver("L", LONG_MAX) + self.deliver("R", LONG_MAX)

    def restart(self) -> None:
        """Restart the job from its last checkpoint: windows and timers are recovered, watermarks are not.

        No lateness is allowed, so no fired window is in the checkpoint.
        """
        assert self.lateness == 0, "late firings after a restart are not specified"
        self.watermarks = dict.fromkeys(self.watermarks, LONG_MIN)

    def _merge(self, key: str, new: Window) -> tuple[Window, list[Event]]:
        """Merge a window with open ones; returns the union and its rows, and removes the open ones.

        No row is lost: a union ends no earlier than an open window, so it is not purged.
        """
        old = [window for at, window in self.open_windows if at == key and self.merges(new, window)]
        union = Window(min(w.start for w in [new, *old]), max(w.end for w in [new, *old]))
        return union, [event for window in old for event in self.open_windows.pop((key, window))]

    def _is_purged(self, window: Window) -> bool:
        return window.last + self.lateness <= self.combined

    def deliver(self, side: str, watermark: int) -> list[Firing]:
        before = self.combined
        self.watermarks[side] = max(self.watermarks[side], watermark)
        # Windows already past their end fire in `feed`, by row. A leap past end and lateness still fires once.
        due = [Firing(w, rows) for (_, w), rows in self.open_windows.items() if before < w.last <= self.combined]
        self.open_windows = {at: rows for at, rows in self.open_windows.items() if not self._is_purged(at[1])}
        return sorted(due, key=lambda firing: firing.window.last)  # timers fire in order of time


def sliding(size: int, slide: int, offset: int) -> Callable[[int], list[Window]]:
    def assign(ts: int) -> list[Window]:
        if ts == LONG_MIN:
            raise JobFailedError(
                "java.lang.RuntimeException: Record has Long.MIN_VALUE timestamp (= no timestamp marker). "
                "Did you forget to call 'DataStream.assignTimestampsAndWatermarks(...)'?"
            )
        newest = ts - (ts - offset) % slide
        return [Window(start, start + size) for start in range(newest, ts - size, -slide)]

    return assign


def session(gap: int) -> Callable[[int], list[Window]]:
    return lambda ts: [Window(ts, ts + gap)]


def create_oracle(vector: dict) -> Oracle:
    params = vector["params"]
    if params["window"] == "session":
        assign, merges = session(params["gap"]), Window.touches
    else:
        slide = params["slide"] if params["window"] == "sliding" else params["size"]
        assign, merges = sliding(params["size"], slide, params.get("offset", 0)), Window.__eq__
    return Oracle(
        assign,
        merges,
        lateness=params["allowed_lateness"],
        lag=parse_lags(vector["watermark"]),
    )


def create_rows(mode: str, firing: Firing, at: int | str) -> list[dict]:
    window, lefts, rights = firing.window, firing.ids("L"), firing.ids("R")
    rest = {"ts": window.last, "window_start": window.start, "window_end": window.end, "at": at}
    if mode == "cogroup":
        return [{"left_ids": lefts, "right_ids": rights, **rest}]
    return [{"left_id": a, "right_id": b, **rest} for a in lefts for b in rights]


def compute_expected(vector: dict) -> dict:
    """Return the expected result of a vector's events, in the form of the vector."""
    oracle, mode = create_oracle(vector), vector["params"]["mode"]
    expected = {"rows": [], "dropped": [], "watermark_out": []}
    for at, event in enumerate(vector["events"]):
        if event.get("simultaneous"):  # added with the first row of its position
            continue
        if at in vector.get("restarts", ()):
            oracle.restart()
        recorded = split_event(event)[1]
        firings = [] if recorded is None else oracle.deliver(event["side"], recorded)
        rows = _list_rows_at_position(vector["events"][at:])
        try:
            for row in rows:
                late_firings, dropped = oracle.add(row)
                firings += late_firings
                if dropped:
                    expected["dropped"].append({"side": row.side, "id": row.id, "at": at})
        except JobFailedError as failure:
            return {**expected, "error": f"at event {at}: {failure}"}
        firings += [firing for row in rows for firing in oracle.deliver(row.side, row.ts - oracle.lag[row.side])]
        expected["rows"] += [row for firing in firings for row in create_rows(mode, firing, at)]
        expected["watermark_out"].append(None if oracle.combined == LONG_MIN else oracle.combined)
    if vector["drain"]:
        expected["rows"] += [row for firing in oracle.drain() for row in create_rows(mode, firing, "drain")]
    return expected


def _list_rows_at_position(events: list[dict]) -> list[Event]:
    """Return the first event and those that arrive at its position: left before right, then by event time."""
    others = takewhile(lambda event: event.get("simultaneous"), events[1:])
    fields = [split_event(event)[0] for event in (events[0], *others)]
    rows = [Event(**{**row, "ts": LONG_MIN if row["ts"] is None else row["ts"]}) for row in fields]
    return sorted(rows, key=lambda row: (row.side, row.ts))
