"""What the side output says of late rows."""

from datetime import UTC, datetime

import pytest
from pyspark.sql import functions as F

from tidemark.execution import late_row_matches
from tidemark.execution.run import execute
from tidemark.planning.plan import Request, create_plan

ROW = "k string, happened timestamp, arrived timestamp, v int"


def at(hour, minute=0):
    return datetime(2024, 1, 1, hour, minute, tzinfo=UTC)


@pytest.mark.parametrize(("per_job", "few"), [("auto", late_row_matches.FEW), (1, 0)])
def test_whether_a_late_row_would_have_matched(spark, lake, pipeline, write, monkeypatch, per_job, few):
    monkeypatch.setattr(late_row_matches, "FEW", few)  # with 0 late rows and the other input are shuffled to meet
    # The watermarks stand at 5:00 (right) and 4:50 (left) when the late rows come.
    write("left", [("z", at(5), at(5), 0), ("a", at(2), at(6), 1), ("b", at(2), at(6), 2), ("a", at(4), at(6), 3)], ROW)
    rights = [("a", at(1, 45), at(2), 4), ("b", at(1), at(2), 5), ("z", at(5), at(5, 1), 6), ("a", at(4), at(6, 1), 7)]
    write("right", rights, ROW)
    plan = create_plan(spark, pipeline(), str(lake), Request(slices_per_job=per_job))
    list(execute(spark, plan, lambda *_: None))
    late = spark.read.format("delta").load(plan.tables.late)
    found = late.select(F.coalesce("left.v", "right.v").alias("v"), "reason", "would_match").collect()
    assert {row["v"]: (row["reason"], row["would_match"]) for row in found} == {
        1: ("late", True),
        2: ("late", False),  # its key's only row is an hour before it
        3: ("late", False),  # its partner came after it
        7: ("late", True),
    }
