"""Replay a range of slices: join their rows and carried rows under watermarks.

Nothing here reads or writes a table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import pandas as pd
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from tidemark.config.sides import SIDES, SideName
from tidemark.execution.carried_row_selection import find_rows_that_may_be_carried
from tidemark.joins.base import ExactRows, JobRows, Join, RowFilter
from tidemark.joins.keys import key_columns
from tidemark.joins.late_table import select_late_rows
from tidemark.planning.replay_strategy import (
    COUNT_COLUMNS,
    DEFAULT_LIMITS,
    JobStatistics,
    ReplayLimits,
    ReplayStrategy,
    count_rows,
)
from tidemark.spark.materialization import materialize, materialize_and_aggregate
from tidemark.watermarks.broadcast_positions import BroadcastPositions
from tidemark.watermarks.buckets import Buckets
from tidemark.watermarks.exact import is_late_candidate, with_exact_watermarks_of_selected
from tidemark.watermarks.increments import WatermarkIncrements, list_combined_increments
from tidemark.watermarks.job_watermarks import JobWatermarks
from tidemark.watermarks.lanes import Lane, Timeline, join_bucket_watermarks
from tidemark.watermarks.late_positions import LatePositions
from tidemark.watermarks.row_status import AHEAD, is_filtered, moves_watermark_only

LATE_BUT_BUFFERED_REASONS = ("late_for_window", "late_but_processed")
"""Reasons of late rows that take part in the join all the same, and are buffered until they are evicted."""
LOSS_REASONS = ("no_event_time_for_window", "lost_at_end_of_input")
"""Reasons of rows that are neither late nor rejected: they take part, and yet the output lacks them."""


@dataclass(frozen=True)
class ReplayResult:
    """Outputs of a replayed range of slices."""

    joined: DataFrame
    """One row per emission, as in `joins.base.JoinResult.joined`."""
    late: DataFrame
    """One row per late or rejected row: `side`, `slice`, `reason`, times, watermarks, `left` or `right`."""
    may_have_late_rows: bool
    """False only if `late` is empty."""
    carried: DataFrame
    """One row per row that outlives its slice: its `side`, `lane`, `slice` (of its arrival), `clock`, `tiebreak`,
    `event_time`, `watermark` (at its arrival), `key_*`, and `left` or `right`. It is in the buffers at the end of
    slices carried_from <= n < evicted_in (null: of all later ones)."""
    strategy: ReplayStrategy
    """Physical choices of this replay."""
    evicted_in_arrival_slice: Counter[str]
    """Number of rows by side that are on time, evicted by the end of their slice, and not in `observed_evictions`."""
    observed_evictions: Observation
    """Number of other rows that the job's slices evict, by side. Available after `carried` is written."""
    row_counts: pd.DataFrame
    """One row per slice of the job: `left_rows` and `right_rows` read, `left_filtered` and `right_filtered` excluded by
    `where`, event times `floored`, `late_arriving_rows` of earlier slices, and the first of these slices as
    `late_arriving_from`. With an arrival clock also `left_rows_ahead` and `right_rows_ahead`, the number of rows far
    ahead of their arrival, and `left_ahead` and `right_ahead`, by how much at most, in microseconds."""
    timelines: list[Timeline]
    """Watermarks of each lane."""
    list_increments: Callable[[], DataFrame]
    """Function that lists the rows that raise a combined watermark (`increments.list_combined_increments`)."""

    @property
    def rows_read(self) -> int:
        """Number of rows of both inputs in the slices, including those that `where` filters."""
        return count_rows(self.row_counts)

    def count_read(self, side: SideName) -> int:
        """Count the rows of one input in the slices, including those that `where` filters."""
        return int(self.row_counts[[f"{side}_rows", f"{side}_filtered"]].to_numpy().sum())

    def count_evicted(self) -> Counter[str]:
        """Count the rows of each side that the job's slices evict. Call this after `carried` is written."""
        return self.evicted_in_arrival_slice + Counter(self.observed_evictions.get)


