"""Which joins each dialect has: what an engine would refuse is refused when the pipeline file is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tidemark.config.inputs import Commits
from tidemark.config.sides import SIDES, SideName

if TYPE_CHECKING:
    from tidemark.config.join import Join, WindowSettings
    from tidemark.config.pipeline import Pipeline

TICK = {"flink-datastream": 1000, "flink-sql": 1000, "spark": 1}
"""Microseconds: what each dialect compares event times in."""

_SHAPES = ("interval", "window", "event_time_equality", "window_inequality")
_TYPES = {
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
"""Of Flink's DataStream API."""
_WINDOWS = (("flink-datastream", "window"),)
_SQL_INTERVALS = (("flink-sql", "interval"),)
_ONLY_FOR = {
    "api": _WINDOWS,
    "allowed_lateness": _WINDOWS,
    "emit": _WINDOWS,
    "trigger": _WINDOWS,
    "evictor": _WINDOWS,
    "time": _WINDOWS + _SQL_INTERVALS,
    "min_cleanup": _SQL_INTERVALS,
}
"""The dialects and shapes that have a setting."""
_IN_UTC = {
    "flink-datastream": "windows of Flink's DataStream API are told in UTC; give them an `offset` in place of it",
    "spark": "Spark's window() counts from 1970 in UTC, whatever the session's time zone; leave it out",
}
"""Why a dialect's windows have no time zone."""
_SOURCES = ("partition", "idle_after")
_RE_FIRING = ("allowed_lateness", "emit", "trigger", "evictor", "time")
"""What makes windows fire again, or otherwise."""
_BY_UPPER = "right.watermark_delay and join.interval.upper"
_BY_LOWER = "left.watermark_delay and join.interval.lower"
_BY_LESSER = "right.watermark_delay and left > right (or >=)"
_BY_GREATER = "left.watermark_delay and left < right (or <=)"


def check_join(dialect: str, join: Join) -> None:
    """See that a dialect has the join.

    Raises:
        ValueError: says which setting the dialect does not have, and what it has.
    """
    for wrong in _mistakes(dialect, join):
        raise ValueError(wrong)


def check_watermarks(pipeline: Pipeline) -> None:
    """See that the inputs have the watermarks that the dialect asks for, and settings of its own only.

    Raises:
        ValueError: says what is missing.
    """
    rules = _missing_watermarks, _recorded_watermarks, _missing_clock, _filters_of_spark
    for wrong in (wrong for rule in rules for wrong in rule(pipeline)):
        raise ValueError(wrong)


def check_time_zone(pipeline: Pipeline) -> None:
    """See that the dialect has local time where a time zone asks for it.

    Raises:
        ValueError: says what goes by UTC.
    """
    if pipeline.time_zone == "UTC":
        return
    if not pipeline.join.window:
        raise ValueError("time_zone: is for windows; bounds of an interval are the same in every zone: leave it out")
    if pipeline.dialect != "flink-sql":
        raise ValueError(f"time_zone: {_IN_UTC[pipeline.dialect]}")


def check_restarts(pipeline: Pipeline) -> None:
    """See that restarts of a job are told of a join for which it is known what they do.

    Raises:
        ValueError: says of which setting it is not.
    """
    for wrong in _restarted(pipeline) if pipeline.restarts else ():
        raise ValueError(f"restarts: {wrong}")


def defaults_of_flink(version: str) -> dict[str, Any]:
    """What a version of Flink has where an interval join of its SQL is told nothing else, if it is not as here.

    >>> defaults_of_flink("1.17.2"), defaults_of_flink("1.18")
    ({'min_cleanup': 'half'}, {})
    """
    before_it_could_be_set = [int(part) for part in version.split(".") if part.isdigit()] < [1, 18]
    return {"min_cleanup": "half"} if before_it_could_be_set else {}


def takes_null_keys(dialect: str) -> bool:
    """Whether a row may take part in the join though its key is null."""
    return dialect in {"flink-sql", "spark"}


