"""Create the join and the lane of a pipeline from its configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Literal

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tidemark.config import Pipeline, WindowSettings
from tidemark.config.sides import SIDES, SideName
from tidemark.config.types import to_micros, to_millis
from tidemark.joins import window
from tidemark.joins.base import Join, processing_time
from tidemark.joins.condition import Condition, check_no_event_times
from tidemark.joins.custom_trigger import CustomTriggerJoin
from tidemark.joins.datastream_interval import DatastreamIntervalJoin
from tidemark.joins.firing_spec import FiringColumns, WindowFiringSpec
from tidemark.joins.join_type import JoinType
from tidemark.joins.restarts import RestartedIntervalJoin, RestartedWindowJoin
from tidemark.joins.rules import flink_datastream, flink_sql
from tidemark.joins.rules.flink_common import compute_watermark_lag, to_inclusive_bounds
from tidemark.joins.rules.spark import StreamStreamRules, has_state_eviction
from tidemark.joins.session_window import SessionWindowJoin
from tidemark.joins.spark_stream_stream import StreamStreamJoin
from tidemark.joins.sql_interval.join import SqlIntervalJoin
from tidemark.joins.sql_interval.processing_time import ProcessingTimeJoin
from tidemark.joins.upstream_windows import with_upstream_windows
from tidemark.joins.window import AlignedWindows, WindowJoin
from tidemark.joins.window_inequality import ComparedWindowAssigner, WindowInequalityJoin
from tidemark.timegrid.time_columns import lit_long
from tidemark.timegrid.zones import Zone, changes_by_full_hours
from tidemark.watermarks.idle_or_partitioned_lane import IdleOrPartitionedLane
from tidemark.watermarks.lanes import Lane
from tidemark.watermarks.micro_batch_lane import MicroBatchLane
from tidemark.watermarks.processing_time_lane import ProcessingTimeLane
from tidemark.watermarks.query_trace import QueryTrace
from tidemark.watermarks.recorded_watermark_lane import OutputStreamLane, RecordedWatermarkLane
from tidemark.watermarks.restarted_lane import RestartedLane, RestartedRecordedWatermarkLane
from tidemark.watermarks.values import WatermarkLag, Watermarks


def create_join(pipeline: Pipeline, spark: SparkSession, inputs: Mapping[str, StructType]) -> Join:
    """Create the join of a pipeline.

    Args:
        pipeline: The pipeline.
        spark: Session that analyses the condition.
        inputs: Schema of each input by side.
    """
    if pipeline.dialect == "spark":
        keys = [(pair.left, pair.right) for pair in pipeline.join.keys]
        filters = {side: getattr(pipeline, side).where for side in SIDES}
        parsed = Condition.parse(spark, pipeline.join.condition, inputs, keys, filters)
        return _create_stream_stream_join(pipeline, parsed)
    if pipeline.join.window:
        return _create_window_join(pipeline, pipeline.join.window)
    assert pipeline.join.interval, "config.dialect_support checks this"
    if pipeline.dialect == "flink-sql":
        rules = flink_sql.IntervalRules.from_config(pipeline.join.interval, pipeline.join.min_cleanup_interval_ms)
        join_type = JoinType.from_name(pipeline.join.type)
        condition = pipeline.join.condition
        if pipeline.uses_processing_time_only:
            return ProcessingTimeJoin(rules, processing_time(), join_type, condition)
        selects_exact_rows = not pipeline.output_stream or pipeline.join.type == "inner"
        return SqlIntervalJoin(
            rules, join_type, condition, selects_exact_rows, tuple(pipeline.upstreams), pipeline.output_stream
        )
    interval_join = RestartedIntervalJoin if pipeline.restarts else DatastreamIntervalJoin
    return interval_join(flink_datastream.IntervalRules.from_config(pipeline.join.interval), tuple(pipeline.upstreams))


def create_lane(
    pipeline: Pipeline, initial: Watermarks, drain: int | None = None, trace: QueryTrace | None = None
) -> Lane:
    """Create the lane of a pipeline.

    Args:
        pipeline: The pipeline.
        initial: Watermarks when the first slice starts.
        drain: Slice after which the input ends, if it does.
        trace: Batches of the streaming query whose arrival order is replayed.
    """
    if pipeline.uses_processing_time_only:
        return ProcessingTimeLane(WatermarkLag(0, 0), initial, drain)
    if pipeline.dialect == "spark":
        return _create_micro_batch_lane(pipeline, initial, drain, trace)
    return _create_flink_lane(pipeline, initial, drain)


def _create_flink_lane(pipeline: Pipeline, initial: Watermarks, drain: int | None) -> Lane:
    lag = compute_watermark_lag(pipeline)
    recorded_sides = pipeline.recorded_watermark_sides
    restarts = tuple(map(to_micros, pipeline.restarts))
    late_margin = _compute_late_margin(pipeline)
    if pipeline.upstreams:
        return OutputStreamLane(lag, initial, drain, late_margin=late_margin, recorded_sides=recorded_sides)
    if recorded_sides and restarts:
        return RestartedRecordedWatermarkLane(
            lag, initial, drain, late_margin=late_margin, recorded_sides=recorded_sides, restarts=restarts
        )
    if recorded_sides:
        return RecordedWatermarkLane(lag, initial, drain, late_margin=late_margin, recorded_sides=recorded_sides)
    if restarts:
        return RestartedLane(lag, initial, drain, late_margin=late_margin, restarts=restarts)
    inputs = pipeline.left, pipeline.right
    if not any(source.partition or source.idle_timeout for source in inputs):
        return Lane(lag, initial, drain, late_margin=late_margin)
    left, right = (to_micros(source.idle_timeout) if source.idle_timeout else None for source in inputs)
    return IdleOrPartitionedLane(
        lag,
        initial,
        drain,
        late_margin=late_margin,
        idle_timeouts={"left": left, "right": right},
        is_union=pipeline.joins_union_of_inputs,
    )


def _compute_late_margin(pipeline: Pipeline) -> int:
    """Return how far above the watermark Flink SQL's interval join refuses to cache a row, ms.

    It caches no row whose partners must all be earlier than the row and at or below the watermark.
    """
    if pipeline.dialect != "flink-sql" or pipeline.join.interval is None:
        return 0
    lower, upper = to_inclusive_bounds(pipeline.join.interval)
    return max(0, lower, -upper)


def _create_micro_batch_lane(
    pipeline: Pipeline, initial: Watermarks, drain: int | None, trace: QueryTrace | None
) -> MicroBatchLane:
    delays = {side: getattr(pipeline, side).watermark_delay for side in SIDES}
    watermarked = {side: delay for side, delay in delays.items() if delay is not None}
    return MicroBatchLane(
        WatermarkLag(*(to_millis(watermarked.get(side, timedelta())) for side in delays)),
        initial,
        drain,
        watermarked_sides=tuple(watermarked),
        policy=pipeline.spark.multiple_watermark_policy,
        late_watermark=pipeline.spark.late_watermark,
        is_idle_between_batches=pipeline.spark.micro_batches == "idle" and trace is None,
        has_eviction=has_state_eviction(pipeline),
        schedule={batch.clock: batch.watermark for batch in trace.batches} if trace else {},
    )


def _create_stream_stream_join(pipeline: Pipeline, condition: Condition) -> Join:
    check_no_event_times(condition, {side: getattr(pipeline, side).event_time.column for side in SIDES})
    join = pipeline.join
    rules = StreamStreamRules.from_config(pipeline)
    per_slice = to_millis(pipeline.slices.every) if pipeline.checkpoint_arrival else 1
    if compared := join.window_inequality:
        left, right = (_create_windows(getattr(compared, side), to_micros) for side in SIDES)
        windows = ComparedWindowAssigner(left, right, F.lit(compared.operator))
        return WindowInequalityJoin(rules, condition, windows, buckets_per_slice=per_slice)
    is_bounded = join.interval is not None and None not in {join.interval.lower, join.interval.upper}
    return StreamStreamJoin(
        rules,
        condition,
        _create_windows(join.window, to_micros) if join.window else None,
        is_on_event_time=join.event_time_equality,
        is_binned=is_bounded and not join.event_time_equality,
        buckets_per_slice=per_slice,
    )


def _create_windows(
    settings: WindowSettings, to_unit: Callable[[timedelta], int] = to_millis, zone: Zone | None = None
) -> AlignedWindows:
    """Create windows that are no sessions, in ms or another unit."""
    size, slide, offset = (lit_long(to_unit(duration)) for duration in _get_size_slide_offset(settings))
    is_cumulating = F.lit(settings.cumulate is not None)
    return AlignedWindows(size, slide, offset, is_cumulating, zone, is_tumbling=settings.tumbling is not None)


def _create_window_join(pipeline: Pipeline, settings: WindowSettings) -> Join:
    join = pipeline.join
    is_sql = pipeline.dialect == "flink-sql"
    lateness = lit_long(to_millis(join.allowed_lateness))
    zone = Zone.from_name(pipeline.window_time_zone) if pipeline.window_time_zone else None
    rules: window.WindowTimerRules = flink_sql.WindowRules(zone) if is_sql else flink_datastream.WindowRules(lateness)
    join_type = JoinType.from_name(join.type)
    is_cogroup = join.api == "cogroup"
    emits_latest = join.emit == "latest"
    condition = join.condition if is_sql else None
    is_irregular = has_irregular_clock_changes(pipeline)
    if not join.has_default_firing:
        return _create_custom_trigger_join(pipeline, settings, rules)
    if settings.session:
        return SessionWindowJoin(
            gap=lit_long(to_millis(settings.session.gap)),
            rules=rules,
            join_type=join_type,
            has_sessions_by_side=is_sql,
            is_cogroup=is_cogroup,
            emits_latest=emits_latest,
            condition=condition,
            zone=zone,
            simulates_all=is_irregular,
            upstream_sides=tuple(pipeline.upstreams),
        )
    windows = _create_windows(settings, zone=zone)
    has_late_firings = join.allowed_lateness > timedelta()
    if is_sql:
        windows = with_upstream_windows(windows, _list_window_inputs(pipeline))
    window_join = RestartedWindowJoin if pipeline.restarts else WindowJoin
    return window_join(
        windows=windows,
        rules=rules,
        join_type=join_type,
        has_late_firings=has_late_firings,
        is_cogroup=is_cogroup,
        emits_latest=emits_latest,
        condition=condition,
        needs_exact_watermarks=is_irregular,
        has_unordered_timers=is_irregular and settings.tumbling is None,
        upstream_sides=tuple(pipeline.upstreams),
    )


def _list_window_inputs(pipeline: Pipeline) -> dict[SideName, str]:
    """List the inputs whose rows are in the windows of another pipeline, with their event time columns."""
    windowed = [side for side, upstream in pipeline.upstreams.items() if upstream.window]
    return {side: getattr(pipeline, side).event_time.column for side in windowed}


def has_irregular_clock_changes(pipeline: Pipeline) -> bool:
    """Return True if clock changes may put Flink's window timers out of order, or before the last rows of a window."""
    zone = pipeline.window_time_zone
    bounds = pipeline.time_bounds
    return zone is not None and (bounds is None or not changes_by_full_hours(zone, bounds.earliest, bounds.latest))


