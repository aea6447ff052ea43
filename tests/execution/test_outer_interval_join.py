"""Outer interval joins of flink-sql whose rows on time are joined by Spark's outer join, in large and small jobs."""

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from tidemark.execution.run import execute
from tidemark.planning.planner import create_plan
from tidemark.planning.replay_strategy import DEFAULT_LIMITS, ReplayLimits
from tidemark.planning.request import Request
from tidemark.spark.error_redaction import find_row_error

ROW = "k string, happened timestamp, n int, slice int, column_0 int, s struct<column_0: int>, list array<int>"
CONDITION = "LEFT_N / right_s.column_0 > 1 AND exists(left_list, x -> x = right_slice) AND left_column_0 < right_n + 1"
SIZES = {"small": DEFAULT_LIMITS, "large": ReplayLimits(max_cached_rows=0)}


def row(minute, n, partner, key="a"):
    """Return a row. A left row matches right rows whose `n` is its `partner`, as long as its own `n` is greater than
    their `partner`, by which it is divided."""
    return (key, datetime(2024, 1, 1, minute // 60, minute % 60, tzinfo=UTC), n, n, 0, (partner,), [partner])


@pytest.fixture
def run_join(spark, lake, pipeline, write):
    def run(lefts, rights, limits, **join):
        for side, rows in (("left", lefts), ("right", rights)):
            write(side, rows, ROW)
        times = {"event_time": "happened", "watermark_delay": "1 minute"}
        interval = {"lower": "0 seconds", "upper": "20 minutes"}
        settings = pipeline(
            dialect="flink-sql",
            left={"table": "left", **times},
            right={"table": "right", **times},
            join={"keys": ["k"], "interval": interval, **join},
            select={"l": "left_n", "r": "right_n"},
        )
        plan = replace(create_plan(spark, settings, str(lake), Request(drain=True)), replay_limits=limits)
        list(execute(spark, plan, lambda *_: None))
        emitted = spark.read.format("delta").load(plan.tables.emissions)
        return Counter(map(tuple, emitted.select("_emission", "l", "r").collect()))

    return run


@pytest.mark.parametrize("size", SIZES)
def test_full_join_pads_rows_without_match(run_join, size):
    """The condition names columns as Tidemark's own, and fails for rows outside the bounds and for none within."""
    lefts = [row(10, 4, 2), row(10, 4, 2), row(10, 6, 9), row(70, 8, 3), row(10, 5, 2, key=None)]
    rights = [row(20, 2, 2), row(35, 2, 0), row(75, 3, 2), row(75, 3, 2), row(100, 7, 1), row(20, 2, 2, key=None)]

    emitted = run_join(lefts, rights, SIZES[size], type="full", condition=CONDITION)

    matched = {("matched", 4, 2): 2, ("matched", 8, 3): 2}
    padded_left = {("padded_left", 6, None): 1, ("padded_left", 5, None): 1}
    padded_right = {("padded_right", None, 2): 2, ("padded_right", None, 7): 1}
    assert emitted == {**matched, **padded_left, **padded_right}


@pytest.mark.parametrize("hours", [1, 3])
@pytest.mark.parametrize("size", SIZES)
def test_join_with_empty_bounds_pads_all_rows(run_join, size, hours):
    """No row is cached. A large job selects all rows for the state, also in the slice in which the input ends."""
    lefts = rights = [row(minute, 1, 1) for minute in range(0, 60 * hours, 5)]
    bounds = {"lower": "0 seconds", "upper": "0 seconds", "upper_inclusive": False}

    emitted = run_join(lefts, rights, SIZES[size], type="full", interval=bounds)

    assert emitted == {("padded_left", 1, None): len(lefts), ("padded_right", None, 1): len(rights)}


def test_condition_that_fails_on_a_row_is_named_as_in_the_file(run_join):
    condition = "left_n / right_s.column_0 > 1"
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO") as failure:
        run_join([row(10, 1, 1)], [row(20, 1, 0)], DEFAULT_LIMITS, type="left", condition=condition)

    message = find_row_error(failure.value)
    assert message == "left_n / right_s.column_0 fails on a row: DIVIDE_BY_ZERO"
