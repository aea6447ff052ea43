"""Refuse joins and settings that the engine of a dialect does not support."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tidemark.config.inputs import CommitArrival
from tidemark.config.sides import SIDES, SideName

if TYPE_CHECKING:
    from tidemark.config.join import Join, WindowSettings
    from tidemark.config.pipeline import Pipeline

TICK_MICROS = {"flink-datastream": 1000, "flink-sql": 1000, "spark": 1}
"""Precision of event times in each dialect, in microseconds."""

_SHAPES = ("interval", "window", "event_time_equality", "window_inequality")
_JOIN_TYPES = {
    "flink-datastream": {"interval": "inner", "window": "inner"},
    "flink-sql": {"interval": "inner left right full", "window": "inner left right full semi anti"},
    "spark": dict.fromkeys(_SHAPES, "inner left right full semi"),
}
TRIGGERS = (
    "event_time",
    "continuous_event_time",
    "processing_time",
    "continuous_processing_time",
    "count",
    "delta",
)
"""Triggers of Flink's DataStream API."""
_WINDOWS = (("flink-datastream", "window"),)
_SQL_INTERVALS = (("flink-sql", "interval"),)
_SUPPORTED_BY = {
    "api": _WINDOWS,
    "allowed_lateness": _WINDOWS,
    "emit": _WINDOWS,
    "trigger": _WINDOWS,
    "evictor": _WINDOWS,
    "time": _WINDOWS + _SQL_INTERVALS,
    "min_cleanup_interval": _SQL_INTERVALS,
}
"""Dialects and join shapes that support a setting of the join."""
_UTC_ONLY = {
    "flink-datastream": "windows of Flink's DataStream API are in UTC. Set their `offset` instead.",
    "spark": "Spark's window() counts from 1970 in UTC, whatever the session's time zone. Remove it.",
}
"""Error messages of dialects without time zones of windows."""
_SOURCE_SETTINGS = ("partition", "idle_timeout")
_FIRING_SETTINGS = ("allowed_lateness", "emit", "trigger", "evictor", "time")
"""Settings that change how often windows fire."""
_BY_UPPER = "right.watermark_delay and join.interval.upper"
_BY_LOWER = "left.watermark_delay and join.interval.lower"
_BY_LESSER = "right.watermark_delay and left > right (or >=)"
_BY_GREATER = "left.watermark_delay and left < right (or <=)"


def check_join(dialect: str, join: Join) -> None:
    """Check that a dialect supports the join.

    Raises:
        ValueError: The dialect does not support a setting. The message has the supported ones.
    """
    for problem in _find_join_problems(dialect, join):
        raise ValueError(problem)


def check_watermarks(pipeline: Pipeline) -> None:
    """Check that the inputs have the watermark settings that the dialect needs, and none that it does not support.

    Raises:
        ValueError: A setting is missing or unsupported.
    """
    rules = (
        _find_watermark_problems,
        _find_recorded_watermark_problems,
        _find_clock_problems,
        _find_filter_problems,
        _find_clock_skew_problems,
        _find_idle_input_problems,
    )
    for problem in (problem for rule in rules for problem in rule(pipeline)):
        raise ValueError(problem)


def check_time_zone(pipeline: Pipeline) -> None:
    """Check that the dialect supports local time if a time zone is set.

    Raises:
        ValueError: The join or the dialect has no local time.
    """
    if pipeline.time_zone == "UTC":
        return
    if not pipeline.join.window:
        raise ValueError("time_zone: needs windows, because interval bounds are equal in every zone. Remove it.")
    if pipeline.dialect != "flink-sql":
        raise ValueError(f"time_zone: {_UTC_ONLY[pipeline.dialect]}")


def check_restarts(pipeline: Pipeline) -> None:
    """Check that the effect of job restarts on the join is known.

    Raises:
        ValueError: A setting is not supported together with restarts.
    """
    for problem in _find_restart_problems(pipeline) if pipeline.restarts else ():
        raise ValueError(f"restarts: {problem}")


