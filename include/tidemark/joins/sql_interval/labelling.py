"""Label the rows of a job with their cleanup and eviction, and find the lanes that have a closed form."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.config.sides import SIDES, SideName
from tidemark.joins.base import ExactRows, JobRows
from tidemark.joins.rules.flink_sql import IntervalRules
from tidemark.joins.sql_interval.labels import (
    has_recorded_timer,
    is_late_or_uncached,
    label_caching,
    label_eviction,
    with_match_state,
)
from tidemark.joins.sql_interval.last_cleanup import LastCleanups
from tidemark.joins.sql_interval.late_materialization import can_broadcast
from tidemark.joins.sql_interval.late_pairs import (
    number_late_candidates,
    number_late_rows,
    pair_late_rows,
    select_expired_partners,
)
from tidemark.joins.sql_interval.overdue_rows import (
    OverdueRows,
    is_overdue,
    select_certain_lookups,
    with_eviction_slice,
    with_removing_lookup,
)
from tidemark.joins.sql_interval.timer_selection import find_overdue_rows
from tidemark.spark.engine import get_engine
from tidemark.spark.materialization import materialize
from tidemark.watermarks.job_watermarks import JobWatermarks


@dataclass(frozen=True)
class LabelledRows:
    """Rows of the lanes with a closed form, labelled with their cleanup and eviction."""

    all_rows: DataFrame
    pairable: DataFrame
    """The same rows with at least the labels that `join.SqlIntervalJoin._pair_on_time_rows` needs."""
    late: DataFrame
    """Rows of `all_rows` that are late or not cached."""
    late_and_carried: DataFrame
    """A superset of the rows with `needs_first_match`: late rows and rows that outlive their slice."""
    others: DataFrame | None
    """Other rows; None if they were only counted."""
    late_pairs: DataFrame
    """Pairs of late rows with cached rows; see `late_pairs.pair_late_rows`."""
    overdue_rows: OverdueRows | None
    """The overdue rows that matter; None if there are none."""
    has_exact_watermarks: bool
    """True if all rows have exact watermarks, False if only late rows have."""


def label_small_job(
    timed_rows: DataFrame, job_rows: JobRows, rules: IntervalRules, condition: str | None
) -> tuple[LabelledRows, LastCleanups]:
    """Label the rows of a small job, of which all cleanup times are known.

    Args:
        timed_rows: The rows with their cleanup time and eviction slice.
        job_rows: The rows of the job.
        rules: The rules.
        condition: SQL over `left_*` and `right_*` that pairs must meet as well; None for none.
    """
    watermarks = job_rows.watermarks
    first_slice = watermarks.first_slice
    cleanups, overdue_count = LastCleanups.from_rows(timed_rows, watermarks, job_rows.filtered)
    rows = timed_rows.where(cleanups.has_closed_form)
    rows = number_late_rows(rows, first_slice) if overdue_count else rows.withColumn("lookup_number", F.lit(1))
    rows = with_match_state(rows, condition, first_slice)
    overdue_rows = None
    if overdue_count:
        removed_rows = with_removing_lookup(rows, select_certain_lookups(rows, first_slice))
        overdue_rows = OverdueRows(materialize(removed_rows), overdue_count)
        others = rows.where(~is_overdue())
        rows = with_eviction_slice(overdue_rows.rows.unionByName(others, allowMissingColumns=True))
    late_rows = rows.where(is_late_or_uncached(first_slice))
    late_pairs = materialize(
        pair_late_rows(late_rows, rows, rules, first_slice, is_small=False, has_exact_watermarks=True)
    )
    needs_first_match = F.col("needs_first_match")
    late_and_carried, others = rows.where(needs_first_match), rows.where(~needs_first_match)
    labelled = LabelledRows(
        rows, rows, late_rows, late_and_carried, others, late_pairs, overdue_rows, has_exact_watermarks=True
    )
    return labelled, cleanups


def label_large_job(
    job_rows: JobRows, exact_rows: ExactRows, rules: IntervalRules, condition: str | None, *, has_padding: bool
) -> tuple[LabelledRows, LastCleanups]:
    """Label the rows of a large job, of which few are late, overdue or outlive their slice.

    The watermark of a row on time is the one before its bucket. Rows whose labels could differ with the exact one
    are late candidates (`Lane.late_margin`). Only overdue rows have a cleanup time after their expiry. They are
    searched among the rows for which it matters.

    Args:
        job_rows: The rows of the job.
        exact_rows: Access to rows with exact watermarks.
        rules: The rules.
        condition: SQL over `left_*` and `right_*` that pairs must meet as well; None for none.
        has_padding: True if the join of some lane pads unmatched rows.
    """
    watermarks = job_rows.watermarks
    first_slice = watermarks.first_slice
    label = partial(label_caching, rules=rules, first_slice=first_slice)
    numbered_rows, late_rows, count = number_late_candidates(job_rows, label)
    rows = label(numbered_rows.select_participating())
    late_and_carried_rows = label(numbered_rows.select_rows_that_may_be_carried())
    late_pairs = pair_late_rows(
        with_match_state(late_rows, condition, first_slice),
        with_match_state(rows, condition, first_slice),
        rules,
        first_slice,
        is_small=can_broadcast(count),
        has_exact_watermarks=False,
    )
    late_pairs = materialize(late_pairs)
    overdue_rows = find_overdue_rows(
        select_expired_partners(late_pairs),
        late_and_carried_rows,
        job_rows.carried,
        label,
        exact_rows,
        first_slice,
        _compute_expiry_delays(job_rows, rules),
    )
    simulated_lanes = _find_simulated_lanes(rows, job_rows, exact_rows, rules)
    cleanups = LastCleanups.from_selected_rows(
        rows, late_rows, overdue_rows, watermarks, exact_rows, label, simulated_lanes
    )
    rows, late_and_carried_rows, late_pairs = (
        part.where(cleanups.has_closed_form) for part in (rows, late_and_carried_rows, late_pairs)
    )
    all_rows, late_and_carried = (
        _add_cleanup(part, overdue_rows, watermarks) for part in (rows, late_and_carried_rows)
    )
    all_rows, pairable, late_and_carried = (
        with_match_state(part, condition, first_slice) for part in (all_rows, rows, late_and_carried)
    )
    # An outer join has the deepest plans: its rows are annotated, joined and then annotated again.
    if has_padding and not get_engine(rows.sparkSession).supports_deep_plans:
        all_rows = pairable = materialize(all_rows)
        late_and_carried = materialize(late_and_carried)
    late = late_and_carried.where(is_late_or_uncached(first_slice))
    labelled = LabelledRows(
        all_rows, pairable, late, late_and_carried, None, late_pairs, overdue_rows, has_exact_watermarks=False
    )
    return labelled, cleanups


def _add_cleanup(rows: DataFrame, overdue_rows: OverdueRows | None, watermarks: JobWatermarks) -> DataFrame:
    """Add the cleanup time and the eviction slice to the rows of a large job."""
    if overdue_rows is not None:
        rows = overdue_rows.annotate(rows, ["cleanup_time", "removing_lookup"])
    is_cached = F.col("is_cached")
    cleanup_time = F.coalesce("cleanup_time", "expires_at")
    rows = label_eviction(rows.withColumn("cleanup_time", F.when(is_cached, cleanup_time)), watermarks)
    return rows if overdue_rows is None else with_eviction_slice(rows)


def _compute_expiry_delays(job_rows: JobRows, rules: IntervalRules) -> dict[SideName, int] | None:
    """Return by side the time from a row's event time to its expiry, ms; None if lanes differ."""
    if len(job_rows.watermarks.timelines) > 1:
        return None
    sides = job_rows.on_time.sparkSession.createDataFrame([(side,) for side in SIDES], "side string")
    delays = sides.select("side", rules.expires_at(F.lit(0), rules.wait_for_side(F.col("side")))).collect()
    return {row[0]: row[1] for row in delays}