def _recorded_watermarks(pipeline: Pipeline) -> Iterator[str]:
    """What a job has recorded is of the order in which rows arrived, and one watermark for an input."""
    for side in pipeline.recorded:
        if pipeline.dialect == "spark":
            yield f"{side}.watermark: is for Flink's dialects; what a Spark query had is told by a trace (arrival)"
        elif pipeline.clock != "arrival":
            yield f"{side}.watermark: was recorded as rows arrived; name an arrival column on both inputs"
        elif held := _held_back(pipeline):
            yield f"{held[0]}: does not go with a watermark that was recorded ({side}.watermark); leave it out"
        elif not pipeline.join.fires_by_default:
            asked = next(name for name in ("trigger", "evictor", "time") if name in pipeline.join.model_fields_set)
            yield f"join.{asked}: does not go with a recorded watermark; put {side}.watermark_delay in its place"


def _restarted(pipeline: Pipeline) -> Iterator[str]:
    if pipeline.dialect == "spark":
        yield "a Spark query has its watermark in its checkpoint, so that none begins anew; leave it out"
    elif pipeline.dialect == "flink-sql" and pipeline.join.window:
        yield "go with intervals of flink-sql only: what its windows keep differs by version of Flink; leave them out"
    elif (window := pipeline.join.window) and not window.tumbling:
        yield "go with tumbling windows only; which of a row's windows have fired before one is not kept"
    elif asked := [name for name in _RE_FIRING if _is_given(pipeline.join, name)]:
        yield f"do not go with join.{asked[0]}; leave one of them out"
    elif pipeline.clock != "arrival":
        yield "are told by when rows arrived; name an arrival column on both inputs"
    elif held := _held_back(pipeline):
        yield f"do not go with {held[0]}; leave one of them out"


def _held_back(pipeline: Pipeline) -> list[str]:
    """The settings that tell what holds a watermark back beside rows."""
    return [f"{side}.{name}" for side in SIDES for name in _SOURCES if getattr(getattr(pipeline, side), name)]


def _missing_watermarks(pipeline: Pipeline) -> Iterator[str]:
    join = pipeline.join
    delays = {side for side in SIDES if getattr(pipeline, side).watermark_delay is not None}
    given = delays.union(pipeline.recorded)
    if pipeline.by_clock_alone:
        yield from _watermarks_of_the_clock(pipeline)
    elif pipeline.dialect != "spark":
        yield from (f"{side}.watermark_delay: {pipeline.dialect} needs one" for side in SIDES if side not in given)
        if "spark" in pipeline.model_fields_set:
            yield f"spark: these settings are for dialect spark, not {pipeline.dialect}"
    elif flinks := _held_back(pipeline):
        yield f"{flinks[0]}: is for Flink's dialects; Spark has one watermark for an input, and none falls idle"
    elif gaps := [name for name, one in _windows(join) if one.sliding and one.sliding.slide > one.sliding.size]:
        yield f"join.{gaps[0]}.sliding: spark has no slide above the size"
    elif join.type == "inner":
        return
    elif (join.interval and not join.event_time_equality) or join.window_inequality:
        upper, lower = ("right" in given and _limits(join, "left")), ("left" in given and _limits(join, "right"))
        if not {"right": lower, "full": lower or upper}.get(join.type, upper):
            by_upper, by_lower = (_BY_LESSER, _BY_GREATER) if join.window_inequality else (_BY_UPPER, _BY_LOWER)
            wanted = {"right": by_lower, "full": f"{by_upper}, or {by_lower}"}.get(join.type, by_upper)
            yield f"join.type: spark refuses a {join.type} join without {wanted}: no row could be evicted"
    elif not given:
        yield f"join.type: spark refuses a {join.type} join without a watermark_delay on either side"


def _limits(join: Join, side: SideName) -> bool:
    """Whether the condition on times limits how long rows of a side find partners, by the other side's watermark."""
    if join.window_inequality:
        return join.window_inequality.lesser != side
    return join.interval is not None and (join.interval.upper if side == "left" else join.interval.lower) is not None


