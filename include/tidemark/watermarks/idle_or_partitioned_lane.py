"""Watermarks of inputs that fall idle or have several partitions.

A source is a partition of an input, or an input without partitions. An input's watermark is the minimum over its active
sources and never goes down. A source is active after the clock of its first row, until it has had no row for longer
than its idle timeout, and again after its next row. An input without active sources does not hold the join back.

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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import pandas as pd
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from typing_extensions import override

from tidemark.config.sides import SIDES
from tidemark.spark.dataframe_utils import with_columns
from tidemark.timegrid.time_columns import clock_ms
from tidemark.watermarks.buckets import NO_LEAD, Buckets
from tidemark.watermarks.exact import (
    BUCKET_COLUMNS,
    BUCKET_SCHEMA,
    POSITION,
    is_late_candidate,
    with_bucket_watermarks,
    with_exact_watermarks,
)
from tidemark.watermarks.lanes import Lane, Timeline, Timelines, split_by_lane
from tidemark.watermarks.row_status import AHEAD, is_ahead, is_filtered, is_rejected, moves_watermark
from tidemark.watermarks.values import END_OF_INPUT, NO_WATERMARK, SourceWatermark, Watermarks

SOURCES_SCHEMA = "sources array<struct<side: string, partition: string, watermark: long>>"
_SourceKey = tuple[str, str | None]
"""Side and partition."""
_UNPARTITIONED = None
"""Partition of an input that has no partitions, or no row yet."""


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
            rows = rows.withColumn("partition", F.lit(_UNPARTITIONED).cast("string"))
        statistics = _compute_source_statistics(rows)
        changes = [
            list(_find_status_changes(part, lane, buckets)) for lane, part in split_by_lane(statistics, lanes, buckets)
        ]
        cuts = _find_cuts(statistics, changes, buckets)
        while True:
            if cuts:
                rows, buckets = _apply_cuts(rows, cuts, buckets)
                statistics = _compute_source_statistics(rows)
            lane_statistics = split_by_lane(statistics, lanes, buckets)
            catch_ups: list[_CatchUp] = []
            timelines = [
                _compute_timeline(part, lane, lane_changes, buckets, catch_ups)
                for (lane, part), lane_changes in zip(lane_statistics, changes, strict=True)
            ]
            if not catch_ups:
                return Timelines(rows, buckets, _merge_sources(statistics), timelines)
            cuts = _find_catch_up_cuts(rows, catch_ups)

    @classmethod
    @override
    def split(cls, rows: DataFrame, *, includes_all_rows: bool) -> tuple[DataFrame, DataFrame]:
        """Split as `Lane.split` does, with the running maximum of each source in buckets that need it."""
        is_candidate, position = is_late_candidate(includes_all_rows=includes_all_rows), list(POSITION)
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
    input_watermark = F.when(F.col("side") == "left", F.col("left_before")).otherwise(F.col("right_before"))
    return _needs_running_maximum(includes_all_rows=includes_all_rows) & (_own_watermark() > input_watermark)


def _own_watermark() -> Column:
    lag = F.when(F.col("side") == "left", F.col("left_lag")).otherwise(F.col("right_lag"))
    return F.col("event_time") - lag


@dataclass(frozen=True)
class _StatusChange:
    """A source becomes idle for rows at this clock or later, or active for rows after it."""

    clock: int
    source: _SourceKey
    becomes_active: bool

    @property
    def first_affected_clock(self) -> int:
        """First clock whose rows see the change."""
        return self.clock + self.becomes_active


@dataclass(frozen=True)
class _CatchUp:
    """A lagging input of a union that may become aligned within a bucket."""

    bucket: int
    side: str
    least_event_time: int
    """Least event time of a row that may raise the input to the combined watermark before the bucket."""


def _compute_source_statistics(rows: DataFrame) -> pd.DataFrame:
    """Aggregate each bucket and source: newest and oldest event time, lead, first and last clock, and row counts."""
    is_accepted = F.col("rejected").isNull()
    # A filtered row with times out of bounds has no effect at all.
    is_effective = is_accepted | (is_filtered() & F.col("event_time").isNotNull())
    time, clock = (F.when(is_effective, F.col(name)) for name in ("event_time", "clock"))
    is_late_arriving = F.col("owning_slice") < F.col("slice")
    grouped = rows.groupBy("bucket", "side", "partition").agg(
        F.max(time).alias("newest"),
        F.max(F.coalesce(time - clock_ms(), F.lit(NO_LEAD))).alias("lead"),
        F.min(F.when(is_accepted, time)).alias("oldest"),
        F.min(clock).alias("first"),
        F.max(clock).alias("last"),
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
    return statistics.assign(partition=partitions.where(partitions.notna(), _UNPARTITIONED))


def _merge_sources(statistics: pd.DataFrame) -> pd.DataFrame:
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


def _initial_sources(lane: IdleOrPartitionedLane, buckets: Buckets) -> dict[_SourceKey, SourceWatermark]:
    """Return the lane's sources when the job starts; an input without rows so far counts as silent from then on."""
    start = buckets.grid.start_of(buckets.slices[0])
    existing = lane.initial_watermarks.sources
    missing = [side for side in SIDES if side not in {source.side for source in existing}]
    sources: dict[_SourceKey, SourceWatermark] = {
        (side, _UNPARTITIONED): SourceWatermark(side, _UNPARTITIONED, NO_WATERMARK, start) for side in missing
    }
    return sources | {(source.side, source.partition): source for source in existing}


