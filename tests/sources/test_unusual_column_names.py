"""Use column names with special characters in conditions and output."""

from datetime import UTC, datetime

import polars as pl
import pytest
from deltalake import DeltaTable

from tidemark.checkpoints.checkpoint_ref import CheckpointRef
from tidemark.checkpoints.copy import copy_checkpoint
from tidemark.execution.run import execute
from tidemark.formatting import quote_identifier
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.streaming.export import export_checkpoint
from tidemark.streaming.live_query import LiveQueryPaths, run_live_query

NAMES = ("a b", "a,b", "a(b)", "a[b]", "a{b}=c;d", "a\tb\nc", "a.b", "`a`")
"""Names that plain Parquet did not always support."""
INT_COLUMNS = ", ".join(f"{quote_identifier(name)} int" for name in NAMES)
COLUMNS = f"k string, happened timestamp, {INT_COLUMNS}, s struct<{INT_COLUMNS.replace('` int', '`: int')}>"


def at(hour, minute):
    return datetime(2024, 1, 1, hour, minute, tzinfo=UTC)


@pytest.fixture
def inputs(spark, lake):
    numbers = (*range(len(NAMES)),)
    for side, minutes in (("left", (10, 70)), ("right", (20, 80))):
        path = f"{lake}/{side}"
        spark.sql(
            f"CREATE TABLE delta.`{path}` ({COLUMNS}) USING delta TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
        )
        rows = [("a", at(minute // 60, minute % 60), *numbers, numbers) for minute in minutes]
        spark.createDataFrame(rows, COLUMNS).coalesce(1).write.format("delta").mode("append").save(path)


@pytest.fixture
def create_settings(pipeline):
    def create(**changes):
        times = {"watermark_delay": "0 seconds"}
        defaults = {
            "dialect": "flink-sql",
            "left": {"table": "left", "event_time": "happened", **times},
            "right": {"table": "right", "event_time": "happened", **times},
            "join": {"keys": ["k", "a b"], "interval": {"lower": "0 seconds", "upper": "20 minutes"}},
        }
        return pipeline(**{**defaults, **changes})

    return create


def test_column_names_with_special_characters_are_carried_and_emitted(spark, lake, inputs, create_settings):
    """Also test output columns that reuse names of input columns with other values."""
    select = {
        **{f"left {name}": quote_identifier(f"left_{name}") for name in NAMES},
        "left_k": "CAST(NULL AS STRING)",
        "left_happened": "timestamp'1999-01-01'",
        "right_s": "right_s",
    }
    with_select = create_settings(
        select=select, join__condition="LEFT_S.`a b` = Right_s.`A B` AND `Left_a,b` <= `RIGHT_a,B`", join__type="left"
    )
    for hour in (1, 2):
        plan = create_plan(spark, with_select, str(lake), Request(end=at(hour, 0), drain=hour == 2))
        list(execute(spark, plan, lambda *_: None))
    emitted = spark.read.format("delta").load(plan.tables.emissions).collect()

    assert [row["_emission"] for row in emitted] == ["matched"] * 2
    assert [[row[f"left {name}"] for name in NAMES] for row in emitted] == [[*range(len(NAMES))]] * 2
    assert [row["right_s"].asDict() for row in emitted] == [dict(zip(NAMES, range(len(NAMES)), strict=True))] * 2
    assert {(row["left_k"], row["left_happened"].year) for row in emitted} == {(None, 1999)}

    all_columns = create_settings(output="all")
    plan = create_plan(spark, all_columns, str(lake), Request(end=at(1, 0)))
    list(execute(spark, plan, lambda *_: None))
    path = plan.tables.emissions
    for rows_read in (
        pl.read_delta(path).to_dicts(),
        DeltaTable(path).to_pyarrow_table().to_pylist(),
        spark.read.format("delta").load(path).collect(),
    ):
        assert [[row[f"left_{name}"] for name in NAMES] for row in rows_read] == [[*range(len(NAMES))]]


def test_column_names_with_special_characters_in_live_query_and_checkpoint(
    spark, lake, inputs, create_settings, tmp_path
):
    settings = create_settings(dialect="spark")
    paths = LiveQueryPaths.from_pipeline(settings, str(lake), None, None)
    result = run_live_query(spark, settings, str(lake), paths, "slice", lambda *_: None)
    joined = spark.read.format("delta").load(result.table).collect()
    assert [[row[f"left_{name}"] for name in NAMES] for row in joined] == [[*range(len(NAMES))]] * 2

    list(execute(spark, create_plan(spark, settings, str(lake), Request(end=at(2, 0))), lambda *_: None))
    checkpoint = CheckpointRef.from_ledger(spark, settings, str(lake))
    copied = copy_checkpoint(checkpoint, "copy")
    exported = export_checkpoint(checkpoint, str(tmp_path / "export"))
    assert copied.left_rows == exported.left > 0
    copied_rows = spark.read.format("delta").load(copied.table).where("side = 'left'").select("left.*").collect()
    exported_rows = spark.read.format("delta").load(f"{exported.folder}/left").collect()
    for row in (*copied_rows, exported_rows[0]):
        assert [row[name] for name in NAMES] == [*range(len(NAMES))]
