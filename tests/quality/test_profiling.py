"""Expectations proposed from a profile of rows, which the same rows meet."""

import math
from dataclasses import replace
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
    """Create forty rows in three slices of 10, 20 and 10 rows."""
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
def profile(emissions):
    return profile_emissions(emissions, 3)


def test_propose_expectations_follows_values_of_rows(emissions, profile):
    between, in_set = "expect_column_values_to_be_between", "expect_column_values_to_be_in_set"
    not_null = "expect_column_values_to_not_be_null"

    proposed = {(proposal["type"], proposal.get("column")): proposal for proposal in propose_expectations(profile)}

    count = proposed["expect_table_row_count_to_be_between", None]
    assert (count["min_value"], count["max_value"]) == (5, 40)
    assert proposed[in_set, "left_k"]["value_set"] == ["a", "b", "c"]
    assert proposed[in_set, "good"]["value_set"] == [False, True]
    assert (in_set, "many") not in proposed
    assert [proposed[between, "left_v"][name] for name in ("min_value", "max_value")] == [1000, 1100]
    assert [proposed[between, "right_x"][name] for name in ("min_value", "max_value")] == [-20, 34]
    assert (between, "right_y") not in proposed, "NaN is within no bounds"
    assert "mostly" not in proposed[not_null, "left_v"]
    assert proposed[not_null, "sometimes"]["mostly"] == 0.7
    assert not [name for name in proposed if name[1] in {"never", "nested", "_slice"}]
    assert {proposal["severity"] for proposal in proposed.values()} == {"warning"}
    with_empty_slice = propose_expectations(replace(profile_emissions(emissions.select("_slice"), 4), columns=()))
    assert [proposal["min_value"] for proposal in with_empty_slice] == [0]


def test_format_yaml_block_is_valid_in_a_pipeline_file_and_rows_pass(emissions, profile):
    block = yaml.safe_load(format_yaml_block(profile))["quality"]
    assert block == propose_expectations(profile)

    expectations = [build_expectation(Expectation.model_validate(item)) for item in block]
    [results] = evaluate_units(emissions, F.lit(0), [0], expectations).by_unit.values()

    assert [result.failed for result in results] == [None] * len(block)


def test_format_yaml_block_for_a_file_with_quality_has_items_only(profile):
    file = "quality:\n  - {type: expect_column_to_exist, column: left_k}\n"

    block = format_yaml_block(profile, has_quality=True)

    assert yaml.safe_load(file + block)["quality"][1:] == propose_expectations(profile)
    assert yaml.safe_load(block) == propose_expectations(profile)


def test_profile_emissions_without_rows_returns_none(emissions):
    assert profile_emissions(emissions.limit(0), 3) is None
