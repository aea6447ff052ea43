"""What follows from the join itself, whatever the pipeline: judged on one aggregate row per slice."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.config import Pipeline
from tidemark.formatting import quoted
from tidemark.joins.window_inequality import holds, window
from tidemark.timegrid.time_columns import floor_div
from tidemark.timegrid.zones import Zone

DERIVED = {
    "pairs_out_of_bounds": "both event times of a pair are within the join's bounds",
    "null_keys": "no pair has a null join key, unless it is a full join of dialect spark",
    "results_before_watermark": "no result is older than the watermark at the slice's start",
    "results_after_newest_row": "no result is newer than the newest row that had arrived",
    "rows_unaccounted": "every row read or carried in is late, rejected, evicted or carried out",
    "rows_not_written": "as many pairs are written as were joined",
}
"""What must be 0 in every slice, and the sentence that Data Docs shows for it. The last two are known of a job as a
whole, and stand in each of its slices: none of them can be published."""


def slice_facts(output: DataFrame, pipeline: Pipeline) -> pd.DataFrame:
    """One row per slice of a job's written output: counts and the extent of its results, in one aggregation.

    What the output's `select` leaves out, or makes of something else, cannot be checked and counts as 0, as of what
    `flatten` makes.
    """
    kinds = _as_joined(output, pipeline)
    matched = F.col("_emission") == "matched"
    nulls = [F.count_if(matched & F.col(quoted(key)).isNull()) for key in pipeline.join.output_keys if key in kinds]
    if pipeline.dialect == "spark" and pipeline.join.type == "full":  # there null equals null
        nulls = []
    result = F.unix_millis("_result_time")
    return (
        output.groupBy(F.unix_micros("_slice").alias("slice_start"))
        .agg(
            F.count("*").alias("emissions"),
            F.min(result).alias("oldest_result"),
            F.max(result).alias("newest_result"),
            F.count_if(matched & _outside(kinds, pipeline)).alias("pairs_out_of_bounds"),
            sum(nulls, start=F.lit(0)).alias("null_keys"),
        )
        .toPandas()
    )


def _as_joined(output: DataFrame, pipeline: Pipeline) -> dict[str, str]:
    """The columns of an output, with their types, that are what the join gave under their names."""
    if pipeline.flatten is not None:
        return {name: kind for name, kind in output.dtypes if name.startswith("_")}
    expressions = pipeline.select if isinstance(pipeline.select, dict) else {}
    return {name: kind for name, kind in output.dtypes if expressions.get(name, name) in {name, quoted(name)}}


def _outside(kinds: Mapping[str, str], pipeline: Pipeline) -> Column:
    """Whether a pair's event times, among columns of these types, are not where the join says."""
    times = [f"left_{pipeline.left.event_time.column}", f"right_{pipeline.right.event_time.column}"]
    if any(kinds.get(name) != "timestamp" for name in times) or pipeline.join.time == "processing":
        return F.lit(False)
    # In whole ticks: Flink reckons in milliseconds.
    tick = pipeline.tick
    left, right = (floor_div(F.unix_micros(quoted(name)), tick) for name in times)
    outside = F.lit(False)
    if interval := pipeline.join.interval:
        lower, upper = interval.closed(tick)
        if lower is not None:
            outside = outside | (right - left < lower)
        if upper is not None:
            outside = outside | (right - left > upper)
    compared = pipeline.join.window_inequality
    if (pipeline.join.window or compared) and {"_window_start", "_window_end"} <= kinds.keys():
        if zone := pipeline.zone_of_windows:
            left, right = (Zone.of(zone).local(time) for time in (left, right))
        names = {
            name: f"_right{name}" if f"_right{name}" in kinds else name for name in ("_window_start", "_window_end")
        }
        start, end = (floor_div(_micros(name), tick) for name in names)
        right_start, right_end = (floor_div(_micros(name), tick) for name in names.values())
        outside = outside | (left < start) | (left >= end) | (right < right_start) | (right >= right_end)
        if compared:
            outside = outside | ~holds(F.lit(compared.operator), window(start, end), window(right_start, right_end))
    return outside


def _micros(name: str) -> Column:
    """A window's bound: local times are counted as those of UTC."""
    return F.unix_micros(F.col(name).cast("timestamp"))