def replay(
    rows: DataFrame,
    carried: DataFrame | None,
    lanes: Sequence[Lane],
    join: Join,
    buckets: Buckets,
    limits: ReplayLimits = DEFAULT_LIMITS,
) -> ReplayResult:
    """Replay the slices of `buckets`.

    Args:
        rows: Rows of both inputs that arrive in these slices (`sources.normalization.Side.normalize`), with `lane`.
        carried: Rows carried by the slice before (`ReplayResult.carried`), with their `lane`; None for empty buffers.
        lanes: The lanes. They share no keys.
        join: The join.
        buckets: The buckets of the slices.
        limits: Thresholds for the choice of a strategy.
    """
    carried = None if carried is None else materialize(carried)
    watermarked = _compute_watermarks(rows, lanes, join, buckets, limits)
    watermarked = _refine_strategy(watermarked, carried, join)
    timelines = watermarked.statistics.timelines
    first_slice = buckets.slices[0]
    job_watermarks = JobWatermarks(timelines, first_slice, lanes, buckets.grid)
    job_rows, evicted_counts = _select_job_rows(watermarked, carried, join, job_watermarks)
    join_result = join.apply(job_rows)
    is_carried = F.col("evicted_in").isNull() | (F.col("evicted_in") > F.col("carried_from"))
    buffered = _select_buffered(join_result.buffered, first_slice, join.carried_columns)
    # Spark cannot push the filter below the observation. Without this, columns of rows that are only counted would be
    # computed too.
    buffered = buffered.withColumns({side: F.when(is_carried, F.col(side)) for side in SIDES})
    observed_evictions = Observation()
    evictions = _count_by_side(F.col("evicted_in").isNotNull())
    carried_out = buffered.observe(observed_evictions, *(count.alias(side) for side, count in evictions.items()))
    return ReplayResult(
        joined=join_result.joined,
        late=select_late_rows(join_result.late, join.tick),
        may_have_late_rows=job_rows.has_late_candidates
        or (join.may_lose_rows_at_end and any(lane.drain in buckets.slices for lane in lanes)),
        carried=carried_out.where(is_carried),
        strategy=watermarked.strategy,
        evicted_in_arrival_slice=evicted_counts + Counter(join_result.evicted_counts),
        observed_evictions=observed_evictions,
        row_counts=_count_by_slice(watermarked.statistics.buckets, watermarked.buckets),
        timelines=list(join_result.timelines or timelines),
        list_increments=partial(list_combined_increments, watermarked.rows, watermarked.lane_class.watermark_column),
    )


def add_exact_watermarks(rows: DataFrame, lane: Lane, join: Join, buckets: Buckets) -> DataFrame:
    """Add the exact watermarks at the arrival of each row of one lane.

    Adds `watermark` (ms, long) and, except in dialect spark, `left_watermark` and `right_watermark`.
    """
    watermarked = _compute_watermarks(rows.withColumn("lane", F.lit(0)), [lane], join, buckets, DEFAULT_LIMITS)
    on_time, late_candidates = watermarked.select_on_time(), watermarked.select_late_candidates(watermarked.rows)
    return on_time.unionByName(late_candidates, allowMissingColumns=True)


