"""What Flink's DataStream API and Flink SQL have in common (Flink 2.3)."""

from __future__ import annotations

from tidemark.config import Input, Interval, Pipeline
from tidemark.config.dialect_support import TICK
from tidemark.config.pipeline import WatermarkKind
from tidemark.config.types import millis
from tidemark.watermarks.buckets import WatermarkLag


def watermark_kind(pipeline: Pipeline) -> WatermarkKind:
    """Which formula a pipeline's watermarks are of: by default the dialect's own."""
    return pipeline.watermark_kind or ("sql" if pipeline.dialect == "flink-sql" else "datastream")


def watermark_lag(pipeline: Pipeline) -> WatermarkLag:
    """`forBoundedOutOfOrderness(d)` gives max - d - 1; SQL's `ts - INTERVAL d` gives max - d.

    A watermark that was recorded lags behind nothing.
    """
    extra = 0 if watermark_kind(pipeline) == "sql" else 1
    return WatermarkLag(_lag(pipeline.left, extra), _lag(pipeline.right, extra))


def _lag(source: Input, extra: int) -> int:
    if source.watermark:
        return 0
    assert source.watermark_delay is not None, "settings.dialects sees to it"
    return millis(source.watermark_delay) + extra


def inclusive_bounds(interval: Interval) -> tuple[int, int]:
    """Lower and upper of a pipeline file, in ms."""
    lower, upper = interval.closed(TICK["flink-sql"])
    assert lower is not None and upper is not None, "settings.dialects sees to it"  # noqa: PT018
    return lower, upper
