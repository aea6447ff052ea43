"""Cut buckets, so that within one the active sources and the aligned inputs do not change."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.watermarks.buckets import Buckets
from tidemark.watermarks.row_status import moves_watermark
from tidemark.watermarks.source_status import StatusChange


@dataclass(frozen=True)
class CatchUp:
    """A lagging input of a union that may become aligned within a bucket."""

    bucket: int
    side: str
    least_event_time: int
    """Least event time of a row that may raise the input to the combined watermark before the bucket."""


def find_status_cuts(
    statistics: pd.DataFrame, changes: Sequence[list[StatusChange]], buckets: Buckets
) -> dict[int, list[int]]:
    """Return the clocks at which each bucket is cut: after its first row, and not after its last."""
    spans = statistics.groupby("bucket").agg({"first": "min", "last": "max"}).dropna()
    first, last = spans["first"].to_dict(), spans["last"].to_dict()
    cuts = defaultdict(set)
    for lane, lane_changes in enumerate(changes):
        for clock in (change.first_affected_clock for change in lane_changes):
            bucket = buckets.find_bucket(lane, clock) if buckets.contains(clock) else -1
            if bucket in first and first[bucket] < clock <= last[bucket]:
                cuts[bucket].add(clock)
    return {bucket: sorted(clocks) for bucket, clocks in cuts.items()}


def find_catch_up_cuts(rows: DataFrame, catch_ups: Sequence[CatchUp]) -> dict[int, list[int]]:
    """Return the clocks at which buckets are cut so that inputs become aligned only between buckets.

    These are the clocks of rows that may raise a lagging input to the combined watermark, and the clocks after them.
    """
    table = rows.sparkSession.createDataFrame(
        [(item.bucket, item.side, item.least_event_time) for item in catch_ups],
        "bucket long, side string, least_event_time long",
    )
    is_raising = moves_watermark() & (F.col("event_time") >= F.col("least_event_time"))
    clocks = rows.join(F.broadcast(table), ["bucket", "side"]).where(is_raising).select("bucket", "clock").distinct()
    cuts: dict[int, set[int]] = defaultdict(set)
    for row in clocks.collect():
        cuts[row["bucket"]] |= {row["clock"], row["clock"] + 1}
    return {bucket: sorted(bucket_clocks) for bucket, bucket_clocks in cuts.items()}


def apply_cuts(rows: DataFrame, cuts: dict[int, list[int]], buckets: Buckets) -> tuple[DataFrame, Buckets]:
    """Divide each bucket into as many parts as the one with the most cuts, and renumber the rows' buckets.

    Args:
        rows: Rows with their `bucket`.
        cuts: Clocks at which each bucket is cut, in order. A row at such a clock is in the later part.
        buckets: The buckets before.
    """
    parts = 1 + max(map(len, cuts.values()))
    finer = replace(buckets, parts=buckets.parts * parts)
    table = rows.sparkSession.createDataFrame(list(cuts.items()), "bucket long, cuts array<long>")
    cuts_before = F.size(F.filter("cuts", lambda cut: cut <= F.col("clock")))
    part = F.when(F.col("cuts").isNull(), 0).otherwise(cuts_before)
    joined = rows.join(F.broadcast(table), "bucket", "left")
    return joined.withColumn("bucket", F.col("bucket") * parts + part).drop("cuts"), finer
