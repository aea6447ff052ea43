"""Joins on session windows.

If all rows of a session arrived before it could fire, sessions are runs of event times without gaps: a closed form.
Other sessions are simulated row by row, in the order of arrival.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema
from typing_extensions import override

from tidemark.config.sides import SideName
from tidemark.joins.base import (
    POSITION_TYPE,
    JobRows,
    Join,
    JoinResult,
    add_late_reason,
    compute_row_hash,
    no_position,
    select_rejected,
)
from tidemark.joins.emission_order import own_order_in_event
from tidemark.joins.join_type import JoinType
from tidemark.joins.keys import key_columns
from tidemark.joins.window import WindowTimerRules
from tidemark.joins.window_output import FiringMembers, group_members, join_members
from tidemark.spark.dataframe_utils import choose_by_side, with_columns
from tidemark.spark.materialization import materialize
from tidemark.timegrid.zones import Zone
from tidemark.watermarks.values import END_OF_INPUT

_OUTCOME_SCHEMA = T.StructType([
    T.StructField("role", T.StringType()),
    *(T.StructField(name, T.LongType()) for name in ("window_start", "window_end", "pane", "late_firing_slice")),
    T.StructField("emitting_row", POSITION_TYPE),
])  # fmt: skip
_ORDER = ("clock", "tiebreak", "arrival_watermark", "order_in_event", "side", "event_time", "row_hash")
"""Order of arrival. Rows at one position have one watermark, unless each has recorded its own."""


@dataclass(frozen=True, kw_only=True)
class SessionWindowJoin(Join):
    """A window join or coGroup on sessions: of both inputs together (DataStream), or of each input (SQL)."""

    gap: Column
    rules: WindowTimerRules
    join_type: JoinType
    has_sessions_by_side: bool
    """True if each input has its own sessions, which its own watermark closes."""
    is_cogroup: bool = False
    emits_latest: bool = False
    """True to emit each session once, with all of its rows, when it is purged."""
    condition: str | None = None
    zone: Zone | None = None
    """Time zone of the bounds and gaps; None for UTC."""
    simulates_all: bool = False
    """True if a session with a later end may be purged earlier, so that no run is surely a session."""
    upstream_sides: tuple[SideName, ...] = ()
    """Inputs that are the output of another join, of which one event may emit several rows."""

    needs_exact_watermarks = True
    carried_columns = ("left_watermark", "right_watermark", "watermark")

    @override
    def times_match(self, left: Column, right: Column) -> Column:
        if self.zone:
            left, right = self.zone.to_local(left), self.zone.to_local(right)
        return F.abs(left - right) <= self.gap

    def apply(self, job_rows: JobRows) -> JoinResult:
        """Join sessions whose rows all arrived in time as runs, and simulate the others."""
        watermarks = job_rows.watermarks
        end = F.col("window_end")
        rows = job_rows.select_participating()
        sessions, other_runs = self._split_runs(rows, has_materialized_input=job_rows.has_materialized_input)
        simulated = materialize(self._simulate(other_runs))
        null = F.lit(None).cast("long")
        outcome = {"role": F.lit("state"), "pane": F.lit(0).cast("long"), "late_firing_slice": null}
        outcome["emitting_row"] = no_position()
        sessions = sessions.transform(with_columns, outcome)
        state = sessions.unionByName(simulated).where(F.col("role") == "state")
        level = self.rules.purged_at(end) if self.emits_latest else self.rules.fires_at(end)
        every_pane = sessions.unionByName(simulated.where(F.col("role") == "member"))
        firing = state.withColumn("pane", F.lit(0)) if self.emits_latest else every_pane
        firing = firing.withColumnRenamed("slice", "arrival_slice")
        fired = watermarks.with_slice_reaching(firing, level, "on_time_firing_slice")
        fired = fired.withColumn("slice", F.coalesce("late_firing_slice", "on_time_firing_slice"))
        fired = fired.where(F.col("slice") >= watermarks.first_slice)
        firing_watermark = None if self.is_cogroup else level
        members = FiringMembers(
            fired,
            is_keyed_by_start=not self.has_sessions_by_side,
            zone=self.zone,
            firing_watermark=firing_watermark,
            upstream_sides=self.upstream_sides,
        )
        joined = group_members(members) if self.is_cogroup else join_members(members, self.join_type, self.condition)
        late = simulated.where(F.col("role") == "late").withColumn("watermark", F.col("arrival_watermark"))
        late = late.select(*job_rows.late_candidates.columns)
        return JoinResult(
            joined,
            add_late_reason(late, F.lit("late")).unionByName(select_rejected(job_rows.late_candidates)),
            buffered=watermarks.with_slice_reaching(state, self.rules.purged_at(end), "eviction_slice"),
        )

    def _session_keys(self, rows: DataFrame) -> list[str]:
        return [*key_columns(rows), *(["side"] if self.has_sessions_by_side else [])]

    def _simulate(self, rows: DataFrame) -> DataFrame:
        """Simulate runs; returns their rows once for each outcome, with the columns of `_OUTCOME_SCHEMA`."""
        run = [*self._session_keys(rows), "session"]
        is_first_of_run = F.row_number().over(Window.partitionBy(*run).orderBy(*_ORDER)) == 1
        ties = {"order_in_event": own_order_in_event(self.upstream_sides), "row_hash": compute_row_hash(rows)}
        rows = rows.transform(with_columns, ties)
        in_order = rows.withColumn("is_first_of_run", is_first_of_run).sortWithinPartitions(*run, *_ORDER)
        fields = [T.StructField(field.name, field.dataType) for field in in_order.schema]
        schema = T.StructType([*fields, *_OUTCOME_SCHEMA.fields])
        return in_order.mapInArrow(_simulate_batches, schema).drop("is_first_of_run", *ties)

    def _split_runs(self, rows: DataFrame, *, has_materialized_input: bool) -> tuple[DataFrame, DataFrame]:
        """Split rows into those of runs that are sessions and those of other runs.

        A run is a session if no part of it fired before the other rows arrived. That is, each row but the newest
        arrived below the watermark that closes the part that the next row prolongs, and all rows below the watermark
        that closes the run.

        Args:
            rows: Participating rows.
            has_materialized_input: As `JobRows.has_materialized_input`.

        Returns:
            Rows of sessions, with `window_start` and `window_end`; and other rows. Both have the `time` of sessions,
            the `arrival_watermark`, and the watermarks `fires_at` and `purged_at` of a session of the row alone.
        """
        own = choose_by_side(F.col("left_watermark"), F.col("right_watermark"))
        time = self.zone.to_local(F.col("event_time")) if self.zone else F.col("event_time")
        arrival_watermark = own if self.has_sessions_by_side else F.col("watermark")
        labels = {"arrival_watermark": arrival_watermark, "gap": self.gap, "time": time}
        keys = self._session_keys(rows)
        by_time = Window.partitionBy(*keys).orderBy("time", "arrival_watermark")
        end = F.col("time") + F.col("gap")
        timers = {"fires_at": self.rules.fires_at(end), "purged_at": self.rules.purged_at(end)}
        # Ordered by time and watermark: after the last row of a time comes the least watermark of the next time.
        next_time, next_watermark = (F.lead(name).over(by_time) for name in ("time", "arrival_watermark"))
        is_prolonged = (next_time > F.col("time")) & (next_time <= end)
        is_split = is_prolonged & (next_watermark >= F.col("fires_at"))
        starts_run = F.coalesce(F.lag(end).over(by_time) < F.col("time"), F.lit(False))
        numbered = (
            rows.transform(with_columns, labels)
            .transform(with_columns, timers)
            .withColumns({"starts_run": starts_run.cast("long"), "is_split": F.coalesce(is_split, F.lit(False))})
            .withColumn("session", F.sum("starts_run").over(by_time.rowsBetween(Window.unboundedPreceding, 0)))
        )
        by_run = Window.partitionBy(*keys, "session")
        bounds = {"window_start": F.min("time").over(by_run), "window_end": F.max(end).over(by_run)}
        latest = F.max("arrival_watermark").over(by_run)
        runs = numbered.withColumns({**bounds, "is_split": F.max("is_split").over(by_run), "latest": latest})
        # The runs have two uses. A large job would scan and sort all rows for each; a small job sorts few rows twice.
        if not has_materialized_input:
            runs = materialize(runs)
        is_session = ~F.col("is_split") & (F.col("latest") < self.rules.fires_at(F.col("window_end")))
        if self.simulates_all:
            is_session = F.lit(False)
        added = ("starts_run", "is_split", "latest")
        return runs.where(is_session).drop(*added), runs.where(~is_session).drop(*added, "window_start", "window_end")


@dataclass
class _Session:
    start: int
    end: int
    fires_at: int
    """Watermark that fires it."""
    purged_at: int
    """Watermark that purges it."""
    rows: list[int]
    """Offsets of its rows in the table."""
    fired: int = 0
    """Number of firings; of a merged session that of the part that fired most."""
    is_due: bool = True
    """True until it has fired on time."""


class _LateRow(NamedTuple):
    """Slice and position of a late row."""

    slice: int
    clock: int
    tiebreak: int


@dataclass
class _RowOutcomes:
    """Outcomes of rows by their offsets in the table: the columns of `_OUTCOME_SCHEMA`."""

    offsets: list[int] = field(default_factory=list)
    columns: dict[str, list[object]] = field(default_factory=lambda: {name: [] for name in _OUTCOME_SCHEMA.names})

    def add(self, offsets: list[int], role: str, session: _Session, late_row: _LateRow | None = None) -> None:
        """Add the same outcome for several rows.

        Args:
            late_row: Row that fires the session once more, after it has fired on time.
        """
        self.offsets += offsets
        position = {"clock": late_row.clock, "tiebreak": late_row.tiebreak} if late_row else None
        late_slice = late_row.slice if late_row else None
        values = (role, session.start, session.end, session.fired, late_slice, position)
        for name, value in zip(_OUTCOME_SCHEMA.names, values, strict=True):
            self.columns[name] += [value] * len(offsets)


def _simulate_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Simulate consecutive runs, each of which starts at an `is_first_of_run` row, in the order of arrival."""
    pending: list[pa.RecordBatch] = []
    for batch in batches:
        heads = pc.indices_nonzero(batch["is_first_of_run"])
        if not heads:
            pending.append(batch)
            continue
        last = heads[-1].as_py()
        yield from _simulate_runs(pa.Table.from_batches([*pending, batch.slice(0, last)]))
        pending = [batch.slice(last)]
    if pending:
        yield from _simulate_runs(pa.Table.from_batches(pending))


