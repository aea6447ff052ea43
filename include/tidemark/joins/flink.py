"""What Flink's DataStream API and Flink SQL have in common (Flink 2.3)."""

from __future__ import annotations

from tidemark.spec import Interval, Pipeline
from tidemark.spec.values import millis
from tidemark.watermarks import WatermarkLag


def watermark_lag(pipeline: Pipeline) -> WatermarkLag:
    """`forBoundedOutOfOrderness(d)` gives max - d - 1; SQL's `ts - INTERVAL d` gives max - d."""
    own = "sql" if pipeline.dialect == "flink-sql" else "datastream"
    extra = 0 if (pipeline.watermark_kind or own) == "sql" else 1
    assert pipeline.left.watermark_delay is not None, "spec.dialects sees to it"
    assert pipeline.right.watermark_delay is not None, "spec.dialects sees to it"
    return WatermarkLag(millis(pipeline.left.watermark_delay) + extra, millis(pipeline.right.watermark_delay) + extra)


def inclusive_bounds(interval: Interval) -> tuple[int, int]:
    """Lower and upper in ms. Exclusive ones move by one; lower may then exceed upper: legal, and matches nothing."""
    assert interval.lower is not None and interval.upper is not None, "spec.dialects sees to it"  # noqa: PT018
    lower = millis(interval.lower) + (not interval.lower_inclusive)
    return lower, millis(interval.upper) - (not interval.upper_inclusive)
