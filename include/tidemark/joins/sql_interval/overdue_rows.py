"""Rows that outstay their time in the cache of Flink SQL's interval join, and who finds them there."""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidemark.joins.keys import has_null_key, key_columns
from tidemark.joins.sql_interval.match_tracking import ARRIVAL
from tidemark.joins.window_output import PADDING_TYPES
from tidemark.spark.dataframe_utils import with_columns
from tidemark.timegrid.time_columns import div

_SEARCH = ("slice", "now", *ARRIVAL)


def stays() -> Column:
    """Whether a row is in the cache after it has expired; never null."""
    return F.coalesce(F.col("leaves_at") > F.col("expires_at"), F.lit(False))


def searches(rows: DataFrame, first: int) -> DataFrame:
    """New rows that look for partners, as far as that is decided."""
    return rows.where((F.col("slice") >= first) & ~F.col("stale"))


def near(searching: DataFrame, rows: DataFrame, longest: int) -> DataFrame:
    """Of rows that look for partners those that may find one that outstays its time, `longest` ms at the most.

    The latter go to all tasks: the stream is long, and few rows are found so.
    """
    keys, width = key_columns(rows), F.lit(longest + 1)
    spans = F.explode(F.sequence(div(F.col("expires_at"), width), div(F.col("leaves_at"), width)))
    known = rows.where(stays()).select("side", *keys, spans.alias("bin"))
    known = known.select(*(F.col(name).alias(f"stays_{name}") for name in known.columns))
    same = [F.col(key).eqNullSafe(F.col(f"stays_{key}")) for key in keys]
    same += [F.col("side") != F.col("stays_side"), div(F.col("now"), width) == F.col("stays_bin")]
    return searching.join(F.broadcast(known), reduce(Column.__and__, same), "left_semi")


def with_first_search(rows: DataFrame, searching: DataFrame) -> DataFrame:
    """The rows that outstay their time, with `by`: the row of the same key that removes them, null where a timer does.

    It is the first one of the other side to look for partners after they have expired, if no timer is sooner; `by` has
    its `slice`, `now`, and where in the stream it is.
    """
    keys, search = key_columns(rows), F.struct(*_SEARCH)
    other = F.when(F.col("side") == "left", "right").otherwise("left")
    none = F.lit(None).cast(rows.select(search.alias("it")).schema["it"].dataType)
    both = rows.where(stays()).withColumns({"level": F.col("expires_at"), "of": F.col("side"), "by": none})
    both = both.unionByName(searching.withColumns({"level": F.col("now"), "of": other, "by": search}))
    # Backwards: a frame that ends with the partition is gone through anew for each of its rows.
    backwards = [one.desc() for one in (F.col("level"), F.col("by").isNotNull(), *map(F.col, ARRIVAL))]
    following = Window.partitionBy(*keys, "of").orderBy(*backwards).rowsBetween(Window.unboundedPreceding, -1)
    by = F.last("by", ignorenulls=True).over(following)
    found = both.withColumn("search", by).where(F.col("by").isNull())
    sooner = F.when(F.col("search.now") < F.col("leaves_at"), F.col("search"))
    return found.withColumn("by", sooner).drop("search", "level", "of")


def removed(rows: DataFrame) -> DataFrame:
    """Rows with `by`, which leave in the slice of whoever removes them."""
    return rows.withColumn("eviction_slice", F.coalesce(F.col("by.slice"), F.col("eviction_slice")))


def found_expired(rows: DataFrame, behind: DataFrame, within: Column) -> DataFrame:
    """Pairs of rows that outstayed their time and the row that removed them, if their times are `within` bounds.

    Takes rows with `by`, those of them that came `behind` the watermark, since no other finds such a row within bounds,
    and what is asked of `left_time` and `right_time`.
    """
    keys = key_columns(rows)
    expired = rows.where(F.col("by").isNotNull() & ~has_null_key(rows))
    times = {f"{side}_time": _of(side, F.col("event_time"), F.col("by.event_time")) for side in PADDING_TYPES}
    expired = expired.transform(with_columns, times).where(within)
    searcher = F.struct("mark", *PADDING_TYPES)
    searching = behind.groupBy(*keys, "side", *ARRIVAL).agg(F.first(searcher).alias("searcher"))
    searching = searching.withColumnsRenamed({name: f"by_{name}" for name in (*keys, "side", *ARRIVAL)})
    met = [F.col(key) == F.col(f"by_{key}") for key in keys]
    met += [F.col(f"by.{name}") == F.col(f"by_{name}") for name in ARRIVAL]
    met.append(F.col("side") != F.col("by_side"))
    found = expired.join(searching, reduce(Column.__and__, met))
    both = {"slice": F.col("by.slice")}
    for side in PADDING_TYPES:
        both[f"{side}_mark"] = _of(side, F.col("mark"), F.col("searcher.mark"))
        both[side] = _of(side, F.col(side), F.col(f"searcher.{side}"))
    return found.transform(with_columns, both)


def _of(side: str, own: Column, other: Column) -> Column:
    """What belongs to a side of a pair: of the row, if it is of this side, or else of the other one."""
    return F.when(F.col("side") == side, own).otherwise(other)
