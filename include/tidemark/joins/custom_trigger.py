"""Joins on windows with a trigger or an evictor, or of processing time.

The rows of a firing depend on the firings before it. If the rows' watermarks and processing times determine these,
there is a closed form (`window_firing_closed_form`). Other windows, and runs of event times that may be one session,
are simulated row by row in the order of arrival (`window_operator_simulation`). A pane's rows are carried until it is
purged, those that the trigger purged or the evictor removed included. From them and the watermarks at their arrival the
next slice recomputes counts, fire times, timers and the order of rows.
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
from tidemark.joins.base import (
    JobRows,
    Join,
    JoinResult,
    add_late_reason,
    compute_row_hash,
    select_rejected,
    with_null_watermarks,
)
from tidemark.joins.firing_spec import SPEC_FIELDS, FiringColumns, WindowFiringSpec
from tidemark.joins.join_type import JoinType
from tidemark.joins.keys import key_columns
from tidemark.joins.window import AlignedWindows, WindowTimerRules, find_late_rows
from tidemark.joins.window_firing_closed_form import find_members_and_lost, has_closed_form
from tidemark.joins.window_operator_simulation import (
    Outcome,
    SimulatedRow,
    WindowOperator,
    create_reach_processing_time,
)
from tidemark.joins.window_output import FiringMembers, group_members, join_members
from tidemark.spark.dataframe_utils import with_columns
from tidemark.spark.materialization import materialize
from tidemark.timegrid.time_columns import lit_long
from tidemark.watermarks.job_watermarks import JobWatermarks, lookup_by_lane

_OUTCOME_COLUMNS = ("outcome_start", "outcome_end", "pane", "row_slice", "watermark_level", "processing_time_level")
_OUTCOME_SCHEMA = T.StructType([
    T.StructField("role", T.StringType()),
    *(T.StructField(name, T.LongType()) for name in _OUTCOME_COLUMNS),
])  # fmt: skip
_ORDER = ("clock", "tiebreak", "side", "event_time", "row_hash")


@dataclass(frozen=True)
class CustomTriggerJoin(Join):
    """A window join or coGroup whose windows have a custom trigger or an evictor."""

    windows: AlignedWindows | None
    """None for sessions."""
    rules: WindowTimerRules
    """Rules of event-time windows."""
    firing: FiringColumns
    now: Column
    """Processing time of a row, ms."""
    has_both_times: bool
    """True if windows of one time may have a trigger of the other."""
    closed_form_lanes: Literal["all", "some", "none"]
    """Lanes that have a closed form."""
    is_cogroup: bool = False
    needs_exact_watermarks: bool = True

    may_lose_rows_at_end = True

    @override
    def times_match(self, left: Column, right: Column) -> Column:
        if self.windows:
            return self.windows.overlap(left, right)
        return F.abs(left - right) <= self.firing.gap

    @override
    def apply(self, job_rows: JobRows) -> JoinResult:
        """Join windows in closed form if they have one, and simulate the others."""
        watermarks = job_rows.watermarks
        labels = {"now": self.now, "row_hash": compute_row_hash(job_rows.late_candidates)}
        rows = materialize(job_rows.select_participating().transform(with_columns, labels))
        closed_form, lost, group, to_simulate = self._split_by_closed_form(rows, watermarks)
        if to_simulate is None:
            assert closed_form is not None
            late = self._find_late(job_rows, None, lost)
            return JoinResult(self._join(closed_form), late, buffered=self._add_eviction_slice(rows, watermarks))
        schema = T.StructType([*to_simulate.schema.fields, *_OUTCOME_SCHEMA.fields])
        ends = _find_lane_ends(job_rows, self.now, has_both_times=self.has_both_times)
        simulate = _create_simulation(ends)
        simulated = materialize(to_simulate.groupBy(*key_columns(rows), *group).applyInArrow(simulate, schema))
        outcomes = simulated.drop("window_start", "window_end", *self.firing.columns, "row_hash", "session")
        bounds = {"outcome_start": "window_start", "outcome_end": "window_end"}
        outcomes = _add_outcome_slice(outcomes.withColumnsRenamed(bounds), watermarks)
        is_firing = F.col("role").isin("member", "empty") & (F.col("outcome_slice") >= watermarks.first_slice)
        side = F.when(F.col("role") == "member", F.col("side"))
        members = outcomes.where(is_firing).withColumns({"slice": F.col("outcome_slice"), "side": side})
        if closed_form is not None:
            members = closed_form.unionByName(members.select(*closed_form.columns))
        buffered = (
            self._add_eviction_slice(rows, watermarks) if self.windows else _select_sessions(outcomes, watermarks)
        )
        return JoinResult(self._join(members), self._find_late(job_rows, outcomes, lost), buffered=buffered)

    def _join(self, rows: DataFrame) -> DataFrame:
        members = FiringMembers(rows)
        return group_members(members) if self.is_cogroup else join_members(members, JoinType.from_name("inner"))

    def _split_by_closed_form(
        self, rows: DataFrame, watermarks: JobWatermarks
    ) -> tuple[DataFrame | None, DataFrame | None, list[str], DataFrame | None]:
        """Split rows by whether their windows have a closed form.

        Returns:
            Members and lost rows of closed forms; and, for the other rows, the columns besides the keys that group rows
            which can share windows, and the rows with the firing columns.
        """
        if not self.windows:
            return None, None, ["session"], self._add_session_runs(rows)
        copies = self._copy_into_windows(rows)
        is_closed_form = has_closed_form(self.firing)
        members, lost = None, None
        if self.closed_form_lanes != "none":
            members, lost = find_members_and_lost(copies.where(is_closed_form), _ORDER, self.firing, watermarks)
        if self.closed_form_lanes == "all":
            return members, lost, [], None
        simulated = copies.transform(with_columns, self.firing.columns)
        simulated = simulated if members is None else simulated.where(~is_closed_form)
        return members, lost, ["window_start", "window_end"], simulated

    @property
    def _window_time(self) -> Column:
        """Time that determines a row's windows."""
        return F.when(self.firing.is_processing_time, F.col("now")).otherwise(F.col("event_time"))

    def _copy_into_windows(self, rows: DataFrame) -> DataFrame:
        """Copy each row into each window that it entered."""
        assert self.windows
        copies = self.windows.copy_rows(rows, self._window_time)
        enters = F.col("watermark") < self.rules.purged_at(F.col("window_end"))
        return copies.where(self.firing.is_processing_time | enters)

    def _add_session_runs(self, rows: DataFrame) -> DataFrame:
        """Add the number of each row's run as `session`. Sessions of different runs never merge."""
        by_time = Window.partitionBy(*key_columns(rows)).orderBy("window_time")
        starts_run = F.lag("window_time").over(by_time) + self.firing.gap < F.col("window_time")
        numbered = rows.withColumns({**self.firing.columns, "window_time": self._window_time})
        numbered = numbered.withColumn("starts_run", F.coalesce(starts_run, F.lit(False)).cast("long"))
        null = dict.fromkeys(("window_start", "window_end"), F.lit(None).cast("long"))
        up_to_row = by_time.rowsBetween(Window.unboundedPreceding, Window.currentRow)
        runs = numbered.withColumns({"session": F.sum("starts_run").over(up_to_row), **null})
        return runs.drop("starts_run", "window_time")

    def _add_eviction_slice(self, rows: DataFrame, watermarks: JobWatermarks) -> DataFrame:
        """Select the rows that entered a window, with the slice in which their last window is purged."""
        assert self.windows
        last_end = self.windows.last_end(self._window_time)
        watermark = F.col("watermark")
        purged_at = self.rules.purged_at(last_end)
        enters = F.coalesce(watermark < purged_at, ~self.rules.is_dropped(F.col("event_time"), watermark))
        rows = rows.where(self.firing.is_processing_time | enters)
        rows = watermarks.with_slice_reaching(rows, F.coalesce(purged_at, watermark), "slice_by_watermark")
        rows = watermarks.with_slice_at_processing_time(
            rows, F.coalesce(last_end, F.col("now")), "slice_by_processing_time"
        )
        by_processing_time = F.when(
            self.firing.is_processing_time, F.coalesce("slice_by_processing_time", watermarks.drain_slice)
        )
        return rows.withColumn("eviction_slice", by_processing_time.otherwise(F.col("slice_by_watermark")))

    def _find_late(self, job_rows: JobRows, outcomes: DataFrame | None, lost: DataFrame | None) -> DataFrame:
        """Select late and rejected rows, those in the outcomes of a simulation included.

        Args:
            job_rows: Rows of the job.
            outcomes: Outcomes of simulated rows, None if no row was simulated.
            lost: Lost rows of closed forms, None if there is no closed form.
        """
        candidates = job_rows.late_candidates
        parts = [select_rejected(candidates)]
        if self.windows:
            on_event_time = candidates.where(F.col("rejected").isNull() & ~self.firing.is_processing_time)
            parts.append(find_late_rows(on_event_time, self.windows, self.rules))
        elif outcomes is not None:
            late = outcomes.where(F.col("role") == "late").select(*candidates.columns)
            parts.append(add_late_reason(late, F.lit("late")))
        simulated_lost = None if outcomes is None else outcomes.where(F.col("role") == "lost")
        parts += [
            self._add_reason(job_rows, rows, job_rows.watermarks.drain_slice, "lost_at_end_of_input")
            for rows in (lost, simulated_lost)
            if rows is not None
        ]
        if outcomes is not None:
            timeless = outcomes.where(F.col("role") == "timeless")
            parts.append(self._add_reason(job_rows, timeless, F.col("outcome_slice"), "no_event_time_for_window"))
        return reduce(DataFrame.unionByName, parts)

    @staticmethod
    def _add_reason(job_rows: JobRows, rows: DataFrame, slice_number: Column, reason: str) -> DataFrame:
        """Add the reason why a window kept rows out of a firing in a slice. They have no watermarks."""
        in_job = with_null_watermarks(rows.withColumn("slice", slice_number))
        in_job = in_job.where(F.col("slice") >= job_rows.watermarks.first_slice)
        in_job = in_job.select(*job_rows.late_candidates.columns, "window_start", "window_end")
        return add_late_reason(in_job, F.lit(reason), F.col("window_start"), F.col("window_end"))


