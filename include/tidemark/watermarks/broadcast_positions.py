"""Compute exact watermarks of few rows without ordering the others.

If buckets are long, most rows are above the watermark before their bucket, and ordering them would shuffle nearly all
rows. But a watermark is a maximum over earlier rows. So the positions of the few rows are broadcast, and each row that
may raise the watermark is joined with the later ones of these positions in its bucket. The maximum of the rows joined
with a position is the watermark there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.spark.dataframe_utils import with_columns
from tidemark.spark.materialization import materialize
from tidemark.watermarks.exact import (
    POSITION,
    advances_watermark,
    watermark_increments,
    with_exact_watermarks,
)

_ALIASES = {name: f"selected_{name}" for name in POSITION}


@dataclass(frozen=True)
class BroadcastPositions:
    """The positions of some rows of a job."""

    rows: DataFrame
    """The rows, materialized."""
    counts: pd.DataFrame
    """Number of different `positions` by `bucket`."""

    @classmethod
    def collect(cls, rows: DataFrame) -> Self:
        """Compute the rows and count their positions.

        Args:
            rows: Rows from `lanes.join_bucket_watermarks`, or some of them.
        """
        rows = materialize(rows)
        position = F.struct(*POSITION[1:])
        return cls(rows, rows.groupBy("bucket").agg(F.count_distinct(position).alias("positions")).toPandas())

    @property
    def count(self) -> int:
        """Number of positions."""
        return int(self.counts["positions"].sum())

    def with_exact_watermarks(
        self, all_rows: DataFrame, watermark_column: str, *, includes_all_rows: bool
    ) -> DataFrame:
        """Return the rows with the exact watermarks at their arrival. Reads all rows once.

        Args:
            all_rows: All rows of the buckets of these rows, from `lanes.join_bucket_watermarks`.
            watermark_column: Column from which the watermark is made, as `Lane.watermark_column`.
            includes_all_rows: True to compute exact watermarks for any row; False if all of these rows may be late.
        """
        if not self.count:
            return with_exact_watermarks(self.rows)
        positions = self.rows.select(*(F.col(name).alias(alias) for name, alias in _ALIASES.items())).distinct()
        increments = watermark_increments(watermark_column, includes_all_rows=includes_all_rows)
        advancing = all_rows.where(advances_watermark(watermark_column, includes_all_rows=includes_all_rows)).select(
            *POSITION, *(column.alias(f"{side}_increment") for side, column in increments.items())
        )
        clock, tiebreak = (F.col(_ALIASES[name]) for name in POSITION[1:])
        is_earlier = (F.col("clock") < clock) | ((F.col("clock") == clock) & (F.col("tiebreak") < tiebreak))
        is_in_bucket = F.col("bucket") == F.col(_ALIASES["bucket"])
        earlier = advancing.join(F.broadcast(positions), is_in_bucket & is_earlier)
        highest = earlier.groupBy(*(F.col(alias).alias(name) for name, alias in _ALIASES.items())).agg(
            *(F.max(f"{side}_increment").alias(f"{side}_increment") for side in increments)
        )
        joined = self.rows.join(F.broadcast(highest), list(POSITION), "left")
        raised = {f"{side}_before": F.greatest(f"{side}_before", f"{side}_increment") for side in increments}
        return with_exact_watermarks(joined.transform(with_columns, raised).select(*self.rows.columns))
