"""What Flink's DataStream API and Flink SQL have in common (Flink 2.3)."""

from __future__ import annotations

from tidemark.settings import Interval, Pipeline
from tidemark.settings.pipeline import WatermarkKind
from tidemark.settings.values import millis
from tidemark.watermarks.buckets import WatermarkLag


def watermark_kind(pipeline: Pipeline) -> WatermarkKind:
    """Which formula a pipeline's watermarks are of: by default the dialect's own."""
    return pipeline.watermark_kind or ("sql" if pipeline.dialect == "flink-sql" else "datastream")


def watermark_lag(pipeline: Pipeline) -> WatermarkLag:
    """`forBoundedOutOfOrderness(d)` gives max - d - 1; SQL's `ts - INTERVAL d` gives max - d."""
    extra = 0 if watermark_kind(pipeline) == "sql" else 1
    assert pipeline.left.watermark_delay is not None, "spec.dialects sees to it"
    assert pipeline.right.watermark_delay is not None, "spec.dialects sees to it"
    return WatermarkLag(millis(pipeline.left.watermark_delay) + extra, millis(pipeline.right.watermark_delay) + extra)


def inclusive_bounds(interval: Interval) -> tuple[int, int]:
    """Lower and upper of a pipeline file, in ms."""
    assert interval.lower is not None and interval.upper is not None, "spec.dialects sees to it"  # noqa: PT018
    bounds = millis(interval.lower), millis(interval.upper)
    return moved_inwards(*bounds, lower_inclusive=interval.lower_inclusive, upper_inclusive=interval.upper_inclusive)


def moved_inwards(lower: int, upper: int, *, lower_inclusive: bool, upper_inclusive: bool) -> tuple[int, int]:
    """Exclusive bounds move by one ms; lower may then exceed upper: legal, and matches nothing."""
    return lower + (not lower_inclusive), upper - (not upper_inclusive)
