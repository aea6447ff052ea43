"""Choose a replay's strategy at and on both sides of each limit, without Spark."""

from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest

from tidemark.planning.replay_strategy import DEFAULT_LIMITS, JobStatistics, ReplayLimits, ReplayStrategy
from tidemark.watermarks.idle_or_partitioned_lane import IdleOrPartitionedLane
from tidemark.watermarks.lanes import Lane, Timeline
from tidemark.watermarks.micro_batch_lane import MicroBatchLane
from tidemark.watermarks.recorded_watermark_lane import OutputStreamLane, RecordedWatermarkLane

LIMITS = ReplayLimits(max_cached_rows=99, max_late_candidate_share=0.25, max_increment_share=0.25)
SMALL_JOB = ReplayStrategy(cache_rows=True, exact_watermarks=None, late_candidates="ordered")
LARGE_JOB = ReplayStrategy(False, None, "ordered", materialize_late_and_carried_rows=True)
ALL_ORDERED = ReplayStrategy(False, "ordered", "all_rows")
ALL_BROADCAST = ReplayStrategy(False, "broadcast_increments", "all_rows")
PLAIN, EXACT, SELECTING = (
    SimpleNamespace(needs_exact_watermarks=needs_exact, selects_exact_rows=selects)
    for needs_exact, selects in ((False, False), (True, False), (True, True))
)


