"""Cut buckets, so that within one the active sources and the aligned inputs do not change."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.watermarks.buckets import Buckets
from tidemark.watermarks.row_status import moves_watermark, moves_watermark_only
from tidemark.watermarks.source_status import Position, StatusChange, find_next_position


@dataclass(frozen=True)
class CatchUp:
    """A lagging input of a union that may become aligned within a bucket."""

    bucket: int
    side: str
    least_event_time: int
    """Least event time of a row that may raise the input to the combined watermark before the bucket."""


def locate_activations(
    rows: DataFrame, statistics: pd.DataFrame, changes: Sequence[list[StatusChange]], buckets: Buckets
) -> list[list[StatusChange]]:
    """Return the changes by lane with the tiebreak at which each source becomes active.

    Reads the rows if tiebreaks order those of a bucket with such a change.
    """
    ordered = _find_ordered_buckets(statistics)
    activations = [
        (bucket, change.clock, *change.source)
        for lane, lane_changes in enumerate(changes)
        for change in lane_changes
        if change.becomes_active and (bucket := buckets.find_bucket(lane, change.clock)) in ordered
    ]
    if not activations:
        return list(changes)
    table = rows.sparkSession.createDataFrame(activations, "bucket long, _clock long, _side string, _partition string")
    source = [F.col(name).eqNullSafe(F.col(f"_{name}")) for name in ("clock", "side", "partition")]
    at_clocks = rows.join(F.broadcast(table), "bucket").where(reduce(Column.__and__, source))
    at_clocks = at_clocks.where(F.col("rejected").isNull() | moves_watermark_only())
    first = at_clocks.groupBy("bucket", "clock", "side", "partition").agg(F.min("tiebreak")).collect()
    tiebreaks = {tuple(activation): tiebreak for *activation, tiebreak in first}

    def locate(lane: int, change: StatusChange) -> StatusChange:
        activation = buckets.find_bucket(lane, change.clock), change.clock, *change.source
        return replace(change, tiebreak=tiebreaks.get(activation, change.tiebreak))

    return [[locate(lane, change) for change in lane_changes] for lane, lane_changes in enumerate(changes)]


def find_status_cuts(
    statistics: pd.DataFrame, changes: Sequence[list[StatusChange]], buckets: Buckets
) -> dict[int, list[Position]]:
    """Return the positions at which each bucket is cut: after its first row, and not after its last."""
    aggregates = {"first": "min", "last": "max", "least_tiebreak": "min", "greatest_tiebreak": "max"}
    spans = statistics.dropna(subset="first").groupby("bucket").agg(aggregates)
    first = dict(zip(spans.index, zip(spans["first"], spans["least_tiebreak"], strict=True), strict=True))
    last = dict(zip(spans.index, zip(spans["last"], spans["greatest_tiebreak"], strict=True), strict=True))
    cuts = defaultdict(set)
    for lane, lane_changes in enumerate(changes):
        for start in (change.start for change in lane_changes):
            bucket = buckets.find_bucket(lane, start[0]) if buckets.contains(start[0]) else -1
            if bucket in first and first[bucket] < start <= last[bucket]:
                cuts[bucket].add(start)
    return {bucket: sorted(positions) for bucket, positions in cuts.items()}


def find_catch_up_cuts(rows: DataFrame, catch_ups: Sequence[CatchUp]) -> dict[int, list[Position]]:
    """Return the positions at which buckets are cut so that inputs become aligned only between buckets.

    These are the positions of rows that may raise a lagging input to the combined watermark, and the next ones.
    """
    table = rows.sparkSession.createDataFrame(
        [(item.bucket, item.side, item.least_event_time) for item in catch_ups],
        "bucket long, side string, least_event_time long",
    )
    is_raising = moves_watermark() & (F.col("event_time") >= F.col("least_event_time"))
    raising = rows.join(F.broadcast(table), ["bucket", "side"]).where(is_raising)
    cuts: dict[int, set[Position]] = defaultdict(set)
    for bucket, clock, tiebreak in raising.select("bucket", "clock", "tiebreak").distinct().collect():
        cuts[bucket] |= {(clock, tiebreak), find_next_position(clock, tiebreak)}
    return {bucket: sorted(positions) for bucket, positions in cuts.items()}


@dataclass(frozen=True)
class CutBuckets:
    """Rows with their buckets, of which some are parts of a bucket that was cut."""

    rows: DataFrame
    buckets: Buckets
    starts: dict[int, Position] = field(default_factory=dict)
    """Position of the cut before a part, by bucket number; the first part of a bucket has none."""

    def cut(self, cuts: dict[int, list[Position]]) -> CutBuckets:
        """Divide each bucket into as many parts as the one with the most cuts, and renumber the rows' buckets.

        Args:
            cuts: Positions at which each bucket is cut, in order. A row at such a position is in the later part.
        """
        parts = 1 + max(map(len, cuts.values()))
        finer = replace(self.buckets, parts=self.buckets.parts * parts)
        schema = "bucket long, cuts array<struct<clock: long, tiebreak: long>>"
        table = self.rows.sparkSession.createDataFrame(list(cuts.items()), schema)
        position = F.struct("clock", "tiebreak")
        part = F.when(F.col("cuts").isNull(), 0).otherwise(F.size(F.filter("cuts", lambda cut: cut <= position)))
        joined = self.rows.join(F.broadcast(table), "bucket", "left")
        rows = joined.withColumn("bucket", F.col("bucket") * parts + part).drop("cuts")
        starts = {bucket * parts: start for bucket, start in self.starts.items()}
        for bucket, positions in cuts.items():
            starts |= {bucket * parts + number: position for number, position in enumerate(positions, 1)}
        return CutBuckets(rows, finer, starts)


def _find_ordered_buckets(statistics: pd.DataFrame) -> set[int]:
    """Find the buckets whose rows have several tiebreaks."""
    by_bucket = statistics.dropna(subset="first").groupby("bucket")
    is_ordered = by_bucket["least_tiebreak"].min() < by_bucket["greatest_tiebreak"].max()
    return set(is_ordered.index[is_ordered])