def _add_outcome_slice(outcomes: DataFrame, watermarks: JobWatermarks) -> DataFrame:
    """Add `outcome_slice`: the slice of a firing or of the end of the state; null if no slice of the job reaches it."""
    zero = lit_long(0)
    outcomes = watermarks.with_slice_reaching(outcomes, F.coalesce("watermark_level", zero), "slice_by_watermark")
    outcomes = watermarks.with_slice_at_processing_time(
        outcomes, F.coalesce("processing_time_level", zero), "slice_by_processing_time"
    )
    by_processing_time = F.when(F.col("processing_time_level").isNotNull(), F.col("slice_by_processing_time"))
    by_timer = F.when(F.col("watermark_level").isNotNull(), F.col("slice_by_watermark")).otherwise(by_processing_time)
    outcomes = outcomes.withColumn("outcome_slice", F.coalesce("row_slice", by_timer))
    return outcomes.drop("slice_by_watermark", "slice_by_processing_time")


def _select_sessions(outcomes: DataFrame, watermarks: JobWatermarks) -> DataFrame:
    eviction_slice = F.coalesce("outcome_slice", watermarks.drain_slice)
    return outcomes.where(F.col("role") == "state").withColumn("eviction_slice", eviction_slice)


@dataclass(frozen=True)
class _LaneEnd:
    """Watermark and processing time of a lane before and at the end of the job, ms."""

    before: int
    """Watermark before the job."""
    watermark: int
    processing_time_ms: int
    is_drained: bool
    processing_times_ms: list[int]
    """Instants at which rows arrived, if both times have timers."""
    watermarks: list[int]
    """Watermark after each of these instants."""
    has_both_times: bool
    """True if both times have timers."""


