"""Tests of the quality gate: concurrent validation, stored results and quoted values."""

import json
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from pyspark.sql import functions as F

from tidemark.config import Expectation
from tidemark.delta.log_files import RemovedFiles
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.execution.quality_gate import format_failed_slices
from tidemark.quality.evaluation_scope import ValidationRows
from tidemark.quality.gx import result_store
from tidemark.quality.gx.data_docs import delete_results_before, get_docs_index, update_data_docs, write_docs
from tidemark.quality.invariants import INVARIANTS
from tidemark.quality.results import ExpectationResult, Measurement, ValidationResult
from tidemark.quality.validation import validate_output
from tidemark.timegrid.slices import Grid

PASSING = pd.DataFrame(0, index=range(3), columns=list(INVARIANTS))
"""Invariants of three slices without a failure."""
NO_ROWS = ValidationRows(range(3), {})
WITHOUT_GX = SimpleNamespace(quality=[], notify=[], expose_row_values=False)
WITH_GX = SimpleNamespace(quality=[], notify=["somebody"], expose_row_values=False)
RUN_FIELDS = {"id", "checkpoint_id", "validation_id", "validation_time", "run_id", "batch_markers"}


@pytest.fixture
def frequent_thread_switches():
    """Let threads take turns a thousand times as often."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(interval / 1000)
    yield
    sys.setswitchinterval(interval)


def validate_three_runs(root, worker):
    """Validate three runs of a worker; return the runs with stored results."""
    tables = PipelineTables(str(root))
    for number in range(3):
        result = validate_output(PASSING, NO_ROWS, WITH_GX, tables, f"{worker}{number}")
        assert result.outcome == "passed"
    return {path.parts[-3] for path in Path(tables.gx_folder).rglob("uncommitted/validations/**/*.json")}


def test_validate_output_threads_each_validate_own_pipeline(tmp_path, frequent_thread_switches):
    names = ["bids", "orders", "rides"]

    with ThreadPoolExecutor(len(names)) as pool:
        stored_runs = list(pool.map(validate_three_runs, [tmp_path / name for name in names], names))

    assert stored_runs == [{f"{name}{number}" for number in range(3)} for name in names]


@pytest.mark.process
def test_validate_output_concurrent_processes_share_a_pipeline(tmp_path):
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        stored_runs = set.union(*pool.map(validate_three_runs, [tmp_path] * 4, "abcd"))

    assert stored_runs == {f"{worker}{number}" for worker in "abcd" for number in range(3)}


@pytest.mark.parametrize(
    ("failing", "expected"),
    [
        ({3}, "slice 1970-01-01T03:00Z"),
        (
            {1, 3},
            "first of 2 failing slices up to 1970-01-01T03:00Z: 1970-01-01T01:00Z, 1970-01-01T03:00Z",
        ),
        (set(range(1, 9)), "1970-01-01T05:00Z and 3 more"),
    ],
)
def test_format_failed_slices_counts_and_lists_them(failing, expected):
    stop, warn = (ExpectationResult("rows", "critical", "found 0", action) for action in ("stop", "warn"))
    result = ValidationResult(tuple((stop,) if number in failing else (warn,) for number in range(9)), 0.0, "")

    assert format_failed_slices(Grid(0, 3_600_000_000), range(9), result).endswith(expected)


def without_run_fields(content):
    """Remove fields that differ in each run from a stored result."""
    if isinstance(content, list):
        return [without_run_fields(item) for item in content]
    if not isinstance(content, dict):
        return content
    return {key: without_run_fields(value) for key, value in content.items() if key not in RUN_FIELDS}


def test_validate_output_passed_invariants_are_stored_as_by_gx(tmp_path):
    tables = PipelineTables(str(tmp_path))

    with_gx = validate_output(PASSING, NO_ROWS, WITH_GX, tables, "library")
    without_gx = validate_output(PASSING, NO_ROWS, WITHOUT_GX, tables, "tidemark")

    assert replace(without_gx, gx_result_ids=with_gx.gx_result_ids, seconds=0) == replace(with_gx, seconds=0)
    results = Path(tables.gx_folder, "uncommitted/validations")
    stored = {path.parts[-3]: json.loads(path.read_text()) for path in results.rglob("*.json")}
    assert without_run_fields(stored["tidemark"]) == without_run_fields(stored["library"])
    assert stored["tidemark"]["meta"]["run_id"]["run_name"] == "tidemark"

    update_data_docs(tables)

    pages = {
        path.parts[-3]: path.read_text() for path in Path(get_docs_index(tables)).parent.rglob("slices-invariants.html")
    }
    assert set(pages) == {"tidemark", "library"}
    assert all("null_keys" in page for page in pages.values())


def test_validate_output_failed_invariant_is_reported_in_its_slice(tmp_path):
    failing = PASSING.assign(null_keys=[0, 2, 0])

    result = validate_output(failing, NO_ROWS, WITHOUT_GX, PipelineTables(str(tmp_path)), "run")

    assert [len(failures) for failures in result.failures_by_slice] == [0, 1, 0]
    assert len(result.gx_result_ids) == 1


def test_validate_output_removes_oldest_results_above_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(result_store, "MAX_RESULTS", 2)
    tables = PipelineTables(str(tmp_path))
    for number in range(4):
        validate_output(PASSING, NO_ROWS, WITH_GX if number % 2 else WITHOUT_GX, tables, f"run{number}")

    folders = {path.name for path in Path(result_store.get_results_folder(tables)).glob("*/*")}
    assert folders == {"run1", "run2", "run3"}, "two earlier results and that of the last job"


def test_delete_results_before_removes_results_pages_and_links(tmp_path):
    tables = PipelineTables(str(tmp_path))
    for run in ("old", "new"):
        validate_output(PASSING, NO_ROWS, WITHOUT_GX, tables, run)
    update_data_docs(tables)
    site = Path(get_docs_index(tables)).parent
    [result_folder] = Path(result_store.get_results_folder(tables)).glob("*/old/*")
    [page_folder] = site.glob("validations/*/old/*")
    two_days_ago = (datetime.now(UTC) - timedelta(days=2)).strftime("%Y%m%dT%H%M%S.%fZ")
    for folder in (result_folder, page_folder):
        folder.rename(folder.with_name(two_days_ago))
    before = datetime.now(UTC) - timedelta(days=1)

    dry_run = delete_results_before(tables, before, dry_run=True)

    assert [path.rsplit("/", 1)[1] for path in dry_run.files] == ["slices-invariants.html", "slices-invariants.json"]
    assert delete_results_before(tables, before, dry_run=False) == dry_run
    assert delete_results_before(tables, before, dry_run=False) == RemovedFiles()
    assert {path.parts[-3] for path in site.rglob("slices-invariants.html")} == {"new"}
    index = Path(get_docs_index(tables)).read_text()
    assert ("/old/" in index, "/new/" in index) == (False, True)
    assert [path.parts[-3] for path in result_store.list_results(tables)] == ["new"]


@pytest.mark.parametrize("exposed", [False, True])
def test_validate_output_failing_values_are_quoted_only_if_exposed(spark, tmp_path, exposed):
    instant = datetime.fromtimestamp(0, UTC)
    rows = spark.createDataFrame([(1, instant), (471147114711, instant)], "right_v bigint, _slice timestamp")
    bound = Expectation.model_validate({"expect_column_values_to_be_between": {"column": "right_v", "max_value": 50}})
    rule = Expectation.model_validate({"type": "rows", "that": "right_v < 51", "severity": "warning"})
    pipeline = SimpleNamespace(quality=[bound, rule], expose_row_values=exposed)
    tables = PipelineTables(str(tmp_path))

    result = validate_output(PASSING[:1], ValidationRows([0], {"emissions": rows}), pipeline, tables, "run")
    write_docs(tables, result.gx_result_ids)

    failure, broken_rule = result.failures
    [[measurement, share]] = result.measurements_by_slice
    assert measurement == Measurement(failure.expectation, "critical", 0.5, passed=False)
    assert share == Measurement("rows(that right_v < 51)", "warning", 0.5, passed=False)
    assert (broken_rule.expectation, broken_rule.detail) == (share.expectation, "found 1 of 2 rows")
    assert failure.detail == ("found 1 of 2 values, such as [471147114711]" if exposed else "found 1 of 2 values")
    files = [path.read_text(errors="replace") for path in Path(tables.gx_folder).rglob("*") if path.is_file()]
    assert any("471147114711" in text for text in files) == exposed
    assert any("Rows must meet right_v &lt; 51." in text for text in files), "Data Docs show the rule"


@pytest.mark.parametrize("exposed", [False, True])
def test_validate_output_error_on_a_value_quotes_it_only_if_exposed(spark, tmp_path, exposed):
    first, second = (datetime.fromtimestamp(number, UTC) for number in range(2))
    values = [("secret4711", 1, first), ("secret4711", 1, second)]
    rows = spark.createDataFrame(values, "left_v string, right_v int, _slice timestamp")
    greater = {"type": "expect_column_pair_values_a_to_be_greater_than_b", "column_A": "left_v", "column_B": "right_v"}
    pipeline = SimpleNamespace(quality=[Expectation.model_validate(greater)], expose_row_values=exposed)
    tables = PipelineTables(str(tmp_path))

    result = validate_output(PASSING[:2], ValidationRows([0, 1_000_000], {"emissions": rows}), pipeline, tables, "run")
    write_docs(tables, result.gx_result_ids)

    assert [len(failures) for failures in result.failures_by_slice] == [1, 1]
    for [measurement] in result.measurements_by_slice:
        assert (measurement.value, measurement.passed) == (None, False)
    for failure in result.failures:
        assert "[CAST_INVALID_INPUT]" in failure.detail
    # Results of the first failing slice are stored.
    assert ("secret4711" in result.failures_by_slice[0][0].detail) == exposed
    files = [path.read_text(errors="replace") for path in Path(tables.gx_folder).rglob("*") if path.is_file()]
    assert any("secret4711" in text for text in files) == exposed


def test_validate_output_distinguishes_quantiles_of_a_column(spark, tmp_path):
    rows = spark.createDataFrame(
        [(v, datetime.fromtimestamp(v % 2, UTC)) for v in range(20)], "v int, _slice timestamp"
    )
    ranges = [{"quantiles": [share], "value_ranges": [[18, 19]]} for share in (0.0, 1.0)]
    name = "expect_column_quantile_values_to_be_between"
    quality = [Expectation(type=name, kwargs={"column": "v", "quantile_ranges": quantiles}) for quantiles in ranges]
    pipeline = SimpleNamespace(quality=quality, notify=[], expose_row_values=False)
    tables = PipelineTables(str(tmp_path))
    first = rows.where(F.unix_micros("_slice") == 0)

    two_slices = validate_output(
        PASSING[:2], ValidationRows([0, 1_000_000], {"emissions": rows}), pipeline, tables, "two"
    )
    single_slice = validate_output(PASSING[:1], ValidationRows([0], {"emissions": first}), pipeline, tables, "single")

    for result in (two_slices, single_slice):
        assert [measurement.passed for measurement in result.measurements_by_slice[0]] == [False, True]