def _find_status_changes(
    statistics: pd.DataFrame, lane: IdleOrPartitionedLane, buckets: Buckets
) -> Iterator[_StatusChange]:
    """Yield when each source of a lane becomes active and idle."""
    last_clocks = {key: source.last_clock for key, source in _initial_sources(lane, buckets).items()}
    non_empty = statistics[statistics["first"].notna()]
    spans: dict[_SourceKey, list[tuple[int, int]]] = defaultdict(list)
    columns = (non_empty[name] for name in ("side", "partition", "first", "last"))
    for side, partition, first, last in zip(*columns, strict=True):
        spans[side, partition].append((int(first), int(last)))
    for key in {**last_clocks, **spans}:
        timeout, last = lane.idle_timeouts.get(key[0]), last_clocks.get(key)
        if last is None:
            yield _StatusChange(spans[key][0][0], key, becomes_active=True)
            last = spans[key][0][0]
        for first, last_in_bucket in spans[key]:
            if timeout is not None and first - last > timeout:
                yield _StatusChange(last + timeout + 1, key, becomes_active=False)
                yield _StatusChange(first, key, becomes_active=True)
            last = last_in_bucket
        if timeout is not None:
            yield _StatusChange(last + timeout + 1, key, becomes_active=False)


def _find_cuts(
    statistics: pd.DataFrame, changes: Sequence[list[_StatusChange]], buckets: Buckets
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


def _find_catch_up_cuts(rows: DataFrame, catch_ups: Sequence[_CatchUp]) -> dict[int, list[int]]:
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


def _apply_cuts(rows: DataFrame, cuts: dict[int, list[int]], buckets: Buckets) -> tuple[DataFrame, Buckets]:
    parts = 1 + max(map(len, cuts.values()))
    finer = replace(buckets, parts=buckets.parts * parts)
    table = rows.sparkSession.createDataFrame(list(cuts.items()), "bucket long, cuts array<long>")
    cuts_before = F.size(F.filter("cuts", lambda cut: cut <= F.col("clock")))
    part = F.when(F.col("cuts").isNull(), 0).otherwise(cuts_before)
    joined = rows.join(F.broadcast(table), "bucket", "left")
    return joined.withColumn("bucket", F.col("bucket") * parts + part).drop("cuts"), finer


class _SourceTracker:
    """The watermarks of a lane's sources, inputs and join, as its buckets are processed in order."""

    def __init__(self, lane: IdleOrPartitionedLane, buckets: Buckets) -> None:
        self.sources = _initial_sources(lane, buckets)
        self.active = set(self.sources)
        self.inputs = {"left": lane.initial_watermarks.left, "right": lane.initial_watermarks.right}
        self.combined = lane.initial_watermarks.combined
        self.is_union = lane.is_union
        self.aligned = set[str]()
        """Sides that limit the combined watermark, since the last call of `apply`."""

    @property
    def active_sides(self) -> set[str]:
        """Sides with an active source."""
        return {side for side, _ in self.active}

    def apply(self, changes: Iterable[_StatusChange]) -> None:
        """Mark sources as active or idle, align the inputs, and advance the watermarks."""
        for change in changes:
            if change.becomes_active:
                self.active.discard((change.source[0], _UNPARTITIONED))  # placeholder of an input without rows so far
                self.active.add(change.source)
            else:
                self.active.discard(change.source)
                self._flush(change.source[0])
        self._advance_inputs()
        self.aligned = {side for side in self.active_sides if not self.is_union or self.inputs[side] >= self.combined}
        self._advance_combined()

    def _flush(self, side: str) -> None:
        """Raise the watermark of an input without active sources, and the combined one without active inputs."""
        if side not in self.active_sides:
            watermarks = [source.watermark for key, source in self.sources.items() if key[0] == side]
            self.inputs[side] = max(self.inputs[side], *watermarks)
        if not self.active:
            self.combined = max(self.combined, *self.inputs.values())

    def advance(self) -> None:
        """Advance the watermarks as far as the active sources and aligned inputs allow."""
        self._advance_inputs()
        self._advance_combined()

    def _advance_combined(self) -> None:
        self.combined = max(self.combined, min((self.inputs[side] for side in self.aligned), default=NO_WATERMARK))

    def _advance_inputs(self) -> None:
        for side in SIDES:
            watermarks = [self.sources[key].watermark for key in self.active if key[0] == side]
            if watermarks:
                self.inputs[side] = max(self.inputs[side], min(watermarks))

    def snapshot(self) -> Watermarks:
        """Return the current watermarks. Of a partitioned input, sources without a partition are left out."""
        partitioned = {side for side, partition in self.sources if partition is not _UNPARTITIONED}
        sources = [
            source
            for (side, partition), source in self.sources.items()
            if partition is not _UNPARTITIONED or side not in partitioned
        ]
        sources.sort(key=lambda source: (source.side, source.partition or ""))
        return Watermarks(
            self.inputs["left"], self.inputs["right"], sources_combined=self.combined, sources=tuple(sources)
        )


def _compute_timeline(
    statistics: pd.DataFrame,
    lane: IdleOrPartitionedLane,
    changes: list[_StatusChange],
    buckets: Buckets,
    catch_ups: list[_CatchUp],
) -> Timeline:
    """Compute the timeline of a lane, and append the catch-ups that need its buckets to be cut."""
    tracker, processed, end_watermarks = _SourceTracker(lane, buckets), [], {}
    has_late_candidates = bool(statistics["rejected"].any())
    lag = {"left": lane.lag.left, "right": lane.lag.right}
    source_lag = statistics["side"].map(lag).astype("Int64")
    sources = statistics.assign(
        watermark=statistics["newest"] - source_lag,
        watermark_lead=statistics["lead"] - source_lag,
        clock=statistics["first"],
    )
    clocks = sources.groupby("bucket")["clock"].min()
    by_clock = {clocks[bucket]: rows for bucket, rows in sources.groupby("bucket") if not pd.isna(clocks[bucket])}
    slice_ends = {buckets.grid.start_of(number + 1): number for number in buckets.slices}
    changes_at: dict[int, list[_StatusChange]] = defaultdict(list)
    for change in changes:
        changes_at[change.clock].append(change)
    for clock in sorted({*by_clock, *slice_ends, *changes_at}):
        if clock in slice_ends:
            end_watermarks[slice_ends[clock]] = tracker.snapshot()
        tracker.apply(change for change in changes_at.get(clock, []) if not change.becomes_active)
        if clock in by_clock:
            processed.append(_process_bucket(by_clock[clock], tracker, lag, lane.late_margin))
            catch_ups += _find_catch_ups(by_clock[clock], processed[-1], tracker, lag)
            oldest = by_clock[clock]["oldest"].min()
            has_late_candidates = has_late_candidates or (
                not pd.isna(oldest) and oldest <= tracker.combined + lane.late_margin
            )
        tracker.apply(change for change in changes_at.get(clock, []) if change.becomes_active)
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
    rows: pd.DataFrame, bucket: dict[str, Any], tracker: _SourceTracker, lag: dict[str, int]
) -> Iterator[_CatchUp]:
    """Yield the lagging inputs that may become aligned between two rows of a bucket, which was processed."""
    if rows["first"].min() == rows["last"].max():
        return
    for side in tracker.active_sides - tracker.aligned:
        if tracker.inputs[side] >= bucket["combined_before"]:
            yield _CatchUp(bucket["bucket"], side, bucket["combined_before"] + lag[side])


