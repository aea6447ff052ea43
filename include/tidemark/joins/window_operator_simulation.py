"""Simulate Flink's `WindowOperator` and `EvictingWindowOperator` row by row, to find which rows each firing sees.

Plain Python over the rows of one key that can share windows, in the order of arrival. Event-time timers run by the
watermark, processing-time timers by the processing time. A timer is represented by its level: the least watermark or
processing time (ms) at which it runs. A timer set for the past runs at the next advance: its level is 1 above the
current watermark or processing time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf

from tidemark.joins.firing_spec import WindowFiringSpec

EVENT_TIME = "event_time"
PROCESSING_TIME = "processing_time"
_Timer = tuple[str, int]
"""Time domain (`EVENT_TIME` or `PROCESSING_TIME`), and the time for which the timer is set."""


@dataclass(frozen=True)
class SimulatedRow:
    """A row with the watermark and processing time at its arrival. Times are in ms."""

    offset: int
    """Index among the simulated rows."""
    event_time: int | None
    watermark: int
    processing_time_ms: int
    slice: int


@dataclass(frozen=True)
class Outcome:
    """Rows of a firing (`member`, or `empty` for a firing without rows), or rows with another role.

    Roles: `late`: in no window. `timeless`: left out of a firing, where Flink's job would fail. `state`: in the buffers
    up to a level. `lost`: in the pane when the input ended, and never in a firing.
    """

    role: str
    offsets: tuple[int, ...]
    start: int
    end: int
    firing_index: int
    """Index of the firing within its window, from 0."""
    row_slice: int | None = None
    """Slice of the row that caused the firing."""
    watermark: int | None = None
    """Level of the event-time timer that caused the firing, or that ends the state."""
    processing_time_ms: int | None = None
    """Level of the processing-time timer that did."""


@dataclass(eq=False)
class _Pane:
    start: int
    end: int
    rows: list[SimulatedRow] = field(default_factory=list)
    all_rows: list[SimulatedRow] = field(default_factory=list)
    """All rows that entered, purged and evicted ones included: a later slice recomputes the pane from them."""
    fire_at: int | None = None
    """Next fire time of a continuous trigger."""
    count: int = 0
    """Rows since a count trigger last fired."""
    last_delta_time: int | None = None
    """Event time of the row at which a delta trigger last fired, or of the first row."""
    fired: int = 0
    timers: dict[_Timer, int] = field(default_factory=dict)
    """Levels of the timers."""
    emitted_offsets: set[int] = field(default_factory=set)
    """Offsets of rows that were in a firing."""


@dataclass
class WindowOperator:
    """The open windows of one key. Call `add_row` for each row, then `finish`."""

    spec: WindowFiringSpec
    reach_processing_time: Callable[[int], float]
    """Function from a watermark to the processing time (ms) at which it was reached. Orders timers of both domains."""
    outcomes: list[Outcome] = field(default_factory=list)
    panes: list[_Pane] = field(default_factory=list)
    watermark: int = -(2**63)
    processing_time_ms: int = -(2**63)

    def add_row(self, row: SimulatedRow, start: int | None, end: int | None) -> None:
        """Process a row of the window [start, end); of its own session if these are None."""
        self.advance(row.watermark, row.processing_time_ms)
        self.watermark, self.processing_time_ms = row.watermark, row.processing_time_ms
        if start is not None and end is not None:
            pane = next((pane for pane in self.panes if pane.end == end), None) or self._open(_Pane(start, end))
        else:
            pane = self._merge_session(row)
        if not self.spec.is_processing_time and self._cleanup_time(pane) <= row.watermark:
            self.panes.remove(pane)
            self.outcomes.append(Outcome("late", (row.offset,), pane.start, pane.end, 0))
            return
        pane.rows.append(row)
        pane.all_rows.append(row)
        if self._fires_on_row(pane, row):
            self._fire(pane, row.slice, None)
        self._set_timer(pane, PROCESSING_TIME if self.spec.is_processing_time else EVENT_TIME, self._cleanup_time(pane))

    def finish(self, watermark: int, processing_time_ms: int, *, is_drained: bool) -> None:
        """Run the timers up to the end of the job, and add the state to the outcomes.

        Args:
            watermark: Watermark at the end of the job; infinity if the input ends.
            processing_time_ms: Processing time at the end of the job.
            is_drained: The input ends. Processing time stops, so pending processing-time timers never run.
        """
        self.advance(self.watermark if is_drained else watermark, processing_time_ms)
        if is_drained and self.spec.has_processing_time_timers:
            for pane in self.panes:
                lost = tuple(row.offset for row in pane.all_rows if row.offset not in pane.emitted_offsets)
                if lost and any(domain == PROCESSING_TIME for domain, _ in pane.timers):
                    self.outcomes.append(Outcome("lost", lost, pane.start, pane.end, pane.fired))
        self.advance(watermark, processing_time_ms)
        for pane in self.panes:
            self._add_state(pane)

    def _open(self, pane: _Pane) -> _Pane:
        self.panes.append(pane)
        return pane

    def _cleanup_time(self, pane: _Pane) -> int:
        return pane.end - 1 if self.spec.is_processing_time else pane.end - 1 + self.spec.lateness

    def _set_timer(self, pane: _Pane, domain: str, time: int, level: int | None = None) -> None:
        """Set a timer; `level` is the level of the timer that sets it, if any."""
        if domain == PROCESSING_TIME:
            level = max(time, self.processing_time_ms) + 1 if level is None else max(time + 1, level)
        else:
            level = max(time, self.watermark + 1) if level is None else max(time, level)
        pane.timers.setdefault((domain, time), level)

    def advance(self, watermark: int, processing_time_ms: int) -> None:
        """Run the timers due by a watermark and a processing time, in order.

        At equal instants, processing-time timers run first.
        """
        while due := list(self._due_timers(watermark, processing_time_ms)):
            _, _, time, domain, level, pane = min(due, key=lambda timer: timer[:4])
            del pane.timers[domain, time]
            self._run_timer(pane, domain, time, level)

    def _due_timers(self, watermark: int, processing_time_ms: int) -> Iterator[tuple[float, int, int, str, int, _Pane]]:
        for pane in self.panes:
            for (domain, time), level in pane.timers.items():
                if domain == PROCESSING_TIME and level <= processing_time_ms:
                    yield level, 0, time, domain, level, pane
                elif domain == EVENT_TIME and level <= watermark:
                    yield self.reach_processing_time(level), 1, time, domain, level, pane

    def _run_timer(self, pane: _Pane, domain: str, time: int, level: int) -> None:
        if self._fires_on_timer(pane, domain, time, level):
            self._fire(pane, None, (domain, level))
        if self.spec.is_processing_time == (domain == PROCESSING_TIME) and time == self._cleanup_time(pane):
            self.panes.remove(pane)
            self._add_state(pane, (domain, level))

    def _add_state(self, pane: _Pane, until: tuple[str, int] | None = None) -> None:
        offsets = tuple(row.offset for row in pane.all_rows)
        levels = _split_level(until)
        self.outcomes.append(Outcome("state", offsets, pane.start, pane.end, pane.fired, None, *levels))

    def _fire(self, pane: _Pane, row_slice: int | None, timer: tuple[str, int] | None) -> None:
        if not pane.rows:
            return
        levels = _split_level(timer)
        emitted = pane.rows if self.spec.evicts_after else self._evict(pane, row_slice, levels)
        pane.emitted_offsets |= {row.offset for row in emitted}
        offsets = tuple(row.offset for row in emitted)
        role = "member" if offsets else "empty"
        self.outcomes.append(Outcome(role, offsets, pane.start, pane.end, pane.fired, row_slice, *levels))
        pane.fired += 1
        pane.rows = self._evict(pane, row_slice, levels) if self.spec.evicts_after else emitted
        if self.spec.is_purging:
            pane.rows = []

    def _evict(self, pane: _Pane, row_slice: int | None, levels: tuple[int | None, int | None]) -> list[SimulatedRow]:
        """Return the rows of a pane that the evictor keeps."""
        rows = pane.rows
        spec = self.spec
        if spec.evictor == "count":
            return rows[max(len(rows) - spec.evictor_amount, 0) :]
        if spec.evictor is None or not rows or rows[0].event_time is None:
            return rows
        timeless = tuple(row.offset for row in rows if row.event_time is None)
        if timeless:
            self.outcomes.append(Outcome("timeless", timeless, pane.start, pane.end, pane.fired, row_slice, *levels))
        times = [row.event_time for row in rows if row.event_time is not None]
        cutoff = max(times) - spec.evictor_amount
        return [row for row in rows if row.event_time is not None and row.event_time > cutoff]

    def _fires_on_row(self, pane: _Pane, row: SimulatedRow) -> bool:
        """Return True if the trigger fires on a row, which is in the pane already."""
        max_timestamp = pane.end - 1
        trigger = self.spec.trigger
        if trigger in {"event_time", "continuous_event_time"} and max_timestamp <= row.watermark:
            return True
        if trigger == "count":
            pane.count += 1
            if pane.count >= self.spec.trigger_amount:
                pane.count = 0
                return True
        elif trigger == "delta":
            return self._exceeds_delta(pane, row)
        elif trigger in {"event_time", "processing_time", "continuous_event_time"}:
            self._set_timer(
                pane, PROCESSING_TIME if self.spec.has_processing_time_timers else EVENT_TIME, max_timestamp
            )
        if self.spec.is_continuous and pane.fire_at is None:
            now = row.processing_time_ms if self.spec.has_processing_time_timers else row.event_time
            assert now is not None, "rows without a time are rejected"
            pane.fire_at = min(next_multiple(now, self.spec.trigger_amount), max_timestamp)
            self._set_timer(pane, PROCESSING_TIME if self.spec.has_processing_time_timers else EVENT_TIME, pane.fire_at)
        return False

    def _exceeds_delta(self, pane: _Pane, row: SimulatedRow) -> bool:
        threshold = self.spec.trigger_amount
        if (
            pane.last_delta_time is not None
            and row.event_time is not None
            and row.event_time - pane.last_delta_time <= threshold
        ):
            return False
        is_first = pane.last_delta_time is None
        pane.last_delta_time = row.event_time
        return not is_first

    def _fires_on_timer(self, pane: _Pane, domain: str, time: int, level: int) -> bool:
        """Return True if the trigger fires on a timer."""
        if self.spec.trigger in {"count", "delta"} or self.spec.has_processing_time_timers != (
            domain == PROCESSING_TIME
        ):
            return False
        if self.spec.trigger == "processing_time" or (domain == EVENT_TIME and time == pane.end - 1):
            return True
        if not self.spec.is_continuous or time != pane.fire_at:
            return False
        pane.fire_at = min(time + self.spec.trigger_amount, pane.end - 1)
        if pane.fire_at > time:
            self._set_timer(pane, domain, pane.fire_at, level)
        return True

    def _merge_session(self, row: SimulatedRow) -> _Pane:
        """Return the session of a row, merged with the open sessions that it overlaps or touches."""
        time = row.processing_time_ms if self.spec.is_processing_time else row.event_time
        assert time is not None, "rows without a time are rejected"
        assert self.spec.gap is not None, "windows are sessions"
        end = time + self.spec.gap
        old = [pane for pane in self.panes if pane.start <= end and time <= pane.end]
        start, end = min([time, *(pane.start for pane in old)]), max([end, *(pane.end for pane in old)])
        if [(pane.start, pane.end) for pane in old] == [(start, end)]:
            return old[0]
        old.sort(key=lambda pane: (java_slot(pane.start + pane.end), pane.start))
        merged = _Pane(
            start,
            end,
            rows=[row for pane in old for row in pane.rows],
            all_rows=[row for pane in old for row in pane.all_rows],
            fire_at=min((pane.fire_at for pane in old if pane.fire_at is not None), default=None),
            count=sum(pane.count for pane in old),
            fired=max((pane.fired for pane in old), default=0),
            emitted_offsets={offset for pane in old for offset in pane.emitted_offsets},
        )
        self.panes = [pane for pane in self.panes if pane not in old]
        if old:
            self._set_merged_timers(merged)
        return self._open(merged)

    def _set_merged_timers(self, pane: _Pane) -> None:
        """Set the trigger's timers of a merged window. Those of the windows before the merge are deleted."""
        domain, now = (
            (PROCESSING_TIME, self.processing_time_ms)
            if self.spec.has_processing_time_timers
            else (EVENT_TIME, self.watermark)
        )
        if self.spec.is_continuous and pane.fire_at is not None:
            self._set_timer(pane, domain, pane.fire_at)
        elif self.spec.trigger in {"event_time", "processing_time"} and pane.end - 1 > now:
            self._set_timer(pane, domain, pane.end - 1)