def _find_simulated_lanes(rows: DataFrame, job_rows: JobRows, exact_rows: ExactRows, rules: IntervalRules) -> set[int]:
    """Find the lanes of a large job with a row that requires a simulation.

    In a single lane, the carried rows and a row of either side at the oldest event time answer it without a scan of all
    rows. If only a row of the other side would require a simulation, the lane is simulated all the same, with the same
    result.
    """
    if len(job_rows.watermarks.timelines) > 1:
        return {row["lane"] for row in rows.where("requires_simulation").select("lane").distinct().collect()}
    oldest = exact_rows.buckets["oldest"].dropna().astype("int64").to_list()
    if job_rows.carried is not None:
        has_timer = F.max(has_recorded_timer(job_rows.carried, job_rows.watermarks.first_slice))
        [[oldest_carried, has_timer]] = job_rows.carried.agg(F.min("event_time"), has_timer).collect()
        if has_timer:
            return {0}
        oldest += [] if oldest_carried is None else [oldest_carried]
    times = [(side, min(oldest)) for side in SIDES if oldest]
    sides = rows.sparkSession.createDataFrame(times, "side string, event_time long")
    requires_simulation = rules.requires_simulation(F.col("event_time"), rules.wait_for_side(F.col("side")))
    return {0} if sides.where(requires_simulation).take(1) else set()
