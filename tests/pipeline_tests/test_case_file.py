"""Test files are read with the line of each value, and refused with file, line and remedy."""

import re
from datetime import UTC, date, datetime
from textwrap import indent

import pytest
import yaml

from tests.conftest import PROJECT, write_chain, write_pipeline
from tidemark.errors import PipelineFileError
from tidemark.pipeline_tests.case_file import find_pipeline_of, list_tested_pipelines, read_case_file

ROW = "- left: {k: a, happened: 2024-01-01T00:10Z}"
VALID = f"cases:\n  first:\n    given:\n      {ROW}\n    expect:\n      emissions: []\n"


@pytest.fixture
def read(tmp_path):
    """Return a function that writes a test file for a pipeline and reads it."""
    write_pipeline(tmp_path / "orders.yaml")
    folder = tmp_path / "tests"
    folder.mkdir()

    def read(text, **files):
        (folder / "orders.yaml").write_text(text)
        for name, content in files.items():
            (folder / name.replace("_", ".")).write_text(content, encoding="utf-8", newline="")
        return read_case_file(tmp_path / "orders.yaml")

    return read


def test_page_shows_a_case_of_the_demo_and_expected_rows_that_can_be_read(read):
    page = (PROJECT / "docs" / "test-pipelines.md").read_text()
    shown, expected = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    demo = yaml.safe_load((PROJECT / "include/pipelines/tests/flights_weather.yaml").read_text())
    assert yaml.safe_load(shown)["cases"].items() <= demo["cases"].items()

    [case] = read(VALID.partition("    expect:")[0] + indent(expected, "    ")).cases
    assert [row.values for row in case.expected["emissions"]] == [{"left_carrier": "B6"}]


def test_read_case_file_rows_have_their_lines(read):
    [case] = read(VALID).cases

    [row] = case.given
    assert (row.input_name, row.values["k"], row.place.rpartition(":")[2]) == ("left", "a", "4")
    assert case.expected == {"emissions": ()}
    assert case.place.endswith("orders.yaml:2")


def test_read_case_file_rows_by_slice_have_the_slice(read):
    text = VALID.replace("emissions: []", "emissions:\n        2024-01-01T01:00:00Z:\n          - {left_k: a}")

    [case] = read(text).cases

    [row] = case.expected["emissions"]
    assert (row.slice_start.hour, row.place.rpartition(":")[2]) == (1, "8")
    assert [start.hour for start in case.list_slices("emissions")] == [1]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows_csv", "k,v,happened\na,1,2024-01-01T00:10:00Z\n,2.5,\n"),
        (
            "rows_jsonl",
            '{"k": "a", "v": 1, "happened": "2024-01-01T00:10:00Z"}\n{"k": null, "v": 2.5, "happened": null}\n',
        ),
    ],
)
def test_read_case_file_given_file_is_read_with_lines(read, name, content):
    file = name.replace("_", ".")

    [case] = read(VALID.replace(ROW, f"- left: {file}"), **{name: content}).cases

    assert [(row.values["k"], row.values["v"]) for row in case.given] == [("a", 1), (None, 2.5)]
    assert case.given[0].place.endswith(f"{file}:{2 if name == 'rows_csv' else 1}")


def test_read_case_file_csv_cells_are_not_changed(read):
    cells = {
        "#1001": "#1001",
        "Suite #5": "Suite #5",
        "NO": "NO",
        "0123": "0123",
        "12:30": "12:30",
        "1_000": "1_000",
        "true": True,
        "null": None,
        "-1.5e3": -1500.0,
        "2024-01-01-11": "2024-01-01-11",
        "2024-01-01": date(2024, 1, 1),
        "2024-01-01T00:10Z": datetime(2024, 1, 1, 0, 10, tzinfo=UTC),
        '"two\r\nlines\u2028, one cell"': "two\r\nlines\u2028, one cell",
    }
    rows_csv = "\ufeffk\r\n" + "".join(f"{cell}\r\n" for cell in cells)

    [case] = read(VALID.replace(ROW, "- left: rows.csv"), rows_csv=rows_csv).cases

    assert [row.values for row in case.given] == [{"k": value} for value in cells.values()]


