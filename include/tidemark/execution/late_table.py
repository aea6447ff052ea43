"""The columns of the `late` table."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.config import Pipeline
from tidemark.joins.output_schema import window_bound
from tidemark.timegrid.slices import Grid


def select_late_table(late: DataFrame, pipeline: Pipeline, grid: Grid) -> DataFrame:
    """Select the columns of the `late` table; `arrived_at` is the effective arrival."""
    return late.select(
        grid.timestamp_column(F.col("slice")).alias("_slice"),
        "side",
        "reason",
        F.timestamp_micros("clock").alias("arrived_at"),
        F.timestamp_micros(F.col("event_time") * pipeline.tick_micros).alias("event_time"),
        F.timestamp_millis("watermark").alias("watermark"),
        "lateness_ms",
        "limiting_side",
        "would_match",
        *(window_bound(pipeline, name).alias(name) for name in ("window_start", "window_end")),
        "outcome",
        "left",
        "right",
    )
