"""The joins, shared by all dialects, and one small module per dialect for its boundary rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Literal

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tidemark.config import Pipeline, WindowSettings
from tidemark.config.sides import SIDES
from tidemark.config.types import micros, millis
from tidemark.joins import window
from tidemark.joins.base import Join, clock_of_rows
from tidemark.joins.condition import Condition, refuse_event_times
from tidemark.joins.custom_trigger import TriggeredJoin
from tidemark.joins.datastream_interval import DatastreamIntervalJoin
from tidemark.joins.firing_spec import Firing
from tidemark.joins.restarts import RestartedIntervalJoin, RestartedWindowJoin
from tidemark.joins.rules import flink_datastream, flink_sql
from tidemark.joins.rules.flink_common import watermark_lag
from tidemark.joins.rules.spark import Rules, evicts
from tidemark.joins.session_window import SessionJoin
from tidemark.joins.spark_stream_stream import MicroBatchJoin
from tidemark.joins.sql_interval.join import SqlIntervalJoin
from tidemark.joins.sql_interval.processing_time import ProcessingTimeJoin
from tidemark.joins.window import WindowJoin, Windows
from tidemark.joins.window_inequality import ComparedWindowJoin, ComparedWindows
from tidemark.joins.window_operator_simulation import PaneSpec
from tidemark.joins.window_output import JoinType
from tidemark.timegrid.time_columns import whole
from tidemark.timegrid.zones import Zone, changes_by_hours
from tidemark.watermarks.buckets import Lane, WatermarkLag, Watermarks
from tidemark.watermarks.from_column import RecordedLane
from tidemark.watermarks.idle_and_partitioned import SourceLane
from tidemark.watermarks.job_restarts import RestartedLane, RestartedRecordedLane
from tidemark.watermarks.micro_batches import QueryLane
from tidemark.watermarks.processing_time import ClockLane
from tidemark.watermarks.query_trace import QueryTrace

__all__ = ["Join", "has_odd_changes", "join_of", "lane_of"]


def join_of(pipeline: Pipeline, spark: SparkSession, inputs: Mapping[str, StructType]) -> Join:
    """The join that a pipeline file describes, over inputs (left and right) with these columns."""
    if pipeline.dialect == "spark":
        return _micro_batch_join(pipeline, Condition.of(spark, pipeline.join.condition, inputs))
    if pipeline.join.window:
        return _window_join(pipeline, pipeline.join.window)
    assert pipeline.join.interval, "settings.dialects sees to it"
    if pipeline.dialect == "flink-sql":
        rules = flink_sql.IntervalRules.of(pipeline.join.interval, pipeline.join.min_cleanup_ms)
        join_type, condition = JoinType.of(pipeline.join.type), pipeline.join.condition
        if pipeline.by_clock_alone:
            return ProcessingTimeJoin(rules, clock_of_rows(), join_type, condition)
        return SqlIntervalJoin(rules, join_type, condition)
    by_epochs = RestartedIntervalJoin if pipeline.restarts else DatastreamIntervalJoin
    return by_epochs(flink_datastream.IntervalRules.of(pipeline.join.interval))


def lane_of(pipeline: Pipeline, before: Watermarks, drain: int | None = None, trace: QueryTrace | None = None) -> Lane:
    """The one stream of a pipeline, with its watermarks when the first slice starts, and the batches of its query."""
    if pipeline.by_clock_alone:
        return ClockLane(WatermarkLag(0, 0), before, drain)
    if pipeline.dialect == "spark":
        return _query_lane(pipeline, before, drain, trace)
    return _flink_lane(pipeline, before, drain)


def _flink_lane(pipeline: Pipeline, before: Watermarks, drain: int | None) -> Lane:
    lag, recorded, restarts = watermark_lag(pipeline), pipeline.recorded, tuple(map(micros, pipeline.restarts))
    if recorded and restarts:
        return RestartedRecordedLane(lag, before, drain, recorded=recorded, restarts=restarts)
    if recorded:
        return RecordedLane(lag, before, drain, recorded=recorded)
    if restarts:
        return RestartedLane(lag, before, drain, restarts=restarts)
    inputs = pipeline.left, pipeline.right
    if not any(source.partition or source.idle_after for source in inputs):
        return Lane(lag, before, drain)
    left, right = (micros(source.idle_after) if source.idle_after else None for source in inputs)
    return SourceLane(lag, before, drain, idle_after={"left": left, "right": right})


def _query_lane(pipeline: Pipeline, before: Watermarks, drain: int | None, trace: QueryTrace | None) -> QueryLane:
    delays = {side: getattr(pipeline, side).watermark_delay for side in SIDES}
    given = {side: delay for side, delay in delays.items() if delay is not None}
    return QueryLane(
        WatermarkLag(*(millis(given.get(side, timedelta())) for side in delays)),
        before,
        drain,
        watermarked=tuple(given),
        policy=pipeline.spark.watermark_policy,
        late_watermark=pipeline.spark.late_watermark,
        idle=pipeline.spark.batches == "idle" and trace is None,
        evicts=evicts(pipeline),
        schedule={batch.clock: batch.watermark for batch in trace.batches} if trace else {},
    )


def _micro_batch_join(pipeline: Pipeline, condition: Condition) -> Join:
    refuse_event_times(condition, {side: getattr(pipeline, side).event_time.column for side in SIDES})
    join, rules, per_slice = pipeline.join, Rules.of(pipeline), millis(pipeline.slices.every) if pipeline.trace else 1
    if compared := join.window_inequality:
        left, right = (_windows(getattr(compared, side), micros) for side in SIDES)
        windows = ComparedWindows(left, right, F.lit(compared.operator))
        return ComparedWindowJoin(rules, condition, windows, buckets_per_slice=per_slice)
    bounded = join.interval is not None and None not in {join.interval.lower, join.interval.upper}
    return MicroBatchJoin(
        rules,
        condition,
        _windows(join.window, micros) if join.window else None,
        on_event_time=join.event_time_equality,
        binned=bounded and not join.event_time_equality,
        buckets_per_slice=per_slice,
    )


def _windows(of: WindowSettings, units: Callable[[timedelta], int] = millis, zone: Zone | None = None) -> Windows:
    """Windows without sessions, in ms or other units."""
    size, slide, offset = (whole(units(part)) for part in _size_and_slide(of))
    return Windows(size, slide, offset, F.lit(of.cumulate is not None), zone, tumbling=of.tumbling is not None)


def _window_join(pipeline: Pipeline, settings: WindowSettings) -> Join:
    join, sql = pipeline.join, pipeline.dialect == "flink-sql"
    lateness = whole(millis(join.allowed_lateness))
    zone = Zone.of(pipeline.zone_of_windows) if pipeline.zone_of_windows else None
    rules: window.Rules = flink_sql.WindowRules(zone) if sql else flink_datastream.WindowRules(lateness)
    join_type, cogroup, latest = JoinType.of(join.type), join.api == "cogroup", join.emit == "latest"
    condition = join.condition if sql else None
    if not join.fires_by_default:
        return _triggered_join(pipeline, settings, rules)
    if settings.session:
        gap = whole(millis(settings.session.gap))
        return SessionJoin(gap, rules, join_type, sql, cogroup, latest, condition, zone, has_odd_changes(pipeline))
    shape, refires = _windows(settings, zone=zone), join.allowed_lateness > timedelta()
    by_epochs = RestartedWindowJoin if pipeline.restarts else WindowJoin
    return by_epochs(shape, rules, join_type, refires, cogroup, latest, condition, has_odd_changes(pipeline))


def has_odd_changes(pipeline: Pipeline) -> bool:
    """Whether changes of the clocks may lie where Flink's timers are out of order, or before the last of their rows."""
    zone, guard = pipeline.zone_of_windows, pipeline.guard
    return zone is not None and (guard is None or not changes_by_hours(zone, guard.earliest, guard.latest))


