"""Joins on tumbling, sliding and cumulating windows: closed forms over labelled rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from typing_extensions import override

from tidemark.joins.base import JobRows, Join, JoinResult, with_reason
from tidemark.joins.keys import key_columns
from tidemark.joins.window_output import JoinType, Members, group_members, join_members
from tidemark.spark.dataframe_utils import with_columns
from tidemark.timegrid.zones import Zone
from tidemark.watermarks.buckets import Horizon


class Rules(Protocol):
    """What a dialect says of a window, [start, end), in ms."""

    def fires_at(self, end: Column) -> Column:
        """The least watermark at which it fires on time."""

    def purged_at(self, end: Column) -> Column:
        """The least watermark at which it is gone."""

    def dropped(self, event_time: Column, watermark: Column) -> Column:
        """Whether a row that is in no window counts as late."""


class WindowsOf(Protocol):
    """What tells a row's windows."""

    def of(self, event_time: Column) -> Column:
        """All windows of an event time: an array of [start, end)."""


@dataclass(frozen=True)
class Windows:
    """Sliding windows; tumbling ones slide by their size. Cumulating ones share a start and grow by the slide."""

    size: Column
    slide: Column
    offset: Column
    cumulating: Column
    zone: Zone | None = None
    """In whose local time they begin and end; None for UTC."""
    tumbling: bool = False
    """Whether all are tumbling, so that Spark need not make a list for each row, for which it generates no code."""

    def of(self, event_time: Column) -> Column:
        """All windows of an event time: an array of [start, end) in ms, empty where it falls into a gap."""
        event_time = self._local(event_time)
        step = self._last_start(event_time, self.slide)
        if self.tumbling:
            return F.array(_window(step, step + self.size))
        sliding = F.transform(
            _sequence(step, event_time - self.size + 1, -self.slide), lambda start: _window(start, start + self.size)
        )
        base = self._last_start(event_time, self.size)
        cumulated = F.transform(
            _sequence(step + self.slide, base + self.size, self.slide), lambda end: _window(base, end)
        )
        return F.when(self.cumulating, cumulated).otherwise(sliding)

    def last_end(self, event_time: Column) -> Column:
        """The end of the last of them, in ms; null where there is none."""
        event_time = self._local(event_time)
        step = self._last_start(event_time, self.slide)
        sliding = F.when(step > event_time - self.size, step + self.size)
        cumulated = self._last_start(event_time, self.size) + self.size
        return F.when(self.cumulating, cumulated).otherwise(sliding)

    def share(self, left: Column, right: Column) -> Column:
        """Whether two event times have a window in common."""
        if self.tumbling:
            left, right = (self._last_start(self._local(one), self.slide) for one in (left, right))
            return left == right
        return F.arrays_overlap(self.of(left), self.of(right))

    def _local(self, event_time: Column) -> Column:
        return self.zone.local(event_time) if self.zone else event_time

    def _last_start(self, event_time: Column, every: Column) -> Column:
        """The last time up to this one at which windows begin that do so once in a while."""
        return event_time - F.pmod(event_time - self.offset, every)


