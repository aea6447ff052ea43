"""Distinguish rows and keys that differ in little."""

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import functions as F

from tidemark.execution.run import execute
from tidemark.ledger.row_content import content_hash
from tidemark.ledger.state_fingerprint import row_hash
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.timegrid.time_columns import as_json

AT = datetime(2024, 1, 1, 0, 10, tzinfo=UTC)
ROW = "k string, happened timestamp, u timestamp, m map<string, timestamp>, n int, o int"


def add_micros(count):
    return AT + timedelta(microseconds=count)


def row(key, u=AT, m=None, n=None, o=None):
    return (key, AT, u, m, n, o)


EARLIER, LATER = add_micros(100_001), add_micros(100_002)
MATCHED = [row("time", u=EARLIER), row("map", m={"x": EARLIER}), row("null", n=5), row("null in a map", m={"x": None})]
PADDED = [row("time", u=LATER), row("map", m={"x": LATER}), row("null", o=5), row("null in a map", m={})]
RIGHT = [row("time", u=EARLIER), row("map", u=EARLIER), row("null", n=5), row("null in a map")]
CONDITIONS = {
    "time": "left_u = right_u",
    "map": "left_m['x'] = right_u",
    "null": "left_n = right_n",
    "null in a map": "size(left_m) = 1",
}


def test_equal_rows_with_other_condition_value_are_matched_separately(spark, lake, pipeline, write):
    write("left", MATCHED + PADDED, ROW)
    write("right", RIGHT, ROW)
    times = {"event_time": "happened", "watermark_delay": "0 seconds"}
    settings = pipeline(
        dialect="flink-sql",
        left={"table": "left", **times},
        right={"table": "right", **times},
        join={
            "type": "left",
            "keys": ["k"],
            "interval": {"lower": "0 seconds", "upper": "0 seconds"},
            "condition": " OR ".join(f"(left_k = '{key}' AND {condition})" for key, condition in CONDITIONS.items()),
        },
    )
    plan = create_plan(spark, settings, str(lake), Request(drain=True))
    list(execute(spark, plan, lambda *_: None))
    emitted = spark.read.format("delta").load(plan.tables.emissions)
    for emission, rows in (("matched", MATCHED), ("padded_left", PADDED)):
        emitted_rows = emitted.where(F.col("_emission") == emission)
        expected = spark.createDataFrame(rows, ROW)
        actual = emitted_rows.select(*(F.col(f"left_{name}").alias(name) for name in expected.columns))
        assert sorted(map(str, actual.collect())) == sorted(map(str, expected.collect())), emission


def test_keys_with_microsecond_difference_are_distinct(spark):
    rows = spark.createDataFrame([(add_micros(0), None), (add_micros(1), None)], "key_0 timestamp, key_1 int")
    for dtype in ("timestamp", "timestamp_ntz"):
        texts = rows.select(as_json(F.struct(F.col("key_0").cast(dtype), "key_1"))).distinct()
        assert texts.count() == 2, dtype


def test_content_hash_of_maps_with_nested_keys_is_deterministic(spark):
    """Spark's JSON of a binary, array or struct key contains its address in memory."""
    rows = spark.sql(
        "SELECT "
        "array(struct(map(X'01', 1) AS `a.b`)) AS binary, map(array(1, null), 1) AS array, "
        "map(named_struct('b', X'01'), map(X'02', null)) AS struct "
        "UNION ALL SELECT array(struct(map(X'02', 1) AS `a.b`)), map(array(1, 0), 1), "
        "map(named_struct('b', X'01'), map(X'03', null)) "
        "UNION ALL SELECT array(null), null, map(named_struct('b', X'01'), null)"
    )
    actual = [
        [row[0] for row in rows.select(content_hash(rows, [name])).collect()] for name in rows.columns for _ in range(2)
    ]
    assert actual[::2] == actual[1::2]
    assert [len({*hashes}) for hashes in actual] == [3] * len(actual)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("5 AS a, CAST(NULL AS INT) AS b", "CAST(NULL AS INT) AS a, 5 AS b"),
        ("named_struct('a', 5, 'b', CAST(NULL AS INT)) AS v", "named_struct('a', CAST(NULL AS INT), 'b', 5) AS v"),
        ("array('a', NULL) AS v", "array('a') AS v"),
        ("array(array(1), array(2)) AS v", "array(array(1, 2)) AS v"),
        ("array('x') AS a, array('y') AS b", "array('x', 'y') AS a, CAST(array() AS ARRAY<STRING>) AS b"),
        ("array(named_struct('a', 1, 'b', CAST(NULL AS INT))) AS v", "array(named_struct('a', NULL, 'b', 1)) AS v"),
    ],
)
def test_hashes_of_values_in_other_fields_and_elements_differ(spark, one, other):
    rows = spark.sql(f"SELECT {one}").unionByName(spark.sql(f"SELECT {other}"))
    nested = rows.select(F.struct("*").alias("left"))

    for hashed, names in ((rows, rows.columns), (nested, ["left"])):
        hashes = hashed.select(content_hash(hashed, names), row_hash(hashed, names))
        assert [len({*values}) for values in zip(*hashes.collect(), strict=True)] == [2, 2]


def test_row_hash_does_not_change_by_null_columns_and_fields(spark):
    before = spark.sql("SELECT 'a' AS k, named_struct('v', 1) AS left, array(named_struct('v', 1)) AS items")
    after = spark.sql(
        "SELECT 'a' AS k, named_struct('v', 1, 'new', CAST(NULL AS STRING)) AS left, NULL AS right, "
        "array(named_struct('v', 1, 'new', CAST(NULL AS STRING))) AS items"
    )

    hashes = {rows.select(row_hash(rows, rows.columns)).first() for rows in (before, after)}
    assert len(hashes) == 1
