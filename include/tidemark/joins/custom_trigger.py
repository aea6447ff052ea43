"""Joins on windows with a trigger or an evictor, or of processing time.

Each firing sees rows that depend on the firings before it. Where these follow from what each row met, there is a
closed form (`closed_panes`); the other windows, and runs of event times that may be one session, are replayed row by
row in the order of arrival (`panes`). A pane's rows are carried until it is gone, those too that were purged or
evicted. By them and the watermarks that they met the next slice finds counts, fire times, timers and the order of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from typing import Literal

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema
from typing_extensions import override

from tidemark.config.sides import SIDES
from tidemark.joins.base import JobRows, Join, JoinResult, with_reason
from tidemark.joins.firing_spec import SPEC, Firing
from tidemark.joins.keys import key_columns
from tidemark.joins.window import Rules, Windows, copies_of, late_rows
from tidemark.joins.window_firing_closed_form import is_closed, members_and_lost
from tidemark.joins.window_operator_simulation import Fired, Panes, PaneSpec, Row, reached_at
from tidemark.joins.window_output import JoinType, Members, group_members, join_members
from tidemark.spark.dataframe_utils import with_columns
from tidemark.spark.materialization import computed_once
from tidemark.timegrid.time_columns import as_json, whole
from tidemark.watermarks.buckets import Horizon, of_lane

_ROLES = T.StructType([
    T.StructField("role", T.StringType()),
    *(T.StructField(name, T.LongType()) for name in ("of_start", "of_end", "pane", "by_row", "level", "clock_level")),
])  # fmt: skip
_ORDER = ("clock", "tiebreak", "side", "event_time", "mark")


@dataclass(frozen=True)
class TriggeredJoin(Join):
    """A window join or coGroup whose windows fire as a trigger says, less what an evictor takes."""

    windows: Windows | None
    """None for sessions."""
    rules: Rules
    """Of windows of event time."""
    firing: Firing
    now: Column
    """The processing time at which a row came, ms."""
    both_times: bool
    """Whether windows of one time may have a trigger of the other."""
    closed: Literal["all", "some", "none"]
    """Which lanes have a closed form (`closed_panes`)."""
    cogroup: bool = False
    exact_watermarks: bool = True

    @override
    def times_match(self, left: Column, right: Column) -> Column:
        if self.windows:
            return self.windows.share(left, right)
        return F.abs(left - right) <= self.firing.gap

    @override
    def apply(self, came: JobRows) -> JoinResult:
        """Closed forms where they hold, and the other windows replayed."""
        horizon = came.horizon
        rows = came.taking_part().withColumns({"now": self.now, "mark": _mark(came.maybe_late)})
        rows = computed_once(rows)
        closed, lost, others = self._closed(rows, horizon)
        if others is None:
            assert closed
            joined = self._joined(closed)
            return JoinResult(joined, self._late(came, None, lost), kept=self._kept(rows, horizon))
        parts, placed = others
        schema = T.StructType([*placed.schema.fields, *_ROLES.fields])
        ends = _ends(came, self.now, both_times=self.both_times)
        replayed = computed_once(placed.groupBy(*key_columns(rows), *parts).applyInArrow(_replayed(ends), schema))
        told = replayed.drop("window_start", "window_end", *self.firing.columns, "mark", "session")
        told = _in_slices(told.withColumnsRenamed({"of_start": "window_start", "of_end": "window_end"}), horizon)
        fired = told.where(F.col("role").isin("member", "empty") & (F.col("fired_in") >= horizon.first))
        side = F.when(F.col("role") == "member", F.col("side"))
        members = fired.withColumns({"slice": F.col("fired_in"), "side": side})
        if closed:
            members = closed.unionByName(members.select(*closed.columns))
        return JoinResult(
            self._joined(members),
            self._late(came, told, lost),
            kept=self._kept(rows, horizon) if self.windows else _kept_sessions(told, horizon),
        )

    def _joined(self, rows: DataFrame) -> DataFrame:
        members = Members(rows)
        return group_members(members) if self.cogroup else join_members(members, JoinType.of("inner"))

    def _closed(
        self, rows: DataFrame, horizon: Horizon
    ) -> tuple[DataFrame | None, DataFrame | None, tuple[list[str], DataFrame] | None]:
        """Members and lost rows of what has a closed form, and the rows of other windows, with what parts these."""
        if not self.windows:
            return None, None, self._in_runs(rows)
        copies = self._in_windows(rows)
        closed = is_closed(self.firing)
        members, lost = None, None
        if self.closed != "none":
            members, lost = members_and_lost(copies.where(closed), _ORDER, self.firing, horizon)
        if self.closed == "all":
            return members, lost, None
        others = copies.transform(with_columns, self.firing.columns)
        return members, lost, (["window_start", "window_end"], others.where(~closed) if members else others)

    @property
    def _axis(self) -> Column:
        """The time that decides on a row's windows."""
        return F.when(self.firing.processing, F.col("now")).otherwise(F.col("event_time"))

    def _in_windows(self, rows: DataFrame) -> DataFrame:
        """A copy of each row for each window that it entered."""
        assert self.windows
        copies = copies_of(rows, self.windows, self._axis)
        in_time = F.col("watermark") < self.rules.purged_at(F.col("window_end"))
        return copies.where(self.firing.processing | in_time)

    def _in_runs(self, rows: DataFrame) -> tuple[list[str], DataFrame]:
        """Rows with the number of their run: sessions of other runs never meet those of this one."""
        by_time = Window.partitionBy(*key_columns(rows)).orderBy("axis")
        begins = F.coalesce(F.lag("axis").over(by_time) + self.firing.gap < F.col("axis"), F.lit(False))
        numbered = rows.withColumns({**self.firing.columns, "axis": self._axis})
        numbered = numbered.withColumn("begins", begins.cast("long"))
        none = dict.fromkeys(("window_start", "window_end"), F.lit(None).cast("long"))
        so_far = by_time.rowsBetween(Window.unboundedPreceding, Window.currentRow)
        sessions = numbered.withColumns({"session": F.sum("begins").over(so_far), **none})
        return ["session"], sessions.drop("begins", "axis")

    def _kept(self, rows: DataFrame, horizon: Horizon) -> DataFrame:
        """The rows that entered a window, with the slice in which their last one is gone."""
        assert self.windows
        last, watermark = self.windows.last_end(self._axis), F.col("watermark")
        gone = self.rules.purged_at(last)
        enters = F.coalesce(watermark < gone, ~self.rules.dropped(F.col("event_time"), watermark))
        rows = rows.where(self.firing.processing | enters)
        rows = horizon.first_slice_reaching(rows, F.coalesce(gone, watermark), "by_watermark")
        rows = horizon.first_slice_at(rows, F.coalesce(last, F.col("now")), "by_clock")
        by_clock = F.coalesce("by_clock", horizon.drained_in)
        return rows.withColumn("reached", F.when(self.firing.processing, by_clock).otherwise(F.col("by_watermark")))

    def _late(self, came: JobRows, told: DataFrame | None, lost: DataFrame | None) -> DataFrame:
        """Late and rejected rows, and those that a replay, if there was one, has `told` of."""
        names = came.maybe_late.columns
        rejected = came.maybe_late.where(F.col("rejected").isNotNull())
        parts = [with_reason(rejected, F.col("rejected"))]
        if self.windows:
            of_event_time = came.maybe_late.where(F.col("rejected").isNull() & ~self.firing.processing)
            parts.append(late_rows(of_event_time, self.windows, self.rules))
        elif told:
            parts.append(with_reason(told.where(F.col("role") == "late").select(*names), F.lit("late")))
        told_lost = told and told.where(F.col("role") == "lost")
        ended = came.horizon.drained_in
        parts += [self._left_out(came, rows, ended, "lost_at_end") for rows in (lost, told_lost) if rows]
        if told:
            timeless = told.where(F.col("role") == "timeless")
            parts.append(self._left_out(came, timeless, F.col("fired_in"), "no_event_time_for_window"))
        return reduce(DataFrame.unionByName, parts)

    @staticmethod
    def _left_out(came: JobRows, rows: DataFrame, number: Column, reason: str) -> DataFrame:
        """Rows that windows took and did not give to a firing, in a slice, for a reason that is not theirs."""
        unknown = dict.fromkeys(("watermark", "left_watermark", "right_watermark"), F.lit(None).cast("long"))
        these = rows.withColumns({"slice": number, **unknown}).where(F.col("slice") >= came.horizon.first)
        these = these.select(*came.maybe_late.columns, "window_start", "window_end")
        return with_reason(these, F.lit(reason), F.col("window_start"), F.col("window_end"))