def create_statistics(rows, late=0, increments=0):
    """Create buckets: late candidates, rows that raise a watermark, and two of other rows."""
    others = rows - late - increments
    means = {"mean": [0.0, 6.0, 6.0, 0.0], "mean_lead": [0.0, 0.0, 0.0, 0.5]}
    buckets = pd.DataFrame({"bucket": range(4), **means, "left_rows": [late, increments, 0, others // 2]})
    counts = {"right_rows": 0, "left_filtered": 0, "right_filtered": [0, 0, others - others // 2, 0]}
    watermarks = {"combined_before": -2, "combined_after": 0, "watermark_lead": 0, "has_increment": True}
    watermarks |= {"left_before": [0, 5, 9, 9], "left_lag": 0, "right_before": [-2, 3, 4, 4], "right_lag": 2}
    timeline = Timeline(pd.DataFrame({"bucket": range(4), **watermarks}), True, {}, {})
    return JobStatistics(buckets.assign(**counts), [timeline])


def choose(join, lane_class=Lane, **counts):
    return ReplayStrategy.choose(create_statistics(**{"rows": 100, **counts}), join, lane_class, LIMITS)


@pytest.mark.parametrize(
    ("join", "counts", "expected"),
    [
        (PLAIN, {"rows": 99, "late": 99}, SMALL_JOB),
        (EXACT, {"rows": 99}, ReplayStrategy(True, "ordered", "all_rows")),
        (SELECTING, {"rows": 99}, ReplayStrategy(True, "ordered", "all_rows")),
        (PLAIN, {"late": 25, "increments": 25}, LARGE_JOB),
        (PLAIN, {"late": 25, "increments": 26}, replace(LARGE_JOB, late_candidates="broadcast_positions")),
        (PLAIN, {"late": 26, "increments": 26}, replace(LARGE_JOB, late_candidates="by_position")),
        (EXACT, {"increments": 25, "late": 75}, ALL_BROADCAST),
        (EXACT, {"increments": 26}, ALL_ORDERED),
        (SELECTING, {"late": 25, "increments": 25}, LARGE_JOB),
        (SELECTING, {"late": 25, "increments": 26}, replace(LARGE_JOB, late_candidates="broadcast_positions")),
    ],
)
def test_choose_by_join_and_statistics(join, counts, expected):
    assert choose(join, **counts) == expected


@pytest.mark.parametrize(
    ("join", "late", "expected"),
    [
        (PLAIN, 25, LARGE_JOB),
        (PLAIN, 26, replace(LARGE_JOB, materialize_late_and_carried_rows=False)),
        (EXACT, 0, ALL_ORDERED),
        (SELECTING, 26, replace(LARGE_JOB, materialize_late_and_carried_rows=False)),
    ],
)
def test_choose_with_idle_sources_orders_rows(join, late, expected):
    assert choose(join, IdleOrPartitionedLane, late=late) == expected


@pytest.mark.parametrize(
    ("join", "lane_class", "expected"),
    [
        (PLAIN, RecordedWatermarkLane, LARGE_JOB),
        (SELECTING, RecordedWatermarkLane, ALL_ORDERED),
        (SELECTING, OutputStreamLane, LARGE_JOB),
    ],
)
def test_choose_with_recorded_watermarks_orders_rows_of_one_position(join, lane_class, expected):
    assert choose(join, lane_class) == expected


def test_choose_without_mean_event_times_expects_few_late_candidates():
    statistics = create_statistics(100, late=100)
    statistics = replace(statistics, buckets=statistics.buckets.drop(columns="mean"))

    assert ReplayStrategy.choose(statistics, PLAIN, IdleOrPartitionedLane, LIMITS) == LARGE_JOB


def test_choose_for_micro_batches_expects_few_late_candidates():
    statistics = create_statistics(100, late=100)
    [timeline] = statistics.timelines
    micro_batches = replace(timeline, buckets=timeline.buckets.drop(columns="combined_after"))

    strategy = ReplayStrategy.choose(replace(statistics, timelines=[micro_batches]), PLAIN, MicroBatchLane, LIMITS)

    assert strategy == LARGE_JOB


@pytest.mark.parametrize(("increments_per_row", "expected"), [(32, ALL_BROADCAST), (32.1, ALL_ORDERED)])
def test_refine_by_increments_orders_rows_above_limit(increments_per_row, expected):
    assert ALL_BROADCAST.refine_by_increments(increments_per_row, DEFAULT_LIMITS) == expected


@pytest.mark.parametrize(("count", "is_broadcast"), [(500_000, True), (500_001, False)])
def test_refine_by_late_positions_orders_candidates_above_limit(count, is_broadcast):
    by_position = replace(LARGE_JOB, late_candidates="by_position")

    refined = by_position.refine_by_late_positions(count, DEFAULT_LIMITS)

    assert refined == (by_position if is_broadcast else replace(LARGE_JOB, materialize_late_and_carried_rows=False))


@pytest.mark.parametrize(
    ("positions", "comparisons_per_row", "expected"),
    [(500_000, 32, True), (500_001, 32, False), (500_000, 32.1, False)],
)
def test_can_broadcast_positions_at_limits(positions, comparisons_per_row, expected):
    assert DEFAULT_LIMITS.can_broadcast_positions(positions, comparisons_per_row) == expected


@pytest.mark.parametrize(
    ("share", "is_materialized", "is_repartitioned"),
    [(None, False, True), (0.1, True, True), (0.11, True, False), (0.25, True, False), (0.26, False, False)],
)
def test_refine_by_carried_share_stays_within_limits(share, is_materialized, is_repartitioned):
    refined = LARGE_JOB.refine_by_carried_share(share, DEFAULT_LIMITS)

    choices = {"materialize_late_and_carried_rows": is_materialized, "repartition_carried_rows": is_repartitioned}
    assert refined == replace(LARGE_JOB, **choices)


def test_refine_by_carried_share_materializes_no_strategy_without_late_and_carried_rows():
    strategy = replace(LARGE_JOB, materialize_late_and_carried_rows=False)

    assert strategy.refine_by_carried_share(0.0, DEFAULT_LIMITS) == strategy


@pytest.mark.parametrize(
    ("strategy", "expected"), [(SMALL_JOB, False), (LARGE_JOB, True), (ALL_ORDERED, False), (ALL_BROADCAST, False)]
)
def test_selects_carried_rows_only_in_large_jobs_with_bucket_watermarks(strategy, expected):
    assert strategy.selects_carried_rows == expected


@pytest.mark.parametrize(
    ("rows", "expected"), [(1e6, "rows cached"), (1e6 + 0.5, "large job, rows scanned once per output")]
)
def test_describe_expected_strategy_by_estimated_rows(rows, expected):
    assert DEFAULT_LIMITS.describe_expected_strategy(rows) == expected