def _create_custom_trigger_join(pipeline: Pipeline, settings: WindowSettings, rules: window.WindowTimerRules) -> Join:
    join = pipeline.join
    trigger, evictor = join.effective_trigger, join.evictor
    spec = WindowFiringSpec(
        trigger=trigger.kind,
        trigger_amount=trigger.amount,
        is_purging=trigger.purging,
        evictor=evictor.kind if evictor else None,
        evictor_amount=evictor.amount if evictor else 0,
        evicts_after=evictor.evict_after if evictor else False,
        is_processing_time=join.time == "processing",
        lateness=to_millis(join.allowed_lateness),
        gap=to_millis(settings.session.gap) if settings.session else None,
    )
    windows = None if settings.session else _create_windows(settings)
    has_closed_form = windows is not None and spec.has_closed_form
    closed_form_lanes: Literal["all", "none"] = "all" if has_closed_form else "none"
    return CustomTriggerJoin(
        windows,
        rules,
        FiringColumns.from_spec(spec),
        processing_time(),
        spec.has_both_times,
        closed_form_lanes,
        is_cogroup=join.api == "cogroup",
        # Continuous triggers need the order of rows and fire times, other closed forms only which rows were late.
        needs_exact_watermarks=not has_closed_form or spec.is_continuous or spec.is_processing_time,
    )


def _get_size_slide_offset(window: WindowSettings) -> tuple[timedelta, timedelta, timedelta]:
    """Return size, slide (of tumbling windows their size, of cumulating windows their step) and offset."""
    if window.sliding:
        return window.sliding.size, window.sliding.slide, window.offset
    if window.cumulate:
        return window.cumulate.size, window.cumulate.step, window.offset
    assert window.tumbling, "one shape is given"
    return window.tumbling, window.tumbling, window.offset