def _watermarks_of_the_clock(pipeline: Pipeline) -> Iterator[str]:
    """Flink SQL's processing time: an input has no other time than that of arrival, and no watermark."""
    for side in SIDES:
        source = getattr(pipeline, side)
        if isinstance(source.arrival, Commits):
            yield f"{side}.arrival: on processing time event_time names the arrival too, so that it needs a column"
        elif source.arrival and source.arrival != source.event_time:
            yield f"{side}.event_time: on processing time a row's time is its arrival: name that here too"
        for name in ("watermark_delay", "watermark", *_SOURCES):
            if getattr(source, name) is not None:
                yield f"{side}.{name}: there is no watermark with join.time: processing; leave it out"


def _filters_of_spark(pipeline: Pipeline) -> Iterator[str]:
    """Spark moves a filter below the watermark by itself, wherever the query has it."""
    for side in SIDES:
        if pipeline.dialect == "spark" and getattr(pipeline, side).where_at == "watermark":
            yield (
                f"{side}.where_at: Spark's optimizer moves a filter below withWatermark, so that rows left out never "
                "move the watermark; write source, or leave it out"
            )


def _missing_clock(pipeline: Pipeline) -> Iterator[str]:
    join = pipeline.join
    by_clock = join.triggered_by.kind.endswith("processing_time")
    if pipeline.clock != "arrival" and (by_clock or join.time == "processing"):
        asks = "join.time: processing" if join.time == "processing" else f"join.trigger: {join.triggered_by.kind}"
        yield f"{asks} goes by when rows arrived; name an arrival column on both inputs"
    by_watermark = join.triggered_by.kind.endswith("event_time")
    mixed = by_clock if join.time == "event" else by_watermark
    if mixed and (held := _held_back(pipeline)):
        yield f"{held[0]}: does not go with a trigger of the other time than the windows'"


def _mistakes(dialect: str, join: Join) -> Iterator[str]:
    shapes = [name for name in _SHAPES if getattr(join, name)]
    known = _TYPES[dialect]
    if len(shapes) != 1 and not (dialect == "spark" and shapes == ["interval", "event_time_equality"]):
        yield f"join: give exactly one of {', '.join(known)}"
        return
    shape = shapes[0]
    if shape not in known:
        yield f"join: {dialect} has no {shape}; it has {', '.join(known)}"
    elif join.type not in known[shape].split():
        yield f"join.type: {dialect} has {known[shape].replace(' ', ', ')} for {shape} joins, not {join.type}"
    yield from _shape_mistakes(dialect, join)
    for name, only in _ONLY_FOR.items():
        if _is_given(join, name) and (dialect, shape) not in only:
            yield f"join.{name}: is for {' and '.join(f'{wanted} joins of {one}' for one, wanted in only)} only"


def _is_given(join: Join, name: str) -> bool:
    """Whether a setting of the join is not as by default."""
    return bool(getattr(join, name) != type(join).model_fields[name].default)


def _windows(join: Join) -> Iterator[tuple[str, WindowSettings]]:
    """The windows of a join, by their place in it."""
    if join.window:
        yield "window", join.window
    if join.window_inequality:
        yield from ((f"window_inequality.{side}", getattr(join.window_inequality, side)) for side in SIDES)


def _shape_mistakes(dialect: str, join: Join) -> Iterator[str]:
    bounds = {join.interval.lower, join.interval.upper} if join.interval else set()
    if None in bounds and (dialect != "spark" or len(bounds) == 1):
        yield f"join.interval: {dialect} needs {'one of' if dialect == 'spark' else 'both'} lower and upper"
    for name, window in _windows(join):
        if window.cumulate and dialect != "flink-sql":
            yield f"join.{name}: {dialect} has no cumulate windows; flink-sql has them"
        if window.session and dialect == "spark":
            yield f"join.{name}: spark joins on tumbling and sliding windows only"
    if join.window and join.window.session and join.trigger and join.trigger.kind == "delta":
        yield "join.trigger: delta does not support merging, which sessions do; use another trigger, or other windows"
    if join.emit == "latest" and not join.fires_by_default:
        yield "join.emit: latest is the last word of windows of event time that fire at their end; leave out emit"
    if join.api == "cogroup" and join.condition:
        yield "join.condition: a coGroup emits arrays of rows; filter them where they are read"
