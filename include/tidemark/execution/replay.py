"""Replay a range of slices: join their rows and carried rows under watermarks.

Nothing here reads or writes a table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import pandas as pd
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from tidemark.config.sides import SIDES
from tidemark.joins.base import JobRows, Join
from tidemark.joins.keys import key_columns
from tidemark.spark.materialization import materialize
from tidemark.spark.tables import from_pandas
from tidemark.timegrid.time_columns import floor_div
from tidemark.watermarks.buckets import Buckets
from tidemark.watermarks.increments import WatermarkIncrements
from tidemark.watermarks.job_watermarks import JobWatermarks
from tidemark.watermarks.lanes import Lane, Timeline, join_bucket_watermarks
from tidemark.watermarks.late_positions import LatePositions
from tidemark.watermarks.row_status import is_filtered

LATE_BUT_BUFFERED_REASONS = ("late_for_window", "behind_watermark", "no_event_time_for_window", "lost_at_end")
"""Reasons of late rows that take part in the join all the same, and are buffered until they are evicted."""
_COUNT_COLUMNS = [f"{side}_{name}" for side in SIDES for name in ("rows", "filtered")]
MAX_CACHED_ROWS = 1_000_000
"""Maximum number of rows of a job that are materialized (`spark.materialization`). Planning the scan of a Delta table
takes longer than reading a small one. Larger jobs scan their rows once per output, which is faster than caching."""
MAX_RETAINED_SHARE = 0.25
"""Maximum share (0 to 1) of retained rows of a larger job whose stateful rows are materialized."""
MANY_CARRIED_SHARE = 0.1
"""If more than this share of rows may be carried, each Spark task that reads rows has enough of them for a file."""
MAX_ORDERED_SHARE = 0.25
"""Order late candidates directly if they are at most this share of a larger job; otherwise only their positions."""
MAX_INCREMENT_SHARE = 0.25
"""Broadcast watermark increments if at most this share of a larger job's rows raise a watermark; otherwise order the
rows."""
MAX_INCREMENTS_PER_ROW = 32
"""Maximum average number of watermark increments that a row of a larger job is compared with."""
MAX_BROADCAST_POSITIONS = 500_000
"""Maximum number of late positions that are broadcast: about 60 MB in each executor."""


@dataclass(frozen=True)
class ReplayResult:
    """Outputs of a replayed range of slices."""

    joined: DataFrame
    """One row per emission, as in `joins.base.JoinResult.joined`."""
    late: DataFrame
    """One row per late or rejected row: `side`, `slice`, `reason`, times, watermarks, `left` or `right`."""
    may_have_late_rows: bool
    """False if `late` is empty."""
    carried: DataFrame
    """One row per row that outlives its slice: its `side`, `lane`, `slice` (of its arrival), `clock`, `tiebreak`,
    `event_time`, `watermark` (at its arrival), `key_*`, and `left` or `right`. It is in the buffers at the end of
    slices carried_from <= n < evicted_in (null: of all later ones)."""
    may_carry_many_rows: bool
    """True if more than `MANY_CARRIED_SHARE` of the rows may be carried, as estimated in a large job; else False."""
    evicted_in_arrival_slice: Counter[str]
    """Number of rows by side that are on time, evicted by the end of their slice, and not in `observed_evictions`."""
    observed_evictions: Observation
    """Number of other rows that the job's slices evict, by side. Available after `carried` is written."""
    row_counts: pd.DataFrame
    """One row per slice of the job: `left_rows` and `right_rows` read, `left_filtered` and `right_filtered` excluded by
    `where`, event times `floored`, `late_arriving_rows` of earlier slices, and the first of these slices as
    `late_arriving_from`."""
    timelines: list[Timeline]
    """Watermarks of each lane."""

    @property
    def rows_read(self) -> int:
        """Number of rows of both inputs in the slices, including those that `where` filters."""
        return _count_rows(self.row_counts)

    def count_evicted(self) -> Counter[str]:
        """Count the rows of each side that the job's slices evict. Call this after `carried` is written."""
        return self.evicted_in_arrival_slice + Counter(self.observed_evictions.get)


