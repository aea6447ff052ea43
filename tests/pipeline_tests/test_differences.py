"""Expected rows are matched with the output in any order, by the columns that they name."""

import pytest
from pyspark.sql import types as T

from tidemark.errors import PipelineFileError
from tidemark.pipeline_tests.case_file import ExpectedRow
from tidemark.pipeline_tests.differences import compare_cuts, compare_rows, parse_expected

TYPES = {"k": T.StringType(), "at": T.TimestampType(), "v": T.DoubleType(), "day": T.DateType(), "n": T.IntegerType()}


def diff(expected, actual):
    difference = compare_rows("emissions", expected, actual, [f"f:{n}" for n in range(len(expected))])
    return difference and [(row.kind, row.expected, row.actual, row.place) for row in difference.rows]


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        ([], []),
        ([{"k": "a"}, {"v": 1.0}], [{"k": "b", "v": 1.0}, {"k": "a", "v": 1.0}]),
        ([{}, {"k": "a"}], [{"k": "a"}, {"k": "b"}]),
        ([{"v": 0.3}], [{"v": 0.1 + 0.2}]),
        ([{"v": float("nan")}], [{"v": float("nan")}]),
        ([{"left": [{"k": "a"}, {"k": "b"}]}], [{"left": [{"k": "b", "v": 1}, {"k": "a", "v": 2}]}]),
        ([{"x": None}], [{"x": None, "k": "a"}]),
    ],
)
def test_compare_rows_equal_rows_have_no_difference(expected, actual):
    assert diff(expected, actual) is None


def test_compare_rows_equal_rows_count_as_often_as_they_are():
    row = {"k": "a"}

    assert diff([row], [row, row]) == [("unexpected", None, row, None)]
    assert diff([row, row], [row]) == [("missing", row, None, "f:1")]


def test_compare_rows_row_with_an_equal_column_is_changed():
    assert diff([{"k": "a", "v": 1}, {"k": "b", "v": 2}], [{"k": "a", "v": 3}]) == [
        ("missing", {"k": "b", "v": 2}, None, "f:1"),
        ("changed", {"k": "a", "v": 1}, {"k": "a", "v": 3}, "f:0"),
    ]


def test_compare_rows_without_named_columns_shows_those_with_values():
    assert diff([], [{"k": "a", "v": None, "_pane": 0}]) == [("unexpected", None, {"k": "a"}, None)]


def test_compare_cuts_ignores_the_slice_only():
    rows = [{"k": "a", "_slice": "2024-01-01T00:00Z"}]

    assert compare_cuts("emissions", rows, [{"k": "a", "_slice": "2024-01-01T01:00Z"}], ["k"], "two jobs") is None
    difference = compare_cuts("emissions", rows, [], ["k"], "two jobs")
    assert (difference.note, difference.rows[0].expected) == ("two jobs", {"k": "a"})


def test_parse_expected_converts_values_to_those_of_the_output():
    row = ExpectedRow({"at": "2024-01-01T00:10Z", "v": 1, "day": "2024-01-01", "n": 3, "k": None}, "f:1", {})

    assert parse_expected([row], "emissions", TYPES) == [
        {"at": "2024-01-01T00:10Z", "v": 1.0, "day": "2024-01-01", "n": 3, "k": None}
    ]


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"kk": 1}, "f:2: rows of late have no column kk. Did you mean k?"),
        ({"k": 1}, "f:2: column k: 1 is not a value of type string. Write it in quotes."),
        ({"n": 2**31}, "f:2: column n: 2147483648 is out of the range of int"),
        ({"n": "x"}, "f:2: column n: 'x' is not a value of type int"),
        ({"at": "x"}, "f:2: column at: 'x' is not an instant. Write it as 2013-01-01T00:00:00Z."),
    ],
)
def test_parse_expected_invalid_value_names_line(values, problem):
    with pytest.raises(PipelineFileError) as refusal:
        parse_expected([ExpectedRow(values, "f:1", dict.fromkeys(values, "f:2"))], "late", TYPES)

    assert str(refusal.value) == problem
