"""Add labels that follow from a row's event time and the watermark at its arrival in Flink SQL's interval join."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.joins.keys import key_columns
from tidemark.joins.rules.flink_sql import IntervalRules
from tidemark.joins.sql_interval.match_tracking import compute_match_hash
from tidemark.spark.dataframe_utils import choose_by_side, with_columns
from tidemark.watermarks.job_watermarks import JobWatermarks

SLICE_COLUMNS = ("first_match_slice", "timer_slice", "removal_slice")
STATE_COLUMNS = ("first_match_slice", "cleanup_time", "timer_slice", "removal_slice")
_NARROW_COLUMNS = ("lane", "side", "slice", "bucket_number", "clock", "tiebreak", "event_time", "watermark")


def get_other_side(side: Column) -> Column:
    """Return the other side of a column of sides."""
    return choose_by_side(F.lit("right"), F.lit("left"), side=side)


def is_late(first_slice: int, prefix: str = "") -> Column:
    """Return True if a row arrived in the job, below the watermark. Its columns may have a prefix."""
    slice_number, event_time, watermark = (F.col(f"{prefix}{name}") for name in ("slice", "event_time", "watermark"))
    return (slice_number >= first_slice) & (event_time < watermark)


def is_late_or_uncached(first_slice: int, prefix: str = "") -> Column:
    """Return True if a row arrived in the job late, or was not cached: its pairs depend on the order of rows."""
    is_new, is_cached = F.col(f"{prefix}slice") >= first_slice, F.col(f"{prefix}is_cached")
    return is_late(first_slice, prefix) | (is_new & ~is_cached)


def add_carried(rows: DataFrame, carried: DataFrame | None) -> DataFrame:
    """Union new and carried rows."""
    if carried is None:
        return rows
    names = [name for name in (*rows.columns, *STATE_COLUMNS) if name in carried.columns]
    return rows.unionByName(carried.select(*names), allowMissingColumns=True)


def select_narrow(rows: DataFrame) -> DataFrame:
    """Select the columns from which the labels of rows are computed, without the rows themselves."""
    missing = {name: F.lit(None).cast("long") for name in ("bucket_number", "cleanup_time") if name not in rows.columns}
    names = (*_NARROW_COLUMNS, "order_in_event", "cleanup_time", *key_columns(rows))
    return rows.transform(with_columns, missing).select(*names)


def has_recorded_timer(rows: DataFrame, first_slice: int) -> Column:
    """Return True for a carried row with the timer of its cache, set in a simulated lane; never null.

    The closed form would derive another timer. The row is removed when the timer fires, at its own expiry.
    """
    if "timer_slice" not in rows.columns:
        return F.lit(False)
    return F.coalesce(F.col("timer_slice") < first_slice, F.lit(False))


def label_caching(rows: DataFrame, rules: IntervalRules, first_slice: int) -> DataFrame:
    """Add the labels that do not depend on the cleanup time. New rows get a `cleanup_time` of null.

    - `operator_time`: the operator time at its arrival.
    - `is_cached`: whether it is cached on arrival.
    - `expires_at`: the least operator time at which it has expired.
    - `lookup_skipped_at`: the last cleanup of the other side, an operator time, at which it skips its lookup.
    - `may_skip_lookup`: whether some cleanup before its arrival may have reached `lookup_skipped_at`.
    - `requires_simulation`: whether only a simulation of its lane is exact.
    """
    event_time = F.col("event_time")
    wait = rules.wait_for_side(F.col("side"))
    operator_time = rules.operator_time(F.col("watermark"))
    labels = {
        "operator_time": operator_time,
        "is_cached": rules.is_cached(event_time, wait, operator_time),
        "expires_at": rules.expires_at(event_time, wait),
        "lookup_skipped_at": rules.lookup_skipped_at(event_time),
        "may_skip_lookup": (rules.lookup_skipped_at(event_time) <= operator_time) & ~rules.is_empty,
        "requires_simulation": rules.requires_simulation(event_time, wait) | has_recorded_timer(rows, first_slice),
    }
    if "cleanup_time" not in rows.columns:
        labels["cleanup_time"] = F.lit(None).cast("long")
    return rows.transform(with_columns, labels)


def label_eviction(rows: DataFrame, watermarks: JobWatermarks) -> DataFrame:
    """Add the labels that follow from the cleanup time.

    - `eviction_slice`: the slice whose watermark removes a row; that of its arrival if it is not cached.
    - `needs_first_match`: whether it is late or outlives its slice, so that its first match must be known.
    """
    # `with_slice_reaching` accepts no null. The eviction slice of rows that are not cached is replaced below.
    removal_watermark = F.coalesce("cleanup_time", "expires_at")
    labelled = watermarks.with_slice_reaching(rows, removal_watermark, "eviction_slice")
    labelled = labelled.withColumn(
        "eviction_slice", F.when(F.col("is_cached"), F.col("eviction_slice")).otherwise(F.col("slice"))
    )
    # Most rows are on time and removed by the end of their slice. No output needs the first match of these.
    is_removed_in_slice = (F.col("eviction_slice") <= F.greatest("slice", F.lit(watermarks.first_slice))) & ~is_late(
        watermarks.first_slice
    )
    return labelled.withColumn("needs_first_match", ~F.coalesce(is_removed_in_slice, F.lit(False)))


def with_match_state(rows: DataFrame, condition: str | None, first_slice: int) -> DataFrame:
    """Add `match_hash`, and keep the slice numbers of the carried state only if they precede the job."""
    null = F.lit(None).cast("long")
    carried_state = {
        name: F.when(F.col(name) < first_slice, F.col(name)) if name in rows.columns else null for name in SLICE_COLUMNS
    }
    return rows.transform(with_columns, {**carried_state, "match_hash": compute_match_hash(rows, condition)})
