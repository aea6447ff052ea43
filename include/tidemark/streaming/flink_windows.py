"""Translate a flink-datastream window join into settings of a Flink job (`jobs/FlinkWindows.java`)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from tidemark.config import Pipeline, WindowSettings
from tidemark.config.sides import SIDES
from tidemark.config.types import to_millis
from tidemark.errors import PipelineFileError
from tidemark.joins.rules.flink_common import compute_watermark_lag
from tidemark.streaming.flink_obstacles import find_obstacles_by_arrival


def create_window_settings(pipeline: Pipeline) -> dict[str, int]:
    """Return the settings of a pipeline's windows, by the names that the job reads; spans in ms.

    The job reads rows in the order of the pipeline's clock and tiebreak. Watermarks of both sides are between two
    instants, because the rows of one are simultaneous.

    Raises:
        PipelineFileError: The job does not support the join.
    """
    for reason in _find_obstacles(pipeline):
        raise PipelineFileError(f"{pipeline.name} {reason}")
    join = pipeline.join
    assert join.window, "other joins run in other jobs"
    spans = {"allowed_lateness": join.allowed_lateness, **_window_spans(join.window)}
    settings = {name: to_millis(span) for name, span in spans.items()}
    lag = compute_watermark_lag(pipeline)
    settings |= {"left_lag": lag.left, "right_lag": lag.right}
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
    yield from find_obstacles_by_arrival(pipeline)
    has_total_order = all(getattr(pipeline, side).tiebreak for side in SIDES)
    if not has_total_order and (join.evictor or join.effective_trigger.kind in ("count", "delta")):
        yield "fires or evicts by the order of rows, which simultaneous rows lack. Give both inputs a tiebreak."


def _window_spans(settings: WindowSettings) -> dict[str, timedelta]:
    match settings:
        case WindowSettings(tumbling=timedelta() as size):
            return {"size": size, "offset": settings.offset}
        case WindowSettings(sliding=sliding) if sliding:
            return {"size": sliding.size, "slide": sliding.slide, "offset": settings.offset}
        case WindowSettings(session=session) if session:
            return {"gap": session.gap}
    raise AssertionError("the pipeline file has one shape of windows")
