"""Translate a flink-datastream window join into settings of a Flink job (`jobs/FlinkWindows.java`)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from tidemark.config import Pipeline, WindowSettings
from tidemark.config.sides import SIDES
from tidemark.config.types import to_millis
from tidemark.errors import PipelineFileError


def create_window_settings(pipeline: Pipeline) -> dict[str, int]:
    """Return the settings of a pipeline's windows, by the names that the job reads; spans in ms.

    The job reads rows in the order of the pipeline's clock and tiebreak. Watermarks of both sides are between two
    instants, because the rows of one are simultaneous.

    Raises:
        PipelineFileError: the job does not support the join.
    """
    for reason in _find_obstacles(pipeline):
        raise PipelineFileError(f"{pipeline.name} {reason}")
    join = pipeline.join
    assert join.window, "checked by _find_obstacles"
    delays = {f"{side}_delay": getattr(pipeline, side).watermark_delay or timedelta() for side in SIDES}
    spans = {**delays, "allowed_lateness": join.allowed_lateness, **_window_spans(join.window)}
    settings = {name: to_millis(span) for name, span in spans.items()}
    if (trigger := join.effective_trigger).kind != "event_time":
        settings[trigger.kind] = trigger.amount
    if trigger.purging:
        settings["purging"] = 1
    if join.evictor:
        settings[f"evictor_{join.evictor.kind}"] = join.evictor.amount
        if join.evictor.evict_after:
            settings["evictor_after"] = 1
    return settings


def _find_obstacles(pipeline: Pipeline) -> Iterator[str]:
    """Yield the reasons why the job does not support a pipeline."""
    join = pipeline.join
    if not join.window:
        yield "has no window. In dialect flink-datastream this job runs window joins only."
    if join.time == "processing" or join.effective_trigger.kind in ("processing_time", "continuous_processing_time"):
        yield "depends on processing time, which this job cannot replay. Use event time."
    if join.api == "cogroup":
        yield "is a coGroup, and this job writes pairs. Remove `api`."
    if join.emit == "latest":
        yield "emits each window once, and this job writes each pane. Remove `emit`."
    if join.condition:
        yield "has a join.condition in Spark SQL, which Flink cannot evaluate. Remove it."
    has_total_order = all(getattr(pipeline, side).tiebreak for side in SIDES)
    if not has_total_order and (join.evictor or join.effective_trigger.kind in ("count", "delta")):
        yield "fires or evicts by the order of rows, which simultaneous rows lack. Give both inputs a tiebreak."
    for side in SIDES:
        source = getattr(pipeline, side)
        if source.recorded_watermark:
            yield f"has a recorded watermark ({side}.recorded_watermark), and this job computes its own. Name a delay."
        if source.partition or source.idle_timeout:
            yield f"has partitions or idle_timeout on {side}, and this job has one watermark per input. Remove them."


def _window_spans(settings: WindowSettings) -> dict[str, timedelta]:
    match settings:
        case WindowSettings(tumbling=timedelta() as size):
            return {"size": size, "offset": settings.offset}
        case WindowSettings(sliding=sliding) if sliding:
            return {"size": sliding.size, "slide": sliding.slide, "offset": settings.offset}
        case WindowSettings(session=session) if session:
            return {"gap": session.gap}
    raise AssertionError("the pipeline file has one shape of windows")
