"""Joins on tumbling, sliding and cumulating windows, in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Protocol

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from typing_extensions import override

from tidemark.config.sides import SideName
from tidemark.joins.base import (
    JobRows,
    Join,
    JoinResult,
    add_late_reason,
    compute_row_hash,
    row_position,
    select_rejected,
)
from tidemark.joins.emission_order import own_order_in_event
from tidemark.joins.join_type import JoinType
from tidemark.joins.keys import key_columns
from tidemark.joins.window_output import FiringMembers, group_members, join_members
from tidemark.spark.dataframe_utils import with_columns
from tidemark.timegrid.zones import Zone
from tidemark.watermarks.job_watermarks import JobWatermarks


class WindowTimerRules(Protocol):
    """Timers of windows [start, end) in a dialect, in ms."""

    def fires_at(self, end: Column) -> Column:
        """Return the least watermark at which a window fires on time."""

    def purged_at(self, end: Column) -> Column:
        """Return the least watermark at which a window is purged."""

    def is_dropped(self, event_time: Column, watermark: Column) -> Column:
        """Return True if a row that is in no window counts as late."""


class WindowAssigner(Protocol):
    """Assigns windows to rows."""

    def assign(self, event_time: Column) -> Column:
        """Return all windows of an event time: an array of [start, end)."""


@dataclass(frozen=True)
class AlignedWindows:
    """Tumbling, sliding and cumulating windows.

    Tumbling windows slide by their size. Cumulating windows share a start and grow by the slide.
    """

    size: Column
    slide: Column
    offset: Column
    is_cumulating: Column
    zone: Zone | None = None
    """Time zone of the window bounds; None for UTC."""
    is_tumbling: bool = False
    """True if all are tumbling. Then no array per row is needed."""

    def assign(self, event_time: Column) -> Column:
        """Return all windows of an event time: an array of [start, end) in ms, empty if it falls into a gap."""
        event_time = self._local(event_time)
        if self.is_tumbling:
            return F.array(to_window(*self._to_bounds(event_time, self._last_start(event_time, self.slide))))
        bounds = self._list_distinct_bounds(event_time)
        return F.transform(bounds, lambda bound: to_window(*self._to_bounds(event_time, bound)))

    def copy_rows(self, rows: DataFrame, time: Column) -> DataFrame:
        """Copy each row into each of the windows of a time, with `window_start` and `window_end`."""
        time = self._local(time)
        # Spark generates code for an array of numbers, but not for a function that makes windows of them.
        bound = self._last_start(time, self.slide) if self.is_tumbling else F.explode(self._list_distinct_bounds(time))
        start, end = self._to_bounds(time, F.col("bound"))
        copies = rows.withColumn("bound", bound)
        return copies.transform(with_columns, {"window_start": start, "window_end": end}).drop("bound")

    def last_end(self, event_time: Column) -> Column:
        """Return the end of the last window of an event time, in ms; null if it falls into a gap."""
        event_time = self._local(event_time)
        last_start = self._last_start(event_time, self.slide)
        sliding = F.when(last_start > event_time - self.size, last_start + self.size)
        cumulating = self._last_start(event_time, self.size) + self.size
        return F.when(self.is_cumulating, cumulating).otherwise(sliding)

    def overlap(self, left: Column, right: Column) -> Column:
        """Return True if two event times have a window in common."""
        if self.is_tumbling:
            left, right = (self._last_start(self._local(time), self.slide) for time in (left, right))
            return left == right
        return F.arrays_overlap(self.assign(left), self.assign(right))

    def _list_distinct_bounds(self, time: Column) -> Column:
        """Return an array with one bound per window: the start of a sliding window, or the end of a cumulating one.

        Args:
            time: An event time, as local time if the windows have a zone.
        """
        last_start = self._last_start(time, self.slide)
        starts = _sequence(last_start, time - self.size + 1, -self.slide)
        ends = _sequence(last_start + self.slide, self._last_start(time, self.size) + self.size, self.slide)
        return F.when(self.is_cumulating, ends).otherwise(starts)

    def _to_bounds(self, time: Column, bound: Column) -> tuple[Column, Column]:
        """Return start and end of the window of a time that `_list_distinct_bounds` lists as `bound`."""
        start = F.when(self.is_cumulating, self._last_start(time, self.size)).otherwise(bound)
        return start, F.when(self.is_cumulating, bound).otherwise(bound + self.size)

    def _local(self, event_time: Column) -> Column:
        return self.zone.to_local(event_time) if self.zone else event_time

    def _last_start(self, time: Column, period: Column) -> Column:
        """Return the last start, at most `time`, of windows that start once in each period."""
        return time - F.pmod(time - self.offset, period)


@dataclass(frozen=True, kw_only=True)
class WindowJoin(Join):
    """A window join or coGroup: rows are copied into their windows, and the rows of each firing are joined."""

    windows: AlignedWindows
    rules: WindowTimerRules
    join_type: JoinType
    has_late_firings: bool
    """True if lateness is allowed, so that a late row fires its window once more."""
    is_cogroup: bool = False
    emits_latest: bool = False
    """True to emit each window once, with all of its rows, when it is purged."""
    condition: str | None = None
    """Part of the match, over `left_*` and `right_*`."""
    needs_exact_watermarks: bool = False
    """True if a window may fire before the last of its event times."""
    has_unordered_timers: bool = False
    """True if a window that ends earlier may be purged later, because clocks change in an irregular way."""
    upstream_sides: tuple[SideName, ...] = ()
    """Inputs that are the output of another join, of which one event may emit several rows."""
    fires_by_epoch: ClassVar[bool] = False
    """True if the job has restarted (`restarts`)."""

    @override
    def times_match(self, left: Column, right: Column) -> Column:
        return self.windows.overlap(left, right)

    @override
    def eviction_watermark(self, watermark: Column) -> Column | None:
        return None if self.has_unordered_timers else self._evicted_at(watermark)

    @override
    def apply(self, job_rows: JobRows) -> JoinResult:
        """Join each firing.

        A row enters a window if it arrives below the watermark that purges it, and is on time below the one that fires.
        """
        watermarks = job_rows.watermarks
        end = F.col("window_end")
        copies = self.windows.copy_rows(job_rows.select_participating(), F.col("event_time"))
        entered = copies.where(F.col("watermark") < self.rules.purged_at(end))
        level = self.rules.purged_at(end) if self.emits_latest else self.rules.fires_at(end)
        on_time = entered if self.emits_latest else entered.where(F.col("watermark") < level)
        on_time = on_time.drop("slice").withColumn("pane", F.lit(0))
        add_slice = None
        has_late_firings = self.has_late_firings and not self.emits_latest
        if has_late_firings or self.fires_by_epoch:
            fired = self._add_first_slice(watermarks, on_time, level, "slice")
            rows = fired.where(F.col("slice") >= watermarks.first_slice)
        else:  # The window determines the slice, and there are fewer emissions than copies of rows.
            rows = on_time.where(watermarks.is_reached_in_job(level))
            add_slice = partial(watermarks.with_slice_reaching, watermark=level, name="slice")
        if has_late_firings:
            late_firings = self._find_late_firings(entered, watermarks.first_slice)
            rows = rows.unionByName(late_firings, allowMissingColumns=True)
        members = FiringMembers(
            rows,
            zone=self.windows.zone,
            is_keyed_by_epoch=self.fires_by_epoch,
            firing_watermark=None if self.is_cogroup else level,
            add_slice=add_slice,
            upstream_sides=self.upstream_sides,
        )
        joined = group_members(members) if self.is_cogroup else join_members(members, self.join_type, self.condition)
        is_dropped = self.rules.is_dropped(F.col("event_time"), F.col("watermark"))
        enters = F.coalesce(F.col("watermark") < self._last_purge(), ~is_dropped)
        may_be_carried = job_rows.select_rows_that_may_be_carried().where(enters)
        evicted_at = self._evicted_at(F.col("watermark"))
        buffered = self._add_first_slice(watermarks, may_be_carried, evicted_at, "eviction_slice")
        is_in_window = self._last_end().isNotNull()
        eviction_slice = F.when(is_in_window, F.col("eviction_slice")).otherwise(F.col("slice"))
        return JoinResult(
            joined, self._find_late(job_rows), buffered=buffered.withColumn("eviction_slice", eviction_slice)
        )

    def _add_first_slice(self, watermarks: JobWatermarks, rows: DataFrame, level: Column, name: str) -> DataFrame:
        """Add the first slice that reaches a level above the watermark at a row's arrival."""
        return watermarks.with_slice_reaching(rows, level, name)

    def _find_late_firings(self, entered: DataFrame, first_slice: int) -> DataFrame:
        """Return the members of late firings: a late row fires its window with all earlier rows and itself.

        Rows that arrive at one position are in the order of their watermarks, which differ only if they are recorded,
        then of their side, event time and content.
        """
        window = [*key_columns(entered), "window_start", "window_end"]
        is_on_time = F.col("watermark") < self.rules.fires_at(F.col("window_end"))
        with_late_rows = entered.where(~is_on_time).select(*window).distinct()
        rows = entered.join(with_late_rows, window, "semi")
        by_window = Window.partitionBy(*window)
        order = (
            "clock",
            "tiebreak",
            "watermark",
            own_order_in_event(self.upstream_sides),
            "side",
            "event_time",
            compute_row_hash(rows),
        )
        last_on_time_pane = F.max(is_on_time.cast("int")).over(by_window) - 1
        late_pane = F.col("last_on_time_pane") + F.row_number().over(by_window.orderBy("arrival_number"))
        rows = rows.withColumn("arrival_number", F.row_number().over(by_window.orderBy(*order)))
        firings = (
            rows.withColumn("last_on_time_pane", last_on_time_pane)
            .where(~is_on_time)
            .withColumn("pane", late_pane)
            .where(F.col("slice") >= first_slice)
            .select(
                *window, "pane", "slice", row_position().alias("emitting_row"), F.col("arrival_number").alias("last")
            )
        )
        members = rows.drop("slice").join(firings, window).where(F.col("arrival_number") <= F.col("last"))
        return members.drop("arrival_number", "last")

    def _find_late(self, job_rows: JobRows) -> DataFrame:
        """Select rejected rows, and rows that are late for all or some of their windows."""
        candidates = job_rows.late_candidates
        participating = candidates.where(F.col("rejected").isNull())
        return select_rejected(candidates).unionByName(find_late_rows(participating, self.windows, self.rules))

    def _last_end(self) -> Column:
        return self.windows.last_end(F.col("event_time"))

    def _evicted_at(self, watermark: Column) -> Column:
        """Return the least watermark that evicts a row; for one in no window, the watermark at its arrival."""
        return F.coalesce(self._last_purge(), watermark)

    def _last_purge(self) -> Column:
        """Return the least watermark at which all windows of a row are purged; null for a row in no window."""
        if not self.has_unordered_timers:
            return self.rules.purged_at(self._last_end())
        windows = self.windows.assign(F.col("event_time"))
        return F.array_max(F.transform(windows, lambda window: self.rules.purged_at(window["end"])))


