"""Select the rows of a large job that may outlive their slice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from tidemark.config.sides import SIDES
from tidemark.joins.base import Join
from tidemark.planning.replay_strategy import JobStatistics
from tidemark.spark.dataframe_utils import choose_by_side
from tidemark.spark.tables import from_pandas
from tidemark.watermarks.buckets import Buckets
from tidemark.watermarks.job_watermarks import array_literal
from tidemark.watermarks.values import END_OF_INPUT

_NEVER = np.iinfo(np.int64).max
_SCHEMA = "bucket long, combined_before long, end_watermark long, side string, event_time long, rows long"


@dataclass(frozen=True)
class CarriedRowSelection:
    """The rows on time that may outlive their slice."""

    condition: Column
    """Condition for a row that may be carried, over the columns of `lanes.join_bucket_watermarks`."""
    max_share: float
    """Upper bound of their share of the job's rows."""


def find_rows_that_may_be_carried(
    spark: SparkSession,
    statistics: JobStatistics,
    buckets: Buckets,
    join: Join,
    newest_carried: Mapping[tuple[int, str], int],
) -> CarriedRowSelection | None:
    """Return the rows that may outlive their slice; None if event times do not determine them.

    Args:
        spark: Session that evaluates the join's condition for each bucket.
        statistics: Statistics of the job's rows.
        buckets: The buckets of the job.
        join: The join.
        newest_carried: Greatest event time of the carried rows by lane and side.
    """
    eviction_watermark = join.eviction_watermark(F.col("combined_before"))
    if eviction_watermark is None:
        return None
    # A row that no watermark evicts outlives the end of the input too.
    outlives_slice = eviction_watermark > F.least(F.col("end_watermark"), F.lit(END_OF_INPUT - 1))
    if len(statistics.timelines) > 1:  # the condition differs between lanes
        return CarriedRowSelection(F.lit(True) if join.buffers_overdue_rows else outlives_slice, max_share=1)
    newest = _list_newest_rows(statistics).dropna()
    if join.buffers_overdue_rows:
        initial = newest["side"].map({side: newest_carried.get((0, side), -np.inf) for side in SIDES})
        newest["event_time"] = np.fmax(newest.groupby("side")["event_time"].cummax(), initial)
    newest = newest.astype({"event_time": "int64"})
    carrying = from_pandas(spark, newest, _SCHEMA).where(outlives_slice).select("bucket", "side", "rows").toPandas()
    condition = _is_in_bucket_that_may_carry(carrying, buckets) if join.buffers_overdue_rows else outlives_slice
    return CarriedRowSelection(condition, int(carrying["rows"].sum()) / statistics.row_count)


def _list_newest_rows(statistics: JobStatistics) -> pd.DataFrame:
    """List the newest event time and the number of rows of each bucket and side, in the columns of `_SCHEMA`."""
    watermarks = statistics.timelines[0].buckets[["bucket", "combined_before", "end_watermark"]]
    buckets = statistics.buckets.merge(watermarks, on="bucket").sort_values("bucket")
    columns = ["bucket", "combined_before", "end_watermark"]
    by_side = [
        buckets[columns].assign(side=side, event_time=buckets[f"{side}_newest"], rows=buckets[f"{side}_rows"])
        for side in SIDES
    ]
    return pd.concat(by_side, ignore_index=True)


def _is_in_bucket_that_may_carry(carrying_buckets: pd.DataFrame, buckets: Buckets) -> Column:
    """Return True for rows from the first bucket of their side and slice on in which a row may outlive the slice."""
    slices = buckets.find_slices(carrying_buckets["bucket"])
    first_buckets = carrying_buckets.groupby(["side", slices])["bucket"].min()
    index = (F.col("slice") - buckets.slices[0]).cast("int")
    from_bucket = {
        side: F.get(array_literal([int(first_buckets.get((side, n), _NEVER)) for n in buckets.slices], "bigint"), index)
        for side in SIDES
    }
    return F.col("bucket") >= choose_by_side(from_bucket["left"], from_bucket["right"])