@dataclass(frozen=True)
class _WatermarkedRows:
    """Rows of a job with the watermarks of their buckets, and the watermarks of their lanes."""

    rows: DataFrame
    lane_class: type[Lane]
    """Class of all lanes, which decides how watermarks are computed."""
    statistics: JobStatistics
    buckets: Buckets
    strategy: ReplayStrategy
    limits: ReplayLimits
    may_be_carried: Column | None = None
    """Condition for an on-time row to outlive its slice, if rows that may be carried are selected."""
    late_positions: LatePositions | None = None
    """Late positions, if late rows are found by position."""
    newest_carried: Mapping[tuple[int, str], int] = field(default_factory=dict)
    """Greatest event time of the carried rows by lane and side, if the join buffers overdue rows."""
    increments: WatermarkIncrements | None = None
    """Watermark increments, if they determine the exact watermarks of all rows."""

    @property
    def has_filtered(self) -> bool:
        """True if `where` filters some of the rows."""
        return bool(self.statistics.buckets[[f"{side}_filtered" for side in SIDES]].to_numpy().any())

    def select_on_time(self) -> DataFrame:
        """Select the rows that are surely on time."""
        if self.late_positions:
            return self.late_positions.select_on_time(self.rows)
        return self.lane_class.split(self.rows, includes_all_rows=self.strategy.late_candidates == "all_rows")[0]

    def select_late_candidates(self, rows: DataFrame) -> DataFrame:
        """Select the late candidates of `rows`, with exact watermarks.

        Args:
            rows: Rows of the job, with all late candidates and the rows that are ordered among them.
        """
        if self.late_positions:
            return self.late_positions.split_annotated(self.late_positions.annotate(rows))[1]
        includes_all_rows = self.strategy.late_candidates == "all_rows"
        candidates = self.lane_class.split(rows, includes_all_rows=includes_all_rows)[1]
        if self.strategy.late_candidates == "broadcast_positions" and self.has_late_candidates:
            selected = rows.where(is_late_candidate(includes_all_rows=False))
            selected = self._with_exact_watermarks(self.rows, selected, includes_all_rows=False)
            return selected.select(*candidates.columns)
        if includes_all_rows and self.increments:
            return self.increments.with_watermarks(rows).select(*candidates.columns)
        return candidates

    @property
    def has_late_candidates(self) -> bool:
        """False if no row is a late candidate."""
        is_all = self.strategy.late_candidates == "all_rows"
        return is_all or any(timeline.has_late_candidates for timeline in self.statistics.timelines)

    def select_with_exact_watermarks(self, select: RowFilter, select_buckets: RowFilter) -> DataFrame:
        """Select rows, and add the exact watermarks at their arrival; see `ExactRows`."""
        rows = select_buckets(self.rows)
        if not self.lane_class.is_determined_by_position:
            return select(self.lane_class.split(rows, includes_all_rows=True)[1])
        return self._with_exact_watermarks(rows, select(rows), includes_all_rows=True)

    def _with_exact_watermarks(self, rows: DataFrame, selected: DataFrame, *, includes_all_rows: bool) -> DataFrame:
        """Add exact watermarks to selected rows.

        Args:
            rows: The job's rows in the buckets of the selected ones.
            selected: Some of them.
            includes_all_rows: True to compute exact watermarks for any row; False if all selected rows may be late.
        """
        column = self.lane_class.watermark_column
        if self.strategy.late_candidates in ("broadcast_positions", "by_position"):
            positions = BroadcastPositions.collect(selected)
            comparisons_per_row = self.statistics.compute_comparisons_per_row(positions.counts, "positions")
            if self.limits.can_broadcast_positions(positions.count, comparisons_per_row):
                return positions.with_exact_watermarks(rows, column, includes_all_rows=includes_all_rows)
            selected = positions.rows
        return with_exact_watermarks_of_selected(rows, selected, column, includes_all_rows=includes_all_rows)

    def list_buckets(self) -> pd.DataFrame:
        """List the watermarks and the rows of each bucket, in the columns of `ExactRows.buckets`."""
        watermarks = [line.buckets.assign(lane=lane) for lane, line in enumerate(self.statistics.timelines)]
        buckets = self.statistics.buckets.merge(pd.concat(watermarks), on="bucket").sort_values("bucket")
        slices = self.buckets.find_slices(buckets["bucket"])
        participating = {
            f"{side}_participating": buckets[f"{side}_rows"] - buckets[f"{side}_rejected"] for side in SIDES
        }
        return buckets.assign(slice=slices, bucket_number=buckets["bucket"], **participating)