def _process_bucket(
    rows: pd.DataFrame, tracker: _SourceTracker, lag: dict[str, int], late_margin: int
) -> dict[str, Any]:
    """Advance the tracker over a bucket, and return the bucket's watermarks as a row of `bucket_schema`."""
    before, combined, active = tracker.snapshot(), tracker.combined, sorted(tracker.active, key=str)
    sources = [(*key, tracker.sources[key].watermark) for key in active]
    non_empty = rows[rows["first"].notna()]
    columns = (non_empty[name] for name in ("side", "partition", "watermark", "last"))
    for side, partition, newest, last in zip(*columns, strict=True):
        source = tracker.sources.get((side, partition), SourceWatermark(side, partition, NO_WATERMARK, int(last)))
        watermark = source.watermark if pd.isna(newest) else max(source.watermark, int(newest))
        tracker.sources[side, partition] = replace(source, watermark=watermark, last_clock=int(last))
    tracker.advance()
    after = tracker.snapshot()
    has_increment = (before.left, before.right, combined) != (after.left, after.right, tracker.combined)
    # An input holds the combined watermark back throughout the bucket if its own is equal to it before and after.
    is_left_limiting = before.left == after.left == combined
    is_right_limiting = before.right == after.right == combined and not before.left <= combined <= after.left
    changes = combined < tracker.combined or (has_increment and not is_left_limiting and not is_right_limiting)
    oldest = rows["oldest"].min()
    return {
        "bucket": int(rows["bucket"].iloc[0]),
        "left_before": before.left,
        "right_before": before.right,
        "combined_before": combined,
        "combined_after": tracker.combined,
        "has_increment": has_increment,
        "needs_order": changes and not pd.isna(oldest) and oldest <= tracker.combined + late_margin,
        "left_is_aligned": "left" in tracker.aligned,
        "right_is_aligned": "right" in tracker.aligned,
        "left_lag": lag["left"],
        "right_lag": lag["right"],
        "late_margin": late_margin,
        "watermark_lead": int(rows["watermark_lead"].max()),
        "sources": sources if has_increment else [],
    }