def _simulate_runs(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """Simulate complete runs: yields members of firings, late rows, and every other row with its final session.

    A session is fired and purged by the watermark at the arrival of rows, both at the levels of its latest row alone.
    """
    outcomes = _RowOutcomes()
    open_sessions = list[_Session]()
    times = ("is_first_of_run", "time", "gap", "fires_at", "purged_at", "arrival_watermark")
    names = (*times, *_LateRow._fields)
    columns = (rows[name].to_pylist() for name in names)
    for offset, values in enumerate(zip(*columns, strict=True)):
        is_first_of_run, time, gap, fires_at, purged_at, watermark, *position = values
        open_sessions = _advance(open_sessions, END_OF_INPUT if is_first_of_run else watermark, outcomes)
        touched = [session for session in open_sessions if session.start <= time + gap and time <= session.end]
        alone = _Session(time, time + gap, fires_at, purged_at, [])
        last = max([*touched, alone], key=lambda session: session.end)
        merged = _Session(
            min([time, *(session.start for session in touched)]),
            last.end,
            last.fires_at,
            last.purged_at,
            [member for session in touched for member in session.rows] + [offset],
            max((session.fired for session in touched), default=0),
        )
        if merged.purged_at <= watermark:
            outcomes.add([offset], "late", merged)
            continue
        open_sessions = [session for session in open_sessions if session not in touched] + [merged]
        if merged.fires_at <= watermark:
            outcomes.add(merged.rows, "member", merged, _LateRow(*position))
            merged.fired += 1
            merged.is_due = False
    _advance(open_sessions, END_OF_INPUT, outcomes)
    table = rows.combine_chunks().take(pa.array(outcomes.offsets, pa.int64()))
    for column in to_arrow_schema(_OUTCOME_SCHEMA):
        table = table.append_column(column, pa.array(outcomes.columns[column.name], column.type))
    yield from table.to_batches()


def _advance(open_sessions: list[_Session], watermark: int, outcomes: _RowOutcomes) -> list[_Session]:
    """Fire and purge the sessions that a watermark reaches; returns those that stay open."""
    for session in open_sessions:
        if session.is_due and session.fires_at <= watermark:
            outcomes.add(session.rows, "member", session)
            session.fired += 1
            session.is_due = False
        if session.purged_at <= watermark:
            outcomes.add(session.rows, "state", session)
    return [session for session in open_sessions if session.purged_at > watermark]
