"""The columns of the `late` table."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.config import Pipeline
from tidemark.joins.output_schema import window_bound
from tidemark.timegrid.slices import Grid

LATE_COLUMNS = (
    "_slice",
    "side",
    "reason",
    "arrived_at",
    "event_time",
    "watermark",
    "lateness_ms",
    "limiting_side",
    "would_match",
    "window_start",
    "window_end",
    "outcome",
    "left",
    "right",
)
"""Columns of the `late` table, in order."""


def select_late_table(late: DataFrame, pipeline: Pipeline, grid: Grid) -> DataFrame:
    """Select the columns of the `late` table (`LATE_COLUMNS`); `arrived_at` is the effective arrival."""
    converted = {
        "_slice": grid.timestamp_column(F.col("slice")),
        "arrived_at": F.timestamp_micros("clock"),
        "event_time": F.timestamp_micros(F.col("event_time") * pipeline.tick_micros),
        "watermark": F.timestamp_millis("watermark"),
        "window_start": window_bound(pipeline, "window_start"),
        "window_end": window_bound(pipeline, "window_end"),
    }
    return late.select(*(converted.get(name, F.col(name)).alias(name) for name in LATE_COLUMNS))
