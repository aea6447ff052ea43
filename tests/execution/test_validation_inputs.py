"""Rows of inputs that the quality gate validates."""

from types import SimpleNamespace

from pyspark.sql import types as T

from tidemark.config import Expectation
from tidemark.config.local_days import DAY_MICROS
from tidemark.config.sides import SIDES
from tidemark.execution.validation_inputs import collect_input_rows
from tidemark.planning.row_conditions import check_row_conditions
from tidemark.timegrid.slices import Grid

SCHEMA = "side string, slice long, rejected string, left struct<k: string, `a.b`: int, _SLICE: timestamp>, "


def test_collect_input_rows_of_input_with_own_slice_have_the_slice_of_the_job(spark):
    rows = spark.createDataFrame([], SCHEMA + "right struct<_slice: string>")
    spec = SimpleNamespace(plan=SimpleNamespace(grid=Grid(0, DAY_MICROS)), slices=range(1))

    collected = collect_input_rows(spec, rows)

    assert [collected.tables[side].columns for side in SIDES] == [["_slice", "k", "a.b"], ["_slice"]]
    assert collected.tables["right"].schema["_slice"].dataType == T.TimestampType()


def test_check_row_conditions_on_input_with_own_slice_accepts_slice(spark):
    expectation = {"type": "expect_column_values_to_not_be_null", "column": "k", "on": "left"}
    condition = Expectation(**expectation, row_condition="_slice > '2024-01-01' AND k <> 'a'")
    schema = T._parse_datatype_string("k string, _Slice string")

    check_row_conditions(spark, SimpleNamespace(quality=[condition]), schema, dict.fromkeys(SIDES, schema))
