"""Which of Great Expectations' expectations a pipeline file may have, and with which arguments.

Those that judge the output by values that stand in the file. What asks SQL, reads another table or fetches something is
none of them, nor is an argument that does.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, time
from difflib import get_close_matches
from typing import Any

from tidemark.errors import nearest

_BOUNDS = "min_value max_value strict_min strict_max"
_ARGUMENTS = {
    "column": "expect_column_to_exist",
    "column mostly": """
        expect_column_values_to_be_dateutil_parseable expect_column_values_to_be_json_parseable
        expect_column_values_to_be_null expect_column_values_to_be_unique expect_column_values_to_not_be_null""",
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
    "column mostly like_pattern escape": """
        expect_column_values_to_match_like_pattern expect_column_values_to_not_match_like_pattern""",
    "column mostly like_pattern_list escape match_on": "expect_column_values_to_match_like_pattern_list",
    "column mostly like_pattern_list escape": "expect_column_values_to_not_match_like_pattern_list",
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
}
ARGUMENTS: Mapping[str, frozenset[str]] = dict(
    sorted((name, frozenset(given.split())) for given, names in _ARGUMENTS.items() for name in names.split())
)
"""The arguments of each expectation that there is."""

_NOT_OF_A_ROW = {
    "expect_column_values_to_be_of_type",  # of the column
    "expect_column_values_to_be_in_type_list",
    "expect_column_values_to_be_decreasing",  # rows have no order
    "expect_column_values_to_be_increasing",
    "expect_column_values_to_be_dateutil_parseable",  # Great Expectations has none of these for Spark
    *(name for name in ARGUMENTS if "_like_pattern" in name),
}
ON_SINGLE_ROWS = frozenset(name for name, given in ARGUMENTS.items() if "mostly" in given) - _NOT_OF_A_ROW
"""Those that say of each row whether it breaks them."""
OF_OTHER_ROWS = frozenset(
    {
        "expect_column_values_to_be_unique",
        "expect_compound_columns_to_be_unique",
        "expect_column_value_z_scores_to_be_less_than",
        "expect_column_values_to_not_be_outliers",
    }
)
"""Those of them for which the other rows decide."""

_OTHER_TABLES = "asks for what lies outside the output; compare with another table by `compare`, or join it"
_CONDITION = "is SQL beside the output; compute a column under `select` that is null where the row does not matter"
_REFUSED = {
    "expect_query_results_to_match_comparison": _OTHER_TABLES,
    "expect_table_row_count_to_equal_other_table": _OTHER_TABLES,
    "unexpected_rows_expectation": "asks SQL; compute a column under `select`, and expect its values",
    "expect_column_values_to_match_json_schema": "fetches what a schema refers to; expect a column of from_json(...)",
    "row_condition": _CONDITION,
    "condition_parser": _CONDITION,
    "result_format": "decides which rows are shown; `show_rows: true` shows some",
    "catch_exceptions": "would pass over what went wrong; leave it out",
    "description": "takes the place of what it asks for; write `notes`",
}
_PLAIN = (str, int, float, date, time, type(None))


def check_expectation(name: str, arguments: Mapping[str, Any]) -> None:
    """See that an expectation judges the output by values that stand in the file.

    Raises:
        ValueError: names the expectation or the argument, why not, and the remedy.
    """
    if (known := ARGUMENTS.get(name)) is None:
        near = get_close_matches(name, ARGUMENTS, n=1)
        hint = f"did you mean {near[0]}?" if near else "docs/pipeline.schema.json lists them"
        raise ValueError(f"{name} {_REFUSED.get(name) or f'is no expectation that a pipeline file may have; {hint}'}")
    for argument, value in arguments.items():
        if argument not in known:
            hint = _REFUSED.get(argument) or f"is no argument of it; {nearest(argument, sorted(known), 'it has')}"
            raise ValueError(f"{name}: {argument} {hint}")
        if not _is_plain(value) and not (argument == "quantile_ranges" and _are_ranges(value)):
            raise ValueError(f"{name}: {argument} has to be a value or a list of values; write them out")


def _is_plain(value: Any) -> bool:
    # Other values are Great Expectations' own language: {$PARAMETER: ...} reckons, and looks into its stores.
    return all(map(_is_plain, value)) if isinstance(value, list) else isinstance(value, _PLAIN)


def _are_ranges(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {"quantiles", "value_ranges"}
        and all(map(_is_plain, value.values()))
    )
