"""The rows that are taken out for an expectation are those that Great Expectations counts as breaking it."""

import random
from collections import Counter

import pytest
from pyspark.sql import functions as F

from tests.quality.test_units import expectation
from tidemark.config.allowed_expectations import CROSS_ROW_EXPECTATIONS, ROW_EXPECTATIONS
from tidemark.quality.gx import batched_engine
from tidemark.quality.gx.failing_rows import mark_failing_rows, select_failing_rows
from tidemark.quality.quarantine import FAILED_EXPECTATIONS_COLUMN


@pytest.fixture
def rows(spark):
    """Two units of the same random rows and some more, so that what one has of the other would be found."""
    chance = random.Random(7)
    told = [
        (unit, *(chance.choice([None, *range(40)]) for _ in range(2)), chance.choice([None, "x0", "x1", "y", "2013"]))
        for unit in (0, 1)
        for _ in range(30)
    ]
    return spark.createDataFrame(told, "unit int, n int, m int, s string").localCheckpoint()


FEW = {"expect_column_value_z_scores_to_be_less_than", "expect_multicolumn_sum_to_equal"}


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[] if name in FEW else pytest.mark.slow) for name in sorted(ROW_EXPECTATIONS)
])  # fmt: skip
def test_as_many_rows_of_each_unit_as_its_result_counts(rows, name):
    asked = expectation(name)
    with mark_failing_rows(rows, F.col("unit").cast("long"), {unit: [(name, asked)] for unit in (0, 1)}) as told:
        found = Counter(row["unit"] for row in told.where(F.col(FAILED_EXPECTATIONS_COLUMN).isNotNull()).collect())
    for unit in (0, 1):
        [result] = batched_engine.evaluate_rows(rows.where(F.col("unit") == unit), [asked])
        assert found[unit] == result.result["unexpected_count"]


def test_rows_of_a_unit_are_judged_among_themselves(rows):
    between = "expect_column_values_to_be_between"
    asked = {name: expectation(name) for name in (between, *sorted(CROSS_ROW_EXPECTATIONS))}
    with mark_failing_rows(rows, F.col("unit").cast("long"), {0: [*asked.items()], 1: [*asked.items()][1:]}) as told:
        found = Counter((row["unit"], name) for row in told.collect() for name in row[FAILED_EXPECTATIONS_COLUMN] or ())
        assert told.count() == rows.count()
    for unit in (0, 1):
        alone = rows.where(F.col("unit") == unit)
        expected = {name: select_failing_rows(alone, one).count() for name, one in asked.items()}
        assert expected.pop("expect_column_values_to_be_unique") == found[unit, "expect_column_values_to_be_unique"] > 0
        assert found[unit, between] == (0 if unit else expected[between]), "it was asked of the first alone"
        del expected[between]
        assert {name: found[unit, name] for name in expected} == expected
