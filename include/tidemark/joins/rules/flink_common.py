"""Rules that Flink's DataStream API and Flink SQL share (Flink 2.3)."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column

from tidemark.config import Input, Interval, Pipeline
from tidemark.config.dialect_support import TICK_MICROS
from tidemark.config.pipeline import WatermarkStrategy
from tidemark.config.types import to_millis
from tidemark.watermarks.values import WatermarkLag


def find_watermark_strategy(pipeline: Pipeline) -> WatermarkStrategy:
    """Return the formula of a pipeline's watermarks; by default that of the dialect."""
    return pipeline.watermark_strategy or ("sql" if pipeline.dialect == "flink-sql" else "datastream")


def compute_watermark_lag(pipeline: Pipeline) -> WatermarkLag:
    """Return the lag of each input's watermark.

    `forBoundedOutOfOrderness(d)` gives max - d - 1, SQL's `ts - INTERVAL d` gives max - d. Recorded watermarks have no
    lag.
    """
    extra = 0 if find_watermark_strategy(pipeline) == "sql" else 1
    return WatermarkLag(_compute_lag(pipeline.left, extra), _compute_lag(pipeline.right, extra))


def _compute_lag(source: Input, extra: int) -> int:
    if source.recorded_watermark:
        return 0
    assert source.watermark_delay is not None, "config.dialect_support checks this"
    return to_millis(source.watermark_delay) + extra


def to_inclusive_bounds(interval: Interval) -> tuple[int, int]:
    """Return the bounds of a configured interval as inclusive bounds in ms."""
    lower, upper = interval.to_closed(TICK_MICROS["flink-sql"])
    assert lower is not None and upper is not None, "config.dialect_support checks this"  # noqa: PT018
    return lower, upper


@dataclass(frozen=True)
class IntervalBounds:
    """Bounds of an interval join: `left + lower <= right <= left + upper`, both inclusive, in ms."""

    lower: Column
    upper: Column

    def is_within(self, left: Column, right: Column) -> Column:
        """Return True if two event times are within the bounds."""
        return (right >= left + self.lower) & (right <= left + self.upper)
