"""Rows that outstay their time in the cache of Flink SQL's interval join, and who finds them there."""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidemark.joins.keys import has_null_key, key_columns
from tidemark.joins.sql_interval.match_tracking import ARRIVAL_ORDER
from tidemark.joins.window_output import PADDING_TYPES
from tidemark.spark.dataframe_utils import with_columns
from tidemark.timegrid.time_columns import trunc_div

_LOOKUP = ("slice", "now", *ARRIVAL_ORDER)


def is_overdue() -> Column:
    """Whether a row is in the cache after it has expired; never null."""
    return F.coalesce(F.col("leaves_at") > F.col("expires_at"), F.lit(False))


def select_lookups(rows: DataFrame, first_slice: int) -> DataFrame:
    """New rows that look for partners, as far as that is decided."""
    return rows.where((F.col("slice") >= first_slice) & ~F.col("stale"))


def select_lookups_near_overdue(lookups: DataFrame, rows: DataFrame, longest_overdue_ms: int) -> DataFrame:
    """Of rows that look for partners those that may find one that outstays its time, `longest` ms at the most.

    The latter go to all tasks: the stream is long, and few rows are found so.
    """
    keys, bin_width = key_columns(rows), F.lit(longest_overdue_ms + 1)
    bins = F.explode(F.sequence(trunc_div(F.col("expires_at"), bin_width), trunc_div(F.col("leaves_at"), bin_width)))
    overdue_rows = rows.where(is_overdue()).select("side", *keys, bins.alias("bin"))
    overdue_rows = overdue_rows.select(*(F.col(name).alias(f"stays_{name}") for name in overdue_rows.columns))
    is_near = [F.col(key).eqNullSafe(F.col(f"stays_{key}")) for key in keys]
    is_near += [F.col("side") != F.col("stays_side"), trunc_div(F.col("now"), bin_width) == F.col("stays_bin")]
    return lookups.join(F.broadcast(overdue_rows), reduce(Column.__and__, is_near), "left_semi")


def with_removing_lookup(rows: DataFrame, lookups: DataFrame) -> DataFrame:
    """The rows that outstay their time, with `by`: the row of the same key that removes them, null where a timer does.

    It is the first one of the other side to look for partners after they have expired, if no timer is sooner; `by` has
    its `slice`, `now`, and where in the stream it is.
    """
    keys, lookup = key_columns(rows), F.struct(*_LOOKUP)
    other_side = F.when(F.col("side") == "left", "right").otherwise("left")
    null = F.lit(None).cast(rows.select(lookup.alias("it")).schema["it"].dataType)
    events = rows.where(is_overdue()).withColumns({"level": F.col("expires_at"), "of": F.col("side"), "by": null})
    events = events.unionByName(lookups.withColumns({"level": F.col("now"), "of": other_side, "by": lookup}))
    # Backwards: a frame that ends with the partition is gone through anew for each of its rows.
    backwards = [column.desc() for column in (F.col("level"), F.col("by").isNotNull(), *map(F.col, ARRIVAL_ORDER))]
    later_events = Window.partitionBy(*keys, "of").orderBy(*backwards).rowsBetween(Window.unboundedPreceding, -1)
    first_lookup = F.last("by", ignorenulls=True).over(later_events)
    overdue_rows = events.withColumn("search", first_lookup).where(F.col("by").isNull())
    removing_lookup = F.when(F.col("search.now") < F.col("leaves_at"), F.col("search"))
    return overdue_rows.withColumn("by", removing_lookup).drop("search", "level", "of")


def with_removal_slice(rows: DataFrame) -> DataFrame:
    """Rows with `by`, which leave in the slice of whoever removes them."""
    return rows.withColumn("eviction_slice", F.coalesce(F.col("by.slice"), F.col("eviction_slice")))


def pair_with_removing_rows(rows: DataFrame, late_rows: DataFrame, condition: Column) -> DataFrame:
    """Pairs of rows that outstayed their time and the row that removed them, if their times are `within` bounds.

    Takes rows with `by`, those of them that came `behind` the watermark, since no other finds such a row within bounds,
    and what is asked of `left_time` and `right_time`.
    """
    keys = key_columns(rows)
    removed_rows = rows.where(F.col("by").isNotNull() & ~has_null_key(rows))
    times = {
        f"{side}_time": _choose_by_side(side, F.col("event_time"), F.col("by.event_time")) for side in PADDING_TYPES
    }
    removed_rows = removed_rows.transform(with_columns, times).where(condition)
    searcher_columns = F.struct("mark", *PADDING_TYPES)
    searchers = late_rows.groupBy(*keys, "side", *ARRIVAL_ORDER).agg(F.first(searcher_columns).alias("searcher"))
    searchers = searchers.withColumnsRenamed({name: f"by_{name}" for name in (*keys, "side", *ARRIVAL_ORDER)})
    is_remover = [F.col(key) == F.col(f"by_{key}") for key in keys]
    is_remover += [F.col(f"by.{name}") == F.col(f"by_{name}") for name in ARRIVAL_ORDER]
    is_remover.append(F.col("side") != F.col("by_side"))
    pairs = removed_rows.join(searchers, reduce(Column.__and__, is_remover))
    pair_columns = {"slice": F.col("by.slice")}
    for side in PADDING_TYPES:
        pair_columns[f"{side}_mark"] = _choose_by_side(side, F.col("mark"), F.col("searcher.mark"))
        pair_columns[side] = _choose_by_side(side, F.col(side), F.col(f"searcher.{side}"))
    return pairs.transform(with_columns, pair_columns)


def _choose_by_side(side: str, own: Column, other: Column) -> Column:
    """What belongs to a side of a pair: of the row, if it is of this side, or else of the other one."""
    return F.when(F.col("side") == side, own).otherwise(other)
