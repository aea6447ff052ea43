"""Panes of Flink's `WindowOperator` and `EvictingWindowOperator`, row by row: what each firing of a window sees.

Plain Python over the rows of one key that can share windows, in the order of arrival. Two things go on beside the rows:
the watermark, by which event timers run, and the clock, by which those of the processing time run. A timer is told by
the level that runs it: the least watermark, or the least clock, at which it does. A timer for the past waits for the
next advance, so its level is 1 above where it was set.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Literal

EVENT, CLOCK = "event", "clock"
_Timer = tuple[str, int]
"""Of which time, and for when."""


@dataclass(frozen=True)
class PaneSpec:
    """What the windows of a key do, times in ms."""

    trigger: str
    amount: int
    """Of the trigger: an interval, a count or a threshold."""
    purging: bool
    evictor: Literal["count", "time"] | None
    kept: int
    """Of the evictor: how many rows, or how long before the newest one."""
    evicts_after: bool
    processing: bool
    """Whether windows are of the clock."""
    lateness: int
    gap: int | None
    """Of sessions; None where rows come with their window."""

    @property
    def by_clock(self) -> bool:
        """Whether the trigger's timers are of the processing time."""
        return self.trigger in {"processing_time", "continuous_processing_time"}

    @property
    def has_both_times(self) -> bool:
        """Whether windows of one time have a trigger of the other."""
        return self.trigger not in {"count", "delta"} and self.by_clock != self.processing

    @property
    def is_closed(self) -> bool:
        """Whether windows that are no sessions have a closed form: `closed_panes.is_closed`."""
        own_time = self.trigger == "count" or (self.trigger != "delta" and not self.has_both_times)
        return own_time and not (self.processing and self.evictor == "time")

    @property
    def continuous(self) -> bool:
        """Whether the trigger fires again and again."""
        return self.trigger.startswith("continuous")


@dataclass(frozen=True)
class Row:
    """A row, by its offset among those replayed, with what it met."""

    offset: int
    event_time: int | None
    watermark: int
    clock: int
    slice: int


@dataclass(frozen=True)
class Fired:
    """Rows in a firing of a window (`member`, or `empty` where it has none), or what became of them otherwise.

    `late`: in no window; `timeless`: left out of a firing, as Flink's job would fail on it; `state`: in the buffers
    until a level; `lost`: of the pane as the input ended, and never in a firing.
    """

    role: str
    offsets: tuple[int, ...]
    start: int
    end: int
    number: int
    """Which firing of its window it is, from 0."""
    slice: int | None = None
    """Of the row that fired it."""
    watermark: int | None = None
    clock: int | None = None
    """The level of the timer that fired it, or that ends the state."""


@dataclass(eq=False)
class _Pane:
    start: int
    end: int
    rows: list[Row] = field(default_factory=list)
    held: list[Row] = field(default_factory=list)
    """All rows that it took, purged and evicted ones too: by them a later slice knows what to go on from."""
    fire_at: int | None = None
    count: int = 0
    last: int | None = None
    fired: int = 0
    timers: dict[_Timer, int] = field(default_factory=dict)
    """Their levels."""
    seen: set[int] = field(default_factory=set)
    """Offsets of rows that were in a firing."""


