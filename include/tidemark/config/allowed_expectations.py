"""Check which Great Expectations types and arguments a pipeline file may use.

Allowed expectations compare the output with values in the file, or by SQL that is confined like `where` of an input.
Types and arguments that run other SQL, read other tables or fetch resources are refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import date, time
from difflib import get_close_matches
from typing import Any

from tidemark.config.allowed_functions import InputColumns, split_words
from tidemark.config.expressions import check_expression
from tidemark.errors import suggest_name

ROWS = "rows"
"""Expectation that the SQL condition `that` is true in each row. Great Expectations has none of its own with `mostly`
(`quality.gx.row_rules`)."""
_BOUNDS = "min_value max_value strict_min strict_max"
_ARGUMENTS = {
    "column": "expect_column_to_exist",
    "column mostly": """
        expect_column_values_to_be_json_parseable expect_column_values_to_be_null expect_column_values_to_be_unique
        expect_column_values_to_not_be_null""",
    "column mostly strictly": "expect_column_values_to_be_decreasing expect_column_values_to_be_increasing",
    "column value_set": """
        expect_column_distinct_values_to_be_in_set expect_column_distinct_values_to_contain_set
        expect_column_distinct_values_to_equal_set""",
    "column value_set ties_okay": "expect_column_most_common_value_to_be_in_set",
    "column mostly value_set": "expect_column_values_to_be_in_set expect_column_values_to_not_be_in_set",
    f"column {_BOUNDS}": """
        expect_column_max_to_be_between expect_column_mean_to_be_between expect_column_median_to_be_between
        expect_column_min_to_be_between expect_column_proportion_of_non_null_values_to_be_between
        expect_column_proportion_of_unique_values_to_be_between expect_column_stdev_to_be_between
        expect_column_sum_to_be_between expect_column_unique_value_count_to_be_between""",
    f"column mostly {_BOUNDS}": "expect_column_value_lengths_to_be_between expect_column_values_to_be_between",
    "column mostly value": "expect_column_value_lengths_to_equal",
    "column mostly threshold double_sided": "expect_column_value_z_scores_to_be_less_than",
    "column mostly method multiplier": "expect_column_values_to_not_be_outliers",
    "column quantile_ranges allow_relative_error": "expect_column_quantile_values_to_be_between",
    "column mostly type_": "expect_column_values_to_be_of_type",
    "column type_": "expect_column_type_to_be",
    "column mostly type_list": "expect_column_values_to_be_in_type_list",
    "column mostly regex": "expect_column_values_to_match_regex expect_column_values_to_not_match_regex",
    "column mostly regex_list match_on": "expect_column_values_to_match_regex_list",
    "column mostly regex_list": "expect_column_values_to_not_match_regex_list",
    "column mostly strftime_format": "expect_column_values_to_match_strftime_format",
    "column_A column_B mostly ignore_row_if": "expect_column_pair_values_to_be_equal",
    "column_A column_B mostly ignore_row_if or_equal": "expect_column_pair_values_a_to_be_greater_than_b",
    "column_A column_B mostly ignore_row_if value_pairs_set": "expect_column_pair_values_to_be_in_set",
    "column_list mostly ignore_row_if": """
        expect_compound_columns_to_be_unique expect_multicolumn_values_to_be_equal
        expect_select_column_values_to_be_unique_within_record""",
    "column_list mostly ignore_row_if sum_total": "expect_multicolumn_sum_to_equal",
    "column_list": "expect_table_columns_to_match_ordered_list",
    "column_set exact_match": "expect_table_columns_to_match_set",
    "min_value max_value": "expect_table_column_count_to_be_between",
    _BOUNDS: "expect_table_row_count_to_be_between",
    "value": "expect_table_column_count_to_equal expect_table_row_count_to_equal",
    "that mostly": ROWS,
}
_ON_COLUMNS = split_words(
    """
    expect_column_to_exist expect_column_type_to_be expect_table_column_count_to_be_between
    expect_table_column_count_to_equal expect_table_columns_to_match_ordered_list expect_table_columns_to_match_set
    """
)
"""Expectations that read no rows, so that a condition on rows has no effect."""


def _list_arguments(name: str, arguments: str) -> frozenset[str]:
    return split_words(arguments if name in _ON_COLUMNS else f"{arguments} row_condition")


ALLOWED_ARGUMENTS: Mapping[str, frozenset[str]] = dict(
    sorted(
        (name, _list_arguments(name, arguments)) for arguments, names in _ARGUMENTS.items() for name in names.split()
    )
)
"""Arguments of each allowed expectation type."""
SQL_ARGUMENTS = ("that", "row_condition")
"""Arguments that are SQL conditions over the columns of a row."""

_NOT_ROW_EXPECTATIONS = {
    "expect_column_values_to_be_of_type",  # validates the column
    "expect_column_values_to_be_in_type_list",
    "expect_column_values_to_be_decreasing",  # rows have no order
    "expect_column_values_to_be_increasing",
}
ROW_EXPECTATIONS = (
    frozenset(name for name, arguments in ALLOWED_ARGUMENTS.items() if "mostly" in arguments) - _NOT_ROW_EXPECTATIONS
)
"""Expectation types that each row passes or fails."""
CROSS_ROW_EXPECTATIONS = frozenset(
    {
        "expect_column_values_to_be_unique",
        "expect_compound_columns_to_be_unique",
        "expect_column_value_z_scores_to_be_less_than",
        "expect_column_values_to_not_be_outliers",
    }
)
"""Row expectations whose result for a row depends on other rows."""

_READ_AS_FIELDS = frozenset(
    {
        "expect_column_distinct_values_to_be_in_set",
        "expect_column_distinct_values_to_contain_set",
        "expect_column_distinct_values_to_equal_set",
        "expect_column_mean_to_be_between",
        "expect_column_median_to_be_between",
        "expect_column_most_common_value_to_be_in_set",
        "expect_column_quantile_values_to_be_between",
        "expect_column_sum_to_be_between",
        "expect_column_value_z_scores_to_be_less_than",
        "expect_column_values_to_be_decreasing",
        "expect_column_values_to_be_in_type_list",
        "expect_column_values_to_be_increasing",
        "expect_column_values_to_be_of_type",
        "expect_compound_columns_to_be_unique",
        "expect_multicolumn_values_to_be_equal",
        "expect_select_column_values_to_be_unique_within_record",
    }
)
"""Expectations for which Great Expectations reads a dot in the name of a column as one before a field."""

_OTHER_TABLES = "reads data outside the output. Compare with another table by `compare`, or join it."
_NOT_FOR_SPARK = "does not exist for Spark in Great Expectations. Write {type: rows, that:"
_LIKE_PATTERNS = tuple(
    f"expect_column_values_to_{match}_like_pattern{several}"
    for match in ("match", "not_match")
    for several in ("", "_list")
)
_REFUSED = {
    "expect_query_results_to_match_comparison": _OTHER_TABLES,
    "expect_table_row_count_to_equal_other_table": _OTHER_TABLES,
    "unexpected_rows_expectation": "runs SQL. Write {type: rows, that: CONDITION}.",
    "expect_column_values_to_be_dateutil_parseable": (
        f"{_NOT_FOR_SPARK} left_a IS NULL OR try_to_timestamp(left_a) IS NOT NULL}}."
    ),
    **dict.fromkeys(_LIKE_PATTERNS, f"{_NOT_FOR_SPARK} left_a LIKE 'x%'}}."),
    "expect_column_values_to_match_json_schema": "fetches references of a schema. Validate a column of from_json(...).",
    "condition_parser": "is not needed, because row_condition is SQL of Spark. Remove it.",
    "result_format": "selects which rows are shown. Set `expose_row_values: true` to show some.",
    "catch_exceptions": "would hide errors. Remove it.",
    "description": "replaces the generated description. Write `notes`.",
}
_LIST_ARGUMENTS = frozenset(
    name for arguments in ALLOWED_ARGUMENTS.values() for name in arguments if name.endswith(("_set", "_list"))
)
_OPTIONAL = split_words(
    f"""
    {_BOUNDS} allow_relative_error exact_match ignore_row_if match_on method mostly multiplier or_equal
    row_condition strictly ties_okay
    """
)
"""Arguments that an expectation need not have; it has all others that it allows."""
_NUMBERS = frozenset({"min_value", "max_value", "mostly", "value", "threshold", "multiplier", "sum_total"})
_EXAMPLES = {
    "that": "Write a condition, such as that: left_amount >= 0.",
    **{name: f"Name a column, such as {name}: left_amount." for name in ("column", "column_A", "column_B")},
    "column_list": "Name columns, such as column_list: [left_amount, right_amount].",
}
_LITERAL_TYPES = (str, int, float, date, time, type(None))


def check_expectation(name: str, arguments: Mapping[str, Any]) -> None:
    """Check that an expectation is allowed and compares the output with values in the file.

    Args:
        name: The expectation type.
        arguments: Its keyword arguments.

    Raises:
        ValueError: The type or an argument is not allowed. The message has reason and remedy.
    """
    check_name(name)
    allowed = ALLOWED_ARGUMENTS[name]
    for argument, value in arguments.items():
        if argument not in allowed:
            reason = _REFUSED.get(argument) or f"is not an argument. {suggest_name(argument, sorted(allowed))}"
            raise ValueError(f"{name}: {argument} {reason}")
        if argument in SQL_ARGUMENTS:
            _check_condition(name, argument, value)
        if not _is_literal(value) and not (argument == "quantile_ranges" and _is_quantile_ranges(value)):
            raise ValueError(f"{name}: {argument} is not a value or a list of values. Write literal values.")
        if argument in _LIST_ARGUMENTS and not isinstance(value, list | None):
            raise ValueError(f"{name}: {argument} should be a list. Write [{value}].")
    arguments = {argument: value for argument, value in arguments.items() if value is not None}
    for argument in sorted(allowed - _OPTIONAL - arguments.keys()):
        raise ValueError(f"{name}: {argument} is missing. {_EXAMPLES.get(argument, 'Add it.')}")
    _check_values(name, arguments)
    _check_bounds(name, arguments)


def check_name(name: str) -> None:
    """Check that an expectation type is allowed.

    Raises:
        ValueError: It is not. The message suggests the most similar name.
    """
    if name not in ALLOWED_ARGUMENTS:
        matches = get_close_matches(name, ALLOWED_ARGUMENTS, n=1)
        hint = f"Did you mean {matches[0]}?" if matches else "docs/pipeline.schema.json lists the allowed ones."
        raise ValueError(f"{name} {_REFUSED.get(name) or f'is not an allowed expectation. {hint}'}")


def uses_dots_for_fields(name: str, column: str) -> bool:
    """Return True if Great Expectations reads the name of a column as that of a field, and so does not find it."""
    return "`" in column or ("." in column and name in _READ_AS_FIELDS)


def _check_values(name: str, arguments: Mapping[str, Any]) -> None:
    """Refuse values with which Great Expectations passes or fails all rows, whatever their values are."""
    for argument in sorted(_LIST_ARGUMENTS & arguments.keys()):
        if not arguments[argument]:
            raise ValueError(f"{name}: {argument} is empty. Write at least one value.")
    values = arguments.get("value_set", [])
    if None in values:
        raise ValueError(
            f"{name}: value_set has null, which Great Expectations compares with no value. Remove it. Null values "
            "always pass, unless expect_column_values_to_not_be_null is another expectation."
        )


def _check_bounds(name: str, arguments: Mapping[str, Any]) -> None:
    """Check the numbers of an expectation, which Great Expectations checks only when a job validates its slices."""
    low, high = arguments.get("min_value"), arguments.get("max_value")
    for argument in sorted(_NUMBERS & arguments.keys()):
        value = arguments[argument]
        if isinstance(value, bool) or (isinstance(value, float) and not math.isfinite(value)):
            raise ValueError(f"{name}: {argument} ({value}) is not a finite number. Correct it, or remove it.")
    if "min_value" in ALLOWED_ARGUMENTS[name] and low is None and high is None:
        raise ValueError(f"{name} has no bounds, so it always passes. Set min_value, max_value or both.")
    if isinstance(low, int | float) and isinstance(high, int | float) and low > high:
        raise ValueError(f"{name}: min_value ({low}) is above max_value ({high}). Swap them.")
    share = arguments.get("mostly")
    if isinstance(share, int | float) and not 0 <= share <= 1:
        raise ValueError(f"{name}: mostly ({share}) is not a share of rows. Write a number from 0 to 1.")


def list_conditions(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the arguments of an expectation that are SQL conditions, by name."""
    return {argument: arguments[argument] for argument in SQL_ARGUMENTS if argument in arguments}


def _check_condition(name: str, argument: str, value: Any) -> None:
    if not isinstance(value, str):
        raise ValueError(f"{name}: {argument} is not text. Write a condition, such as left_amount >= 0.")  # noqa: TRY004
    try:
        check_expression(value, InputColumns())
    except ValueError as error:
        raise ValueError(f"{name}: {argument}: {error}") from None


def _is_literal(value: Any) -> bool:
    # Mappings such as {$PARAMETER: ...} are Great Expectations' own language, which evaluates code and reads stores.
    return all(map(_is_literal, value)) if isinstance(value, list) else isinstance(value, _LITERAL_TYPES)


def _is_quantile_ranges(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {"quantiles", "value_ranges"}
        and all(map(_is_literal, value.values()))
    )
