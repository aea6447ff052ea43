"""A flink-datastream pipeline's window join, as a job of Flink's DataStream API is told it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from tidemark.config import Pipeline, WindowSettings
from tidemark.config.sides import SIDES
from tidemark.config.types import millis
from tidemark.errors import PipelineFileError


def flink_windows(pipeline: Pipeline) -> dict[str, int]:
    """The settings of a pipeline's windows, by the names that `jobs/FlinkWindows.java` reads; spans in ms.

    The rows have to be in the order of the pipeline's clock and tiebreak, with the watermark of both sides between two
    instants: within one, rows are simultaneous.

    Raises:
        PipelineFileError: this job could not run it.
    """
    for wrong in _unsuitable(pipeline):
        raise PipelineFileError(f"{pipeline.name} {wrong}")
    join = pipeline.join
    assert join.window, "_unsuitable sees to it"
    delays = {f"{side}_delay": getattr(pipeline, side).watermark_delay or timedelta() for side in SIDES}
    spans = {**delays, "allowed_lateness": join.allowed_lateness, **_windows(join.window)}
    told = {name: millis(span) for name, span in spans.items()}
    if (trigger := join.triggered_by).kind != "event_time":
        told[trigger.kind] = trigger.amount
    if trigger.purging:
        told["purging"] = 1
    if join.evictor:
        told[f"evictor_{join.evictor.kind}"] = join.evictor.amount
        if join.evictor.after:
            told["evictor_after"] = 1
    return told


def _unsuitable(pipeline: Pipeline) -> Iterator[str]:
    join = pipeline.join
    if not join.window:
        yield "has no window; this twin of dialect flink-datastream is a window join"
    if join.time == "processing" or join.triggered_by.kind in ("processing_time", "continuous_processing_time"):
        yield "asks the clock, which this twin does not: its rows come as fast as Flink reads them"
    if join.api == "cogroup":
        yield "is a coGroup; this twin writes pairs: leave `api` out"
    if join.emit == "latest":
        yield "shows each window once; this twin writes each pane: leave `emit` out"
    if join.condition:
        yield "has a join.condition, which is Spark SQL, and not Flink's; this twin has none: leave it out"
    told_apart = all(getattr(pipeline, side).tiebreak for side in SIDES)
    if not told_apart and (join.evictor or join.triggered_by.kind in ("count", "delta")):
        yield "fires or evicts by the order of rows, which simultaneous ones lack: give both inputs a tiebreak"
    for side in SIDES:
        settings = getattr(pipeline, side)
        if settings.watermark:
            yield f"goes by what was recorded as {side}.watermark; this twin makes its own: name a delay"
        if settings.partition or settings.idle_after:
            yield f"has partitions or idle_after on {side}; this twin has one watermark an input: leave them out"


def _windows(settings: WindowSettings) -> dict[str, timedelta]:
    match settings:
        case WindowSettings(tumbling=timedelta() as size):
            return {"size": size, "offset": settings.offset}
        case WindowSettings(sliding=sliding) if sliding:
            return {"size": sliding.size, "slide": sliding.slide, "offset": settings.offset}
        case WindowSettings(session=session) if session:
            return {"gap": session.gap}
    raise AssertionError("settings.dialects sees to it")