def _find_lane_ends(job_rows: JobRows, now: Column, *, has_both_times: bool) -> Mapping[int, _LaneEnd]:
    watermarks = job_rows.watermarks
    advances = _collect_advances(job_rows, now) if has_both_times else {}
    ends = {}
    for lane, timeline in enumerate(watermarks.timelines):
        last = max(timeline.end_watermarks)
        drain = watermarks.lanes[lane].drain
        points = advances.get(lane, [])
        ends[lane] = _LaneEnd(
            timeline.combined_at_end[watermarks.first_slice - 1],
            timeline.combined_at_end[last],
            watermarks.end_processing_times_ms[lane][last],
            drain is not None and drain <= last,
            [processing_time for processing_time, _ in points],
            list(accumulate((watermark for _, watermark in points), max)),
            has_both_times,
        )
    return ends


def _collect_advances(job_rows: JobRows, now: Column) -> dict[int, list[tuple[int, int]]]:
    """Return, by lane, each instant (ms) at which rows arrived and the watermark after it."""
    after = {}
    for side in SIDES:
        lag = lookup_by_lane([getattr(lane.lag, side) for lane in job_rows.watermarks.lanes])
        own = F.when(F.col("side") == side, F.col("event_time") - lag)
        after[side] = F.max(F.greatest(F.col(f"{side}_watermark"), own))
    rows = job_rows.late_candidates.where(F.col("rejected").isNull())
    if job_rows.filtered is not None:
        rows = rows.unionByName(job_rows.filtered)
    by_instant = rows.groupBy("lane", now.alias("now")).agg(F.least(*after.values()).alias("watermark_after"))
    advances: dict[int, list[tuple[int, int]]] = {}
    for row in by_instant.orderBy("lane", "now").collect():
        advances.setdefault(row["lane"], []).append((row["now"], row["watermark_after"]))
    return advances