def find_late_rows(rows: DataFrame, windows: AlignedWindows, rules: WindowTimerRules) -> DataFrame:
    """Select rows that are late for all of their windows, and rows that are late for some, once for each of these.

    Args:
        rows: Rows with exact watermarks.
        windows: Windows of the rows.
        rules: Timers of the windows.
    """
    copies = rows.withColumn("windows", windows.assign(F.col("event_time")))
    purged = F.filter("windows", lambda window: rules.purged_at(window["end"]) <= F.col("watermark"))
    copies = copies.withColumn("purged_windows", purged)
    # A row in no window at all, in a gap between windows, is late only by its own event time.
    is_in_none = F.size("purged_windows") == F.size("windows")
    is_dropped = rules.is_dropped(F.col("event_time"), F.col("watermark"))
    is_late = is_in_none & ((F.size("purged_windows") > 0) | is_dropped)
    late = add_late_reason(copies.where(is_late).drop("windows", "purged_windows"), F.lit("late"))
    parts = copies.where(~is_in_none).withColumn("window", F.explode("purged_windows"))
    bounds = F.col("window.start"), F.col("window.end")
    partly_late = add_late_reason(parts, F.lit("late_for_window"), *bounds)
    return late.unionByName(partly_late.drop("windows", "purged_windows", "window"))


def to_window(start: Column, end: Column) -> Column:
    """Return a window [start, end) as a struct."""
    return F.struct(start.alias("start"), end.alias("end"))


def _sequence(start: Column, stop: Column, step: Column) -> Column:
    """Return the numbers from start to stop (inclusive) by step; an empty array if the step leads away from stop."""
    is_reachable = (stop - start) * F.signum(step) >= 0
    return F.when(is_reachable, F.sequence(start, stop, step)).otherwise(F.array().cast("array<bigint>"))
