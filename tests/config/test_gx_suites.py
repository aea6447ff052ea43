"""Stored suites of Great Expectations that a pipeline file names."""

import json

import pytest

from tests.conftest import write_pipeline
from tidemark.errors import PipelineFileError
from tidemark.quality.gx.project import import_gx

NULLS = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "left_k"}}
COMPARISON = {"type": "comparison", "column": {"name": "left_v"}, "operator": ">", "parameter": 1}
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
def load_suite(tmp_path):
    """Return a function that loads the expectations of a pipeline with a suite of some content."""

    def load(content, name="suite.json", text=None):
        (tmp_path / "suite.json").write_text(json.dumps(content) if text is None else text)
        return write_pipeline(
            tmp_path / "p.yaml", expectation_suite=name, quality=[{**NULLS, "severity": "warning"}]
        ).quality

    return load


def test_load_suite_of_great_expectations_1_copies_expectations(load_suite):
    gx = import_gx()
    expected = gx.expectations.ExpectColumnValuesToBeBetween(
        column="left_v", min_value=1, strict_max=True, mostly=0.5, severity="warning", notes="seen", meta={"a": "b"}
    )
    written = gx.ExpectationSuite(name="orders", expectations=[expected], notes="ours")
    own, copied = load_suite(written.to_json_dict())

    assert own.type == NULLS["type"]
    assert (copied.type, copied.severity, copied.on_failure) == (
        "expect_column_values_to_be_between",
        "warning",
        "warn",
    )
    assert copied.notes == "seen"
    assert copied.kwargs == {"column": "left_v", "min_value": 1, "strict_max": True, "mostly": 0.5}


def test_load_suite_of_great_expectations_0_18_copies_expectations(load_suite):
    _, copied = load_suite(OLD)
    assert (copied.type, copied.severity) == (OLD["expectations"][0]["expectation_type"], "critical")
    assert copied.kwargs == OLD["expectations"][0]["kwargs"]


@pytest.mark.parametrize(
    "stored",
    [
        {"row_condition": "left_v > 1", "condition_parser": "spark"},
        {"row_condition": {"type": "pass_through", "pass_through_filter": "left_v > 1"}},
        {"row_condition": {"type": "pass_through", "pass_through_filter": "left_v > 1"}, "condition_parser": "spark"},
    ],
)
def test_load_suite_condition_for_spark_is_copied_as_sql(load_suite, stored):
    _, copied = load_suite(suite_of(kwargs={"column": "left_k", **stored}))
    assert copied.kwargs == {"column": "left_k", "row_condition": "left_v > 1"}


def suite_of(**changes):
    return {"expectations": [{**NULLS, **changes}]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            suite_of(type="unexpected_rows_expectation", kwargs={"unexpected_rows_query": "SELECT 1"}),
            "runs SQL. Write {type: rows, that: CONDITION}",
        ),
        (suite_of(kwargs={"column": "left_k", "row_condition": "reflect('a', 'b')"}), "row_condition: reflect() calls"),
        (suite_of(kwargs={"column": "left_k", "row_condition": COMPARISON}), "row_condition is not text"),
        (
            suite_of(kwargs={"column": "left_k", "row_condition": "a > 1", "condition_parser": "pandas"}),
            "condition_parser is not needed",
        ),
        (suite_of(kwargs={"column": {"$PARAMETER": "now()"}}), "column is not a value or a list of values"),
        (suite_of(kwargs=[1]), "kwargs is not a mapping"),
        (suite_of(windows=[{"constraint_fn": "mean"}]), "windows: not supported. Remove it."),
        (suite_of(severity="grave"), "should be 'critical', 'warning' or 'info'"),
        ({"expectations": {}}, "has no list of expectations"),
        ([], "has no list of expectations"),
    ],
)
def test_load_suite_refused_content_raises(load_suite, content, message):
    with pytest.raises(PipelineFileError, match="expectation_suite: suite.json") as raised:
        load_suite(content)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "is not JSON"),
        ("nonsense", "is not JSON"),
        (f'"{"x" * 1_000_000}"', "more than 1,000,000 bytes"),
    ],
)
def test_load_suite_invalid_json_raises(load_suite, text, message):
    with pytest.raises(PipelineFileError, match=message):
        load_suite(None, text=text)


def test_load_suite_outside_the_allowed_folders_raises(load_suite, tmp_path, monkeypatch):
    elsewhere = tmp_path.with_name(f"{tmp_path.name}-gx")
    elsewhere.mkdir()
    (elsewhere / "other.json").write_text(json.dumps(suite_of()))
    (tmp_path / "link.json").symlink_to(elsewhere / "other.json")
    for name in (
        str(elsewhere / "other.json"),
        f"../{elsewhere.name}/other.json",
        "link.json",
        "/etc/passwd",
        "p.yaml",
    ):
        with pytest.raises(
            PipelineFileError, match="Move it there, or ask the operator to allow its root in TIDEMARK_ALLOWED_ROOTS"
        ):
            load_suite(suite_of(), name=name)

    with pytest.raises(PipelineFileError, match="cannot be read: No such file"):
        load_suite(suite_of(), name="gone.json")

    monkeypatch.setenv("TIDEMARK_ALLOWED_ROOTS", f"s3://streams,{elsewhere}")
    assert len(load_suite(suite_of(), name=str(elsewhere / "other.json"))) == 2
