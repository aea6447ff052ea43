"""What Flink's DataStream API and Flink SQL have in common (Flink 2.3)."""

from __future__ import annotations

from tidemark.settings import Interval, Pipeline
from tidemark.settings.dialects import TICK
from tidemark.settings.pipeline import WatermarkKind
from tidemark.settings.values import millis
from tidemark.watermarks.buckets import WatermarkLag


def watermark_kind(pipeline: Pipeline) -> WatermarkKind:
    """Which formula a pipeline's watermarks are of: by default the dialect's own."""
    return pipeline.watermark_kind or ("sql" if pipeline.dialect == "flink-sql" else "datastream")


def watermark_lag(pipeline: Pipeline) -> WatermarkLag:
    """`forBoundedOutOfOrderness(d)` gives max - d - 1; SQL's `ts - INTERVAL d` gives max - d."""
    extra = 0 if watermark_kind(pipeline) == "sql" else 1
    assert pipeline.left.watermark_delay is not None, "settings.dialects sees to it"
    assert pipeline.right.watermark_delay is not None, "settings.dialects sees to it"
    return WatermarkLag(millis(pipeline.left.watermark_delay) + extra, millis(pipeline.right.watermark_delay) + extra)


def inclusive_bounds(interval: Interval) -> tuple[int, int]:
    """Lower and upper of a pipeline file, in ms."""
    lower, upper = interval.closed(TICK["flink-sql"])
    assert lower is not None and upper is not None, "settings.dialects sees to it"  # noqa: PT018
    return lower, upper
