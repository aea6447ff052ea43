"""Tests of time columns, their conversion to microseconds, and key columns."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.config import TimeColumn
from tidemark.sources.resolution import open_inputs
from tidemark.timegrid.time_columns import ResolvedTimeColumn, as_example_json, floor_div, parse_example_json

NOON = datetime(2024, 1, 2, 12, 0, 0, 123456, tzinfo=UTC)
MICROS = 1_704_196_800_123_456


@pytest.mark.parametrize(
    ("dtype", "unit", "value", "micros"),
    [
        ("timestamp", None, NOON, MICROS),
        ("timestamp_ntz", None, NOON.replace(tzinfo=None), MICROS),
        ("date", None, date(2024, 1, 2), MICROS - 43_200_123_456),
        ("int", "s", 1_704_196_800, 1_704_196_800_000_000),
        ("bigint", "ms", -1, -1000),
        ("bigint", "us", MICROS, MICROS),
        ("bigint", "ns", MICROS * 1000 + 999, MICROS),
        ("bigint", "ns", -1, -1),
        ("bigint", "ns", 10_000 - 2**63, -9_223_372_036_854_766),
        ("bigint", "ms", 2**62, None),
        ("tinyint", "s", -1, -1_000_000),
        ("decimal(20,6)", "s", Decimal("1704196800.123456"), MICROS),
        ("decimal(20,10)", "s", Decimal("-0.0000000001"), -1),
        ("decimal(38,18)", "s", Decimal("1704196800.999999999999999999"), 1_704_196_800_999_999),
        ("decimal(38,18)", "ns", Decimal("999.999999999999999999"), 0),
        ("decimal(38,9)", "us", Decimal("0.999999999"), 0),
        ("double", "s", 1704196800.5, 1_704_196_800_500_000),
        ("double", "s", 1.15, 1_150_000),
        ("double", "s", 3599.9999999999995, 3_600_000_000),
        ("double", "ns", 1e300, None),
        ("double", "s", float("nan"), None),
        ("double", "s", float("inf"), None),
        ("bigint", "s", 2**62, None),
    ],
)
def test_resolved_time_column_converts_each_type_to_microseconds(spark, dtype, unit, value, micros):
    table = spark.createDataFrame([(value,)], f"`a.b` {dtype}")

    clock = ResolvedTimeColumn.from_config(TimeColumn(column="a.b", unit=unit), table.schema, "input t")

    assert table.select(clock.micros.alias("m")).first()["m"] == micros
    assert clock.convert_value(value) == micros
    assert table.select(F.unix_micros(F.expr(clock.sql_timestamp))).first()[0] == micros
    if micros is not None:
        ranges = ((micros, micros + 1), (micros - 5, micros))
        is_between = [F.coalesce(clock.is_between(start, end), F.lit(False)) for start, end in ranges]
        assert table.select(*is_between).first()[:2] == (True, False)


def test_floor_div_rounds_down_and_is_exact(spark):
    values = [-(2**63), -(2**62) - 1, -3, -1, 0, 2, 3, 2**62 + 1, 2**63 - 1]
    rows = spark.createDataFrame([(v,) for v in values], "v long").select(floor_div(F.col("v"), 3).alias("q"))
    assert [row["q"] for row in rows.collect()] == [v // 3 for v in values]


def test_example_json_has_microseconds_where_there_are_any(spark):
    whole, local = NOON.replace(microsecond=123000), NOON.replace(tzinfo=None)
    rows = spark.createDataFrame(
        [(NOON, whole, local, "12:00:00.123000Z", None)], "a timestamp, b timestamp, c timestamp_ntz, d string, e int"
    )

    text = rows.select(as_example_json(F.struct("*"))).first()[0]

    assert parse_example_json(text, rows.schema) == {
        "a": "2024-01-02T12:00:00.123456Z",
        "b": "2024-01-02T12:00:00.123Z",
        "c": "2024-01-02T12:00:00.123456",
        "d": "12:00:00.123000Z",
    }


@pytest.mark.parametrize("dtype", ["int", "string", "decimal(10,2)", "date", "binary", "struct<a: int, `b.c`: string>"])
def test_open_inputs_accepts_keys_of_any_comparable_type(spark, lake, pipeline, dtype):
    schema = f"k {dtype}, happened timestamp, arrived timestamp"
    for table in ("left", "right"):
        spark.createDataFrame([], schema).write.format("delta").save(str(lake / table))

    left, right = open_inputs(spark, pipeline(), str(lake))

    assert left.side.keys == right.side.keys


def test_open_inputs_numeric_keys_are_cast_to_the_common_type(spark, lake, pipeline):
    for table, dtype in (("left", "int"), ("right", "decimal(12,2)")):
        rows = spark.createDataFrame([], f"k {dtype}, happened timestamp, arrived timestamp")
        rows.write.format("delta").save(str(lake / table))

    left, _ = open_inputs(spark, pipeline(), str(lake))

    assert isinstance(left.side.keys[0][1], T.DecimalType)