def replay(
    rows: DataFrame, carried: DataFrame | None, lanes: Sequence[Lane], join: Join, buckets: Buckets
) -> ReplayResult:
    """Replay the slices of `buckets`.

    Args:
        rows: Rows of both inputs that arrive in these slices (`sources.normalization.Side.normalize`), with `lane`.
        carried: Rows carried by the slice before (`ReplayResult.carried`), with their `lane`; None for empty buffers.
        lanes: The lanes. They share no keys.
        join: The join.
        buckets: The buckets of the slices.
    """
    watermarked = _compute_watermarks(rows, lanes, join, buckets)
    is_exact = join.needs_exact_watermarks and (watermarked.is_cacheable or not join.prefers_narrow_rows)
    if join.needs_exact_watermarks:
        watermarked = _add_increments(watermarked)
    if not is_exact:
        watermarked = _add_late_positions(watermarked)
    exact_rows = watermarked.split(exact=True)[1] if join.needs_exact_watermarks and not is_exact else None
    on_time, late_candidates = watermarked.split(exact=is_exact)
    retained, evicted_counts = on_time, Counter[str]()
    is_retained = _find_retention_condition(watermarked, join)
    retained_share = (
        0.0 if is_retained is None else _bound_retained_rows(watermarked, is_retained) / watermarked.row_count
    )
    if is_retained is not None and (stateful := _materialize_stateful_rows(watermarked, is_retained, retained_share)):
        retained, late_candidates = stateful.retained, stateful.late_candidates
        evicted_counts = stateful.evicted_counts
    has_late_candidates = is_exact or any(timeline.has_late_candidates for timeline in watermarked.timelines)
    if has_late_candidates:
        late_candidates = materialize(late_candidates)
    filtered = None
    if watermarked.has_filtered and join.needs_exact_watermarks:
        filtered = (late_candidates if exact_rows is None else exact_rows).where(is_filtered())
        late_candidates = late_candidates.where(~is_filtered())
    if carried is not None:
        carried = materialize(carried)
    first_slice = buckets.slices[0]
    if exact_rows is not None:
        exact_rows = exact_rows.where(F.col("rejected").isNull())
    job_watermarks = JobWatermarks(watermarked.timelines, first_slice, lanes, buckets.grid)
    job_rows = JobRows(
        on_time,
        late_candidates,
        retained,
        has_late_candidates,
        carried,
        job_watermarks,
        watermarked.is_cacheable,
        filtered,
        exact_rows,
    )
    join_result = join.apply(job_rows)
    is_carried = F.col("evicted_in").isNull() | (F.col("evicted_in") > F.col("carried_from"))
    buffered = _select_buffered(join_result.buffered, first_slice, join.carried_columns)
    # Spark cannot push the filter below the observation. Without this, columns of rows that are only counted would be
    # computed too.
    buffered = buffered.withColumns({side: F.when(is_carried, F.col(side)) for side in SIDES})
    observed_evictions = Observation()
    carried_out = buffered.observe(observed_evictions, *_count_by_side(F.col("evicted_in").isNotNull()))
    return ReplayResult(
        joined=join_result.joined,
        late=_select_late_rows(join_result.late, join.tick),
        may_have_late_rows=has_late_candidates,
        carried=carried_out.where(is_carried),
        may_carry_many_rows=retained_share > MANY_CARRIED_SHARE,
        evicted_in_arrival_slice=evicted_counts + Counter(join_result.evicted_counts),
        observed_evictions=observed_evictions,
        row_counts=_count_by_slice(watermarked.bucket_statistics, watermarked.buckets),
        timelines=list(join_result.timelines) or watermarked.timelines,
    )


def add_exact_watermarks(rows: DataFrame, lane: Lane, join: Join, buckets: Buckets) -> DataFrame:
    """Add the exact watermarks at the arrival of each row of one lane.

    Adds `watermark` (ms, long) and, except in dialect spark, `left_watermark` and `right_watermark`.
    """
    watermarked = _compute_watermarks(rows.withColumn("lane", F.lit(0)), [lane], join, buckets)
    on_time, late_candidates = watermarked.split(exact=True)
    return on_time.unionByName(late_candidates, allowMissingColumns=True)


