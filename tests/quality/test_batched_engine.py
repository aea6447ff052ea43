"""Results of many units computed by few queries equal those of Great Expectations on the rows of each unit."""

import os
import random
from types import SimpleNamespace

import pytest
from pyspark.sql import functions as F

from tidemark.config import Expectation
from tidemark.config.allowed_expectations import ALLOWED_ARGUMENTS
from tidemark.quality.gx import batched_engine
from tidemark.quality.gx.expectations import build_expectation
from tidemark.quality.gx.result_parsing import parse_measurements

UNITS = int(os.environ.get("TIDEMARK_UNITS", "2"))
EMPTY = -1
NUMBERS = {
    "column": "n", "column_A": "n", "column_B": "m", "column_list": ["n", "m"], "column_set": ["unit", "n", "m", "s"],
    "mostly": 0.8, "value_set": [1, 2, 3], "min_value": 1, "max_value": 28, "value": 3, "threshold": 1.5,
    "method": "iqr", "multiplier": 1.5, "type_": "IntegerType", "type_list": ["IntegerType", "LongType"],
    "that": "n < 30 OR s = 'x0'", "value_pairs_set": [[1, 1], [2, 2]], "sum_total": 10,
    "quantile_ranges": {"quantiles": [0.1, 0.5], "value_ranges": [[0, 5], [1, 20]]},
}  # fmt: skip
CONDITIONED = {
    "expect_column_median_to_be_between", "expect_column_sum_to_be_between", "expect_column_values_to_be_unique",
    "expect_multicolumn_sum_to_equal", "rows",
}  # fmt: skip
"""Expectations that are also evaluated on the rows of a condition, one of each kind of metric."""
TEXTS = {
    "column": "s", "mostly": 0.8, "min_value": 1, "max_value": 2, "value": 2,
    "regex": "x[01]", "regex_list": ["x0", "x1"], "strftime_format": "%Y",
}  # fmt: skip
TEXT_WORDS = ("regex", "lengths", "strftime", "json")
EVALUATED_PER_UNIT = {
    "column_value_z_scores", "column_values_to_be_decreasing", "column_values_to_be_increasing",
    "column_values_to_not_be_outliers",
}  # fmt: skip
"""Expectations that need the rows of each unit, by the beginning of their names."""


def create_expectation(name, **further):
    values = TEXTS if any(word in name for word in TEXT_WORDS) else NUMBERS
    arguments = {argument: values[argument] for argument in ALLOWED_ARGUMENTS[name] if argument in values}
    if "z_scores" in name:
        arguments["double_sided"] = True
    return build_expectation(Expectation(type=name, kwargs=arguments | further))


def with_slice_column(frame):
    """Add the column that all rows of a job have."""
    return frame.withColumn("_slice", F.lit(0).cast("timestamp"))


def normalize_result(result):
    """Return the parts of a result that do not depend on the engine that computed it."""
    error = result.exception_info if "exception_message" in result.exception_info else "several"
    return result.expectation_config.type, result.result, error


@pytest.mark.grid
def test_evaluate_units_results_equal_those_of_each_units_rows(spark, capsys):
    chance = random.Random(7)
    rows = [
        (unit, *(chance.choice([None, *range(40)]) for _ in range(2)), chance.choice([None, "x0", "x1", "y", "2013"]))
        for unit in range(UNITS)
        for _ in range(chance.randrange(1, 40))
    ]
    frame = with_slice_column(spark.createDataFrame(rows, "unit int, n int, m int, s string")).localCheckpoint()
    expectations = [create_expectation(name) for name in ALLOWED_ARGUMENTS]
    expectations += [create_expectation(name, row_condition="m > 9 OR s IS NULL") for name in sorted(CONDITIONED)]
    for name, arguments in (
        ("expect_column_max_to_be_between", {"column": "nowhere", "max_value": 1}),
        ("expect_column_values_to_match_regex", {"column": "s", "regex": "("}),
    ):
        expectations.append(build_expectation(Expectation(type=name, kwargs=arguments)))

    batch = batched_engine.evaluate_units(frame, F.col("unit").cast("long"), [*range(UNITS), EMPTY], expectations)

    for unit, unit_results in batch.by_unit.items():
        gx_results = batched_engine.evaluate_rows(frame.where(F.col("unit") == unit), expectations)
        failed = [normalize_result(result.failed) for result in unit_results if result.failed]
        assert failed == [normalize_result(result) for result in gx_results if not result.success]
        created = batch.create_results(unit, expectations)
        assert [normalize_result(result) for result in created] == [normalize_result(result) for result in gx_results]
        measurements = [
            (measurement.value, measurement.passed) for measurement in parse_measurements(gx_results, expectations)
        ]
        assert [(result.value, result.failed is None) for result in unit_results] == measurements
    assert any(result.failed for result in batch.by_unit[EMPTY])
    assert sum(result.failed is not None for result in batch.by_unit[0]) > len(expectations) / 3
    assert sum(result.value is not None for result in batch.by_unit[0]) > len(expectations) * 2 / 3
    assert "Calculating Metrics" not in capsys.readouterr().err


def test_evaluate_units_evaluates_few_expectations_per_unit(spark, monkeypatch):
    frame = with_slice_column(spark.createDataFrame([(0, 1, 1, "x0")], "unit int, n int, m int, s string"))
    per_unit, passed = [], SimpleNamespace(success=True, result={})

    def evaluate_rows(_, expectations):
        per_unit.extend(expectations)
        return [passed] * len(expectations)

    monkeypatch.setattr(batched_engine, "evaluate_rows", evaluate_rows)

    batched_engine.evaluate_units(
        frame,
        F.col("unit").cast("long"),
        [0],
        [create_expectation(name) for name in ALLOWED_ARGUMENTS]
        + [create_expectation(name, row_condition="m > 0") for name in sorted(CONDITIONED)],
    )

    names = {expectation.configuration.type.removeprefix("expect_") for expectation in per_unit}
    assert all(any(name.startswith(part) for part in EVALUATED_PER_UNIT) for name in names), names
    assert len(names) == 4
