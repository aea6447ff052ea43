"""Compute exact watermarks without a shuffle, from the positions at which the watermark rises.

Few rows of a stream raise its watermark. Only these are ordered. The increments of each bucket are then broadcast, and
each row looks up the last increment before its position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Self

import pandas as pd
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidemark.config.sides import SIDES
from tidemark.spark.dataframe_utils import with_columns
from tidemark.spark.materialization import materialize
from tidemark.watermarks.exact import (
    POSITION,
    advances_watermark,
    preceding_combined_watermark,
    watermark_increments,
    with_bucket_watermarks,
    with_preceding_watermarks,
)

_BEFORE = ("combined_before", "left_before", "right_before")
_ALIGNED = ("left_is_aligned", "right_is_aligned")


@dataclass(frozen=True)
class WatermarkIncrements:
    """The watermark increments of all buckets of a job."""

    by_bucket: DataFrame
    """One row per bucket with increments: `increment_bucket`, and `increments`, an array ordered by position. Each
    increment has the position (exclusive) after which it holds and the watermarks from there on, ms."""
    counts: pd.DataFrame
    """Number of `increments` by `bucket`."""

    @classmethod
    def collect(cls, rows: DataFrame, watermark_column: str) -> Self:
        """Collect the increments of a job and materialize them. Reads the rows once.

        Args:
            rows: Rows from `lanes.join_bucket_watermarks`.
            watermark_column: Column from which the watermark is made, as `Lane.watermark_column`.
        """
        advanced = _find_increments(rows, watermark_column)
        ordered = F.array_sort(F.collect_set(F.struct(*POSITION[1:], *_BEFORE))).alias("increments")
        grouped = advanced.groupBy(F.col("bucket").alias("increment_bucket")).agg(ordered)
        by_bucket = materialize(grouped, eager=True)
        counts = by_bucket.select(
            F.col("increment_bucket").alias("bucket"), F.size("increments").alias("increments")
        ).toPandas()
        return cls(by_bucket, counts)

    def with_watermarks(self, rows: DataFrame) -> DataFrame:
        """Add the exact watermarks at each row's arrival, and drop the bucket columns."""

        def precedes(increment: Column) -> Column:
            is_earlier = increment["clock"] < F.col("clock")
            is_simultaneous = increment["clock"] == F.col("clock")
            return is_earlier | (is_simultaneous & (increment["tiebreak"] < F.col("tiebreak")))

        joined = rows.join(F.broadcast(self.by_bucket), F.col("bucket") == F.col("increment_bucket"), "left")
        last = F.get("increments", F.size(F.filter("increments", precedes)) - 1)
        joined = joined.withColumn("last_increment", F.when(F.col("increments").isNotNull(), last))
        joined = joined.drop("increment_bucket", "increments")
        watermarks = {name: F.coalesce(F.col("last_increment")[name], F.col(name)) for name in _BEFORE}
        return with_bucket_watermarks(joined.transform(with_columns, watermarks).drop("last_increment"))


def list_combined_increments(rows: DataFrame, watermark_column: str) -> DataFrame:
    """List the positions at which the combined watermark of a lane rises.

    Args:
        rows: Rows from `lanes.join_bucket_watermarks`.
        watermark_column: Column from which the watermark is made, as `Lane.watermark_column`.

    Returns:
        One row per increment: `lane`, `slice`, position, and the combined `watermark` after the rows at it, ms.
    """
    increments = _find_increments(rows, watermark_column, ("lane", "slice"))
    by_position = increments.groupBy("lane", "slice", *POSITION[1:]).agg(
        F.max("combined_before").alias("watermark"), F.min("preceding").alias("preceding")
    )
    return by_position.where(F.col("watermark") > F.col("preceding")).drop("preceding")


def _find_increments(rows: DataFrame, watermark_column: str, names: Sequence[str] = ()) -> DataFrame:
    """Find the rows that raise the watermark of an input.

    Args:
        rows: Rows from `lanes.join_bucket_watermarks`.
        watermark_column: Column from which the watermark is made.
        names: Further columns to select.

    Returns:
        The rows by position. Their columns `*_before` have the watermarks just after the row here, and `preceding` has
        the combined watermark before their position.
    """
    by_side = watermark_increments(watermark_column, includes_all_rows=True)
    increments = rows.where(advances_watermark(watermark_column, includes_all_rows=True)).select(
        *names, *POSITION, *_BEFORE, *_ALIGNED, *(column.alias(f"{side}_increment") for side, column in by_side.items())
    )
    preceding = with_preceding_watermarks(increments, {side: F.col(f"{side}_increment") for side in SIDES})
    advances = reduce(Column.__or__, (F.col(f"{side}_increment") > F.col(f"{side}_before") for side in SIDES))
    up_to_row = Window.partitionBy("bucket").orderBy(*POSITION[1:])
    after = {
        f"{side}_before": F.greatest(f"{side}_before", F.max(f"{side}_increment").over(up_to_row)) for side in SIDES
    }
    advanced = preceding.withColumn("preceding", preceding_combined_watermark()).where(advances)
    return advanced.transform(with_columns, after).withColumn("combined_before", preceding_combined_watermark())
