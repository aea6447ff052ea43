"""Describe rows whose event times are far ahead of their arrival, so that people find the wrong clock."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from tidemark.config.baseline_metrics import ROWS_AHEAD
from tidemark.config.sides import SIDES, SideName
from tidemark.config.types import format_micros
from tidemark.execution.job_spec import JobSpec
from tidemark.execution.replay import ReplayResult
from tidemark.formatting import format_span, format_values
from tidemark.joins.keys import key_columns
from tidemark.watermarks.row_status import AHEAD, is_ahead
from tidemark.watermarks.values import END_OF_INPUT, NO_WATERMARK

_REMEDY = "Correct the clock that set them, or reject such rows with time_bounds.max_ahead_of_arrival"


def describe_rows_ahead(spec: JobSpec, rows: DataFrame, replayed: ReplayResult) -> dict[tuple[int, str], str]:
    """Describe the rows ahead of each slice that has any. Nothing is read unless `expose_row_values` is set.

    Args:
        spec: The job.
        rows: Its input rows (`JobInput.rows`).
        replayed: Result of its replay, with the counts of rows ahead.

    Returns:
        Sentences without a final stop, by slice number and metric (`ROWS_AHEAD`).
    """
    pipeline, counts = spec.plan.pipeline, replayed.row_counts
    ahead = [
        (side, number)
        for side in SIDES
        if pipeline.get_allowed_clock_skew(side) is not None
        for number in spec.slices
        if counts[ROWS_AHEAD[side]][number]
    ]
    if not ahead:
        return {}
    worst_rows = _find_worst_rows(rows) if pipeline.expose_row_values else {}
    end_watermarks = replayed.timelines[0].end_watermarks
    return {
        (number, ROWS_AHEAD[side]): _describe_side(
            side,
            int(counts[f"{side}_ahead"][number]),
            _describe_row(spec, side, worst_rows.get((side, number))),
            getattr(end_watermarks[number], side),
        )
        for side, number in ahead
    }


def _find_worst_rows(rows: DataFrame) -> Mapping[tuple[str, int], Row]:
    """Find the row that is furthest ahead of its arrival, by side and slice number. Reads the rows once."""
    keys = [F.col(name).cast("string").alias(name) for name in key_columns(rows)]
    worst = F.max(F.struct(AHEAD, "event_time", *keys)).alias("worst")
    by_slice = rows.where(is_ahead()).groupBy("side", "slice").agg(worst)
    return {(row["side"], row["slice"]): row["worst"] for row in by_slice.collect()}


def _describe_row(spec: JobSpec, side: SideName, row: Row | None) -> str:
    """Describe a row by its keys and event time, in brackets; empty without a row."""
    if row is None:
        return ""
    pipeline = spec.plan.pipeline
    _, event_time, *keys = row
    names = (getattr(pair, side) for pair in pipeline.join.keys)
    values = format_values(dict(zip(names, keys, strict=True)))
    return f" ({values}, event time {format_micros(event_time * pipeline.tick_micros)})"


def _describe_side(side: SideName, ahead: int, worst_row: str, watermark: int) -> str:
    """Describe the rows ahead of one input in one slice.

    Args:
        side: The input.
        ahead: Greatest time by which an event time is after its arrival, in microseconds.
        worst_row: Description of the row with this time, with a blank before it; may be empty.
        watermark: Watermark of the input at the end of the slice, ms.
    """
    sentences = [f"Event times are up to {format_span(ahead // 1000)} after arrival{worst_row}"]
    if watermark not in {NO_WATERMARK, END_OF_INPUT}:
        instant = format_micros(watermark * 1000)
        sentences.append(f"The {side} watermark is {instant} at the slice's end, and rows before it can be late")
    return ". ".join([*sentences, _REMEDY])
