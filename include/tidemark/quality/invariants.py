"""Validate invariants that every streaming join satisfies, on one aggregate row per slice."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.config import Pipeline
from tidemark.formatting import quote_identifier
from tidemark.joins.window import to_window
from tidemark.joins.window_inequality import compare_windows
from tidemark.timegrid.time_columns import floor_div
from tidemark.timegrid.zones import Zone

INVARIANTS = {
    "pairs_out_of_bounds": "both event times of a pair are within the join's bounds",
    "null_keys": "no pair has a null join key, unless it is a full join of dialect spark",
    "results_before_watermark": "no result is older than the watermark at the slice's start",
    "results_after_newest_row": "no result is newer than the newest row that had arrived",
    "rows_unaccounted": "every row read or carried in is late, rejected, evicted or carried out",
    "rows_not_written": "as many pairs are written as were joined",
}
"""Counts of violations, which must be 0 in every slice, with the sentence that Data Docs show. The last two counts are
of the whole job and repeated in each of its slices, so that none is published."""


def aggregate_output(output: DataFrame, pipeline: Pipeline) -> pd.DataFrame:
    """Aggregate a job's written output to one row per slice: emissions, range of result times, violations.

    Violations in columns that `select` or `explode` removed or replaced cannot be found and count as 0.
    """
    dtypes = _list_unchanged_columns(output, pipeline)
    is_pair = F.col("_emission") == "matched"
    null_counts = [
        F.count_if(is_pair & F.col(quote_identifier(key)).isNull())
        for key in pipeline.join.output_keys
        if key in dtypes
    ]
    if pipeline.dialect == "spark" and pipeline.join.type == "full":  # Full joins of Spark match null keys.
        null_counts = []
    result_time = F.unix_millis("_result_time")
    return (
        output.groupBy(F.unix_micros("_slice").alias("slice_start"))
        .agg(
            F.count("*").alias("emissions"),
            F.min(result_time).alias("oldest_result"),
            F.max(result_time).alias("newest_result"),
            F.count_if(is_pair & _is_out_of_bounds(dtypes, pipeline)).alias("pairs_out_of_bounds"),
            sum(null_counts, start=F.lit(0)).alias("null_keys"),
        )
        .toPandas()
    )


def _list_unchanged_columns(output: DataFrame, pipeline: Pipeline) -> dict[str, str]:
    """Return the types of the output columns with the name and values that the join gave them."""
    if pipeline.explode is not None:
        return {name: dtype for name, dtype in output.dtypes if name.startswith("_")}
    expressions = pipeline.select if isinstance(pipeline.select, dict) else {}
    return {
        name: dtype for name, dtype in output.dtypes if expressions.get(name, name) in {name, quote_identifier(name)}
    }


def _is_out_of_bounds(dtypes: Mapping[str, str], pipeline: Pipeline) -> Column:
    """Return True if a pair's event times violate the join's interval or window."""
    times = [f"left_{pipeline.left.event_time.column}", f"right_{pipeline.right.event_time.column}"]
    if any(dtypes.get(name) != "timestamp" for name in times) or pipeline.join.time == "processing":
        return F.lit(False)
    # In whole ticks, because Flink computes in milliseconds.
    tick = pipeline.tick_micros
    left, right = (floor_div(F.unix_micros(quote_identifier(name)), tick) for name in times)
    is_outside = F.lit(False)
    if interval := pipeline.join.interval:
        lower, upper = interval.to_closed(tick)
        if lower is not None:
            is_outside = is_outside | (right - left < lower)
        if upper is not None:
            is_outside = is_outside | (right - left > upper)
    inequality = pipeline.join.window_inequality
    if (pipeline.join.window or inequality) and {"_window_start", "_window_end"} <= dtypes.keys():
        if zone := pipeline.window_time_zone:
            left, right = (Zone.from_name(zone).to_local(time) for time in (left, right))
        names = {
            name: f"_right{name}" if f"_right{name}" in dtypes else name for name in ("_window_start", "_window_end")
        }
        start, end = (floor_div(_to_micros(name), tick) for name in names)
        right_start, right_end = (floor_div(_to_micros(name), tick) for name in names.values())
        is_outside = is_outside | (left < start) | (left >= end) | (right < right_start) | (right >= right_end)
        if inequality:
            left_window, right_window = to_window(start, end), to_window(right_start, right_end)
            is_outside = is_outside | ~compare_windows(F.lit(inequality.operator), left_window, right_window)
    return is_outside


def _to_micros(name: str) -> Column:
    """Return a window bound in microseconds; local times count as UTC."""
    return F.unix_micros(F.col(name).cast("timestamp"))
