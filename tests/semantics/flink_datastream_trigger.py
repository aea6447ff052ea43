"""Flink's DataStream windows with triggers, evictors and processing time, one event at a time: flink_triggers.md."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.semantics.flink_datastream_window import (
    LONG_MAX,
    LONG_MIN,
    Event,
    Firing,
    JobFailedError,
    Window,
    create_rows,
    session,
    sliding,
)

NO_TIMESTAMP = (
    "java.lang.IllegalStateException: Record has no timestamp. Is the time characteristic set to 'ProcessingTime', "
    "or did you forget to call 'DataStream.assignTimestampsAndWatermarks(...)'?"
)
REFUSED = (
    "setup: java.lang.UnsupportedOperationException: A merging window assigner cannot be used with a trigger that "
    "does not support merging."
)


@dataclass(eq=False)
class Pane:
    """The state of one key and window."""

    key: str
    window: Window
    rows: list[Event] = field(default_factory=list)
    fire_at: int | None = None  # next fire time of a continuous trigger
    count: int = 0
    last: int | None = None  # delta trigger: timestamp of the row that fired last
    event_timers: set[int] = field(default_factory=set)
    clock_timers: set[int] = field(default_factory=set)


def apply_evictor(evictor: dict | None, rows: list[Event]) -> list[Event]:
    """Return the rows that an evictor keeps of a list in the order of arrival."""
    if not evictor or not rows:
        return rows
    if evictor["type"] == "count":
        return rows[max(len(rows) - max(evictor["count"], 0), 0) :]
    if rows[0].ts == LONG_MIN:
        return rows
    if any(row.ts == LONG_MIN for row in rows):
        raise JobFailedError(NO_TIMESTAMP)
    cutoff = max(row.ts for row in rows) - evictor["size_ms"]
    return [row for row in rows if row.ts > cutoff]


def java_slot(window: Window) -> int:
    """Return the bucket of a window in a small HashSet."""
    mask = 2**64 - 1
    x = (window.start + window.end) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    x = (x ^ (x >> 31)) & 0xFFFFFFFF
    return (x ^ (x >> 16)) & 15


@dataclass
class Operator:
    """`WindowOperator`, or the evicting one. The caller clears its `firings`."""

    assign: Callable[[int], list[Window]]
    merging: bool
    processing: bool  # windows are of processing time
    lateness: int
    trigger: dict
    evictor: dict | None
    lag: dict[str, int]
    watermarks: dict[str, int] = field(default_factory=lambda: {"L": LONG_MIN, "R": LONG_MIN})
    clock: int = LONG_MIN
    panes: dict[tuple[str, Window], Pane] = field(default_factory=dict)
    firings: list[Firing] = field(default_factory=list)

    @property
    def combined(self) -> int:
        return min(self.watermarks.values())

    def feed(self, event: Event, pt: int | None) -> bool:
        """Process a row and its watermark; returns True if it was dropped as late."""
        if event.key is None:
            raise JobFailedError("java.lang.NullPointerException: Assigned key must not be null!")
        if pt is not None:
            self.advance_clock(pt)
        watermark, accepted = self.combined, False
        for assigned in self.assign(self.clock if self.processing else event.ts):
            pane = self._merge(event.key, assigned) if self.merging else self._pane(event.key, assigned)
            if not self.processing and self._cleanup(pane.window) <= self.combined:
                del self.panes[pane.key, pane.window]
                continue
            accepted = True
            pane.rows.append(event)
            self._fire_if(pane, fires=self._on_row(pane, event))
            timers = pane.clock_timers if self.processing else pane.event_timers
            timers.add(self._cleanup(pane.window))
        if event.ts != LONG_MIN:
            self._deliver(event.side, event.ts - self.lag[event.side])
        return not accepted and not self.processing and event.ts + self.lateness <= watermark

    def drain(self) -> None:
        for side in self.watermarks:
            self._deliver(side, LONG_MAX)

    def advance_clock(self, pt: int) -> None:
        """Run timers for T once the clock reaches T + 1. A timer for the past waits for the clock's next step."""
        if pt == self.clock:
            return
        self.clock = pt
        while due := [(min(p.clock_timers), n) for n, p in enumerate(self.panes.values()) if p.clock_timers]:
            time, number = min(due)
            if time >= pt:
                return
            self._on_timer(list(self.panes.values())[number], time, by_clock=True)

    def _deliver(self, side: str, watermark: int) -> None:
        before = self.combined
        self.watermarks[side] = max(self.watermarks[side], watermark)
        if self.combined == before:
            return
        while due := [(min(p.event_timers), n) for n, p in enumerate(self.panes.values()) if p.event_timers]:
            time, number = min(due)
            if time > self.combined:
                return
            self._on_timer(list(self.panes.values())[number], time, by_clock=False)

    def _on_timer(self, pane: Pane, time: int, *, by_clock: bool) -> None:
        timers = pane.clock_timers if by_clock else pane.event_timers
        timers.remove(time)
        fires = self._on_clock(pane, time) if by_clock else self._on_watermark(pane, time)
        self._fire_if(pane, fires=fires)
        if by_clock == self.processing and time == self._cleanup(pane.window):
            del self.panes[pane.key, pane.window]

    def _cleanup(self, window: Window) -> int:
        return window.last if self.processing else window.last + self.lateness

    def _pane(self, key: str, window: Window) -> Pane:
        return self.panes.setdefault((key, window), Pane(key, window))

    def _fire_if(self, pane: Pane, *, fires: bool) -> None:
        if not fires or not pane.rows:
            return
        before = self.evictor if self.evictor and not self.evictor["after"] else None
        emitted = apply_evictor(before, pane.rows)
        self.firings.append(Firing(pane.window, list(emitted)))
        pane.rows = emitted if before else apply_evictor(self.evictor, emitted)
        if self.trigger["purge"]:
            pane.rows = []

    def _merge(self, key: str, new: Window) -> Pane:
        """Merge a window with the open ones that it touches, and return the pane."""
        old = [pane for (at, window), pane in self.panes.items() if at == key and window.touches(new)]
        union = Window(
            min(w.start for w in [new, *(p.window for p in old)]), max([new.end, *(p.window.end for p in old)])
        )
        if [pane.window for pane in old] == [union]:
            return old[0]
        for pane in old:
            del self.panes[key, pane.window]
        merged = self._pane(key, union)
        if not old:
            return merged
        merged.count = sum(pane.count for pane in old)
        merged.fire_at = min((pane.fire_at for pane in old if pane.fire_at is not None), default=None)
        self._on_merge(merged)
        for pane in sorted(old, key=lambda pane: (java_slot(pane.window), pane.window.start)):
            merged.rows += pane.rows
        return merged

    def _on_row(self, pane: Pane, row: Event) -> bool:
        last = pane.window.last
        match self.trigger["type"]:
            case "event_time":
                if last <= self.combined:
                    return True
                pane.event_timers.add(last)
            case "continuous_event_time":
                if last <= self.combined:
                    return True
                pane.event_timers.add(last)
                if pane.fire_at is None:
                    pane.fire_at = self._first_fire_time(row.ts, last)
                    pane.event_timers.add(pane.fire_at)
            case "processing_time":
                pane.clock_timers.add(last)
            case "continuous_processing_time":
                if pane.fire_at is None:
                    pane.fire_at = self._first_fire_time(self.clock, last)
                    pane.clock_timers.add(pane.fire_at)
            case _:
                return self._fires_without_time(pane, row)
        return False

    def _fires_without_time(self, pane: Pane, row: Event) -> bool:
        """True if a trigger without timers fires."""
        match self.trigger["type"]:
            case "count":
                pane.count += 1
                if pane.count >= self.trigger["count"]:
                    pane.count = 0
                    return True
            case "delta":
                if pane.last is None:
                    pane.last = row.ts
                elif row.ts - pane.last > self.trigger["threshold"]:
                    pane.last = row.ts
                    return True
        return False

    def _first_fire_time(self, time: int, last: int) -> int:
        interval = self.trigger["interval"]
        if interval == 0:
            raise JobFailedError("java.lang.ArithmeticException: / by zero")
        rest = abs(time) % abs(interval)  # Java's %, towards zero
        return min(time - (rest if time >= 0 else -rest) + interval, last)

    def _on_watermark(self, pane: Pane, time: int) -> bool:
        kind, last = self.trigger["type"], pane.window.last
        if kind in {"event_time", "continuous_event_time"} and time == last:
            return True
        if kind == "continuous_event_time" and time == pane.fire_at:
            pane.fire_at = min(time + self.trigger["interval"], last)
            pane.event_timers.add(pane.fire_at)
            return True
        return False

    def _on_clock(self, pane: Pane, time: int) -> bool:
        if self.trigger["type"] == "continuous_processing_time" and time == pane.fire_at:
            pane.fire_at = min(time + self.trigger["interval"], pane.window.last)
            if pane.fire_at > time:
                pane.clock_timers.add(pane.fire_at)
            return True
        return self.trigger["type"] == "processing_time"

    def _on_merge(self, pane: Pane) -> None:
        match self.trigger["type"]:
            case "event_time" if pane.window.last > self.combined:
                pane.event_timers.add(pane.window.last)
            case "processing_time" if pane.window.last > self.clock:
                pane.clock_timers.add(pane.window.last)
            case "continuous_event_time" if pane.fire_at is not None:
                pane.event_timers.add(pane.fire_at)
            case "continuous_processing_time" if pane.fire_at is not None:
                pane.clock_timers.add(pane.fire_at)