def _triggered_join(pipeline: Pipeline, settings: WindowSettings, rules: window.Rules) -> Join:
    join = pipeline.join
    trigger, evictor = join.triggered_by, join.evictor
    spec = PaneSpec(
        trigger.kind,
        trigger.amount,
        trigger.purging,
        evictor.kind if evictor else None,
        evictor.amount if evictor else 0,
        evictor.after if evictor else False,
        join.time == "processing",
        millis(join.allowed_lateness),
        millis(settings.session.gap) if settings.session else None,
    )
    shape = None if settings.session else _windows(settings)
    now, cogroup = clock_of_rows(), join.api == "cogroup"
    closed = shape is not None and spec.is_closed
    # Continuous triggers ask which rows came before a fire time, all others only which rows were late.
    exact = not closed or spec.continuous or spec.processing
    how: Literal["all", "none"] = "all" if closed else "none"
    return TriggeredJoin(shape, rules, Firing.of(spec), now, spec.has_both_times, how, cogroup, exact)


def _size_and_slide(window: WindowSettings) -> tuple[timedelta, timedelta, timedelta]:
    """Size, slide (a tumbling window's size, a cumulating one's step) and offset."""
    if window.sliding:
        return window.sliding.size, window.sliding.slide, window.offset
    if window.cumulate:
        return window.cumulate.size, window.cumulate.step, window.offset
    assert window.tumbling, "one shape is given"
    return window.tumbling, window.tumbling, window.offset