@dataclass
class Panes:
    """The windows of one key in flight. Takes `row` after row, then `finish`."""

    spec: PaneSpec
    reached_at: Callable[[int], float]
    """The clock at which the watermark reached a level: of use where both times have timers."""
    found: list[Fired] = field(default_factory=list)
    panes: list[_Pane] = field(default_factory=list)
    watermark: int = -(2**63)
    clock: int = -(2**63)

    def row(self, row: Row, start: int | None, end: int | None) -> None:
        """A row of the window [start, end), or of its own session."""
        self.advance(row.watermark, row.clock)
        self.watermark, self.clock = row.watermark, row.clock
        if start is not None and end is not None:
            pane = next((one for one in self.panes if one.end == end), None) or self._opened(_Pane(start, end))
        else:
            pane = self._session_of(row)
        if not self.spec.processing and self._cleanup_of(pane) <= row.watermark:
            self.panes.remove(pane)
            self.found.append(Fired("late", (row.offset,), pane.start, pane.end, 0))
            return
        pane.rows.append(row)
        pane.held.append(row)
        if self._fires_on(pane, row):
            self._fire(pane, row.slice, None)
        self._set(pane, CLOCK if self.spec.processing else EVENT, self._cleanup_of(pane))

    def finish(self, watermark: int, clock: int, *, drained: bool) -> None:
        """Run the timers up to the end of what is known, and say what stays.

        When the input ends the watermark goes to infinity and the clock stops: its timers still pending never run.
        """
        self.advance(self.watermark if drained else watermark, clock)
        if drained and self.spec.by_clock:
            for pane in self.panes:
                lost = tuple(row.offset for row in pane.held if row.offset not in pane.seen)
                if lost and any(kind == CLOCK for kind, _ in pane.timers):
                    self.found.append(Fired("lost", lost, pane.start, pane.end, pane.fired))
        self.advance(watermark, clock)
        for pane in self.panes:
            self._tell_state(pane)

    def _opened(self, pane: _Pane) -> _Pane:
        self.panes.append(pane)
        return pane

    def _cleanup_of(self, pane: _Pane) -> int:
        return pane.end - 1 if self.spec.processing else pane.end - 1 + self.spec.lateness

    def _set(self, pane: _Pane, kind: str, time: int, level: int | None = None) -> None:
        """Set a timer; `level` is that of the timer which sets it, if one does."""
        if kind == CLOCK:
            level = max(time, self.clock) + 1 if level is None else max(time + 1, level)
        else:
            level = max(time, self.watermark + 1) if level is None else max(time, level)
        pane.timers.setdefault((kind, time), level)

    def advance(self, watermark: int, clock: int) -> None:
        """Run the timers due by a watermark and a clock, in their order: at equal instants the clock's come first."""
        while due := list(self._due(watermark, clock)):
            _, _, time, kind, level, pane = min(due, key=lambda one: one[:4])
            del pane.timers[kind, time]
            self._run(pane, kind, time, level)

    def _due(self, watermark: int, clock: int) -> Iterator[tuple[float, int, int, str, int, _Pane]]:
        for pane in self.panes:
            for (kind, time), level in pane.timers.items():
                if kind == CLOCK and level <= clock:
                    yield level, 0, time, kind, level, pane
                elif kind == EVENT and level <= watermark:
                    yield self.reached_at(level), 1, time, kind, level, pane

    def _run(self, pane: _Pane, kind: str, time: int, level: int) -> None:
        if self._fires_at(pane, kind, time, level):
            self._fire(pane, None, (kind, level))
        if self.spec.processing == (kind == CLOCK) and time == self._cleanup_of(pane):
            self.panes.remove(pane)
            self._tell_state(pane, (kind, level))

    def _tell_state(self, pane: _Pane, until: tuple[str, int] | None = None) -> None:
        offsets = tuple(row.offset for row in pane.held)
        self.found.append(Fired("state", offsets, pane.start, pane.end, pane.fired, None, *_levels(until)))

    def _fire(self, pane: _Pane, number: int | None, timer: tuple[str, int] | None) -> None:
        if not pane.rows:
            return
        levels = _levels(timer)
        before = pane.rows if self.spec.evicts_after else self._evicted(pane, number, levels)
        pane.seen |= {row.offset for row in before}
        offsets = tuple(row.offset for row in before)
        role = "member" if offsets else "empty"
        self.found.append(Fired(role, offsets, pane.start, pane.end, pane.fired, number, *levels))
        pane.fired += 1
        pane.rows = self._evicted(pane, number, levels) if self.spec.evicts_after else before
        if self.spec.purging:
            pane.rows = []

    def _evicted(self, pane: _Pane, number: int | None, levels: tuple[int | None, int | None]) -> list[Row]:
        """What the evictor leaves of a pane."""
        rows, spec = pane.rows, self.spec
        if spec.evictor == "count":
            return rows[max(len(rows) - spec.kept, 0) :]
        if spec.evictor is None or not rows or rows[0].event_time is None:
            return rows
        timeless = tuple(row.offset for row in rows if row.event_time is None)
        if timeless:
            self.found.append(Fired("timeless", timeless, pane.start, pane.end, pane.fired, number, *levels))
        times = [row.event_time for row in rows if row.event_time is not None]
        cutoff = max(times) - spec.kept
        return [row for row in rows if row.event_time is not None and row.event_time > cutoff]

    def _fires_on(self, pane: _Pane, row: Row) -> bool:
        """What the trigger says of a row, `pane` holding it already."""
        last, trigger = pane.end - 1, self.spec.trigger
        if trigger in {"event_time", "continuous_event_time"} and last <= row.watermark:
            return True
        if trigger == "count":
            pane.count += 1
            if pane.count >= self.spec.amount:
                pane.count = 0
                return True
        elif trigger == "delta":
            return self._goes_far(pane, row)
        elif trigger in {"event_time", "processing_time", "continuous_event_time"}:
            self._set(pane, CLOCK if self.spec.by_clock else EVENT, last)
        if self.spec.continuous and pane.fire_at is None:
            now = row.clock if self.spec.by_clock else row.event_time
            assert now is not None, "such rows are rejected"
            pane.fire_at = min(next_multiple(now, self.spec.amount), last)
            self._set(pane, CLOCK if self.spec.by_clock else EVENT, pane.fire_at)
        return False

    def _goes_far(self, pane: _Pane, row: Row) -> bool:
        if pane.last is not None and row.event_time is not None and row.event_time - pane.last <= self.spec.amount:
            return False
        first, pane.last = pane.last is None, row.event_time
        return not first

    def _fires_at(self, pane: _Pane, kind: str, time: int, level: int) -> bool:
        """What the trigger says of a timer."""
        if self.spec.trigger in {"count", "delta"} or self.spec.by_clock != (kind == CLOCK):
            return False
        if self.spec.trigger == "processing_time" or (kind == EVENT and time == pane.end - 1):
            return True
        if not self.spec.continuous or time != pane.fire_at:
            return False
        pane.fire_at = min(time + self.spec.amount, pane.end - 1)
        if pane.fire_at > time:
            self._set(pane, kind, pane.fire_at, level)
        return True

    def _session_of(self, row: Row) -> _Pane:
        """The session of a row: its own, merged with those in flight that it overlaps or touches."""
        time = row.clock if self.spec.processing else row.event_time
        assert time is not None, "such rows are rejected"
        assert self.spec.gap is not None, "windows are sessions"
        end = time + self.spec.gap
        old = [pane for pane in self.panes if pane.start <= end and time <= pane.end]
        start, end = min([time, *(one.start for one in old)]), max([end, *(one.end for one in old)])
        if [(one.start, one.end) for one in old] == [(start, end)]:
            return old[0]
        old.sort(key=lambda one: (java_slot(one.start + one.end), one.start))
        merged = _Pane(
            start,
            end,
            rows=[held for one in old for held in one.rows],
            held=[held for one in old for held in one.held],
            fire_at=min((one.fire_at for one in old if one.fire_at is not None), default=None),
            count=sum(one.count for one in old),
            fired=max((one.fired for one in old), default=0),
            seen={offset for one in old for offset in one.seen},
        )
        self.panes = [one for one in self.panes if one not in old]
        if old:
            self._merged(merged)
        return self._opened(merged)

    def _merged(self, pane: _Pane) -> None:
        """Set the timers of merged windows; those of the windows that they were are gone."""
        kind, at = (CLOCK, self.clock) if self.spec.by_clock else (EVENT, self.watermark)
        if self.spec.continuous and pane.fire_at is not None:
            self._set(pane, kind, pane.fire_at)
        elif self.spec.trigger in {"event_time", "processing_time"} and pane.end - 1 > at:
            self._set(pane, kind, pane.end - 1)


def next_multiple(time: int, interval: int) -> int:
    """The first fire time after a time: Java's `time - time % interval + interval`, one later for negative times.

    >>> next_multiple(8, 5), next_multiple(10, 5), next_multiple(-8, 5)
    (10, 15, 0)
    """
    rest = abs(time) % interval
    return time - (rest if time >= 0 else -rest) + interval


def java_slot(bounds: int) -> int:
    """Where a window comes in Java's iteration over a HashSet of few, by the sum of its start and end."""
    wide = 2**64 - 1
    x = bounds & wide
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & wide
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & wide
    x = (x ^ (x >> 31)) & 0xFFFFFFFF
    return (x ^ (x >> 16)) & 15


def _levels(timer: tuple[str, int] | None) -> tuple[int | None, int | None]:
    if timer is None:
        return None, None
    return (timer[1], None) if timer[0] == EVENT else (None, timer[1])


def reached_at(clocks: list[int], watermarks: list[int], before: int) -> Callable[[int], float]:
    """The clock at which a watermark was reached, by the job's advances, both rising; `before` was at its start."""

    def at(level: int) -> float:
        if level <= before:
            return -inf
        place = bisect_left(watermarks, level)
        return clocks[place] if place < len(clocks) else inf

    return at