def create_operator(vector: dict) -> Operator:
    params, watermark = vector["params"], vector["watermark"]
    processing, merging = params.get("time") == "processing", params["window"] == "session"
    extra = 1 if watermark["kind"] == "datastream" else 0
    slide = params.get("slide") or params.get("size")
    return Operator(
        session(params["gap"]) if merging else sliding(params["size"], slide, params.get("offset", 0)),
        merging,
        processing,
        0 if processing else params["allowed_lateness"],
        params["trigger"] or {"type": "processing_time" if processing else "event_time", "purge": False},
        params["evictor"],
        lag={"L": watermark["delay_ms_left"] + extra, "R": watermark["delay_ms_right"] + extra},
    )


def compute_expected(vector: dict) -> dict:
    """Return the expected result of a vector's events, in the form of the vector."""
    params = vector["params"]
    expected = {"rows": [], "dropped": [], "watermark_out": []}
    if params["window"] == "session" and (params["trigger"] or {}).get("type") == "delta":
        return {**expected, "error": REFUSED}
    operator = create_operator(vector)

    def collect_firings(at: int | str) -> None:
        expected["rows"] += [row for firing in operator.firings for row in create_rows(params["mode"], firing, at)]
        operator.firings.clear()

    for at, event in enumerate(vector["events"]):
        row = Event(event["side"], event["key"], LONG_MIN if event["ts"] is None else event["ts"], event["id"])
        try:
            dropped = operator.feed(row, event.get("pt"))
        except JobFailedError as failure:
            collect_firings(at)
            return {**expected, "error": f"at event {at}: {failure}"}
        collect_firings(at)
        if dropped:
            expected["dropped"].append({"side": event["side"], "id": event["id"], "at": at})
        expected["watermark_out"].append(None if operator.combined == LONG_MIN else operator.combined)
    try:
        if "end_pt" in vector:
            operator.advance_clock(vector["end_pt"])
        if vector["drain"]:
            operator.drain()
    except JobFailedError as failure:
        expected["error"] = f"at drain: {failure}"
    collect_firings("drain")
    return expected
