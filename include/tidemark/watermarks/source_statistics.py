"""Aggregate the rows of each bucket by source: an input, or one of its partitions."""

from __future__ import annotations

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.config.sides import SIDES
from tidemark.timegrid.time_columns import clock_ms
from tidemark.watermarks.buckets import NO_LEAD
from tidemark.watermarks.row_status import AHEAD, is_ahead, is_filtered, is_rejected, moves_watermark_only
from tidemark.watermarks.source_status import UNPARTITIONED


def compute_source_statistics(rows: DataFrame) -> pd.DataFrame:
    """Aggregate each bucket and source: event times, lead, row counts, and the range of clocks and tiebreaks.

    Without rows that have an effect, `first` and `last` are null, and the tiebreaks have no meaning.
    """
    is_accepted = F.col("rejected").isNull()
    # A filtered row with times out of bounds has no effect at all.
    is_effective = is_accepted | moves_watermark_only()
    time, clock, tiebreak = (F.when(is_effective, F.col(name)) for name in ("event_time", "clock", "tiebreak"))
    is_late_arriving = F.col("owning_slice") < F.col("slice")
    grouped = rows.groupBy("bucket", "side", "partition").agg(
        F.max(time).alias("newest"),
        F.max(F.coalesce(time - clock_ms(), F.lit(NO_LEAD))).alias("lead"),
        F.min(F.when(is_accepted, time)).alias("oldest"),
        F.min(clock).alias("first"),
        F.max(clock).alias("last"),
        # Pandas would read a column with nulls as doubles, which are too coarse for tiebreaks.
        F.coalesce(F.min(tiebreak), F.lit(0)).alias("least_tiebreak"),
        F.coalesce(F.max(tiebreak), F.lit(0)).alias("greatest_tiebreak"),
        F.count_if(~is_filtered()).alias("rows"),
        F.count_if(is_filtered()).alias("filtered"),
        F.count_if(is_rejected()).alias("rejected"),
        F.count_if(is_accepted & F.col("floored")).alias("floored"),
        F.count_if(is_late_arriving).alias("late_arriving_rows"),
        F.min(F.when(is_late_arriving, F.col("owning_slice"))).alias("late_arriving_from"),
        *(
            [F.count_if(is_ahead()).alias("rows_ahead"), F.max(F.when(is_ahead(), F.col(AHEAD))).alias("ahead")]
            if AHEAD in rows.columns
            else []
        ),
    )
    statistics: pd.DataFrame = grouped.toPandas().astype(dict.fromkeys(("newest", "oldest", "first", "last"), "Int64"))
    partitions = statistics["partition"].astype(object)
    return statistics.assign(partition=partitions.where(partitions.notna(), UNPARTITIONED))


def merge_sources(statistics: pd.DataFrame) -> pd.DataFrame:
    """Aggregate the statistics of sources by bucket, as `buckets.compute_bucket_statistics` does."""
    counts, maxima = ["rows", "filtered", "rejected"], ["newest"]
    if "rows_ahead" in statistics:
        counts, maxima = [*counts, "rows_ahead"], [*maxima, "ahead"]
    is_side = {side: statistics["side"] == side for side in SIDES}
    row_counts = {f"{side}_{name}": statistics[name].where(is_side[side], 0) for side in SIDES for name in counts}
    newest = {f"{side}_{name}": statistics[name].where(is_side[side]) for side in SIDES for name in maxima}
    by_bucket = statistics.assign(**row_counts, **newest).groupby("bucket", as_index=False)
    aggregates = dict.fromkeys([*row_counts, "floored", "late_arriving_rows"], "sum")
    aggregates |= dict.fromkeys(["oldest", "late_arriving_from"], "min")
    return by_bucket.agg(aggregates | dict.fromkeys(newest, "max"))
