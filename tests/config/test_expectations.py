"""Expectations that a pipeline file may have, checked against Great Expectations itself."""

import math

import pytest
from pydantic import ValidationError

from tidemark.config import Expectation
from tidemark.config.allowed_expectations import ALLOWED_ARGUMENTS, check_expectation
from tidemark.errors import PipelineFileError
from tidemark.quality.gx.expectations import build_expectation, get_expectation_name
from tidemark.quality.gx.project import import_gx
from tidemark.quality.gx.result_parsing import get_name

BETWEEN, IN_SET = "expect_column_values_to_be_between", "expect_column_values_to_be_in_set"
REFUSED = {
    "query": ("expect_query_results_to_match_comparison", {"base_query": "SELECT 1"}, "outside the output"),
    "rows": ("unexpected_rows_expectation", {"unexpected_rows_query": "SELECT 1"}, "runs SQL. Write {type: rows"),
    "table": ("expect_table_row_count_to_equal_other_table", {"other_table_name": "x"}, "outside the output"),
    "schema": ("expect_column_values_to_match_json_schema", {"json_schema": {}}, "fetches references of a schema"),
    "unknown": ("expect_column_values_to_be_betwen", {}, f"Did you mean {BETWEEN}?"),
    "condition": (
        BETWEEN,
        {"column": "c", "row_condition": "reflect('a', 'b')"},
        "row_condition: reflect() calls Java",
    ),
    "condition object": (BETWEEN, {"column": "c", "row_condition": {"type": "and"}}, "row_condition is not text"),
    "condition of columns": (
        "expect_column_to_exist",
        {"column": "c", "row_condition": "c > 1"},
        "row_condition is not an argument",
    ),
    "parser": (BETWEEN, {"column": "c", "condition_parser": "spark"}, "condition_parser is not needed"),
    "rule": ("rows", {"that": "(SELECT 1) = 1"}, "that: a subquery reads other tables"),
    "rule of the clock": ("rows", {"that": "left_t < current_date"}, "that: current_date returns the time"),
    "rule that is a list": ("rows", {"that": ["left_v > 1"]}, "that is not text"),
    "rule without a condition": ("rows", {"mostly": 0.9}, "that is missing"),
    "no column": (BETWEEN, {"max_value": 1}, "column is missing. Name a column, such as column: left_amount."),
    "swapped bounds": (
        BETWEEN,
        {"column": "c", "min_value": 5, "max_value": 1},
        "min_value (5) is above max_value (1). Swap them.",
    ),
    "share": (
        BETWEEN,
        {"column": "c", "max_value": 1, "mostly": 95},
        "mostly (95) is not a share of rows. Write a number",
    ),
    "no bounds": (BETWEEN, {"column": "c", "min_value": None}, "has no bounds, so it always passes"),
    "bound that is no number": (BETWEEN, {"column": "c", "max_value": math.nan}, "max_value (nan) is not a finite"),
    "bound that is true": (BETWEEN, {"column": "c", "max_value": True}, "max_value (True) is not a finite number"),
    "null in a set": (
        IN_SET,
        {"column": "c", "value_set": ["a", None]},
        "value_set has null, which Great",
    ),
    "null for a set": (IN_SET, {"column": "c", "value_set": None}, "value_set is missing. Add it."),
    "NaN as a value": (
        "expect_table_row_count_to_equal",
        {"value": math.nan},
        "value (nan) is not a finite number",
    ),
    "empty set": (IN_SET, {"column": "c", "value_set": []}, "value_set is empty. Write at least one value."),
    "no set": (IN_SET, {"column": "c"}, "value_set is missing. Add it."),
    "pattern of LIKE": (
        "expect_column_values_to_match_like_pattern",
        {"column": "c", "like_pattern": "x%"},
        "does not exist for Spark in Great Expectations. Write {type: rows, that: left_a LIKE 'x%'}.",
    ),
    "format": (BETWEEN, {"column": "c", "result_format": "COMPLETE"}, "result_format selects which rows are shown"),
    "exceptions": (BETWEEN, {"column": "c", "catch_exceptions": False}, "would hide errors"),
    "description": (
        BETWEEN,
        {"column": "c", "description": "<script>"},
        "description replaces the generated description",
    ),
    "windows": (BETWEEN, {"column": "c", "windows": []}, "windows is not an argument. Available: column, max_value"),
    "parameter": (BETWEEN, {"column": "c", "max_value": {"$PARAMETER": "now()"}}, "max_value is not a value or a"),
    "nested": ("expect_column_values_to_be_in_set", {"column": "c", "value_set": [{"$PARAMETER": "x"}]}, "a list of"),
    "ranges": ("expect_column_quantile_values_to_be_between", {"quantile_ranges": {"$PARAMETER": "x"}}, "a list of"),
}