@dataclass(frozen=True)
class _WatermarkedRows:
    """Rows of a job with the watermarks of their buckets, and the watermarks of their lanes."""

    rows: DataFrame
    lane_class: type[Lane]
    """Class of all lanes, which is the watermark strategy."""
    bucket_statistics: pd.DataFrame
    timelines: list[Timeline]
    buckets: Buckets
    is_cacheable: bool
    late_positions: LatePositions | None = None
    """Late positions, if late rows are found by position."""
    increments: WatermarkIncrements | None = None
    """Watermark increments, if they determine the exact watermarks of all rows."""

    @property
    def row_count(self) -> int:
        """Number of rows."""
        return _count_rows(self.bucket_statistics)

    @cached_property
    def has_many_late_candidates(self) -> bool:
        """True if more than `MAX_ORDERED_SHARE` of the rows are late candidates.

        This is estimated: all rows of a bucket count if its mean event time is not later than the watermark after it.
        """
        if "mean" not in self.bucket_statistics:
            return False
        buckets = self._buckets_with_watermarks
        return _count_rows(buckets[buckets["mean"] <= buckets["combined_after"]]) > MAX_ORDERED_SHARE * self.row_count

    @cached_property
    def has_many_increments(self) -> bool:
        """True if more than `MAX_INCREMENT_SHARE` of the rows raise a watermark.

        This is estimated: all rows of a bucket count if its mean event time is later than all earlier ones of a side.
        """
        buckets = self._buckets_with_watermarks
        left, right = (buckets[f"{side}_before"] + buckets[f"{side}_lag"] for side in SIDES)
        return _count_rows(buckets[buckets["mean"] > left.clip(upper=right)]) > MAX_INCREMENT_SHARE * self.row_count

    @cached_property
    def _buckets_with_watermarks(self) -> pd.DataFrame:
        buckets = pd.concat([timeline.buckets for timeline in self.timelines])
        return self.bucket_statistics.merge(buckets, on="bucket")

    @property
    def has_filtered(self) -> bool:
        """True if `where` filters some of the rows."""
        return bool(self.bucket_statistics[[f"{side}_filtered" for side in SIDES]].to_numpy().any())

    def split(self, *, exact: bool) -> tuple[DataFrame, DataFrame]:
        """Split the rows as `Lane.split` does, by increments or late positions if there are any."""
        if exact and self.increments:
            return self.lane_class.split(self.rows, exact=True)[0], self.increments.with_watermarks(self.rows)
        if exact or self.late_positions is None:
            return self.lane_class.split(self.rows, exact=exact)
        late = self.late_positions.split_annotated(self.late_positions.annotate(self.rows))[1]
        return self.late_positions.select_on_time(self.rows), late

    def select_inspected(self, is_retained: Column) -> DataFrame:
        """Select the retained rows, and the rows that determine the late candidates, for `split_inspected`."""
        if self.late_positions is None:
            return self.rows.where(self.lane_class.is_ordered(exact=False) | is_retained)
        return self.late_positions.annotate(self.rows).where(self.late_positions.is_at_late_position() | is_retained)

    def split_inspected(self, rows: DataFrame) -> tuple[DataFrame, DataFrame]:
        """Split the rows of `select_inspected` as `split` does."""
        if self.late_positions is None:
            return self.lane_class.split(rows, exact=False)
        return self.late_positions.split_annotated(rows)


@dataclass(frozen=True)
class _StatefulRows:
    """Materialized rows that outputs other than the pairs need."""

    retained: DataFrame
    """Rows that are surely on time."""
    late_candidates: DataFrame
    evicted_counts: Counter[str]
    """Number of rows by side that are in neither: on time, and evicted at the end of their slice."""


def _find_retention_condition(watermarked: _WatermarkedRows, join: Join) -> Column | None:
    """Return the condition for an on-time row of a large job to outlive its slice.

    None for small jobs, and if the event time of a row does not determine its eviction.
    """
    if watermarked.is_cacheable or join.needs_exact_watermarks:
        return None
    eviction_watermark = join.eviction_watermark(F.col("combined_before"))
    return None if eviction_watermark is None else eviction_watermark > F.col("end_watermark")


def _materialize_stateful_rows(
    watermarked: _WatermarkedRows, is_retained: Column, retained_share: float
) -> _StatefulRows | None:
    """Materialize the stateful rows of a large job in one scan; None if they are too many to be worth it."""
    if retained_share > MAX_RETAINED_SHARE or (
        watermarked.has_many_late_candidates and watermarked.late_positions is None
    ):
        return None
    observed_counts = Observation()
    inspected = watermarked.select_inspected(is_retained)
    materialized = materialize(inspected.observe(observed_counts, *_count_by_side(~is_filtered())), eager=True)
    evicted_counts = Counter[str]({side: int(watermarked.bucket_statistics[f"{side}_rows"].sum()) for side in SIDES})
    evicted_counts.subtract(observed_counts.get)
    return _StatefulRows(*watermarked.split_inspected(materialized), evicted_counts)


def _add_increments(watermarked: _WatermarkedRows) -> _WatermarkedRows:
    """Collect the watermark increments of a large job in which few rows raise a watermark."""
    if (
        watermarked.is_cacheable
        or not watermarked.lane_class.is_determined_by_position
        or watermarked.has_many_increments
    ):
        return watermarked
    increments = WatermarkIncrements.collect(watermarked.rows, watermarked.lane_class.watermark_column)
    buckets = watermarked.bucket_statistics.merge(increments.counts, on="bucket")
    comparisons = int((buckets[_COUNT_COLUMNS].sum(axis="columns") * buckets["increments"]).sum())
    return (
        replace(watermarked, increments=increments)
        if comparisons <= MAX_INCREMENTS_PER_ROW * watermarked.row_count
        else watermarked
    )