def flink_version_defaults(version: str) -> dict[str, Any]:
    """Return the defaults of Flink SQL's interval join in a Flink version, where they differ from ours.

    >>> flink_version_defaults("1.17.2"), flink_version_defaults("1.18")
    ({'min_cleanup_interval': 'half'}, {})
    """
    return {"min_cleanup_interval": "half"} if _is_before(version, 1, 18) else {}


def _is_before(version: str, *parts: int) -> bool:
    return [int(part) for part in version.split(".") if part.isdigit()] < list(parts)


def can_join_null_keys(dialect: str) -> bool:
    """Return True if a row with a null key can take part in the join."""
    return dialect in {"flink-sql", "spark"}


def _find_clock_skew_problems(pipeline: Pipeline) -> Iterator[str]:
    """Yield inputs whose allowed clock skew has no effect."""
    for side in SIDES:
        if getattr(pipeline, side).allowed_clock_skew and pipeline.get_allowed_clock_skew(side) is None:
            yield (
                f"{side}.allowed_clock_skew: has an effect only if the input has an arrival and its event times make a "
                "watermark. Remove it."
            )


def _find_idle_input_problems(pipeline: Pipeline) -> Iterator[str]:
    """Yield problems of idle inputs in joins whose rule for them is not supported."""
    window = pipeline.join.window
    if pipeline.dialect == "flink-sql" and window and window.session:
        for side in SIDES:
            if getattr(pipeline, side).idle_timeout:
                yield (
                    f"{side}.idle_timeout: is not supported with session windows of flink-sql, where an idle input's "
                    "sessions can close after the join's watermark has passed them. Remove it."
                )
    # Operators of two inputs did not raise their watermark then.
    if not pipeline.flink_version or pipeline.joins_union_of_inputs or not _is_before(pipeline.flink_version, 2, 2):
        return
    if all(getattr(pipeline, side).idle_timeout for side in SIDES):
        yield (
            "flink_version: before Flink 2.2 this join keeps its watermark while both inputs are idle, which is not "
            "supported. Remove the idle_timeout of one input, or flink_version for the rule since 2.2."
        )


def _find_recorded_watermark_problems(pipeline: Pipeline) -> Iterator[str]:
    """Yield problems of recorded watermarks, which exist in arrival order and once per input."""
    for side in pipeline.recorded_watermark_sides:
        if pipeline.dialect == "spark":
            yield (
                f"{side}.recorded_watermark: is for Flink's dialects only. For a Spark query, set arrival to its "
                "streaming_checkpoint."
            )
        elif pipeline.clock != "arrival":
            yield f"{side}.recorded_watermark: was recorded in arrival order. Set an arrival column on both inputs."
        elif source_settings := _list_source_settings(pipeline):
            remedy = get_remedy(source_settings[0])
            yield f"{source_settings[0]}: cannot be combined with {side}.recorded_watermark. {remedy}"
        elif not pipeline.join.has_default_firing:
            name = next(name for name in ("trigger", "evictor", "time") if name in pipeline.join.model_fields_set)
            yield f"join.{name}: cannot be combined with a recorded watermark. Set {side}.watermark_delay instead."


def _find_restart_problems(pipeline: Pipeline) -> Iterator[str]:
    if pipeline.dialect == "spark":
        yield "have no effect on a Spark query, whose watermark is in its checkpoint. Remove them."
    elif pipeline.dialect == "flink-sql" and pipeline.join.window:
        yield "need an interval in flink-sql, because the state of its windows differs by Flink version. Remove them."
    elif (window := pipeline.join.window) and not window.tumbling:
        yield "need tumbling windows, because fired windows of a row are not stored. Remove them."
    elif names := [name for name in _FIRING_SETTINGS if _is_changed(pipeline.join, name)]:
        yield f"cannot be combined with join.{names[0]}. Remove one of them."
    elif pipeline.clock != "arrival":
        yield "are instants of the arrival clock. Set an arrival column on both inputs."
    elif source_settings := _list_source_settings(pipeline):
        yield f"cannot be combined with {source_settings[0]}. {get_remedy(source_settings[0], 'Remove one of them.')}"


