"""A pipeline file gains restarts of the streaming job: behind all that is committed, and inside of it."""

from datetime import UTC, datetime, timedelta

import pytest

from tidemark.checkpoints.checkpoint_ref import CheckpointRef
from tidemark.checkpoints.verification import verify_checkpoint
from tidemark.comparison.row_history import explain_rows
from tidemark.errors import SliceOrderError
from tidemark.execution import replay
from tidemark.integrity.check import check_integrity

START = datetime(2024, 1, 1, tzinfo=UTC)
FIRST, SECOND, LAST = "2024-01-01T01:24Z", "2024-01-01T02:05Z", "2024-01-01T03:58Z"
"""Before a late row comes in the second hour, with the one that comes in the third, behind all rows of the fourth."""


def at(hour):
    return START + timedelta(hours=hour)


def late(told):
    return sorted({row[2] for row in told[1]})


def test_a_restart_is_told_when_it_has_been(lake, pipeline, land, hours, go, answer, rows_every):
    land(*rows_every(10, 24))
    hours(pipeline(), 2)
    assert late(answer()) == [0, 4, 100, 104]
    told = pipeline(restarts=[SECOND, LAST, "2024-01-01T04:00Z"])
    plan, ran = go(told, end=at(4))
    assert [(one.reason, list(one.slices)) for one in plan.segments] == [("new", [2, 3])]
    assert all(result.verdict.outcome == "passed" for result in ran)
    assert check_integrity(told, str(lake)).issues == (), "the watermark of the last slice has gone back, and may have"
    assert late(answer()) == [0, 4, 12, 16, 100, 104, 112, 116], "the rows that came with the restart are on time"
    assert (at(2), 8, 108) in {(row[0].astimezone(UTC), *row[1:]) for row in answer()[0]}

    both = pipeline(restarts=[FIRST, SECOND])
    changed = r"01:00Z on were written under other settings \(restarts.0 was None, now 2024-01-01T01:24Z\)"
    with pytest.raises(SliceOrderError, match=f"{changed}.* tidemark reprocess orders --from 2024-01-01T01:00Z"):
        go(both, end=at(4))
    with pytest.raises(SliceOrderError, match="slice 2024-01-01T02:00Z was .* reprocess from 2024-01-01T01:00Z"):
        go(both, reprocess=True, start=at(3))
    _, ran = go(both, reprocess=True, start=at(1), end=at(2))
    assert [number for result in ran for number in result.slices] == [1, 2, 3], "until no slice lacks it"
    assert late(answer()) == [0, 12, 16, 100, 112, 116]


@pytest.mark.slow
def test_restarts_in_one_job_and_in_a_job_a_slice(spark, lake, pipeline, land, go, answer, rows_every, monkeypatch):
    land(*rows_every(10, 24))
    restarts = {"restarts": [FIRST, SECOND, LAST]}
    go(pipeline(**restarts), end=at(4), slices_per_job=1)
    assert verify_checkpoint(CheckpointRef.from_ledger(spark, pipeline(**restarts), str(lake), at(3))).is_equal
    [life] = explain_rows(spark, pipeline(**restarts), str(lake), "left", {"v": "8"})
    assert life.steps[1:3] == (
        "on time: there was no watermark yet, the job having restarted at 2024-01-01T02:05Z",
        "matched in slice 2024-01-01T02:00Z, rows emitted: 2",
    ), "with a row that came with it, and one that was in the buffers"
    monkeypatch.setattr(replay, "MAX_CACHED_ROWS", 0)  # the way of millions of rows
    monkeypatch.setattr(replay, "MAX_RETAINED_SHARE", 1.0)
    go(pipeline(**restarts, output="single_job"), end=at(4))
    assert answer() == answer("single_job")


@pytest.mark.slow
def test_what_waits_in_flink_sql_is_there_behind_a_restart(spark, lake, pipeline, land, go, answer, rows_every):
    land(*rows_every(10, 24))
    of_sql = {"dialect": "flink-sql", "join__type": "full"}
    told = pipeline(**of_sql, restarts=[SECOND, LAST])
    go(told, end=at(4), slices_per_job=1)
    assert verify_checkpoint(CheckpointRef.from_ledger(spark, told, str(lake), at(3))).is_equal
    plan, _ = go(pipeline(**of_sql, restarts=[SECOND, LAST], output="auto"), end=at(4))
    assert plan.jobs == (range(2), range(2, 3), range(3, 4))
    assert answer() == answer("auto")
    go(pipeline(**of_sql, output="untold"), end=at(4))
    pairs, untold = answer()[0], answer("untold")[0]
    assert {row[1:] for row in pairs - untold if None not in row} == {(8, 108)}, "they came with the restart"