def _add_late_positions(watermarked: _WatermarkedRows) -> _WatermarkedRows:
    """Find the late positions of a large job with too many late candidates to order their rows."""
    if (
        watermarked.is_cacheable
        or not watermarked.lane_class.is_determined_by_position
        or not watermarked.has_many_late_candidates
    ):
        return watermarked
    late_positions = LatePositions.find(watermarked.rows, watermarked.lane_class.watermark_column)
    return (
        replace(watermarked, late_positions=late_positions)
        if late_positions.count <= MAX_BROADCAST_POSITIONS
        else watermarked
    )


def _bound_retained_rows(watermarked: _WatermarkedRows, is_retained: Column) -> int:
    """Compute an upper bound of the number of retained rows, from the newest event time per side and bucket."""
    if len(watermarked.timelines) > 1:  # the condition differs between lanes
        return watermarked.row_count
    buckets = watermarked.bucket_statistics.merge(
        watermarked.timelines[0].buckets[["bucket", "combined_before", "end_watermark"]], on="bucket"
    )
    newest_by_side = [
        buckets[["combined_before", "end_watermark"]].assign(
            side=side, event_time=buckets[f"{side}_newest"], rows=buckets[f"{side}_rows"]
        )
        for side in SIDES
    ]
    rows_by_event_time = pd.concat(newest_by_side, ignore_index=True).dropna()
    schema = "combined_before long, end_watermark long, side string, event_time long, rows long"
    retained_buckets = from_pandas(
        watermarked.rows.sparkSession, rows_by_event_time.astype({"event_time": "int64"}), schema
    ).where(is_retained)
    return sum(row["rows"] for row in retained_buckets.select("rows").collect())


def _count_by_side(condition: Column) -> list[Column]:
    """Return one column per side that counts its rows that fulfil a condition."""
    return [F.count_if(condition & (F.col("side") == side)).alias(side) for side in SIDES]


def _compute_watermarks(rows: DataFrame, lanes: Sequence[Lane], join: Join, buckets: Buckets) -> _WatermarkedRows:
    lane_class, *other_classes = {type(lane) for lane in lanes}
    assert not other_classes, "all lanes of a job are of one class"
    buckets = lane_class.refine_buckets(lanes, buckets)
    rows = join.reject_invalid(rows).withColumn(
        "bucket", buckets.bucket_column(F.col("lane"), F.col("slice"), F.col("clock"))
    )
    timelines = lane_class.compute_timelines(rows, lanes, buckets)
    is_cacheable = _count_rows(timelines.bucket_statistics) <= MAX_CACHED_ROWS
    joined_rows = join_bucket_watermarks(
        timelines.rows.drop("owning_slice"), timelines.timelines, lane_class.bucket_schema, by_side=not is_cacheable
    )
    if join.needs_bucket_number:
        joined_rows = joined_rows.withColumn("bucket_number", F.col("bucket"))
    if is_cacheable:
        joined_rows = materialize(joined_rows)
    return _WatermarkedRows(
        joined_rows, lane_class, timelines.bucket_statistics, timelines.timelines, timelines.buckets, is_cacheable
    )


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


def _select_late_rows(rows: DataFrame, tick: int) -> DataFrame:
    is_late = F.col("rejected").isNull()
    lateness_ms = F.col("watermark") - floor_div(F.col("event_time") * tick, 1000)
    sides_at_watermark = [F.when(F.col(f"{side}_watermark") == F.col("watermark"), side) for side in SIDES]
    lower_side = F.when(F.col("left_watermark") <= F.col("right_watermark"), "left").otherwise("right")
    limiting_side = F.coalesce(*sides_at_watermark, lower_side)
    return rows.select(
        "slice",
        "side",
        "reason",
        "window_start",
        "window_end",
        "clock",
        "tiebreak",
        "event_time",
        *key_columns(rows),
        F.when(is_late, F.col("watermark")).alias("watermark"),
        F.when(is_late, lateness_ms).alias("behind_ms"),
        F.when(is_late & F.col("watermark").isNotNull(), limiting_side).alias("held_by"),
        F.col("fate") if "fate" in rows.columns else F.lit(None).cast("string").alias("fate"),
        *SIDES,
    )


def _count_rows(counts: pd.DataFrame) -> int:
    return int(counts[_COUNT_COLUMNS].to_numpy().sum())


def _count_by_slice(bucket_statistics: pd.DataFrame, buckets: Buckets) -> pd.DataFrame:
    by_slice = bucket_statistics.groupby(buckets.find_slices(bucket_statistics["bucket"]))
    counts: pd.DataFrame = by_slice[[*_COUNT_COLUMNS, "floored", "late_arriving_rows"]].sum()
    counts = counts.reindex(buckets.slices, fill_value=0)
    return counts.assign(late_arriving_from=by_slice["late_arriving_from"].min().reindex(buckets.slices))
