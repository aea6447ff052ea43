"""Expected rows are matched with the output in any order, by the columns that they name."""

import pytest
from numpy import float32
from pyspark.sql import types as T

from tidemark.errors import PipelineFileError
from tidemark.pipeline_tests.case_file import ExpectedRow
from tidemark.pipeline_tests.differences import compare_cuts, compare_rows, parse_expected

TYPES = {
    "k": T.StringType(),
    "at": T.TimestampType(),
    "v": T.DoubleType(),
    "day": T.DateType(),
    "n": T.IntegerType(),
    "f": T.FloatType(),
}


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
        ([{"x": [{"k": "a"}, {"k": "b"}]}], [{"x": [{"k": "a", "v": 1}, {"k": "b", "v": 2}]}]),
        ([{"x": None}], [{"x": None, "k": "a"}]),
        ([{"k": "a"}] * 1100, [{"k": "a"}] * 1100),
        ([{}, {"k": "a"}, {"k": "a", "v": 1}, {"v": 2}], [*({"k": "a", "v": v} for v in (1, 3, 2)), {"k": "b"}]),
    ],
)
def test_compare_rows_equal_rows_have_no_difference(expected, actual):
    assert diff(expected, actual) is None


def test_compare_rows_of_a_group_are_equal_in_any_order_and_others_are_not():
    dtype = T.ArrayType(T.StructType([T.StructField("k", T.StringType()), T.StructField("v", T.IntegerType())]))
    given = [{"k": "a"}, {"k": "b"}]
    actual = [{"k": "b", "v": 1}, {"k": "a", "v": 2}]
    for name, is_equal in (("left", True), ("items", False)):
        expected = parse_expected([ExpectedRow({name: given}, "f:1", {})], "emissions", {name: dtype})
        assert (diff(expected, [{name: actual}]) is None) == is_equal


def test_compare_rows_map_has_no_other_entries():
    for given, is_equal in (({"a": 1}, False), ({}, False), ({"a": 1, "b": 2}, True)):
        expected = parse_expected([ExpectedRow({"x": given}, "f:1", {})], "emissions", {"x": NUMBERS})
        assert (diff(expected, [{"x": {"a": 1.0, "b": 2.0}}]) is None) == is_equal


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
    assert difference.title.startswith("emissions with two jobs: the rows differ from those with the pipeline's slices")


def test_parse_expected_converts_values_to_those_of_the_output():
    row = ExpectedRow({"at": "2024-01-01T00:10Z", "v": 1, "day": "2024-01-01", "n": 3, "k": None}, "f:1", {})

    assert parse_expected([row], "emissions", TYPES) == [
        {"at": "2024-01-01T00:10Z", "v": 1.0, "day": "2024-01-01", "n": 3, "k": None}
    ]


NUMBERS = T.MapType(T.StringType(), T.FloatType())


@pytest.mark.parametrize(
    ("dtype", "given", "actual"),
    [
        (T.FloatType(), 0.1, float(float32(0.1))),
        (T.ArrayType(T.FloatType()), [0.1, None], [float(float32(0.1)), None]),
        (T.StructType([T.StructField("numbers", NUMBERS)]), {"numbers": {"a": 1.5}}, {"numbers": {"a": 1.5}}),
        (T.ArrayType(T.StructType([T.StructField("n", NUMBERS)])), [{"n": {"a": 1}}], [{"n": {"a": 1.0}}]),
        (T.MapType(T.LongType(), T.StringType()), {1: "a"}, {"1": "a"}),
        (T.MapType(T.TimestampType(), NUMBERS), {"2024-01-01T00:00Z": {"a": 1}}, {"2024-01-01T00:00Z": {"a": 1.0}}),
        (T.BinaryType(), "abc", "abc"),
        (T.BinaryType(), "0xff", "0xff"),
    ],
)
def test_parse_expected_value_of_nested_type_has_the_form_of_the_output(dtype, given, actual):
    [row] = parse_expected([ExpectedRow({"x": given}, "f:1", {})], "emissions", {"x": dtype})

    assert row == {"x": actual}


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"kk": 1}, "f:2: rows of late have no column kk. Did you mean k?"),
        ({"k": 1}, "f:2: column k: 1 is not a value of type string. Write it in quotes."),
        ({"n": 2**31}, "f:2: column n: 2147483648 is out of the range of int"),
        ({"f": 1e39}, "f:2: column f: 1e+39 is out of the range of float"),
        ({"n": "x"}, "f:2: column n: 'x' is not a value of type int"),
        ({"at": "x"}, "f:2: column at: 'x' is not an instant. Write it as 2013-01-01T00:00:00Z."),
    ],
)
def test_parse_expected_invalid_value_names_line(values, problem):
    with pytest.raises(PipelineFileError) as refusal:
        parse_expected([ExpectedRow(values, "f:1", dict.fromkeys(values, "f:2"))], "late", TYPES)

    assert str(refusal.value) == problem
