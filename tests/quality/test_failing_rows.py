"""Rows marked as failing an expectation are the rows that Great Expectations counts as unexpected."""

import random
from collections import Counter

import pytest
from pyspark.sql import functions as F

from tests.quality.test_batched_engine import create_expectation, with_slice_column
from tidemark.config.allowed_expectations import CROSS_ROW_EXPECTATIONS, ROW_EXPECTATIONS
from tidemark.quality.gx import batched_engine
from tidemark.quality.gx.failing_rows import mark_failing_rows, select_failing_rows
from tidemark.quality.quarantine import FAILED_EXPECTATIONS_COLUMN


@pytest.fixture
def rows(spark):
    """Two units with random rows of the same values, so that mixing up units would change a result."""
    chance = random.Random(7)
    values = [
        (unit, *(chance.choice([None, *range(40)]) for _ in range(2)), chance.choice([None, "x0", "x1", "y", "2013"]))
        for unit in (0, 1)
        for _ in range(30)
    ]
    return with_slice_column(spark.createDataFrame(values, "unit int, n int, m int, s string")).localCheckpoint()


FAST_CASES = {"expect_column_value_z_scores_to_be_less_than", "expect_multicolumn_sum_to_equal", "rows"}


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[] if name in FAST_CASES else pytest.mark.slow) for name in sorted(ROW_EXPECTATIONS)
])  # fmt: skip
def test_mark_failing_rows_count_equals_unexpected_count_per_unit(rows, name):
    expectation = create_expectation(name, **({"row_condition": "m > 9"} if name == "rows" else {}))
    by_unit = {unit: [(name, expectation)] for unit in (0, 1)}

    with mark_failing_rows(rows, F.col("unit").cast("long"), by_unit) as marked:
        failing = marked.where(F.col(FAILED_EXPECTATIONS_COLUMN).isNotNull())
        counts = Counter(row["unit"] for row in failing.collect())

    for unit in (0, 1):
        [result] = batched_engine.evaluate_rows(rows.where(F.col("unit") == unit), [expectation])
        assert counts[unit] == result.result["unexpected_count"]


def test_mark_failing_rows_evaluates_each_unit_separately(rows):
    between = "expect_column_values_to_be_between"
    unique = "expect_column_values_to_be_unique"
    expectations = {name: create_expectation(name) for name in (between, *sorted(CROSS_ROW_EXPECTATIONS))}
    by_unit = {0: [*expectations.items()], 1: [*expectations.items()][1:]}

    with mark_failing_rows(rows, F.col("unit").cast("long"), by_unit) as marked:
        counts = Counter(
            (row["unit"], name) for row in marked.collect() for name in row[FAILED_EXPECTATIONS_COLUMN] or ()
        )
        assert marked.count() == rows.count()

    for unit in (0, 1):
        unit_rows = rows.where(F.col("unit") == unit)
        expected = {
            name: select_failing_rows(unit_rows, expectation).count() for name, expectation in expectations.items()
        }
        assert expected.pop(unique) == counts[unit, unique] > 0
        assert counts[unit, between] == (0 if unit else expected[between]), "only the first unit has this expectation"
        del expected[between]
        assert {name: counts[unit, name] for name in expected} == expected