def _in_slices(told: DataFrame, horizon: Horizon) -> DataFrame:
    """Add `fired_in`, the slice in which a firing or an end comes; null where no slice of the job reaches it."""
    nothing = whole(0)
    known = horizon.first_slice_reaching(told, F.coalesce("level", nothing), "by_watermark")
    known = horizon.first_slice_at(known, F.coalesce("clock_level", nothing), "by_clock")
    by_clock = F.when(F.col("clock_level").isNotNull(), F.col("by_clock"))
    by_timer = F.when(F.col("level").isNotNull(), F.col("by_watermark")).otherwise(by_clock)
    return known.withColumn("fired_in", F.coalesce("by_row", by_timer)).drop("by_watermark", "by_clock")


def _kept_sessions(told: DataFrame, horizon: Horizon) -> DataFrame:
    reached = F.coalesce("fired_in", horizon.drained_in)
    return told.where(F.col("role") == "state").withColumn("reached", reached)


def _mark(rows: DataFrame) -> Column:
    """What puts rows in order that are equal in all that the engine would know them by."""
    kinds = {side: rows.schema[side].dataType for side in SIDES}
    plain = not any(one in kind.simpleString() for kind in kinds.values() for one in ("map<", "variant"))
    return F.xxhash64(*((F.col(side) if plain else as_json(F.col(side), kind)) for side, kind in kinds.items()))