@pytest.mark.parametrize(("name", "arguments", "message"), REFUSED.values(), ids=REFUSED)
def test_check_expectation_refused_type_or_argument_raises_a_single_line(name, arguments, message):
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - its text is compared
        check_expectation(name, arguments)
    assert message in str(raised.value)
    assert str(raised.value).startswith(name)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"type": "expect_table_row_count_to_equal", "value": 1}, "this type does not validate single rows"),
        (
            {"type": "expect_column_values_to_be_of_type", "column": "c", "type_": "IntegerType"},
            "does not validate single rows",
        ),
        (
            {"type": BETWEEN, "column": "c", "max_value": 1, "per": "job"},
            "needs the emissions of a slice, not per job. Remove on",
        ),
        (
            {"type": BETWEEN, "column": "c", "max_value": 1, "on": "late"},
            "needs the emissions of a slice, not on late. Remove on",
        ),
    ],
)
def test_expectation_quarantine_of_other_rows_raises(settings, message):
    with pytest.raises(ValidationError, match=message):
        Expectation.model_validate({**settings, "on_failure": "quarantine"})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"column": "rows", "max_value": 1, "per": "day"}, "on: history supports only expect_column_values_to_be_"),
        (
            {"type": "expect_column_max_to_be_between", "column": "rows", "max_value": 1},
            "on: history supports only expect_column_va",
        ),
        (
            {"column": "rows", "max_value": 1, "mostly": 0.9},
            "on: history does not support mostly. Use column, min_value",
        ),
        ({"column": "row", "max_value": 1}, "on: history has no column row. Choose one of rows, left_rows"),
        (
            {"column": "equal_share_vs_baseline", "min_value": 1},
            "on: history has no column equal_share_vs_baseline. Choose one of",
        ),
        (
            {"column": "rows", "max_value": 1, "row_condition": "rows > 1"},
            "on: history does not support row_condition. Use column, min_value",
        ),
        ({"column": "rows_vs_baseline", "max_value": "x"}, "on: history needs numbers as bounds"),
        ({"column": "c", "max_value": 1, "on": "left", "per": "day"}, "on: left is evaluated before the join, per"),
    ],
)
def test_expectation_unsupported_scope_raises(settings, message):
    with pytest.raises(ValidationError, match=message):
        Expectation.model_validate({"type": BETWEEN, "on": "history", **settings})


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "stop"),
        ({"severity": "warning"}, "warn"),
        ({"severity": "warning", "on_failure": "stop"}, "stop"),
        ({"severity": "critical", "on_failure": "quarantine"}, "quarantine"),
    ],
)
def test_expectation_on_failure_defaults_by_severity(settings, expected):
    assert Expectation.model_validate({BETWEEN: {"column": "c", "max_value": 1, **settings}}).on_failure == expected


def test_row_rule_is_named_by_its_condition_in_results():
    rule = {"type": "rows", "that": "left_v < 3\n  OR left_k = '<b>'", "row_condition": "right_v > 1", "mostly": 0.9}
    settings = Expectation.model_validate({**rule, "on_failure": "quarantine"})

    config = build_expectation(settings).configuration.to_json_dict()

    name = "rows(mostly 0.9, row_condition right_v > 1, that left_v < 3 OR left_k = '<b>')"
    assert get_expectation_name(settings) == get_name(config) == name
    assert config["description"] == (
        "If right_v > 1, then rows must meet left_v < 3 OR left_k = '<b>', at least 90 % of the time."
    )


def test_allowed_arguments_exist_in_great_expectations():
    implementation = import_gx().expectations.registry.get_expectation_impl
    assert {
        name for name, arguments in ALLOWED_ARGUMENTS.items() if arguments - set(implementation(name).__fields__)
    } == set()


def test_check_expectation_values_and_lists_of_values_are_allowed():
    ranges = {"quantiles": [0.1, 0.9], "value_ranges": [[0, 1], [8, None]]}
    check_expectation("expect_column_quantile_values_to_be_between", {"column": "c", "quantile_ranges": ranges})
    check_expectation(
        "expect_column_pair_values_to_be_in_set",
        {"column_A": "a", "column_B": "b", "value_pairs_set": [[1, "x"], [2, None]]},
    )


def test_notes_and_meta_are_in_results():
    texts = {"notes": ["a", "b"], "meta": {"owner": "c", "since": 2024}}
    settings = {"type": BETWEEN, "column": "c", "min_value": 1}
    config = build_expectation(Expectation.model_validate(settings | texts)).configuration.to_json_dict()

    assert config["notes"] == ["a", "b"]
    assert texts["meta"].items() <= config["meta"].items()
    with pytest.raises(ValidationError, match="such as tidemark_looks_at, are reserved"):
        Expectation.model_validate({**settings, "meta": {"tidemark_looks_at": "x"}})


def test_build_expectation_invalid_argument_names_argument_and_problem():
    expectation = Expectation(type="expect_table_row_count_to_be_between", min_value="a")
    with pytest.raises(PipelineFileError, match=r"_be_between: min_value: value is not a valid integer$"):
        build_expectation(expectation)
