"""Parse join conditions and find the columns of each side in which a null cannot satisfy them."""

import pytest
from pyspark.sql import types as T

from tidemark.config.sides import SIDES
from tidemark.joins.condition import Condition
from tidemark.spark import jvm
from tidemark.spark.dataframe_utils import with_columns
from tidemark.spark.temporary_settings import FILTER_INFERENCE_SETTINGS

TYPE = "STRUCT<v: BIGINT, w: BIGINT>"
ROW = T.StructType([T.StructField("v", T.LongType()), T.StructField("w", T.LongType())])


@pytest.mark.parametrize(
    ("expression", "left", "right"),
    [
        ("left_v <> right_v", {"v"}, {"v"}),
        ("left_v + left_w > right_v", {"v", "w"}, {"v"}),
        ("left_v <> right_v AND left_w < right_w", {"v", "w"}, {"v", "w"}),
        ("coalesce(left_v, 0) <> right_v", set(), {"v"}),
        ("left_v <=> right_v", set(), set()),
        ("left_v > 1", set(), set()),
    ],
)
def test_condition_not_null_columns_are_those_that_reject_nulls(spark, expression, left, right):
    condition = Condition.parse(spark, expression, dict.fromkeys(SIDES, ROW))
    predicates = {side: str(condition.not_null[side]) for side in SIDES}
    for side, names in {"left": left, "right": right}.items():
        assert {name for name in ("v", "w") if f"{side}_{name}" in predicates[side]} == names


def test_condition_parse_leaves_settings_of_session_that_threads_share(spark, monkeypatch):
    [(setting, inferring)] = FILTER_INFERENCE_SETTINGS.items()
    settings, analyze_filter = [], jvm.analyze_filter

    def analyze_and_record(rows, condition):
        settings.append((spark.conf.get(setting), rows.sparkSession.conf.get(setting)))
        return analyze_filter(rows, condition)

    monkeypatch.setattr(jvm, "analyze_filter", analyze_and_record)
    Condition.parse(spark, "left_v <> right_v AND left_w < right_w", dict.fromkeys(SIDES, ROW))

    assert settings == [("false", inferring)] * 2
    assert spark.getActiveSession()._jsparkSession.equals(spark._jsparkSession)


@pytest.mark.parametrize(
    ("expression", "filters", "left", "right"),
    [
        ("left_v = 1", {}, {1, 2, 3}, {1}),
        ("right_w = 1 AND left_w = 1", {}, {1, 2, 3}, {1, 2, 3}),
        ("left_v < right_w", {}, {1, 2, 3}, {1, 2}),
        ("left_v = 1 OR left_w = 1", {}, {1, 2, 3}, {1, 2, 3}),
        (None, {"left": "V > 1 AND w > 7"}, {1, 2, 3}, {2, 3}),
        (None, {"right": "v BETWEEN 2 AND 3"}, {2, 3}, {1, 2, 3}),
        ("left_v > 1", {"right": "v <> 3"}, {1, 2}, {2, 3}),
    ],
)
def test_condition_inferred_from_equal_keys_is_that_of_spark(spark, expression, filters, left, right):
    """The rows of a side have these values of the key `v`; `w` is 3 in all."""
    condition = Condition.parse(spark, expression, dict.fromkeys(SIDES, ROW), [("v", "v"), ("lower(w)", "w")], filters)
    for side, expected in {"left": left, "right": right}.items():
        absent = "right" if side == "left" else "left"
        row = f"named_struct('v', id, 'w', 3L) AS {side}, CAST(NULL AS {TYPE}) AS {absent}"
        rows = spark.sql(f"SELECT {row} FROM range(1, 4)")
        read = rows.transform(with_columns, condition.columns_of_single_rows())
        assert {row[side]["v"] for row in read.where(condition.inferred[side]).collect()} == expected