@dataclass(frozen=True)
class _End:
    """How far a lane has come at the end of the job, ms."""

    before: int
    """The watermark before the job."""
    watermark: int
    clock: int
    drained: bool
    clocks: list[int]
    watermarks: list[int]
    """Where both times have timers: the watermark after each instant at which rows came."""


def _ends(came: JobRows, now: Column, *, both_times: bool) -> Mapping[int, _End]:
    horizon = came.horizon
    advances = _advances(came, now) if both_times else {}
    found = {}
    for lane, line in enumerate(horizon.lines):
        last = max(line.ends)
        drain, points = horizon.lanes[lane].drain, advances.get(lane, [])
        found[lane] = _End(
            line.reached[horizon.first - 1],
            line.reached[last],
            horizon.clocks[lane][last],
            drain is not None and drain <= last,
            [clock for clock, _ in points],
            list(accumulate((watermark for _, watermark in points), max)),
        )
    return found


def _advances(came: JobRows, now: Column) -> dict[int, list[tuple[int, int]]]:
    """Of each lane, the watermark after each instant (ms) at which rows came."""
    after = {}
    for side in SIDES:
        lag = of_lane([getattr(lane.lag, side) for lane in came.horizon.lanes])
        mark = F.when(F.col("side") == side, F.col("event_time") - lag)
        after[side] = F.max(F.greatest(F.col(f"{side}_watermark"), mark))
    rows = came.maybe_late.where(F.col("rejected").isNull())
    if came.passing is not None:
        rows = rows.unionByName(came.passing)
    by_instant = rows.groupBy("lane", now.alias("now")).agg(F.least(*after.values()).alias("after"))
    found: dict[int, list[tuple[int, int]]] = {}
    for row in by_instant.orderBy("lane", "now").collect():
        found.setdefault(row["lane"], []).append((row["now"], row["after"]))
    return found


def _replayed(ends: Mapping[int, _End]) -> Callable[[pa.Table], pa.Table]:
    """What replays the rows of one key that can share windows."""

    def replayed(rows: pa.Table) -> pa.Table:
        rows = rows.sort_by([(name, "ascending") for name in _ORDER])
        known = {name: rows[f"spec_{name}"][0].as_py() for name in SPEC}
        end = ends[rows["lane"][0].as_py()]
        panes = Panes(PaneSpec(**known), reached_at(end.clocks, end.watermarks, end.before))
        names = ("event_time", "watermark", "now", "slice", "window_start", "window_end")
        for offset, (time, met, now, number, start, stop) in enumerate(
            zip(*(rows[name].to_pylist() for name in names), strict=True)
        ):
            panes.row(Row(offset, time, met, now, number), start, stop)
        if end.watermarks:
            panes.advance(max(end.watermarks[-1], end.before), end.clock)
        panes.finish(end.watermark, end.clock, drained=end.drained)
        return _table(rows, panes.found)

    return replayed


def _table(rows: pa.Table, found: Sequence[Fired]) -> pa.Table:
    offsets: list[int] = []
    columns: dict[str, list[object]] = {name: [] for name in _ROLES.names}
    for fired in found:
        chosen = fired.offsets or (0,)
        offsets += chosen
        values = (fired.role, fired.start, fired.end, fired.number, fired.slice, fired.watermark, fired.clock)
        for name, value in zip(_ROLES.names, values, strict=True):
            columns[name] += [value] * len(chosen)
    told = rows.take(pa.array(offsets, pa.int64()))
    for column in to_arrow_schema(_ROLES):
        told = told.append_column(column, pa.array(columns[column.name], column.type))
    return told