@dataclass(frozen=True)
class WindowJoin(Join):
    """A window join or coGroup: rows are copied into their windows, and each firing of a window is joined."""

    windows: Windows
    rules: Rules
    join_type: JoinType
    refires: bool
    """Whether lateness is allowed, so that a late row fires its window again."""
    cogroup: bool = False
    latest: bool = False
    """Emit each window once, with all of its rows, when it is gone."""
    condition: str | None = None
    """Part of the match, over `left_*` and `right_*`."""
    exact_watermarks: bool = False
    """Needed where a window may fire before the last of its event times."""
    by_epoch: ClassVar[bool] = False
    """Whether the job has restarted (`restarted`)."""

    @override
    def times_match(self, left: Column, right: Column) -> Column:
        return self.windows.share(left, right)

    @override
    def leaves_at(self, watermark: Column) -> Column:
        return F.coalesce(self.rules.purged_at(self._last()), watermark)

    @override
    def apply(self, came: JobRows) -> JoinResult:
        """A row enters a window unless it meets the watermark that purges it; it is on time unless the window fired."""
        horizon, end = came.horizon, F.col("window_end")
        rows = came.taking_part()
        copies = copies_of(rows, self.windows, F.col("event_time"))
        entered = copies.where(F.col("watermark") < self.rules.purged_at(end))
        level = self.rules.purged_at(end) if self.latest else self.rules.fires_at(end)
        on_time = entered if self.latest else entered.where(F.col("watermark") < level)
        fired = self._first_slice(horizon, on_time.drop("slice"), level, "slice")
        members = fired.where(F.col("slice") >= horizon.first).withColumn("pane", F.lit(0))
        if self.refires and not self.latest:
            members = members.unionByName(self._refired(entered, horizon.first))
        found = Members(members, zone=self.windows.zone, by_epoch=self.by_epoch)
        joined = group_members(found) if self.cogroup else join_members(found, self.join_type, self.condition)
        dropped = self.rules.dropped(F.col("event_time"), F.col("watermark"))
        enters = F.coalesce(F.col("watermark") < self.rules.purged_at(self._last()), ~dropped)
        carried = came.perhaps_carried().where(enters)
        return JoinResult(
            joined,
            self._late(came),
            kept=self._first_slice(horizon, carried, self.leaves_at(F.col("watermark")), "reached"),
        )

    def _first_slice(self, horizon: Horizon, rows: DataFrame, level: Column, name: str) -> DataFrame:
        """Add the slice in which a level is reached that is above what a row has met."""
        return horizon.first_slice_reaching(rows, level, name)

    def _refired(self, entered: DataFrame, first: int) -> DataFrame:
        """The members of late firings: each late row fires its window with all rows that came before it, and itself."""
        window = [*key_columns(entered), "window_start", "window_end"]
        on_time = F.col("watermark") < self.rules.fires_at(F.col("window_end"))
        touched = entered.where(~on_time).select(*window).distinct()
        rows = entered.join(touched, window, "semi")
        of_window = Window.partitionBy(*window)
        fired_before = F.max(on_time.cast("int")).over(of_window) - 1
        firings = (
            rows.withColumn("first_pane", fired_before)
            .where(~on_time)
            .withColumn("pane", F.col("first_pane") + F.row_number().over(of_window.orderBy("clock", "tiebreak")))
            .where(F.col("slice") >= first)
            .select(*window, "pane", "slice", F.struct("clock", "tiebreak").alias("fired_at"))
        )
        before = F.struct("clock", "tiebreak") <= F.col("fired_at")
        return rows.drop("slice").join(firings, window).where(before).drop("fired_at")

    def _late(self, came: JobRows) -> DataFrame:
        """Rows that entered no window, and what others lost of theirs."""
        maybe_late = came.maybe_late
        rejected = with_reason(maybe_late.where(F.col("rejected").isNotNull()), F.col("rejected"))
        taken = maybe_late.where(F.col("rejected").isNull())
        return rejected.unionByName(late_rows(taken, self.windows, self.rules))

    def _last(self) -> Column:
        """The end of a row's last window, null for a row that falls into a gap."""
        return self.windows.last_end(F.col("event_time"))


def late_rows(rows: DataFrame, windows: Windows, rules: Rules) -> DataFrame:
    """Of rows with exact watermarks those that entered no window, and what others lost of theirs."""
    copies = rows.withColumn("windows", windows.of(F.col("event_time")))
    gone = F.filter("windows", lambda window: rules.purged_at(window["end"]) <= F.col("watermark"))
    copies = copies.withColumn("gone", gone)
    left_out = F.size("gone") == F.size("windows")
    late = left_out & ((F.size("gone") > 0) | rules.dropped(F.col("event_time"), F.col("watermark")))
    whole = with_reason(copies.where(late).drop("windows", "gone"), F.lit("late"))
    parts = copies.where(~left_out).withColumn("window", F.explode("gone"))
    bounds = F.col("window.start"), F.col("window.end")
    partly = with_reason(parts, F.lit("late_for_window"), *bounds).drop("windows", "gone", "window")
    return whole.unionByName(partly)


def copies_of(rows: DataFrame, windows: Windows, time: Column) -> DataFrame:
    """Each row once for each of the windows of a time, with `window_start` and `window_end`."""
    found = windows.of(time)
    copies = rows.withColumn("window", found[0] if windows.tumbling else F.explode(found))
    bounds = {f"window_{name}": F.col(f"window.{name}") for name in ("start", "end")}
    return copies.transform(with_columns, bounds).drop("window")


def _window(start: Column, end: Column) -> Column:
    return F.struct(start.alias("start"), end.alias("end"))


def _sequence(start: Column, stop: Column, step: Column) -> Column:
    """The numbers from start to stop by a step, both inclusive; none where the step leads away from the stop."""
    reachable = (stop - start) * F.signum(step) >= 0
    return F.when(reachable, F.sequence(start, stop, step)).otherwise(F.array().cast("array<bigint>"))
