"""Verdicts on many units by a few queries are those that Great Expectations has on the rows of each unit."""

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
    "value_pairs_set": [[1, 1], [2, 2]], "sum_total": 10,
    "quantile_ranges": {"quantiles": [0.1, 0.5], "value_ranges": [[0, 5], [1, 20]]},
}  # fmt: skip
TEXTS = {
    "column": "s", "mostly": 0.8, "min_value": 1, "max_value": 2, "value": 2,
    "regex": "x[01]", "regex_list": ["x0", "x1"], "strftime_format": "%Y",
    "like_pattern": "x%", "like_pattern_list": ["x%", "y%"],
}  # fmt: skip
OF_TEXTS = ("regex", "like", "lengths", "strftime", "dateutil", "json")
FROM_ROWS = {
    "column_value_z_scores", "column_values_to_be_dateutil_parseable", "column_values_to_be_decreasing",
    "column_values_to_be_increasing", "column_values_to_match_like", "column_values_to_not_be_outliers",
    "column_values_to_not_match_like",
}  # fmt: skip
"""What is judged on the rows of each unit, by the beginning of its name."""


def expectation(name):
    values = TEXTS if any(word in name for word in OF_TEXTS) else NUMBERS
    given = {argument: values[argument] for argument in ALLOWED_ARGUMENTS[name] if argument in values}
    if "z_scores" in name:
        given["double_sided"] = True
    return build_expectation(Expectation(type=name, kwargs=given))


def told(result):
    """Of a result what does not tell where it was computed."""
    raised = result.exception_info if "exception_message" in result.exception_info else "several"
    return result.expectation_config.type, result.result, raised


@pytest.mark.grid
def test_every_expectation_is_judged_as_on_the_rows_of_its_unit(spark):
    chance = random.Random(7)
    rows = [
        (unit, *(chance.choice([None, *range(40)]) for _ in range(2)), chance.choice([None, "x0", "x1", "y", "2013"]))
        for unit in range(UNITS)
        for _ in range(chance.randrange(1, 40))
    ]
    frame = spark.createDataFrame(rows, "unit int, n int, m int, s string").localCheckpoint()
    asked = [expectation(name) for name in ALLOWED_ARGUMENTS]
    asked.append(
        build_expectation(
            Expectation(type="expect_column_max_to_be_between", kwargs={"column": "nowhere", "max_value": 1})
        )
    )
    asked.append(
        build_expectation(Expectation(type="expect_column_values_to_match_regex", kwargs={"column": "s", "regex": "("}))
    )
    found = batched_engine.evaluate_units(frame, F.col("unit").cast("long"), [*range(UNITS), EMPTY], asked)
    for unit, judged in found.by_unit.items():
        alone = batched_engine.evaluate_rows(frame.where(F.col("unit") == unit), asked)
        assert [told(one.failed) for one in judged if one.failed] == [told(one) for one in alone if not one.success]
        assert [told(one) for one in found.create_results(unit, asked)] == [told(one) for one in alone]
        measures = parse_measurements(alone, asked)
        assert [(one.value, one.failed is None) for one in judged] == [(one.value, one.passed) for one in measures]
    assert any(one.failed for one in found.by_unit[EMPTY])
    assert sum(one.failed is not None for one in found.by_unit[0]) > len(asked) / 3
    assert sum(one.value is not None for one in found.by_unit[0]) > len(asked) * 2 / 3


def test_what_one_query_can_tell_is_not_asked_of_each_unit(spark, monkeypatch):
    frame = spark.createDataFrame([(0, 1, 1, "x0")], "unit int, n int, m int, s string")
    apart, held = [], SimpleNamespace(success=True, result={})
    monkeypatch.setattr(batched_engine, "evaluate_rows", lambda _, these: apart.extend(these) or [held] * len(these))
    batched_engine.evaluate_units(
        frame, F.col("unit").cast("long"), [0], [expectation(name) for name in ALLOWED_ARGUMENTS]
    )
    names = {one.configuration.type.removeprefix("expect_") for one in apart}
    assert all(any(name.startswith(part) for part in FROM_ROWS) for name in names), names
    assert len(names) == 9
