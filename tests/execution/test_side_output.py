"""The side output records for each late row if it would have matched."""

from datetime import UTC, datetime

import pytest
from pyspark.sql import functions as F

from tidemark.execution import late_row_matches
from tidemark.execution.run import execute
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request

ROW = "k string, happened timestamp, arrived timestamp, v int"


def at(hour, minute=0):
    return datetime(2024, 1, 1, hour, minute, tzinfo=UTC)


@pytest.mark.parametrize(("per_job", "max_broadcast_rows"), [("auto", late_row_matches.MAX_BROADCAST_ROWS), (1, 0)])
def test_would_match_finds_match_of_late_row(spark, lake, pipeline, write, monkeypatch, per_job, max_broadcast_rows):
    monkeypatch.setattr(late_row_matches, "MAX_BROADCAST_ROWS", max_broadcast_rows)  # 0 forces a shuffle join
    # The watermarks are at 5:00 (right) and 4:50 (left) when the late rows arrive.
    left_rows = [
        ("z", at(5), at(5), 0),
        ("a", at(2), at(6), 1),
        ("b", at(2), at(6), 2),
        ("a", at(4), at(6), 3),
        ("c", at(0), at(6), 8),
    ]
    write("left", left_rows, ROW)
    right_rows = [
        ("a", at(1, 45), at(2), 4),
        ("b", at(1), at(2), 5),
        ("z", at(5), at(5, 1), 6),
        ("a", at(4), at(6, 1), 7),
        ("c", at(0), datetime(2023, 12, 31, 23, 55, tzinfo=UTC), 9),
    ]
    write("right", right_rows, ROW)
    plan = create_plan(spark, pipeline(), str(lake), Request(slices_per_job=per_job))
    list(execute(spark, plan, lambda *_: None))
    late = spark.read.format("delta").load(plan.tables.late)
    rows = late.select(F.coalesce("left.v", "right.v").alias("v"), "reason", "would_match").collect()

    assert {row["v"]: (row["reason"], row["would_match"]) for row in rows} == {
        1: ("late", True),
        2: ("late", False),  # the only row of its key is an hour earlier
        3: ("late", False),  # its match arrived later
        7: ("late", True),
        8: ("late", False),  # its match arrived before the first slice
    }