def _select_job_rows(
    watermarked: _WatermarkedRows, carried: DataFrame | None, join: Join, job_watermarks: JobWatermarks
) -> tuple[JobRows, Counter[str]]:
    """Select the rows for the join, and count by side those that are already found to leave no state."""
    strategy = watermarked.strategy
    evicted_counts = Counter[str]()
    is_all_exact = strategy.late_candidates == "all_rows"
    on_time = may_be_carried = watermarked.select_on_time()
    if strategy.materialize_late_and_carried_rows:
        may_be_carried, late_candidates, evicted_counts = _materialize_late_and_carried_rows(watermarked)
    else:
        late_candidates = watermarked.select_late_candidates(watermarked.rows)
    if watermarked.has_late_candidates:
        late_candidates = materialize(late_candidates)
    filtered = None
    if watermarked.has_filtered and strategy.exact_watermarks:
        filtered = late_candidates.where(moves_watermark_only())
        late_candidates = late_candidates.where(~is_filtered())
    exact_rows = None
    if join.selects_exact_rows and not is_all_exact:
        newest_carried = {side: event_time for (_, side), event_time in watermarked.newest_carried.items()}
        exact_rows = ExactRows(watermarked.select_with_exact_watermarks, watermarked.list_buckets(), newest_carried)
    job_rows = JobRows(
        on_time=on_time,
        late_candidates=late_candidates,
        may_be_carried=may_be_carried,
        has_late_candidates=watermarked.has_late_candidates,
        carried=carried,
        watermarks=job_watermarks,
        has_materialized_input=strategy.cache_rows,
        filtered=filtered,
        exact_rows=exact_rows,
    )
    return job_rows, evicted_counts


def _materialize_late_and_carried_rows(watermarked: _WatermarkedRows) -> tuple[DataFrame, DataFrame, Counter[str]]:
    """Materialize the rows that outputs other than the pairs need, in one scan.

    Returns:
        Rows that are surely on time, late candidates, and the number of rows by side that are in neither: on time, and
        evicted at the end of their slice.
    """
    late_positions = watermarked.late_positions
    may_be_carried = watermarked.may_be_carried
    assert may_be_carried is not None
    if late_positions:
        annotated = late_positions.annotate(watermarked.rows)
        late_and_carried = annotated.where(late_positions.is_at_late_position() | may_be_carried)
    elif watermarked.strategy.late_candidates == "broadcast_positions":
        late_and_carried = watermarked.rows.where(is_late_candidate(includes_all_rows=False) | may_be_carried)
    else:
        late_and_carried = watermarked.rows.where(
            watermarked.lane_class.is_ordered(includes_all_rows=False) | may_be_carried
        )
    late_and_carried, counts = materialize_and_aggregate(late_and_carried, _count_by_side(~is_filtered()))
    buckets = watermarked.statistics.buckets
    evicted_counts = Counter[str]({side: int(buckets[f"{side}_rows"].sum()) for side in SIDES})
    evicted_counts.subtract(counts)
    if late_positions:
        return *late_positions.split_annotated(late_and_carried), evicted_counts
    on_time = watermarked.lane_class.split(late_and_carried, includes_all_rows=False)[0]
    return on_time, watermarked.select_late_candidates(late_and_carried), evicted_counts


def _refine_strategy(watermarked: _WatermarkedRows, carried: DataFrame | None, join: Join) -> _WatermarkedRows:
    """Take the measurements that the chosen strategy depends on, and refine it by them. Each may read the rows."""
    rows = watermarked.rows
    statistics = watermarked.statistics
    strategy = watermarked.strategy
    watermark_column = watermarked.lane_class.watermark_column
    limits = watermarked.limits
    increments = late_positions = may_be_carried = None
    newest_carried = {}
    if strategy.exact_watermarks == "broadcast_increments":
        increments = WatermarkIncrements.collect(rows, watermark_column)
        comparisons_per_row = statistics.compute_comparisons_per_row(increments.counts, "increments")
        strategy = strategy.refine_by_increments(comparisons_per_row, limits)
    if strategy.late_candidates == "by_position":
        late_positions = LatePositions.find(rows, watermark_column)
        strategy = strategy.refine_by_late_positions(late_positions.count, limits)
    if strategy.selects_carried_rows:
        if join.buffers_overdue_rows and carried is not None:
            newest_carried = _find_newest_carried(carried)
        selection = find_rows_that_may_be_carried(
            rows.sparkSession, statistics, watermarked.buckets, join, newest_carried
        )
        may_be_carried, share = (selection.condition, selection.max_share) if selection else (None, None)
        strategy = strategy.refine_by_carried_share(share, limits)
    return replace(
        watermarked,
        strategy=strategy,
        may_be_carried=may_be_carried,
        newest_carried=newest_carried,
        late_positions=late_positions if strategy.late_candidates == "by_position" else None,
        increments=increments if strategy.exact_watermarks == "broadcast_increments" else None,
    )


