"""Random expectations on random slices: results do not depend on how many slices a job evaluates."""

import math
import os
import random
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from pyspark.sql import functions as F

from tests.quality.test_batched_engine import EVALUATED_PER_UNIT, with_slice_column
from tidemark.config import Expectation
from tidemark.config.allowed_expectations import ALLOWED_ARGUMENTS
from tidemark.errors import PipelineFileError
from tidemark.quality.gx import batched_engine
from tidemark.quality.gx.expectations import build_expectation

EXAMPLES = int(os.environ.get("TIDEMARK_EXAMPLES", "1000")) // 10
"""Pairs of a slice and an expectation; Great Expectations evaluates each on the slice's rows, too."""
SLICES, EXPECTATIONS = 5, 20
SCHEMA = "unit int, n int, m int, d double, s string, t timestamp, b boolean"
COLUMNS = {
    "n": [None, *range(-3, 9)],
    "m": [None, 0, 1, 2],
    "d": [None, float("nan"), float("inf"), -0.0, 0.0, *(k / 4 for k in range(-8, 9))],
    "s": [None, "", "x0", "x1", "y", "2013", '{"a": 1}', "x0 "],
    "t": [None, *(datetime.fromtimestamp(k * 86_400, UTC) for k in range(3))],
    "b": [None, True, False],
}
NAMES = [
    name
    for name in ALLOWED_ARGUMENTS
    if not any(name.removeprefix("expect_").startswith(part) for part in EVALUATED_PER_UNIT)
]


def create_rows(chance, unit):
    """Create a slice: empty, of one row, of equal rows, with null or constant columns, or of any values."""
    count = chance.choice([0, 1, 2, 3, 10, 40])
    columns = {}
    for name, values in COLUMNS.items():
        few = chance.sample(values, chance.choice([1, 2, len(values)]))
        columns[name] = [chance.choice(few) for _ in range(count)]
    return [(unit, *row) for row in zip(*columns.values(), strict=True)]


def create_arguments(chance, name):
    column = chance.choice(list(COLUMNS)) if chance.random() < 0.2 else chance.choice(
        ["s"] if any(word in name for word in ("regex", "lengths", "strftime", "json")) else ["n", "m", "d", "n"]
    )  # fmt: skip
    values = [value for value in COLUMNS[column] if isinstance(value, int | float | str)] or [1]
    low = chance.choice([None, -1, 0, 1, 2, 0.5])
    quantiles = sorted(chance.sample([0.0, 0.01, 0.1, 0.25, 0.5, 1 / 3, 0.75, 0.9, 1.0], 2))
    several = chance.sample(["n", "m", "d"], chance.choice([2, 3]))
    sides = chance.sample(["n", "m", "d"], 2)
    ignored = ["both_values_are_missing", "either_value_is_missing", "neither"]
    if "column_list" in ALLOWED_ARGUMENTS[name]:
        ignored = ["all_values_are_missing", "any_value_is_missing", "never"]
    arguments = {
        "column": column, "column_A": sides[0], "column_B": sides[1], "column_list": several, "column_set": several,
        "mostly": chance.choice([1.0, 0.9, 0.5, 0.0]), "min_value": low, "max_value": chance.choice([low, 2, 10, 40]),
        "strict_min": chance.random() < 0.3, "strict_max": chance.random() < 0.3, "value": chance.choice([0, 1, 10]),
        "value_set": chance.sample(values, min(len(values), chance.choice([1, 3, 20]))),
        "ties_okay": chance.random() < 0.5, "ignore_row_if": chance.choice(ignored), "or_equal": chance.random() < 0.5,
        "value_pairs_set": [[chance.choice([0, 1, 2]) for _ in range(2)] for _ in range(3)],
        "sum_total": chance.choice([0, 1, 3]), "exact_match": chance.random() < 0.5, "strftime_format": "%Y",
        "regex": chance.choice(["x[01]$", "^$", "x"]), "regex_list": ["x0", "^x"],
        "match_on": chance.choice(["any", "all"]),
        "type_": chance.choice(["IntegerType", "DoubleType"]), "type_list": ["IntegerType", "StringType"],
        "that": chance.choice(["n >= m", "s = 'x0' OR d IS NULL", "b", "NOT b AND n > 0"]),
        "row_condition": chance.choice([None, None, "n > 0", "s <> 'y' OR m IS NULL", "false"]),
        "quantile_ranges": {"quantiles": quantiles, "value_ranges": [[low, 2], [0, chance.choice([1, 4, None])]]},
    }  # fmt: skip
    return {key: value for key, value in arguments.items() if key in ALLOWED_ARGUMENTS[name] and value is not None}


def create_expectation(chance):
    while True:
        name = chance.choice(NAMES)
        try:
            return build_expectation(Expectation(type=name, kwargs=create_arguments(chance, name)))
        except (ValueError, PipelineFileError):  # as no bound at all
            continue


def normalize_result(result):
    """Return the parts of a unit's result that do not depend on the order in which fractions are added up."""
    if result.failed is None:
        return round_floats(result.value), None
    is_error = "exception_message" not in result.failed.exception_info
    return round_floats(result.value), "raised" if is_error else round_floats(result.failed.result)


def round_floats(value):
    """Round all floats of a JSON value to 9 digits."""
    if isinstance(value, dict):
        return {key: round_floats(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [round_floats(item) for item in value]
    if isinstance(value, float):
        return "nan" if math.isnan(value) else float(f"{value:.9g}")
    return value


@pytest.mark.grid
@pytest.mark.parametrize("seed", range(-(-EXAMPLES // (SLICES * EXPECTATIONS))))
def test_evaluate_units_any_job_size_gives_results_of_single_slices(spark, seed):
    chance = random.Random(seed)
    rows = [row for unit in range(SLICES) for row in create_rows(chance, unit)]
    frame = with_slice_column(spark.createDataFrame(rows, SCHEMA)).localCheckpoint()
    expectations = [create_expectation(chance) for _ in range(EXPECTATIONS)]
    cuts = sorted({0, chance.randrange(SLICES), SLICES})

    for first, stop in pairwise(cuts):
        job = frame.where(F.col("unit").between(first, stop - 1))
        batch = batched_engine.evaluate_units(job, F.col("unit").cast("long"), range(first, stop), expectations)

        for unit in range(first, stop):
            gx_results = batched_engine.evaluate_rows(frame.where(F.col("unit") == unit), expectations)
            for expectation, result, gx_result in zip(expectations, batch.by_unit[unit], gx_results, strict=True):
                expected = normalize_result(batched_engine.UnitResult.from_gx(gx_result))
                assert normalize_result(result) == expected, (seed, unit, expectation.configuration)
