"""The columns of the `late` table and their values."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.config import Pipeline
from tidemark.config.sides import SIDES
from tidemark.joins.keys import key_columns
from tidemark.joins.output_schema import window_bound
from tidemark.timegrid.slices import Grid
from tidemark.timegrid.time_columns import floor_div

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


def select_late_rows(rows: DataFrame, tick: int) -> DataFrame:
    """Select the late rows of a join, with their lateness and the side that limits the watermark.

    Columns of the join that are not named here are dropped. `execution.late_row_matches` adds `would_match`.

    Args:
        rows: Rows of `joins.base.JoinResult.late`.
        tick: Unit of event time, microseconds.
    """
    is_late = F.col("rejected").isNull()
    lateness_ms = F.col("watermark") - floor_div(F.col("event_time") * tick, 1000)
    sides_at_watermark = [F.when(F.col(f"{side}_watermark") == F.col("watermark"), side) for side in SIDES]
    lower_side = F.when(F.col("left_watermark") <= F.col("right_watermark"), "left").otherwise("right")
    limiting_side = F.coalesce(*sides_at_watermark, lower_side)
    return rows.select(
        "slice",
        "side",
        "reason",
        "window_start",
        "window_end",
        "clock",
        "tiebreak",
        "event_time",
        *key_columns(rows),
        F.when(is_late, F.col("watermark")).alias("watermark"),
        F.when(is_late, lateness_ms).alias("lateness_ms"),
        F.when(is_late & F.col("watermark").isNotNull(), limiting_side).alias("limiting_side"),
        F.col("outcome") if "outcome" in rows.columns else F.lit(None).cast("string").alias("outcome"),
        *SIDES,
    )


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