def next_multiple(time: int, interval: int) -> int:
    """Return the first fire time after a time: Java's `time - time % interval + interval`, later for negative times.

    >>> next_multiple(8, 5), next_multiple(10, 5), next_multiple(-8, 5)
    (10, 15, 0)
    """
    rest = abs(time) % interval
    return time - (rest if time >= 0 else -rest) + interval


def java_slot(bounds: int) -> int:
    """Return the iteration order of a window in a small Java HashSet.

    Args:
        bounds: Sum of the window's start and end.
    """
    mask = 2**64 - 1
    x = bounds & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    x = (x ^ (x >> 31)) & 0xFFFFFFFF
    return (x ^ (x >> 16)) & 15


def _split_level(timer: tuple[str, int] | None) -> tuple[int | None, int | None]:
    """Return the level of a timer as a watermark or as a processing time."""
    if timer is None:
        return None, None
    return (timer[1], None) if timer[0] == EVENT_TIME else (None, timer[1])


def create_reach_processing_time(
    processing_times: list[int], watermarks: list[int], before: int
) -> Callable[[int], float]:
    """Return a function from a watermark to the processing time (ms) at which it was reached.

    Args:
        processing_times: Processing times (ms) of the job's advances, rising.
        watermarks: Watermarks after each advance, non-decreasing.
        before: Watermark at the start of the job.
    """

    def reach_processing_time(level: int) -> float:
        if level <= before:
            return -inf
        index = bisect_left(watermarks, level)
        return processing_times[index] if index < len(processing_times) else inf

    return reach_processing_time
