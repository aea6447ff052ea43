"""Suites that a project of Great Expectations has stored, named in a pipeline file."""

import json

import pytest

from tests.conftest import write_pipeline
from tidemark.errors import PipelineFileError
from tidemark.quality.gx.project import gx_library

NULLS = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "left_k"}}
OLD = {
    "expectation_suite_name": "orders",
    "expectations": [
        {
            "expectation_type": "expect_column_values_to_be_between",
            "kwargs": {"column": "left_v", "min_value": 1, "max_value": 9, "mostly": 0.9},
            "meta": {"notes": "kept from last year"},
        }
    ],
    "meta": {"great_expectations_version": "0.18.22"},
    "data_asset_type": None,
}


@pytest.fixture
def suite(tmp_path):
    """Load a pipeline whose file names a suite of this content."""

    def load(content, name="suite.json", text=None):
        (tmp_path / "suite.json").write_text(json.dumps(content) if text is None else text)
        return write_pipeline(tmp_path / "p.yaml", suite=name, quality=[{**NULLS, "severity": "warning"}]).quality

    return load


def test_a_suite_that_great_expectations_writes_is_taken_as_it_is(suite):
    gx = gx_library()
    expected = gx.expectations.ExpectColumnValuesToBeBetween(
        column="left_v", min_value=1, strict_max=True, mostly=0.5, severity="warning", notes="seen", meta={"a": "b"}
    )
    written = gx.ExpectationSuite(name="orders", expectations=[expected], notes="ours")
    own, taken = suite(written.to_json_dict())
    assert own.type == NULLS["type"]
    assert (taken.type, taken.severity, taken.on_failure) == ("expect_column_values_to_be_between", "warning", "warn")
    assert taken.notes == "seen"
    assert taken.kwargs == {"column": "left_v", "min_value": 1, "strict_max": True, "mostly": 0.5}


def test_a_suite_of_0_18_is_taken(suite):
    _, taken = suite(OLD)
    assert (taken.type, taken.severity) == (OLD["expectations"][0]["expectation_type"], "critical")
    assert taken.kwargs == OLD["expectations"][0]["kwargs"]


def one(**changes):
    return {"expectations": [{**NULLS, **changes}]}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (one(type="unexpected_rows_expectation", kwargs={"unexpected_rows_query": "SELECT 1"}), "asks SQL; compute"),
        (one(kwargs={"column": "left_k", "row_condition": "1 = 1"}), "row_condition is SQL beside"),
        (one(kwargs={"column": {"$PARAMETER": "now()"}}), "column has to be a value or a list of values"),
        (one(kwargs=[1]), "kwargs has to be arguments"),
        (one(windows=[{"constraint_fn": "mean"}]), "windows: is not taken over; leave it out"),
        (one(severity="grave"), "should be 'critical', 'warning' or 'info'"),
        ({"expectations": {}}, "is no suite of Great Expectations"),
        ([], "is no suite of Great Expectations"),
    ],
)
def test_what_no_pipeline_file_may_have_no_suite_may_have(suite, content, says):
    with pytest.raises(PipelineFileError, match="suite: suite.json") as caught:
        suite(content)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[" * 100_000, "is not JSON"),
        ("nonsense", "is not JSON"),
        (f'"{"x" * 1_000_000}"', "more than 1,000,000 bytes"),
    ],
)
def test_what_is_no_json_is_told(suite, text, says):
    with pytest.raises(PipelineFileError, match=says):
        suite(None, text=text)


def test_a_suite_lies_beside_the_pipeline_file_or_where_the_operator_allows_it(suite, tmp_path, monkeypatch):
    elsewhere = tmp_path.with_name(f"{tmp_path.name}-gx")
    elsewhere.mkdir()
    (elsewhere / "other.json").write_text(json.dumps(one()))
    (tmp_path / "link.json").symlink_to(elsewhere / "other.json")
    for name in (
        str(elsewhere / "other.json"),
        f"../{elsewhere.name}/other.json",
        "link.json",
        "/etc/passwd",
        "p.yaml",
    ):
        with pytest.raises(
            PipelineFileError, match="put it there, or let the operator allow its root in TIDEMARK_ROOTS"
        ):
            suite(one(), name=name)
    with pytest.raises(PipelineFileError, match="cannot be read: No such file"):
        suite(one(), name="gone.json")
    monkeypatch.setenv("TIDEMARK_ROOTS", f"s3://streams,{elsewhere}")
    assert len(suite(one(), name=str(elsewhere / "other.json"))) == 2
