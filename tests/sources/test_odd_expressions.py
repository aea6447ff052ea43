"""Conditions and output columns that are spelt in ways that Spark takes and few expect."""

from datetime import UTC, datetime

import polars as pl
import pytest
from deltalake import DeltaTable

from tidemark.execution.run import execute
from tidemark.formatting import quoted
from tidemark.planning.plan import Request, make_plan

ODD = ("a b", "a,b", "a(b)", "a[b]", "a{b}=c;d", "a\tb\nc", "a.b", "`a`")
"""Names that plain Parquet has not always taken."""
INTS = ", ".join(f"{quoted(name)} int" for name in ODD)
COLUMNS = f"k string, happened timestamp, {INTS}, s struct<{INTS.replace('` int', '`: int')}>"


def at(hour, minute):
    return datetime(2024, 1, 1, hour, minute, tzinfo=UTC)


@pytest.fixture
def inputs(spark, lake):
    numbers = (*range(len(ODD)),)
    for side, minutes in (("left", (10, 70)), ("right", (20, 80))):
        path = f"{lake}/{side}"
        spark.sql(
            f"CREATE TABLE delta.`{path}` ({COLUMNS}) USING delta TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
        )
        rows = [("a", at(minute // 60, minute % 60), *numbers, numbers) for minute in minutes]
        spark.createDataFrame(rows, COLUMNS).coalesce(1).write.format("delta").mode("append").save(path)


@pytest.fixture
def settings(pipeline):
    def make(**changes):
        times = {"watermark_delay": "0 seconds"}
        defaults = {
            "dialect": "flink-sql",
            "left": {"table": "left", "event_time": "happened", **times},
            "right": {"table": "right", "event_time": "happened", **times},
            "join": {"keys": ["k", "a b"], "interval": {"lower": "0 seconds", "upper": "20 minutes"}},
        }
        return pipeline(**{**defaults, **changes})

    return make


def test_names_with_any_character_are_carried_and_emitted(spark, lake, inputs, settings):
    """Also of the output; and a column by an input's name that is something else is not judged as the input's."""
    select = {
        **{f"left {name}": quoted(f"left_{name}") for name in ODD},
        "left_k": "CAST(NULL AS STRING)",
        "left_happened": "timestamp'1999-01-01'",
        "right_s": "right_s",
    }
    one = settings(
        select=select, join__condition="LEFT_S.`a b` = Right_s.`A B` AND `Left_a,b` <= `RIGHT_a,B`", join__type="left"
    )
    for hour in (1, 2):
        plan = make_plan(spark, one, str(lake), Request(end=at(hour, 0), drain=hour == 2))
        list(execute(spark, plan, lambda *_: None))
    emitted = spark.read.format("delta").load(plan.tables.emissions).collect()
    assert [row["_emission"] for row in emitted] == ["matched"] * 2
    assert [[row[f"left {name}"] for name in ODD] for row in emitted] == [[*range(len(ODD))]] * 2
    assert [row["right_s"].asDict() for row in emitted] == [dict(zip(ODD, range(len(ODD)), strict=True))] * 2
    assert {(row["left_k"], row["left_happened"].year) for row in emitted} == {(None, 1999)}
    all_columns = settings(output="all")
    plan = make_plan(spark, all_columns, str(lake), Request(end=at(1, 0)))
    list(execute(spark, plan, lambda *_: None))
    path = plan.tables.emissions
    for read in (
        pl.read_delta(path).to_dicts(),
        DeltaTable(path).to_pyarrow_table().to_pylist(),
        spark.read.format("delta").load(path).collect(),
    ):
        assert [[row[f"left_{name}"] for name in ODD] for row in read] == [[*range(len(ODD))]]