def get_remedy(setting: str, remedy: str = "Remove it.") -> str:
    """Return the remedy for an unsupported setting of an input, which `arrival: {kafka: COLUMN}` may have set.

    >>> get_remedy("left.partition")
    'Remove it. With arrival: {kafka: COLUMN} write partition: null.'
    """
    return (
        f"{remedy} With arrival: {{kafka: COLUMN}} write partition: null." if setting.endswith("partition") else remedy
    )


def _list_source_settings(pipeline: Pipeline) -> list[str]:
    """List the settings that let more than rows hold the watermark back: partitions and idleness."""
    return [f"{side}.{name}" for side in SIDES for name in _SOURCE_SETTINGS if getattr(getattr(pipeline, side), name)]


def _find_watermark_problems(pipeline: Pipeline) -> Iterator[str]:
    join = pipeline.join
    delayed = {side for side in SIDES if getattr(pipeline, side).watermark_delay is not None}
    watermarked = delayed.union(pipeline.recorded_watermark_sides)
    if pipeline.uses_processing_time_only:
        yield from _find_processing_time_problems(pipeline)
    elif pipeline.dialect != "spark":
        missing = [side for side in SIDES if side not in watermarked]
        yield from (f"{side}.watermark_delay: is missing, but {pipeline.dialect} needs it" for side in missing)
        if "spark" in pipeline.model_fields_set:
            yield f"spark: is for dialect spark only, not {pipeline.dialect}. Remove it."
    elif source_settings := _list_source_settings(pipeline):
        yield f"{source_settings[0]}: is for Flink's dialects only. In Spark each input has one watermark, never idle."
    elif gaps := [
        name for name, window in _list_windows(join) if window.sliding and window.sliding.slide > window.sliding.size
    ]:
        yield f"join.{gaps[0]}.sliding: spark does not support a slide above the size. Decrease it."
    elif join.type == "inner":
        return
    elif (join.interval and not join.event_time_equality) or join.window_inequality:
        yield from _find_eviction_problems(join, watermarked)
    elif not watermarked:
        yield f"join.type: spark refuses a {join.type} join without a watermark. Set watermark_delay on a side."


def _find_eviction_problems(join: Join, watermarked: set[SideName]) -> Iterator[str]:
    """Yield a problem if a Spark outer or semi join could never evict rows that wait for a match."""
    upper = "right" in watermarked and _has_wait_limit(join, "left")
    lower = "left" in watermarked and _has_wait_limit(join, "right")
    if not {"right": lower, "full": lower or upper}.get(join.type, upper):
        by_upper, by_lower = (_BY_LESSER, _BY_GREATER) if join.window_inequality else (_BY_UPPER, _BY_LOWER)
        required = {"right": by_lower, "full": f"{by_upper}, or {by_lower}"}.get(join.type, by_upper)
        yield f"join.type: spark refuses a {join.type} join that cannot evict rows. Set {required}."


def _has_wait_limit(join: Join, side: SideName) -> bool:
    """Return True if the other side's watermark limits how long rows of a side wait for matches."""
    if join.window_inequality:
        return join.window_inequality.lesser_side != side
    return join.interval is not None and (join.interval.upper if side == "left" else join.interval.lower) is not None


def _find_processing_time_problems(pipeline: Pipeline) -> Iterator[str]:
    """Yield problems of Flink SQL's processing time, where a row's only time is its arrival."""
    for side in SIDES:
        source = getattr(pipeline, side)
        if isinstance(source.arrival, CommitArrival):
            yield f"{side}.arrival: must be a column on processing time, which event_time can name too"
        elif source.arrival and source.arrival != source.event_time:
            yield f"{side}.event_time: differs from arrival, the only time on processing time. Set it to that column."
        for name in ("watermark_delay", "recorded_watermark", *_SOURCE_SETTINGS):
            if getattr(source, name) is not None:
                yield f"{side}.{name}: has no effect with join.time: processing. {get_remedy(name)}"