def _find_newest_carried(carried: DataFrame) -> dict[tuple[int, str], int]:
    """Find the greatest event time of the carried rows by lane and side."""
    newest = carried.groupBy("lane", "side").agg(F.max("event_time")).collect()
    return {(lane, side): event_time for lane, side, event_time in newest}


def _count_by_side(condition: Column) -> dict[str, Column]:
    """Return by side an aggregate that counts its rows that fulfil a condition."""
    return {side: F.count_if(condition & (F.col("side") == side)) for side in SIDES}


def _compute_watermarks(
    rows: DataFrame, lanes: Sequence[Lane], join: Join, buckets: Buckets, limits: ReplayLimits
) -> _WatermarkedRows:
    """Compute the watermarks of all buckets, choose the strategy, and join the rows with their bucket's watermarks."""
    lane_class, *other_classes = {type(lane) for lane in lanes}
    assert not other_classes, "all lanes of a job are of one class"
    buckets = lane_class.refine_buckets(lanes, buckets)
    rows = join.reject_invalid(rows).withColumn(
        "bucket", buckets.bucket_column(F.col("lane"), F.col("slice"), F.col("clock"))
    )
    timelines = lane_class.compute_timelines(rows, lanes, buckets)
    statistics = JobStatistics(timelines.bucket_statistics, timelines.timelines)
    strategy = ReplayStrategy.choose(statistics, join, lane_class, limits)
    watermarked = join_bucket_watermarks(
        timelines.rows.drop("owning_slice", AHEAD),
        timelines.timelines,
        lane_class.bucket_schema,
        by_side=not strategy.cache_rows,
    )
    if join.needs_bucket_number:
        watermarked = watermarked.withColumn("bucket_number", F.col("bucket"))
    if strategy.cache_rows:
        watermarked = materialize(watermarked)
    return _WatermarkedRows(watermarked, lane_class, statistics, timelines.buckets, strategy, limits)


def _select_buffered(buffered: DataFrame, first_slice: int, carried_columns: Sequence[str]) -> DataFrame:
    """Select the columns of buffered rows, and add the slices at whose end they are in the buffers."""
    rows = buffered.withColumn("carried_from", F.greatest("slice", F.lit(first_slice)))
    return rows.select(
        "side",
        "lane",
        "slice",
        "clock",
        "tiebreak",
        "event_time",
        *carried_columns,
        *key_columns(buffered),
        "carried_from",
        F.when(F.col("eviction_slice").isNotNull(), F.greatest("eviction_slice", "carried_from")).alias("evicted_in"),
        *SIDES,
    )


def _count_by_slice(bucket_statistics: pd.DataFrame, buckets: Buckets) -> pd.DataFrame:
    by_slice = bucket_statistics.groupby(buckets.find_slices(bucket_statistics["bucket"]))
    rows_ahead, ahead = (
        [name for side in SIDES if (name := f"{side}_{suffix}") in bucket_statistics]
        for suffix in ("rows_ahead", "ahead")
    )
    counts: pd.DataFrame = by_slice[[*COUNT_COLUMNS, "floored", "late_arriving_rows", *rows_ahead]].sum()
    counts = counts.reindex(buckets.slices, fill_value=0)
    minimum, maxima = by_slice["late_arriving_from"].min(), by_slice[ahead].max()
    return counts.assign(late_arriving_from=minimum.reindex(buckets.slices), **maxima.reindex(buckets.slices))
