"""Output of failed cases replaces their expected rows, and is written as JUnit XML; other lines stay."""

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from xml.etree import ElementTree as ET

import pytest
import yaml
from pyspark.sql import types as T

from tests.conftest import write_chain, write_pipeline
from tidemark.config.safe_yaml import parse_long_yaml
from tidemark.errors import UserError
from tidemark.pipeline_tests.case_file import ExpectedRow, read_case_file
from tidemark.pipeline_tests.differences import RowDifference, SectionDifference, compare_rows, parse_expected
from tidemark.pipeline_tests.junit import write_junit
from tidemark.pipeline_tests.outputs import CaseOutput
from tidemark.pipeline_tests.runner import CaseResult, CaseRun
from tidemark.pipeline_tests.update import render_row, update_case_file
from tidemark.timegrid.slices import Grid
from tidemark.timegrid.time_columns import to_plain_row

TEXT = """\
# Cases of orders.
cases:
  first: # the first
    given:
      - left: {k: a, v: 1, happened: 2024-01-01T00:10Z}
    expect:%s

  # The second stays.
  second:
    given: []
    expect: {}
"""
ROWS = [{"left_k": "a", "left_v": 1, "right_k": None, "_slice": "2024-01-01T01:00Z", "_emission": "padded_left"}]
TYPES = {"left_k": T.StringType(), "left_v": T.LongType(), "right_k": T.StringType(), "_slice": T.TimestampType()}
ITEM = T.StructType([T.StructField("v", T.DoubleType()), T.StructField("k", T.StringType())])
DIFFERENCE = SectionDifference("emissions", ("left_k",), (RowDifference("unexpected", None, {"left_k": "a"}, None),))


@pytest.fixture
def update(tmp_path):
    """Return a function that updates a file with these expected sections, and returns its text."""
    pipeline = write_pipeline(tmp_path / "orders.yaml")
    (tmp_path / "tests").mkdir()
    path = tmp_path / "tests" / "orders.yaml"

    def update(sections, rows=ROWS, status="failed", note=None):
        before = TEXT % sections
        path.write_text(before)
        file = read_case_file(tmp_path / "orders.yaml")
        outputs = {"emissions": rows, "late": rows, "carried": rows}
        output = CaseOutput(outputs, lambda _: rows, dict.fromkeys((*outputs, "padded"), TYPES))
        difference = SectionDifference("emissions", (), DIFFERENCE.rows, note)
        result = CaseResult("orders", "first", "f:3", status, 0.1, (difference,))
        run = CaseRun(file.cases[0], result, output)
        count = update_case_file(file, [run], Grid.from_config(pipeline.slices))
        text = path.read_text()
        read_case_file(tmp_path / "orders.yaml")
        assert count == (text != before)
        return text

    return update


@pytest.mark.parametrize(
    ("sections", "rows", "updated"),
    [
        ("\n      emissions: []", ROWS, "\n      emissions:\n        - {left_k: a, left_v: 1}"),
        ("\n      emissions:\n        - {left_k: b}\n", ROWS, "\n      emissions:\n        - {left_k: a}"),
        (
            "\n      emissions: # all\n        - {left_k: b, right_k: c}",
            ROWS,
            "\n      emissions: # all\n        - {left_k: a, right_k: null}",
        ),
        ("\n      emissions: # all\n        - {left_k: b}", [], "\n      emissions: # all\n        []"),
        ("\n      late: [{left_k: b, right_k: c}]", ROWS, "\n      late:\n        - {left_k: a}"),
        (
            "\n      emissions:\n        2024-01-01T00:00Z:\n          - {left_k: b}",
            ROWS,
            "\n      emissions:\n        2024-01-01T00:00Z: []\n        2024-01-01T01:00Z:\n          - {left_k: a}",
        ),
        (
            "\n      padded: []\n      emissions: [{left_k: a}]",
            ROWS,
            "\n      padded:\n        - {left_k: a, left_v: 1}\n      emissions: []",
        ),
        (" {emissions: [], late: [{left_k: b}]}", ROWS, " {emissions: [{left_k: a, left_v: 1}], late: [{left_k: a}]}"),
        (
            " {emissions: {2024-01-01T00:00Z: [{left_k: b}]}}",
            ROWS,
            " {emissions: {2024-01-01T00:00Z: [], 2024-01-01T01:00Z: [{left_k: a}]}}",
        ),
    ],
)
def test_update_case_file_replaces_sections_only(update, sections, rows, updated):
    text = update(sections, rows)

    assert text.replace("\n\n\n", "\n\n") == TEXT % updated
    assert yaml.safe_load(text)["cases"]["second"] == {"given": [], "expect": {}}