def _find_filter_problems(pipeline: Pipeline) -> Iterator[str]:
    for side in SIDES:
        if pipeline.dialect == "spark" and getattr(pipeline, side).filter == "after_watermark":
            yield (
                f"{side}.filter: Spark's optimizer pushes a filter below withWatermark, so filtered rows never advance "
                "the watermark. Set before_watermark, or remove it."
            )


def _find_clock_problems(pipeline: Pipeline) -> Iterator[str]:
    join = pipeline.join
    is_on_clock = join.effective_trigger.kind.endswith("processing_time")
    if pipeline.clock != "arrival" and (is_on_clock or join.time == "processing"):
        cause = "join.time: processing" if join.time == "processing" else f"join.trigger: {join.effective_trigger.kind}"
        yield f"{cause} needs arrival times. Set an arrival column on both inputs."
    is_on_watermark = join.effective_trigger.kind.endswith("event_time")
    is_mixed = is_on_clock if join.time == "event" else is_on_watermark
    if is_mixed and (source_settings := _list_source_settings(pipeline)):
        remedy = get_remedy(source_settings[0])
        yield f"{source_settings[0]}: cannot be combined with a trigger on another time than the windows'. {remedy}"


def _find_join_problems(dialect: str, join: Join) -> Iterator[str]:
    shapes = [name for name in _SHAPES if getattr(join, name)]
    supported = _JOIN_TYPES[dialect]
    if len(shapes) != 1 and not (dialect == "spark" and shapes == ["interval", "event_time_equality"]):
        yield f"join: set exactly one of {', '.join(supported)}"
        return
    shape = shapes[0]
    if shape not in supported:
        yield f"join: {dialect} does not support {shape}. Use {' or '.join(supported)}."
    elif join.type not in supported[shape].split():
        types = supported[shape].replace(" ", ", ")
        yield f"join.type: {dialect} does not support {join.type} for {shape} joins. Use {types}."
    yield from _find_window_problems(dialect, join)
    for name, combinations in _SUPPORTED_BY.items():
        if _is_changed(join, name) and (dialect, shape) not in combinations:
            joins = " and ".join(f"{shape} joins of {dialect}" for dialect, shape in combinations)
            yield f"join.{name}: is for {joins} only. Remove it."


def _is_changed(join: Join, name: str) -> bool:
    """Return True if a setting of the join differs from its default."""
    return bool(getattr(join, name) != type(join).model_fields[name].default)


def _list_windows(join: Join) -> Iterator[tuple[str, WindowSettings]]:
    """Yield the windows of a join with the names of their settings."""
    if join.window:
        yield "window", join.window
    if join.window_inequality:
        yield from ((f"window_inequality.{side}", getattr(join.window_inequality, side)) for side in SIDES)


def _find_window_problems(dialect: str, join: Join) -> Iterator[str]:
    bounds = {join.interval.lower, join.interval.upper} if join.interval else set()
    if None in bounds and (dialect != "spark" or len(bounds) == 1):
        yield f"join.interval: {dialect} needs {'one of' if dialect == 'spark' else 'both'} lower and upper"
    for name, window in _list_windows(join):
        if window.cumulate and dialect != "flink-sql":
            yield f"join.{name}: {dialect} does not support cumulate windows. Use flink-sql or other windows."
        if window.session and dialect == "spark":
            yield f"join.{name}: spark joins on tumbling and sliding windows only. Use one of these."
    if join.window and join.window.session and join.trigger and join.trigger.kind == "delta":
        yield "join.trigger: delta cannot merge windows, as sessions need. Use another trigger or other windows."
    if join.emit == "latest" and not join.has_default_firing:
        yield "join.emit: latest needs event-time windows that fire at their end. Remove emit."
    if join.api == "cogroup" and join.condition:
        yield "join.condition: a coGroup emits arrays of rows. Filter them when reading the emissions."