def test_read_case_file_json_line_with_line_separator_is_one_row(read):
    [case] = read(VALID.replace(ROW, "- left: rows.jsonl"), rows_jsonl='{"k": "a\u2028b"}\r\n').cases

    assert [row.values for row in case.given] == [{"k": "a\u2028b"}]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("k,v,k\na,1,b\n", "rows.csv:1: a column is twice in the header. Remove one of them."),
        ("k\na,b\n", "rows.csv:2: has more or fewer cells than the header"),
        (f"k\n{'a' * 200_000}\n", "rows.csv:2: is not CSV: field larger than field limit"),
    ],
)
def test_read_case_file_invalid_csv_names_line(read, content, problem):
    with pytest.raises(PipelineFileError) as refusal:
        read(VALID.replace(ROW, "- left: rows.csv"), rows_csv=content)

    assert problem in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            VALID.replace("expect:", "expects:"),
            "orders.yaml:5: cases.first.expects: unknown field. Did you mean expect?",
        ),
        (
            VALID.replace("- left", "- lefft"),
            "orders.yaml:4: cases.first.given.0.lefft: unknown field. Did you mean left?",
        ),
        (
            VALID.replace("emissions", "emisions"),
            "orders.yaml:6: cases.first.expect.emisions: unknown field. Did you mean",
        ),
        (
            VALID.replace("emissions: []", "late: {k: 1}"),
            "orders.yaml:6: cases.first.expect.late: should be a list of rows",
        ),
        (
            VALID.replace(ROW, "- {left: {k: a}, right: {k: a}}"),
            "orders.yaml:4: cases.first.given.0: should have one of",
        ),
        (
            VALID.replace("expect:\n      emissions: []", ""),
            "orders.yaml:2: cases.first: has neither expect nor error.",
        ),
        (VALID.replace(ROW, "- slice:"), "orders.yaml:4: cases.first.given.0: slice: has no value. Write its start"),
        (VALID.replace(ROW, "- left: 5"), "orders.yaml:4: cases.first.given.0.left: should be a row such as"),
        (VALID.replace(ROW, "- left: ../rows.csv"), "orders.yaml:4: left: '../rows.csv' should be the name of a .csv"),
        (VALID.replace(ROW, "- left: rows.csv"), "orders.yaml:4: left: "),
        (VALID + "    error: refused\n", "has both expect and error. Remove one of them."),
        ("cases: [1]\n", "orders.yaml:1: cases: "),
        ("[]", "has no test cases. Write them under cases."),
        ("cases: {}", "orders.yaml:1: cases: is empty. Write at least one entry."),
        ("cases:", "orders.yaml:1: cases: should be a mapping, not None."),
        ("cases: {first: 5}", "not 5. Its fields: description, given, drain, columns, expect, error."),
        ("cases:\n  a: {given: []}\n  a: {given: []}\n", "line 3: duplicate key a"),
    ],
)
def test_read_case_file_invalid_content_names_line_and_remedy(read, text, problem):
    with pytest.raises(PipelineFileError) as refusal:
        read(text)

    assert problem in str(refusal.value)


def test_read_case_file_that_does_not_exist_is_refused(tmp_path):
    write_pipeline(tmp_path / "orders.yaml")

    with pytest.raises(PipelineFileError, match=r"there is no test file .*tests/orders\.yaml\. Write it"):
        read_case_file(tmp_path / "orders.yaml")


@pytest.fixture
def read_chain(tmp_path):
    """Return a function that writes a test file for the second pipeline of a chain and reads it."""
    write_chain(tmp_path)
    (tmp_path / "tests").mkdir()

    def read(text):
        (tmp_path / "tests" / "shipped.yaml").write_text(text)
        return read_case_file(tmp_path / "shipped.yaml")

    return read


CHAIN = """\
columns:
  orders.left: {v: bigint}
cases:
  first:
    given:
      - orders.left: {k: a, happened: 2024-01-01T00:10Z}
      - right: {k: a, happened: 2024-01-01T00:10Z}
    expect:
      emissions: []
      orders.late:
        2024-01-01T00:00:00Z:
          - {left_k: a}
"""


def test_read_case_file_of_chain_has_rows_of_earlier_joins_by_name(read_chain):
    file = read_chain(CHAIN)

    [case] = file.cases
    assert [row.input_name for row in case.given] == ["orders.left", "right"]
    assert list(case.expected) == ["emissions", "orders.late"]
    [row] = case.expected["orders.late"]
    assert (row.values, row.slice_start.hour, row.place.rpartition(":")[2]) == ({"left_k": "a"}, 0, "12")
    assert list(file.chain.joins) == ["orders", ""]


@pytest.mark.parametrize(
    ("text", "replacement", "problem"),
    [
        (
            "- orders.left:",
            "- left:",
            "given.0.left: has no rows of its own, because it is the output of orders. Write the rows of orders.left",
        ),
        (
            "- orders.left:",
            "- order.left:",
            "shipped.yaml:6: cases.first.given.0.order.left: unknown field. Did you mean orders.left?",
        ),
        (
            "orders.late:",
            "order.late:",
            "shipped.yaml:10: cases.first.expect.order.late: unknown field. Did you mean orders.late?",
        ),
        ("orders.left: {v", "left: {v", "shipped.yaml:2: columns.left: "),
    ],
)
def test_read_case_file_of_chain_other_names_are_refused(read_chain, text, replacement, problem):
    with pytest.raises(PipelineFileError) as refusal:
        read_chain(CHAIN.replace(text, replacement, 1))

    assert problem in str(refusal.value)


def test_list_tested_pipelines_file_without_pipeline_is_refused(tmp_path, read):
    read(VALID)
    assert [path.name for path in list_tested_pipelines(tmp_path)] == ["orders.yaml"]

    (tmp_path / "tests" / "ordrs.yaml").write_text(VALID)

    with pytest.raises(PipelineFileError, match=r"there is no pipeline ordrs\. Did you mean orders\?"):
        list_tested_pipelines(tmp_path)


def test_find_pipeline_of_other_yaml_files_is_none(tmp_path, read):
    read(VALID)

    assert find_pipeline_of(tmp_path / "tests" / "orders.yaml") == tmp_path / "orders.yaml"
    assert find_pipeline_of(tmp_path / "tests" / "other.yaml") is None
    assert find_pipeline_of(tmp_path / "orders.yaml") is None


def test_read_case_file_hundred_cases_are_not_too_long(read):
    rows = f"      {ROW}\n" * 50
    cases = "".join(f"  case {n}:\n    given:\n{rows}    expect: {{}}\n" for n in range(100))

    assert len(read(f"cases:\n{cases}").cases) == 100
