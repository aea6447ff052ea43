"""Expectations proposed by what rows hold, and held by those rows."""

import math
from datetime import UTC, datetime
from decimal import Decimal

import pytest
import yaml
from pyspark.sql import functions as F

from tidemark.config import Expectation
from tidemark.quality.gx.batched_engine import evaluate_units
from tidemark.quality.gx.expectations import build_expectation
from tidemark.quality.profiling import format_yaml_block, profile_emissions, propose_expectations

SCHEMA = """
    left_k string, left_v int, right_x double, right_y double, always string, sometimes string, many string,
    good boolean, never int, `dotted.v` decimal(9,2), nested struct<a: int>, at timestamp, _slice timestamp
"""


@pytest.fixture(scope="module")
def emissions(spark):
    """Forty rows in three slices, of 10, 20 and 10."""
    rows = []
    for n in range(40):
        slice_ = datetime(2024, 1, 1, [0, 1, 1, 2][n // 10], tzinfo=UTC)
        half, null = (None if n % 4 == 0 else "x"), None
        x, y = n * 1.37 - 20, math.nan if n == 7 else 1.0
        rows.append(
            ("abc"[n % 3], 1000 + n, x, y, "one", half, f"text {n}", n % 2 == 0, null, Decimal(n), (n,), slice_, slice_)
        )
    return spark.createDataFrame(rows, SCHEMA)


@pytest.fixture(scope="module")
def seen(emissions):
    return profile_emissions(emissions)


def test_what_rows_hold_is_proposed(seen):
    told = {(one["type"], one.get("column")): one for one in propose_expectations(seen)}
    between, known = "expect_column_values_to_be_between", "expect_column_values_to_be_in_set"
    not_null = "expect_column_values_to_not_be_null"
    count = told["expect_table_row_count_to_be_between", None]
    assert (count["min_value"], count["max_value"]) == (5, 40)
    assert told[known, "left_k"]["value_set"] == ["a", "b", "c"]
    assert told[known, "good"]["value_set"] == [False, True]
    assert (known, "many") not in told
    assert [told[between, "left_v"][name] for name in ("min_value", "max_value")] == [1000, 1100]
    assert [told[between, "right_x"][name] for name in ("min_value", "max_value")] == [-20, 34]
    assert (between, "right_y") not in told, "a value is no number, which no bounds would hold"
    assert "mostly" not in told[not_null, "left_v"]
    assert told[not_null, "sometimes"]["mostly"] == 0.7
    assert not [name for name in told if name[1] in {"never", "nested", "_slice"}]
    assert {one["severity"] for one in told.values()} == {"warning"}


def test_the_block_is_yaml_that_a_pipeline_file_may_have_and_the_rows_meet_it(emissions, seen):
    pasted = yaml.safe_load(format_yaml_block(seen))["quality"]
    assert pasted == propose_expectations(seen)
    expected = [build_expectation(Expectation.model_validate(one)) for one in pasted]
    [told] = evaluate_units(emissions, F.lit(0), [0], expected).by_unit.values()
    assert [one.failed for one in told] == [None] * len(pasted)


def test_of_no_rows_nothing_is_proposed(emissions):
    assert profile_emissions(emissions.limit(0)) is None
