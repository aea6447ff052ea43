"""Rows that agree in nearly all are two rows still."""

from datetime import UTC, datetime, timedelta

from pyspark.sql import functions as F

from tidemark.execution.run import execute
from tidemark.ledger.state_fingerprint import content_hash
from tidemark.planning.plan import Request, make_plan
from tidemark.timegrid.time_columns import as_json

AT = datetime(2024, 1, 1, 0, 10, tzinfo=UTC)
ROW = "k string, happened timestamp, u timestamp, m map<string, timestamp>, n int, o int"


def microseconds(count):
    return AT + timedelta(microseconds=count)


def row(key, u=AT, m=None, n=None, o=None):
    return (key, AT, u, m, n, o)


ONE, OTHER = microseconds(100_001), microseconds(100_002)
MATCHED = [row("time", u=ONE), row("map", m={"x": ONE}), row("null", n=5), row("null in a map", m={"x": None})]
PADDED = [row("time", u=OTHER), row("map", m={"x": OTHER}), row("null", o=5), row("null in a map", m={})]
RIGHT = [row("time", u=ONE), row("map", u=ONE), row("null", n=5), row("null in a map")]
SAME = {
    "time": "left_u = right_u",
    "map": "left_m['x'] = right_u",
    "null": "left_n = right_n",
    "null in a map": "size(left_m) = 1",
}


def test_rows_that_a_condition_tells_apart_are_each_matched_or_padded(spark, lake, pipeline, write):
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
            "condition": " OR ".join(f"(left_k = '{key}' AND {same})" for key, same in SAME.items()),
        },
    )
    plan = make_plan(spark, settings, str(lake), Request(drain=True))
    list(execute(spark, plan, lambda *_: None))
    emitted = spark.read.format("delta").load(plan.tables.emissions)
    for emission, rows in (("matched", MATCHED), ("padded_left", PADDED)):
        mine = emitted.where(F.col("_emission") == emission)
        expected = spark.createDataFrame(rows, ROW)
        found = mine.select(*(F.col(f"left_{name}").alias(name) for name in expected.columns))
        assert sorted(map(str, found.collect())) == sorted(map(str, expected.collect())), emission


def test_keys_a_microsecond_apart_are_two_keys(spark):
    rows = spark.createDataFrame([(microseconds(0), None), (microseconds(1), None)], "key_0 timestamp, key_1 int")
    for kind in ("timestamp", "timestamp_ntz"):
        texts = rows.select(as_json(F.struct(F.col("key_0").cast(kind), "key_1"))).distinct()
        assert texts.count() == 2, kind


def test_maps_with_keys_that_json_has_no_text_of_are_the_same_in_each_run(spark):
    """Spark's JSON has the place in memory of a key that is binary, an array or a struct."""
    rows = spark.sql(
        "SELECT "
        "array(struct(map(X'01', 1) AS `a.b`)) AS binary, map(array(1, null), 1) AS array, "
        "map(named_struct('b', X'01'), map(X'02', null)) AS struct "
        "UNION ALL SELECT array(struct(map(X'02', 1) AS `a.b`)), map(array(1, 0), 1), "
        "map(named_struct('b', X'01'), map(X'03', null)) "
        "UNION ALL SELECT array(null), null, map(named_struct('b', X'01'), null)"
    )
    found = [
        [row[0] for row in rows.select(content_hash(rows, [name])).collect()] for name in rows.columns for _ in range(2)
    ]
    assert found[::2] == found[1::2]
    assert [len({*hashes}) for hashes in found] == [3] * len(found)
