"""Flink's DataStream window join and coGroup, one event at a time, as semantics/flink.md section c tells it."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.semantics.recorded import lags, plain

LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1  # the watermark before the first and after the last


class JobFailedError(Exception):
    """What Flink says when a row ends the job."""


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

    assign: Callable[[int], list[Window]]  # the windows of a timestamp
    merges: Callable[[Window, Window], bool]  # whether a new row's window becomes one with one in flight
    lateness: int
    lag: dict[str, float]  # side -> how far its watermark stays behind its greatest timestamp
    watermarks: dict[str, int] = field(default_factory=lambda: {"L": LONG_MIN, "R": LONG_MIN})
    in_flight: dict[tuple[str, Window], list[Event]] = field(default_factory=dict)

    @property
    def combined(self) -> int:
        return min(self.watermarks.values())

    def feed(self, event: Event) -> tuple[list[Firing], bool]:
        if event.key is None:
            raise JobFailedError("java.lang.NullPointerException: Assigned key must not be null!")
        firings, accepted = [], False
        for assigned in self.assign(event.ts):
            window, contents = self._merged(event.key, assigned)
            if self._is_gone(window):
                continue
            accepted = True
            self.in_flight[event.key, window] = contents = [*contents, event]
            if window.last <= self.combined:  # late but allowed: all of it again, even if the row adds no pair
                firings.append(Firing(window, contents))
        # A row in no window at all (slide > size) is late by its own timestamp.
        dropped = not accepted and event.ts + self.lateness <= self.combined
        return firings + self.deliver(event.side, event.ts - self.lag[event.side]), dropped

    def drain(self) -> list[Firing]:
        return self.deliver("L", LONG_MAX) + self.deliver("R", LONG_MAX)

    def restart(self) -> None:
        """The job fails, and goes on from its last checkpoint: with windows and timers, and without watermarks.

        Of windows that have fired none is there, as no lateness is allowed: their timers have gone.
        """
        assert self.lateness == 0, "what re-fires is not told"
        self.watermarks = dict.fromkeys(self.watermarks, LONG_MIN)

    def _merged(self, key: str, new: Window) -> tuple[Window, list[Event]]:
        """The union of a window and those in flight that it merges with, and the rows these held.

        It takes them out of flight. None is lost: a union with a window in flight ends no sooner, so it is not gone.
        """
        old = [window for at, window in self.in_flight if at == key and self.merges(new, window)]
        union = Window(min(w.start for w in [new, *old]), max(w.end for w in [new, *old]))
        return union, [event for window in old for event in self.in_flight.pop((key, window))]

    def _is_gone(self, window: Window) -> bool:
        return window.last + self.lateness <= self.combined

    def deliver(self, side: str, watermark: int) -> list[Firing]:
        before = self.combined
        self.watermarks[side] = max(self.watermarks[side], watermark)
        # Windows already past their end fire in `feed`, by row. A leap past end and lateness still fires once.
        due = [Firing(w, held) for (_, w), held in self.in_flight.items() if before < w.last <= self.combined]
        self.in_flight = {at: held for at, held in self.in_flight.items() if not self._is_gone(at[1])}
        return due


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


def oracle_of(vector: dict) -> Oracle:
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
        lag=lags(vector["watermark"]),
    )


def rows_of(mode: str, firing: Firing, at: int | str) -> list[dict]:
    window, lefts, rights = firing.window, firing.ids("L"), firing.ids("R")
    rest = {"ts": window.last, "window_start": window.start, "window_end": window.end, "at": at}
    if mode == "cogroup":
        return [{"left_ids": lefts, "right_ids": rights, **rest}]
    return [{"left_id": a, "right_id": b, **rest} for a in lefts for b in rights]


def answer(vector: dict) -> dict:
    """What the engine is expected to do with a vector's events, in the vector's own form."""
    oracle, mode = oracle_of(vector), vector["params"]["mode"]
    told = {"rows": [], "dropped": [], "watermark_out": []}
    for at, event in enumerate(vector["events"]):
        if at in vector.get("restarts", ()):
            oracle.restart()
        row, recorded = plain(event)
        ts = LONG_MIN if event["ts"] is None else event["ts"]
        before = [] if recorded is None else oracle.deliver(event["side"], recorded)
        try:
            firings, dropped = oracle.feed(Event(**{**row, "ts": ts}))
        except JobFailedError as failure:
            return {**told, "error": f"at event {at}: {failure}"}
        told["rows"] += [row for firing in before + firings for row in rows_of(mode, firing, at)]
        if dropped:
            told["dropped"].append({"side": event["side"], "id": event["id"], "at": at})
        told["watermark_out"].append(None if oracle.combined == LONG_MIN else oracle.combined)
    if vector["drain"]:
        told["rows"] += [row for firing in oracle.drain() for row in rows_of(mode, firing, "drain")]
    return told