def _create_simulation(ends: Mapping[int, _LaneEnd]) -> Callable[[pa.Table], pa.Table]:
    """Return the function that simulates rows of one key that can share windows."""

    def simulate(rows: pa.Table) -> pa.Table:
        rows = rows.sort_by([(name, "ascending") for name in _ORDER])
        spec = WindowFiringSpec(**{name: rows[f"spec_{name}"][0].as_py() for name in SPEC_FIELDS})
        end = ends[rows["lane"][0].as_py()]
        operator = WindowOperator(
            spec, create_reach_processing_time(end.processing_times_ms, end.watermarks, end.before)
        )
        names = ("event_time", "watermark", "now", "slice", "window_start", "window_end")
        columns = (rows[name].to_pylist() for name in names)
        for offset, (time, watermark, now, row_slice, window_start, window_end) in enumerate(
            zip(*columns, strict=True)
        ):
            operator.add_row(SimulatedRow(offset, time, watermark, now, row_slice), window_start, window_end)
        if end.has_both_times:  # Without new rows, the operator has only the watermarks at which carried rows arrived.
            operator.advance(max([end.before, *end.watermarks[-1:]]), end.processing_time_ms)
        operator.finish(end.watermark, end.processing_time_ms, is_drained=end.is_drained)
        return _create_table(rows, operator.outcomes)

    return simulate


def _create_table(rows: pa.Table, outcomes: Sequence[Outcome]) -> pa.Table:
    """Return the rows of each outcome, with the columns of `_OUTCOME_SCHEMA`. An empty firing has an arbitrary row."""
    offsets: list[int] = []
    columns: dict[str, list[object]] = {name: [] for name in _OUTCOME_SCHEMA.names}
    for outcome in outcomes:
        outcome_offsets = outcome.offsets or (0,)
        offsets += outcome_offsets
        bounds = (outcome.role, outcome.start, outcome.end, outcome.firing_index)
        values = (*bounds, outcome.row_slice, outcome.watermark, outcome.processing_time_ms)
        for name, value in zip(_OUTCOME_SCHEMA.names, values, strict=True):
            columns[name] += [value] * len(outcome_offsets)
    table = rows.take(pa.array(offsets, pa.int64()))
    for field in to_arrow_schema(_OUTCOME_SCHEMA):
        table = table.append_column(field, pa.array(columns[field.name], field.type))
    return table
