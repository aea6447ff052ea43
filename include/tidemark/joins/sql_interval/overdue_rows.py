"""Find the lookup that removes each row that has expired, but is still in the cache of Flink SQL's interval join.

Such a row is overdue: `expires_at <= operator time < cleanup_time`. The first lookup of the other side with the same
key in that time matches it if both times are within the interval, and removes it in any case. It is the row's removing
lookup.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidemark.joins.keys import key_columns
from tidemark.joins.sql_interval.arrival_order import ARRIVAL_ORDER_OF_SIDE
from tidemark.joins.sql_interval.labels import get_other_side
from tidemark.joins.sql_interval.late_materialization import broadcast_if_small, join_annotations, select_annotations
from tidemark.spark.materialization import materialize_and_count

_LOOKUP = ("slice", "operator_time", *ARRIVAL_ORDER_OF_SIDE)


@dataclass(frozen=True)
class OverdueRows:
    """Overdue rows of a job, materialized."""

    rows: DataFrame
    """The rows with their labels and their `removing_lookup`."""
    count: int

    @classmethod
    def create(cls, rows: DataFrame) -> Self | None:
        """Materialize overdue rows; None if there are none."""
        overdue_rows = cls(*materialize_and_count(rows))
        return overdue_rows if overdue_rows.count else None

    def annotate(self, rows: DataFrame, names: Sequence[str]) -> DataFrame:
        """Set the named columns of rows that are overdue."""
        annotations = broadcast_if_small(select_annotations(self.rows, names), self.count)
        return join_annotations(rows, annotations, names)


def is_overdue() -> Column:
    """Return True if a row remains in the cache after it has expired, never null."""
    return F.coalesce(F.col("cleanup_time") > F.col("expires_at"), F.lit(False))


def select_certain_lookups(rows: DataFrame, first_slice: int) -> DataFrame:
    """Select new rows that look up partners in any case.

    Lookups of other rows do not matter in lanes with a closed form: if one did, `LastCleanups` would simulate its lane.
    """
    return rows.where((F.col("slice") >= first_slice) & ~F.col("may_skip_lookup"))


def with_removing_lookup(rows: DataFrame, lookups: DataFrame) -> DataFrame:
    """Select overdue rows, and add the lookup that removes them; null if a timer removes the row first.

    For each side and key, expiries and the other side's lookups are sorted by operator time. The next lookup after a
    row's expiry is the one that removes it, unless its cleanup time is not later.

    Args:
        rows: Labelled rows, overdue ones among them.
        lookups: Rows that look up partners.

    Returns:
        Overdue rows. `removing_lookup` is a struct of `_LOOKUP`.
    """
    keys = key_columns(rows)
    lookup = F.struct(*_LOOKUP)
    other_side = get_other_side(F.col("side"))
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
        for column in (F.col("sort_time"), F.col("removing_lookup").isNotNull(), *map(F.col, ARRIVAL_ORDER_OF_SIDE))
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
