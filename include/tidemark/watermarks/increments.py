"""Where watermarks rise inside a bucket: what tells the exact watermarks of all rows without moving one.

Of the rows of a stream that is out of order few raise a watermark. These alone are put in order; the steps of each
bucket then go to all tasks, where a row looks up the last one before its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Self

import pandas as pd
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidemark.config.sides import SIDES
from tidemark.spark.dataframe_utils import with_columns
from tidemark.spark.materialization import computed_once
from tidemark.watermarks.exact import (
    PLACE,
    combined_before,
    marks,
    raises,
    with_befores,
    with_watermarks_before,
)

_BEFORE = ("before", "left_before", "right_before")
_COUNTS = ("left_counts", "right_counts")


@dataclass(frozen=True)
class Steps:
    """The steps of the buckets of some rows `buckets.with_buckets`."""

    known: DataFrame
    """A row for each bucket that has one: `in_bucket`, and its `steps` in order: the place behind which it holds, and
    what was raised before a row there, ms."""
    counts: pd.DataFrame
    """How many `steps` a `bucket` has."""

    @classmethod
    def of(cls, rows: DataFrame, raising: str) -> Self:
        """Those of rows of which a column raises the watermark. Reads the rows once, and keeps what it finds."""
        by_side = {f"{side}_mark": mark for side, mark in marks(raising, exact=True).items()}
        asking = rows.where(raises(raising, exact=True)).select(
            *PLACE, *_BEFORE, *_COUNTS, *(mark.alias(name) for name, mark in by_side.items())
        )
        met = with_befores(asking, {side: F.col(f"{side}_mark") for side in SIDES})
        rising = reduce(Column.__or__, (F.col(f"{side}_mark") > F.col(f"{side}_before") for side in SIDES))
        so_far = Window.partitionBy("bucket").orderBy(*PLACE[1:])
        after = {f"{side}_before": F.greatest(f"{side}_before", F.max(f"{side}_mark").over(so_far)) for side in SIDES}
        risen = met.where(rising).transform(with_columns, after).withColumn("before", combined_before())
        steps = F.array_sort(F.collect_set(F.struct(*PLACE[1:], *_BEFORE))).alias("steps")
        known = computed_once(risen.groupBy(F.col("bucket").alias("in_bucket")).agg(steps), now=True)
        return cls(known, known.select(F.col("in_bucket").alias("bucket"), F.size("steps").alias("steps")).toPandas())

    def with_watermarks(self, rows: DataFrame) -> DataFrame:
        """The same rows with the watermarks that each met, and without what else is known of their buckets."""

        def is_before(step: Column) -> Column:
            sooner, together = step["clock"] < F.col("clock"), step["clock"] == F.col("clock")
            return sooner | (together & (step["tiebreak"] < F.col("tiebreak")))

        found = rows.join(F.broadcast(self.known), F.col("bucket") == F.col("in_bucket"), "left")
        last = F.get("steps", F.size(F.filter("steps", is_before)) - 1)
        found = found.withColumn("last", F.when(F.col("steps").isNotNull(), last)).drop("in_bucket", "steps")
        met = {name: F.coalesce(F.col("last")[name], F.col(name)) for name in _BEFORE}
        return with_watermarks_before(found.transform(with_columns, met).drop("last"))
