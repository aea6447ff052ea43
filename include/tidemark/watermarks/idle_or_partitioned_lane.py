"""Watermarks of inputs that fall idle or have several partitions.

A source is a partition of an input, or an input without partitions. An input's watermark is the minimum over its active
sources and never goes down. A source is active after its first row, until it has had no row for longer than its idle
timeout, and again after its next row. An input without active sources does not hold the join back.

When the last active source of an input falls idle, the input's watermark rises to the greatest of its sources. When
the last active input falls idle, the combined watermark rises to the greatest of both inputs. Flink 2.3 does both.

An input is aligned if it limits the combined watermark. Operators with two inputs are limited by each active input. In
a union of both inputs an active input whose watermark is lower than the combined one, as it may be after idleness, does
not limit it until its own has caught up (Flink's `StatusWatermarkValve`).

Buckets are cut where a source becomes active or idle, and where an input may become aligned. Within a bucket the active
sources and aligned inputs do not change, so the greatest event times of the sources determine the watermarks before and
after it, in whatever order rows arrive.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import pandas as pd
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from typing_extensions import override

from tidemark.config.sides import SIDES
from tidemark.spark.dataframe_utils import choose_by_side, with_columns
from tidemark.watermarks.bucket_cuts import (
    CatchUp,
    CutBuckets,
    find_catch_up_cuts,
    find_status_cuts,
    locate_activations,
)
from tidemark.watermarks.buckets import Buckets
from tidemark.watermarks.exact import (
    BUCKET_COLUMNS,
    BUCKET_SCHEMA,
    POSITION,
    is_late_candidate,
    with_bucket_watermarks,
    with_exact_watermarks,
)
from tidemark.watermarks.lanes import Lane, Timeline, Timelines, split_by_lane
from tidemark.watermarks.row_status import is_filtered, moves_watermark
from tidemark.watermarks.source_statistics import compute_source_statistics, merge_sources
from tidemark.watermarks.source_status import (
    LEAST_TIEBREAK,
    UNPARTITIONED,
    Position,
    StatusChange,
    find_status_changes,
    list_initial_sources,
)
from tidemark.watermarks.source_tracker import SourceTracker
from tidemark.watermarks.values import END_OF_INPUT, NO_WATERMARK, SourceWatermark, Watermarks

SOURCES_SCHEMA = "sources array<struct<side: string, partition: string, watermark: long>>"


@dataclass(frozen=True)
class IdleOrPartitionedLane(Lane):
    """A stream whose inputs may fall idle or have partitions."""

    idle_timeouts: dict[str, int | None] = field(default_factory=dict)
    """Microseconds without a row after which a source is idle, by side; None for never."""
    is_union: bool = False
    """True if the join reads both inputs as one stream, as windows of the DataStream API do."""

    bucket_schema = f"{BUCKET_SCHEMA}, {SOURCES_SCHEMA}"
    is_determined_by_position = False

    @classmethod
    @override
    def refine_buckets(cls, lanes: Sequence[Self], buckets: Buckets) -> Buckets:
        """Limit the width of buckets so that no source can fall idle between two rows of a bucket."""
        timeouts = [timeout for lane in lanes for timeout in lane.idle_timeouts.values() if timeout is not None]
        return replace(buckets, width=min([buckets.width, *timeouts]))

    @classmethod
    @override
    def compute_timelines(cls, rows: DataFrame, lanes: Sequence[Self], buckets: Buckets) -> Timelines:
        """Cut buckets where sources become active or idle, and compute the watermarks. Cut buckets are read twice."""
        if "partition" not in rows.columns:
            rows = rows.withColumn("partition", F.lit(UNPARTITIONED).cast("string"))
        statistics = compute_source_statistics(rows)
        changes = [
            list(find_status_changes(part, list_initial_sources(lane.initial_watermarks, buckets), lane.idle_timeouts))
            for lane, part in split_by_lane(statistics, lanes, buckets)
        ]
        changes = locate_activations(rows, statistics, changes, buckets)
        cuts = find_status_cuts(statistics, changes, buckets)
        cut_buckets = CutBuckets(rows, buckets)
        while True:
            if cuts:
                cut_buckets = cut_buckets.cut(cuts)
                statistics = compute_source_statistics(cut_buckets.rows)
            lane_statistics = split_by_lane(statistics, lanes, cut_buckets.buckets)
            catch_ups: list[CatchUp] = []
            timelines = [
                _compute_timeline(part, lane, lane_changes, cut_buckets, catch_ups)
                for (lane, part), lane_changes in zip(lane_statistics, changes, strict=True)
            ]
            if not catch_ups:
                return Timelines(cut_buckets.rows, cut_buckets.buckets, merge_sources(statistics), timelines)
            cuts = find_catch_up_cuts(cut_buckets.rows, catch_ups)

    @classmethod
    @override
    def split(cls, rows: DataFrame, *, includes_all_rows: bool) -> tuple[DataFrame, DataFrame]:
        """Split as `Lane.split` does, with the running maximum of each source in buckets that need it."""
        is_candidate = is_late_candidate(includes_all_rows=includes_all_rows)
        position = list(POSITION)
        candidates = rows.where(is_candidate & _needs_running_maximum(includes_all_rows=includes_all_rows))
        initial = candidates.dropDuplicates(position).select(*position, F.inline("sources"))
        increments = rows.where(_advances_watermark(includes_all_rows=includes_all_rows)).select(
            *position, "side", "partition", _own_watermark().alias("watermark")
        )
        # Increments sort after the initial value of their position: simultaneous rows do not see each other.
        watermarks = initial.withColumn("role", F.lit(0)).unionByName(increments.withColumn("role", F.lit(1)))
        by_source = Window.partitionBy("bucket", "side", "partition").orderBy("clock", "tiebreak", "role")
        up_to_row = by_source.rowsBetween(Window.unboundedPreceding, Window.currentRow)
        at_arrival = watermarks.withColumn("watermark", F.max("watermark").over(up_to_row)).where("role = 0")
        least = at_arrival.groupBy(*position).agg(
            *(F.min(F.when(F.col("side") == side, F.col("watermark"))).alias(f"{side}_minimum") for side in SIDES)
        )
        preceding = {f"{side}_before": F.greatest(f"{side}_before", f"{side}_minimum") for side in SIDES}
        in_order = rows.where(is_candidate).join(least, position, "left").transform(with_columns, preceding)
        in_order = in_order.drop("left_minimum", "right_minimum")
        on_time = rows.where(~is_candidate & ~is_filtered()).drop("partition", "sources")
        return with_bucket_watermarks(on_time), with_exact_watermarks(in_order.drop("partition", "sources"))

    @classmethod
    @override
    def is_ordered(cls, *, includes_all_rows: bool) -> Column:
        is_candidate = is_late_candidate(includes_all_rows=includes_all_rows)
        return is_candidate | _advances_watermark(includes_all_rows=includes_all_rows)


def _needs_running_maximum(*, includes_all_rows: bool) -> Column:
    return F.col("has_increment" if includes_all_rows else "needs_order") & moves_watermark()


def _advances_watermark(*, includes_all_rows: bool) -> Column:
    """Return True if a row's own watermark is above its input's, in a bucket where that matters to late candidates."""
    input_watermark = choose_by_side(F.col("left_before"), F.col("right_before"))
    return _needs_running_maximum(includes_all_rows=includes_all_rows) & (_own_watermark() > input_watermark)


def _own_watermark() -> Column:
    lag = choose_by_side(F.col("left_lag"), F.col("right_lag"))
    return F.col("event_time") - lag


def _compute_timeline(
    statistics: pd.DataFrame,
    lane: IdleOrPartitionedLane,
    changes: list[StatusChange],
    cut_buckets: CutBuckets,
    catch_ups: list[CatchUp],
) -> Timeline:
    """Compute the timeline of a lane, and append the catch-ups that need its buckets to be cut."""
    buckets = cut_buckets.buckets
    tracker = SourceTracker(lane.initial_watermarks, buckets, is_union=lane.is_union)
    processed: list[dict[str, Any]] = []
    end_watermarks: dict[int, Watermarks] = {}
    has_late_candidates = bool(statistics["rejected"].any())
    lag = {"left": lane.lag.left, "right": lane.lag.right}
    source_lag = statistics["side"].map(lag).astype("Int64")
    sources = statistics.assign(
        watermark=statistics["newest"] - source_lag, watermark_lead=statistics["lead"] - source_lag
    )
    by_start: dict[Position, pd.DataFrame] = {}
    for _, rows in sources.dropna(subset="first").groupby("bucket"):
        first = int(rows["first"].min()), LEAST_TIEBREAK
        by_start[max(first, cut_buckets.starts.get(int(rows["bucket"].iloc[0]), first))] = rows
    slice_ends = {(buckets.grid.start_of(number + 1), LEAST_TIEBREAK): number for number in buckets.slices}
    changes_at: dict[Position, list[StatusChange]] = defaultdict(list)
    for change in changes:
        changes_at[change.start].append(change)
    for start in sorted({*by_start, *slice_ends, *changes_at}):
        tracker.apply(change for change in changes_at.get(start, []) if change.becomes_active)
        if start in slice_ends:
            end_watermarks[slice_ends[start]] = tracker.snapshot()
        tracker.apply(change for change in changes_at.get(start, []) if not change.becomes_active)
        if start in by_start:
            rows = by_start[start]
            processed.append(_process_bucket(rows, tracker, lag, lane.late_margin))
            catch_ups += _find_catch_ups(rows, processed[-1], tracker, lag)
            oldest = rows["oldest"].min()
            has_late_candidates = has_late_candidates or (
                not pd.isna(oldest) and oldest <= tracker.combined + lane.late_margin
            )
    if lane.drain is not None:
        at_end_of_input = Watermarks(END_OF_INPUT, END_OF_INPUT, sources_combined=END_OF_INPUT)
        end_watermarks |= {number: at_end_of_input for number in buckets.slices if number >= lane.drain}
    combined_at_end = {buckets.slices[0] - 1: lane.initial_watermarks.combined}
    combined_at_end |= {number: end_watermarks[number].combined for number in buckets.slices}
    table = pd.DataFrame(processed, columns=[*BUCKET_COLUMNS, "sources"])
    slices = buckets.find_slices(table["bucket"])
    table["end_watermark"] = np.array([combined_at_end[number] for number in slices], dtype=np.int64)
    return Timeline(table, has_late_candidates, {n: end_watermarks[n] for n in buckets.slices}, combined_at_end)


def _find_catch_ups(
    rows: pd.DataFrame, bucket: dict[str, Any], tracker: SourceTracker, lag: dict[str, int]
) -> Iterator[CatchUp]:
    """Yield the lagging inputs that may become aligned between two rows of a bucket, which was processed."""
    if rows["first"].min() == rows["last"].max() and rows["least_tiebreak"].min() == rows["greatest_tiebreak"].max():
        return
    for side in tracker.active_sides - tracker.aligned:
        if tracker.inputs[side] >= bucket["combined_before"]:
            yield CatchUp(bucket["bucket"], side, bucket["combined_before"] + lag[side])


def _process_bucket(
    rows: pd.DataFrame, tracker: SourceTracker, lag: dict[str, int], late_margin: int
) -> dict[str, Any]:
    """Advance the tracker over a bucket, and return the bucket's watermarks as a row of `bucket_schema`.

    Args:
        rows: Statistics of the bucket's sources with rows that have an effect.
        tracker: The watermarks before the bucket.
        lag: Lag of each side's watermark, ms.
        late_margin: As of the lane.
    """
    before = tracker.snapshot()
    combined = tracker.combined
    active = sorted(tracker.active, key=str)
    sources = [(*key, tracker.sources[key].watermark) for key in active]
    columns = (rows[name] for name in ("side", "partition", "watermark", "last"))
    for side, partition, newest, last in zip(*columns, strict=True):
        source = tracker.sources.get((side, partition), SourceWatermark(side, partition, NO_WATERMARK, int(last)))
        watermark = source.watermark if pd.isna(newest) else max(source.watermark, int(newest))
        tracker.sources[side, partition] = replace(source, watermark=watermark, last_clock=int(last))
    tracker.advance()
    after = tracker.snapshot()
    has_increment = (before.left, before.right, combined) != (after.left, after.right, tracker.combined)
    # A late row reports the side that limits the watermark (`joins.late_table`): the left one if its watermark equals
    # the combined one, else the right one if its own does. The left one wins a tie, so the cases differ. If the left
    # watermark equals the combined one throughout the bucket, it limits for all rows, whatever the right one does. If
    # the right one does, it limits for all rows only if the left one never equals it, not even between two rows.
    is_left_limiting = before.left == after.left == combined
    is_right_limiting = before.right == after.right == combined and not before.left <= combined <= after.left
    is_limiting_side_constant = is_left_limiting or is_right_limiting
    needs_running_maximum = combined < tracker.combined or (has_increment and not is_limiting_side_constant)
    oldest = rows["oldest"].min()
    return {
        "bucket": int(rows["bucket"].iloc[0]),
        "left_before": before.left,
        "right_before": before.right,
        "combined_before": combined,
        "combined_after": tracker.combined,
        "has_increment": has_increment,
        "needs_order": needs_running_maximum and not pd.isna(oldest) and oldest <= tracker.combined + late_margin,
        "left_is_aligned": "left" in tracker.aligned,
        "right_is_aligned": "right" in tracker.aligned,
        "left_lag": lag["left"],
        "right_lag": lag["right"],
        "late_margin": late_margin,
        "watermark_lead": int(rows["watermark_lead"].max()),
        "sources": sources if has_increment else [],
    }
