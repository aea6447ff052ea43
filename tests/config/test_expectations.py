"""Which expectations a pipeline file may have; that Great Expectations has them is asked of it."""

import pytest
from pydantic import ValidationError

from tidemark.config import Expectation
from tidemark.config.allowed_expectations import ARGUMENTS, check_expectation
from tidemark.quality.gx.project import built, gx_library

BETWEEN = "expect_column_values_to_be_between"
REFUSED = {
    "query": ("expect_query_results_to_match_comparison", {"base_query": "SELECT 1"}, "outside the output"),
    "rows": ("unexpected_rows_expectation", {"unexpected_rows_query": "SELECT 1"}, "asks SQL; compute a column"),
    "table": ("expect_table_row_count_to_equal_other_table", {"other_table_name": "x"}, "outside the output"),
    "schema": ("expect_column_values_to_match_json_schema", {"json_schema": {}}, "fetches what a schema refers to"),
    "unknown": ("expect_column_values_to_be_betwen", {}, f"did you mean {BETWEEN}?"),
    "condition": (BETWEEN, {"column": "c", "row_condition": "reflect('a', 'b')"}, "row_condition is SQL beside"),
    "parser": (BETWEEN, {"column": "c", "condition_parser": "spark"}, "condition_parser is SQL beside"),
    "format": (BETWEEN, {"column": "c", "result_format": "COMPLETE"}, "result_format decides which rows are shown"),
    "exceptions": (BETWEEN, {"column": "c", "catch_exceptions": False}, "would pass over what went wrong"),
    "description": (BETWEEN, {"column": "c", "description": "<script>"}, "description takes the place of what it asks"),
    "windows": (BETWEEN, {"column": "c", "windows": []}, "windows is no argument of it; it has column, max_value"),
    "parameter": (BETWEEN, {"column": "c", "max_value": {"$PARAMETER": "now()"}}, "max_value has to be a value or a"),
    "nested": ("expect_column_values_to_be_in_set", {"column": "c", "value_set": [{"$PARAMETER": "x"}]}, "a list of"),
    "ranges": ("expect_column_quantile_values_to_be_between", {"quantile_ranges": {"$PARAMETER": "x"}}, "a list of"),
}


@pytest.mark.parametrize(("name", "arguments", "told"), REFUSED.values(), ids=REFUSED)
def test_what_asks_for_more_than_the_output_is_refused_in_one_line(name, arguments, told):
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - its text is compared
        check_expectation(name, arguments)
    assert told in str(raised.value)
    assert str(raised.value).startswith(name)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("settings", "told"), [
    ({"type": "expect_table_row_count_to_equal", "value": 1}, "this one is not about single rows"),
    ({"type": "expect_column_values_to_be_of_type", "column": "c", "type_": "IntegerType"}, "not about single rows"),
    ({"type": BETWEEN, "column": "c", "per": "job"}, "goes by the emissions of a slice, not per job; leave out on"),
    ({"type": BETWEEN, "column": "c", "on": "late"}, "goes by the emissions of a slice, not on late; leave out on"),
])  # fmt: skip
def test_only_rows_of_a_slice_are_quarantined(settings, told):
    with pytest.raises(ValidationError, match=told):
        Expectation.model_validate({**settings, "on_failure": "quarantine"})


@pytest.mark.parametrize(("settings", "told"), [
    ({"column": "rows", "max_value": 1, "per": "day"}, "on: history takes expect_column_values_to_be_"),
    ({"type": "expect_column_max_to_be_between", "column": "rows"}, "on: history takes expect_column_va"),
    ({"column": "rows", "max_value": 1, "mostly": 0.9}, "on: history has no mostly; it takes column, min_value"),
    ({"column": "row", "max_value": 1}, "on: history has no column row; it has rows, left_rows"),
    ({"column": "rows_to_usual"}, "on: history takes numbers as min_value and max_value"),
    ({"column": "c", "max_value": 1, "on": "left", "per": "day"}, "on: left is judged before the join, per"),
])  # fmt: skip
def test_what_cannot_be_looked_at_is_refused(settings, told):
    with pytest.raises(ValidationError, match=told):
        Expectation.model_validate({"type": BETWEEN, "on": "history", **settings})


@pytest.mark.parametrize(("settings", "action"), [
    ({}, "stop"), ({"severity": "warning"}, "warn"), ({"severity": "warning", "on_failure": "stop"}, "stop"),
    ({"severity": "critical", "on_failure": "quarantine"}, "quarantine"),
])  # fmt: skip
def test_what_follows_a_failure_is_said_or_goes_by_severity(settings, action):
    assert Expectation.model_validate({BETWEEN: {"column": "c", **settings}}).on_failure == action


def test_great_expectations_has_every_one_of_them_with_these_arguments():
    implementation = gx_library().expectations.registry.get_expectation_impl
    assert {name for name, given in ARGUMENTS.items() if given - set(implementation(name).__fields__)} == set()


def test_values_and_lists_of_values_are_taken():
    ranges = {"quantiles": [0.1, 0.9], "value_ranges": [[0, 1], [8, None]]}
    check_expectation("expect_column_quantile_values_to_be_between", {"column": "c", "quantile_ranges": ranges})
    check_expectation(
        "expect_column_pair_values_to_be_in_set", {"column_A": "a", "value_pairs_set": [[1, "x"], [2, None]]}
    )


def test_notes_and_meta_are_in_results_as_text():
    told = {"notes": ["<script>", "$min_value"], "meta": {"owner": "<b>", "since": 2024}}
    expected = Expectation.model_validate({"type": BETWEEN, "column": "c", "min_value": 1, **told})
    config = built(expected).configuration.to_json_dict()
    assert config["notes"] == ["&lt;script&gt;", "&#36;min_value"]
    assert {"owner": "&lt;b&gt;", "since": 2024}.items() <= config["meta"].items()
    with pytest.raises(ValidationError, match="as tidemark_looks_at, are taken"):
        Expectation.model_validate({"type": BETWEEN, "column": "c", "meta": {"tidemark_looks_at": "x"}})
