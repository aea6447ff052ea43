"""What Spark makes of a condition: what it asks of one side, and where a null cannot meet it."""

import pytest
from pyspark.sql import types as T

from tidemark.config.sides import SIDES
from tidemark.joins.condition import Condition

ROW = T.StructType([T.StructField("v", T.LongType()), T.StructField("w", T.LongType())])


@pytest.mark.parametrize(
    ("text", "left", "right"),
    [
        ("left_v <> right_v", {"v"}, {"v"}),
        ("left_v + left_w > right_v", {"v", "w"}, {"v"}),
        ("left_v <> right_v AND left_w < right_w", {"v", "w"}, {"v", "w"}),
        ("coalesce(left_v, 0) <> right_v", set(), {"v"}),
        ("left_v <=> right_v", set(), set()),
        ("left_v > 1", set(), set()),
    ],
)
def test_a_live_query_drops_a_null_with_which_no_pair_can_be(spark, text, left, right):
    found = Condition.parse(spark, text, dict.fromkeys(SIDES, ROW))
    told = {side: str(found.not_null[side]) for side in SIDES}
    for side, names in {"left": left, "right": right}.items():
        assert {name for name in ("v", "w") if f"{side}_{name}" in told[side]} == names
