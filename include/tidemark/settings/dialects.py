"""Which joins each dialect has: what an engine would refuse is refused when the pipeline file is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tidemark.settings.inputs import Commits
from tidemark.settings.sides import SIDES

if TYPE_CHECKING:
    from tidemark.settings.join import Join
    from tidemark.settings.pipeline import Pipeline

TICK = {"flink-datastream": 1000, "flink-sql": 1000, "spark": 1}
"""Microseconds: what each dialect compares event times in."""

_TYPES = {
    "flink-datastream": {"interval": "inner", "window": "inner"},
    "flink-sql": {"interval": "inner left right full", "window": "inner left right full semi anti"},
    "spark": dict.fromkeys(("interval", "window", "event_time_equality"), "inner left right full semi"),
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
_SOURCES = ("partition", "idle_after")
_BY_UPPER = "right.watermark_delay and join.interval.upper"
_BY_LOWER = "left.watermark_delay and join.interval.lower"


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
    for wrong in (*_missing_watermarks(pipeline), *_missing_clock(pipeline), *_filters_of_spark(pipeline)):
        raise ValueError(wrong)


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


def _missing_watermarks(pipeline: Pipeline) -> Iterator[str]:
    join = pipeline.join
    given = {side for side in SIDES if getattr(pipeline, side).watermark_delay is not None}
    if pipeline.by_clock_alone:
        yield from _watermarks_of_the_clock(pipeline)
    elif pipeline.dialect != "spark":
        yield from (f"{side}.watermark_delay: {pipeline.dialect} needs one" for side in SIDES if side not in given)
        if "spark" in pipeline.model_fields_set:
            yield f"spark: these settings are for dialect spark, not {pipeline.dialect}"
    elif flinks := [f"{s}.{n}" for s in SIDES for n in _SOURCES if getattr(getattr(pipeline, s), n)]:
        yield f"{flinks[0]}: is for Flink's dialects; Spark has one watermark for an input, and none falls idle"
    elif join.window and join.window.sliding and join.window.sliding.slide > join.window.sliding.size:
        yield "join.window.sliding: spark has no slide above the size"
    elif join.type == "inner":
        return
    elif join.interval and not join.event_time_equality:
        upper = "right" in given and join.interval.upper is not None
        lower = "left" in given and join.interval.lower is not None
        if not {"right": lower, "full": lower or upper}.get(join.type, upper):
            wanted = {"right": _BY_LOWER, "full": f"{_BY_UPPER}, or {_BY_LOWER}"}.get(join.type, _BY_UPPER)
            yield f"join.type: spark refuses a {join.type} join without {wanted}: no row could be evicted"
    elif not given:
        yield f"join.type: spark refuses a {join.type} join without a watermark_delay on either side"


def _watermarks_of_the_clock(pipeline: Pipeline) -> Iterator[str]:
    """Flink SQL's processing time: an input has no other time than that of arrival, and no watermark."""
    for side in SIDES:
        source = getattr(pipeline, side)
        if isinstance(source.arrival, Commits):
            yield f"{side}.arrival: on processing time event_time names the arrival too, so that it needs a column"
        elif source.arrival and source.arrival != source.event_time:
            yield f"{side}.event_time: on processing time a row's time is its arrival: name that here too"
        for name in ("watermark_delay", *_SOURCES):
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
    if mixed and (held := [f"{s}.{n}" for s in SIDES for n in _SOURCES if getattr(getattr(pipeline, s), n)]):
        yield f"{held[0]}: does not go with a trigger of the other time than the windows'"


def _mistakes(dialect: str, join: Join) -> Iterator[str]:
    shapes = [name for name in ("interval", "window", "event_time_equality") if getattr(join, name)]
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
        if getattr(join, name) != type(join).model_fields[name].default and (dialect, shape) not in only:
            yield f"join.{name}: is for {' and '.join(f'{wanted} joins of {one}' for one, wanted in only)} only"


def _shape_mistakes(dialect: str, join: Join) -> Iterator[str]:
    bounds = {join.interval.lower, join.interval.upper} if join.interval else set()
    if None in bounds and (dialect != "spark" or len(bounds) == 1):
        yield f"join.interval: {dialect} needs {'one of' if dialect == 'spark' else 'both'} lower and upper"
    if join.window and join.window.cumulate and dialect != "flink-sql":
        yield f"join.window: {dialect} has no cumulate windows; flink-sql has them"
    if join.window and join.window.session and dialect == "spark":
        yield "join.window: spark joins on tumbling and sliding windows only"
    if join.window and join.window.session and join.trigger and join.trigger.kind == "delta":
        yield "join.trigger: delta does not support merging, which sessions do; use another trigger, or other windows"
    if join.emit == "latest" and not join.fires_by_default:
        yield "join.emit: latest is the last word of windows of event time that fire at their end; leave out emit"
    if join.api == "cogroup" and join.condition:
        yield "join.condition: a coGroup emits arrays of rows; filter them where they are read"
