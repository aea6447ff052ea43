"""Match rows that have expired, but that Flink SQL's interval join has not removed from its cache.

Such a row is overdue: `expires_at <= operator time < cleanup_time`. The first lookup of the other side with the same
key in that time matches it if both times are within the interval, and removes it in any case. It is the row's removing
lookup.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidemark.joins.keys import has_null_key, key_columns
from tidemark.joins.sql_interval.match_tracking import ARRIVAL_ORDER
from tidemark.joins.window_output import PADDING_TYPES
from tidemark.spark.dataframe_utils import with_columns
from tidemark.timegrid.time_columns import trunc_div

_LOOKUP = ("slice", "operator_time", *ARRIVAL_ORDER)


def is_overdue() -> Column:
    """Return True if a row remains in the cache after it has expired, never null."""
    return F.coalesce(F.col("cleanup_time") > F.col("expires_at"), F.lit(False))


def select_certain_lookups(rows: DataFrame, first_slice: int) -> DataFrame:
    """Select new rows that look up partners in any case.

    Lookups of other rows do not matter in lanes with a closed form: if one did, `LastCleanups` would replay its lane.
    """
    return rows.where((F.col("slice") >= first_slice) & ~F.col("may_skip_lookup"))


def select_lookups_near_overdue(lookups: DataFrame, rows: DataFrame, longest_overdue_ms: int) -> DataFrame:
    """Select lookups that may find an overdue row, by a broadcast join on key and time bin.

    Args:
        lookups: Rows that look up partners.
        rows: Rows with the overdue ones among them, few enough for a broadcast.
        longest_overdue_ms: Longest time from expiry to cleanup of an overdue row, ms. With bins that wide, a row is
            overdue in at most two of them.
    """
    keys, bin_width = key_columns(rows), F.lit(longest_overdue_ms + 1)
    bins = F.explode(F.sequence(trunc_div(F.col("expires_at"), bin_width), trunc_div(F.col("cleanup_time"), bin_width)))
    overdue_rows = rows.where(is_overdue()).select("side", *keys, bins.alias("bin"))
    overdue_rows = overdue_rows.select(*(F.col(name).alias(f"overdue_{name}") for name in overdue_rows.columns))
    is_near = [F.col(key).eqNullSafe(F.col(f"overdue_{key}")) for key in keys]
    is_near += [
        F.col("side") != F.col("overdue_side"),
        trunc_div(F.col("operator_time"), bin_width) == F.col("overdue_bin"),
    ]
    return lookups.join(F.broadcast(overdue_rows), reduce(Column.__and__, is_near), "left_semi")


def with_removing_lookup(rows: DataFrame, lookups: DataFrame) -> DataFrame:
    """Select overdue rows, and add `removing_lookup`; null if a timer removes the row first.

    For each side and key, expiries and the other side's lookups are sorted by operator time. The next lookup after a
    row's expiry is the one that removes it, unless its cleanup time is not later.

    Args:
        rows: Labelled rows, overdue ones among them.
        lookups: Rows that look up partners.

    Returns:
        Overdue rows. `removing_lookup` is a struct of `_LOOKUP`.
    """
    keys, lookup = key_columns(rows), F.struct(*_LOOKUP)
    other_side = F.when(F.col("side") == "left", "right").otherwise("left")
    null = F.lit(None).cast(rows.select(lookup.alias("lookup")).schema["lookup"].dataType)
    events = rows.where(is_overdue()).withColumns(
        {"sort_time": F.col("expires_at"), "cached_side": F.col("side"), "removing_lookup": null}
    )
    events = events.unionByName(
        lookups.withColumns({"sort_time": F.col("operator_time"), "cached_side": other_side, "removing_lookup": lookup})
    )
    # In descending order, because Spark updates a frame from the partition's start incrementally, but computes one up
    # to its end again for each row. A lookup at the very time of an expiry counts as later: the bound is inclusive.
    backwards = [
        column.desc()
        for column in (F.col("sort_time"), F.col("removing_lookup").isNotNull(), *map(F.col, ARRIVAL_ORDER))
    ]
    later_events = (
        Window.partitionBy(*keys, "cached_side").orderBy(*backwards).rowsBetween(Window.unboundedPreceding, -1)
    )
    first_lookup = F.last("removing_lookup", ignorenulls=True).over(later_events)
    overdue_rows = events.withColumn("first_lookup", first_lookup).where(F.col("removing_lookup").isNull())
    removing_lookup = F.when(F.col("first_lookup.operator_time") < F.col("cleanup_time"), F.col("first_lookup"))
    return overdue_rows.withColumn("removing_lookup", removing_lookup).drop("first_lookup", "sort_time", "cached_side")


def with_eviction_slice(rows: DataFrame) -> DataFrame:
    """Set `eviction_slice` of rows with a `removing_lookup` to the slice of that lookup."""
    return rows.withColumn("eviction_slice", F.coalesce(F.col("removing_lookup.slice"), F.col("eviction_slice")))


def pair_with_removing_rows(rows: DataFrame, late_rows: DataFrame, condition: Column) -> DataFrame:
    """Pair overdue rows with the rows that remove them.

    Args:
        rows: Rows with `removing_lookup`.
        late_rows: Late rows. Only these can match an overdue row, as all partners of an expired row are below the
            watermark.
        condition: Condition on the event times `left_time` and `right_time`, ms.

    Returns:
        Pairs with `slice`, the match hashes, `left` and `right`.
    """
    keys = key_columns(rows)
    removed_rows = rows.where(F.col("removing_lookup").isNotNull() & ~has_null_key(rows))
    times = {
        f"{side}_time": _choose_by_side(side, F.col("event_time"), F.col("removing_lookup.event_time"))
        for side in PADDING_TYPES
    }
    removed_rows = removed_rows.transform(with_columns, times).where(condition)
    remover_columns = F.struct("match_hash", *PADDING_TYPES)
    removers = late_rows.groupBy(*keys, "side", *ARRIVAL_ORDER).agg(F.first(remover_columns).alias("remover"))
    removers = removers.withColumnsRenamed({name: f"remover_{name}" for name in (*keys, "side", *ARRIVAL_ORDER)})
    is_remover = [F.col(key) == F.col(f"remover_{key}") for key in keys]
    is_remover += [F.col(f"removing_lookup.{name}") == F.col(f"remover_{name}") for name in ARRIVAL_ORDER]
    is_remover.append(F.col("side") != F.col("remover_side"))
    removals = removed_rows.join(removers, reduce(Column.__and__, is_remover))
    pair_columns = {"slice": F.col("removing_lookup.slice")}
    for side in PADDING_TYPES:
        pair_columns[f"{side}_match_hash"] = _choose_by_side(side, F.col("match_hash"), F.col("remover.match_hash"))
        pair_columns[side] = _choose_by_side(side, F.col(side), F.col(f"remover.{side}"))
    return removals.transform(with_columns, pair_columns)


def _choose_by_side(side: str, own: Column, other: Column) -> Column:
    """Return `own` if the row is of this side of the pair, otherwise `other`."""
    return F.when(F.col("side") == side, own).otherwise(other)