def test_update_case_file_rows_of_an_anchor_are_refused(update):
    with pytest.raises(UserError, match="an anchor and its alias share rows. Write the rows twice"):
        update("\n      emissions: &rows []\n      late: *rows")


VALUES = [
    *((value, T.DoubleType()) for value in (1e-05, 1e16, 1.5e300, float("inf"), float("-inf"), float("nan"))),
    *(
        (value, T.StringType())
        for value in ("2013-01-01T10:00:00Z", "NO", "a\x85b\u2028c\x7f", "12:30", "a: b", "😀", "~")
    ),
    (b"abc", T.BinaryType()),
    (b"\xff0x", T.BinaryType()),
    (b"0xab", T.BinaryType()),
    (datetime(2013, 1, 1, 10, tzinfo=UTC), T.TimestampType()),
    ([{"v": 1e-05, "k": "2013-01-01T10:00:00Z"}], T.ArrayType(ITEM)),
    (Decimal("1.50"), T.DecimalType(4, 2)),
]


@pytest.mark.parametrize(("value", "dtype"), VALUES)
def test_render_row_is_read_as_the_same_value(tmp_path, value, dtype):
    schema = T.StructType([T.StructField("left: x", dtype)])
    actual = to_plain_row({"left: x": value}, schema)
    types = {"left: x": dtype}

    text = render_row(actual, actual, types)

    row = parse_long_yaml(tmp_path / "rows.yaml", text).content
    expected = parse_expected([ExpectedRow(row, "f:1", {})], "emissions", types)
    assert compare_rows("emissions", expected, [actual], ["f:1"]) is None


def test_update_case_file_passed_case_or_rows_that_depend_on_the_cut_stay(update):
    sections = "\n      emissions: []"

    assert update(sections, status="passed") == TEXT % sections
    assert update(sections, note="two jobs") == TEXT % sections


def test_update_case_file_of_chain_replaces_rows_of_each_join(tmp_path):
    pipeline = write_chain(tmp_path)
    (tmp_path / "tests").mkdir()
    path = tmp_path / "tests" / "shipped.yaml"
    given = (
        "cases:\n  first:\n    given:\n      - orders.left: {k: a, v: 1, happened: 2024-01-01T00:10Z}\n    expect:\n"
    )
    path.write_text(f"{given}      emissions: []\n      orders.padded: [{{left_k: b}}] # of orders\n")
    file = read_case_file(tmp_path / "shipped.yaml")
    types = {"left_left_k": T.StringType(), "left_left_v": T.LongType(), "right_k": T.StringType()}
    last = CaseOutput({"emissions": [{"left_left_k": "a", "left_left_v": 1}]}, lambda _: [], {"emissions": types})
    first = CaseOutput({"emissions": ROWS}, lambda _: [], {"padded": TYPES})
    result = CaseResult("shipped", "first", "f:2", "failed", 0.1, (DIFFERENCE,))
    run = CaseRun(file.cases[0], result, replace(last, upstreams={"orders": first}))

    assert update_case_file(file, [run], Grid.from_config(pipeline.slices)) == 1

    emissions = "      emissions:\n        - {left_left_k: a, left_left_v: 1}\n"
    assert path.read_text() == f"{given}{emissions}      orders.padded:\n        - {{left_k: a}} # of orders\n"


def test_write_junit_has_a_suite_per_pipeline(tmp_path):
    results = [
        CaseResult("orders", "first", "tests/orders.yaml:3", "failed", 0.25, (DIFFERENCE,)),
        CaseResult("orders", "second", "tests/orders.yaml:9", "passed", 0.25),
        CaseResult("other", "first", "tests/other.yaml:2", "refused", 0, message="bad \x1b row"),
    ]

    write_junit(results, tmp_path / "junit.xml")

    suites = ET.parse(tmp_path / "junit.xml").getroot()
    assert [(suite.get("name"), suite.get("tests"), suite.get("failures")) for suite in suites] == [
        ("orders", "2", "1"),
        ("other", "1", "1"),
    ]
    failure = suites[0][0].find("failure")
    assert failure.get("message") == "emissions: 1 unexpected"
    assert failure.text == "emissions: 1 unexpected\n  unexpected: left_k a"
    assert suites[0][0].get("line") == "3"
    assert suites[1][0].find("failure").get("message") == "bad ? row"
