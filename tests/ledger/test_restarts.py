"""Add restarts of the streaming job to a pipeline file, after and within the committed slices."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tidemark.checkpoints.checkpoint_ref import CheckpointRef
from tidemark.checkpoints.verification import verify_checkpoint
from tidemark.comparison.chain_history import explain_rows
from tidemark.errors import SliceOrderError
from tidemark.execution.run import execute
from tidemark.integrity.check import check_integrity
from tidemark.planning.planner import create_plan
from tidemark.planning.replay_strategy import ReplayLimits
from tidemark.planning.request import Request

START = datetime(2024, 1, 1, tzinfo=UTC)
FIRST, SECOND, LAST = "2024-01-01T01:24Z", "2024-01-01T02:05Z", "2024-01-01T03:58Z"
"""Restarts before a late row in the second hour, at a late row in the third, and after all rows of the fourth."""


def at(hour):
    return START + timedelta(hours=hour)


def list_late_values(output):
    return sorted({row[2] for row in output[1]})


def test_run_with_new_restarts_requires_reprocess_from_first_affected_slice(
    lake, pipeline, append_inputs, run_hours, plan_and_run, read_output, create_rows
):
    append_inputs(*create_rows(10, 24))
    run_hours(pipeline(), 2)
    assert list_late_values(read_output()) == [0, 4, 100, 104]

    settings = pipeline(restarts=[SECOND, LAST, "2024-01-01T04:00Z"])
    plan, results = plan_and_run(settings, end=at(4))
    assert [(segment.reason, list(segment.slices)) for segment in plan.slice_ranges] == [("new", [2, 3])]
    assert all(result.validation_result.outcome == "passed" for result in results)
    assert check_integrity(settings, str(lake)).issues == (), "the watermark of the last slice may go back at a restart"
    assert list_late_values(read_output()) == [0, 4, 12, 16, 100, 104, 112, 116], (
        "rows that arrived with the restart are on time"
    )
    assert (at(2), 8, 108) in {(row[0].astimezone(UTC), *row[1:]) for row in read_output()[0]}

    earlier = pipeline(restarts=[FIRST, SECOND])
    changed = r"01:00Z on were written under other settings \(restarts.0 was not set, now 2024-01-01T01:24Z\)"
    with pytest.raises(SliceOrderError, match=f"{changed}.* tidemark reprocess .*yaml --from 2024-01-01T01:00Z"):
        plan_and_run(earlier, end=at(4))
    with pytest.raises(SliceOrderError, match="slice 2024-01-01T02:00Z was .* Reprocess from 2024-01-01T01:00Z"):
        plan_and_run(earlier, reprocess=True, start=at(3))

    _, results = plan_and_run(earlier, reprocess=True, start=at(1), end=at(2))
    assert [number for result in results for number in result.slices] == [1, 2, 3], "until all slices have the restart"
    assert list_late_values(read_output()) == [0, 12, 16, 100, 112, 116]


@pytest.mark.slow
def test_restarts_are_independent_of_slices_per_job(
    spark, lake, pipeline, append_inputs, plan_and_run, read_output, create_rows
):
    append_inputs(*create_rows(10, 24))
    restarts = {"restarts": [FIRST, SECOND, LAST]}
    plan_and_run(pipeline(**restarts), end=at(4), slices_per_job=1)
    assert verify_checkpoint(CheckpointRef.from_ledger(spark, pipeline(**restarts), str(lake), at(3))).is_equal

    [history] = explain_rows(spark, pipeline(**restarts), str(lake), "left", {"v": "8"})
    assert history.steps[1:3] == (
        "on time: there was no watermark yet, the job having restarted at 2024-01-01T02:05Z",
        "matched in slice 2024-01-01T02:00Z, rows emitted: 2",
    ), "one match is a row that arrived with it, the other was in the buffers"

    plan = create_plan(spark, pipeline(**restarts, output="single_job"), str(lake), Request(end=at(4)))
    as_large_job = ReplayLimits(max_cached_rows=0, max_carried_share=1.0)
    list(execute(spark, replace(plan, replay_limits=as_large_job), lambda *_: None))
    assert read_output() == read_output("single_job")


@pytest.mark.slow
def test_flink_sql_buffers_survive_restart(
    spark, lake, pipeline, append_inputs, plan_and_run, read_output, create_rows
):
    append_inputs(*create_rows(10, 24))
    dialect = {"dialect": "flink-sql", "join__type": "full"}
    settings = pipeline(**dialect, restarts=[SECOND, LAST])
    plan_and_run(settings, end=at(4), slices_per_job=1)
    assert verify_checkpoint(CheckpointRef.from_ledger(spark, settings, str(lake), at(3))).is_equal

    plan, _ = plan_and_run(pipeline(**dialect, restarts=[SECOND, LAST], output="auto"), end=at(4))
    assert plan.jobs == (range(2), range(2, 3), range(3, 4))
    assert read_output() == read_output("auto")

    plan_and_run(pipeline(**dialect, output="without_restarts"), end=at(4))
    pairs, pairs_without_restart = read_output()[0], read_output("without_restarts")[0]
    assert {row[1:] for row in pairs - pairs_without_restart if None not in row} == {(8, 108)}, (
        "these rows arrived with the restart"
    )
