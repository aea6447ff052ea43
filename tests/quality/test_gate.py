"""The quality gate, where several judge at the same time."""

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
from tidemark.quality.evaluation_scope import JobRows
from tidemark.quality.gate import validate_output
from tidemark.quality.gx import result_store
from tidemark.quality.gx.data_docs import delete_results_before, get_docs_index, update_data_docs, write_docs
from tidemark.quality.invariants import INVARIANTS
from tidemark.quality.results import Measurement

SOUND = pd.DataFrame(0, index=range(3), columns=list(INVARIANTS))
"""Facts of three slices that have nothing wrong."""
NO_ROWS = JobRows(range(3), {})
BY_TIDEMARK = SimpleNamespace(quality=[], notify=[], expose_row_values=False)
BY_LIBRARY = SimpleNamespace(quality=[], notify=["somebody"], expose_row_values=False)
OF_A_RUN = {"id", "checkpoint_id", "validation_id", "validation_time", "run_id", "batch_markers"}


@pytest.fixture
def restless_threads():
    """Threads that take turns a thousand times as often."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(usual / 1000)
    yield
    sys.setswitchinterval(usual)


def judged(root, worker):
    """Runs that a pipeline's results are kept of, when a worker has judged three."""
    tables = PipelineTables(str(root))
    for number in range(3):
        verdict = validate_output(SOUND, NO_ROWS, BY_LIBRARY, tables, f"{worker}{number}")
        assert verdict.outcome == "passed"
    return {path.parts[-3] for path in Path(tables.gx_folder).rglob("uncommitted/validations/**/*.json")}


def test_threads_judge_each_its_own_pipeline(tmp_path, restless_threads):
    names = ["bids", "orders", "rides"]
    with ThreadPoolExecutor(len(names)) as pool:
        kept = list(pool.map(judged, [tmp_path / name for name in names], names))
    assert kept == [{f"{name}{number}" for number in range(3)} for name in names]


def test_processes_judge_one_pipeline_at_the_same_time(tmp_path):
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        kept = set.union(*pool.map(judged, [tmp_path] * 4, "abcd"))
    assert kept == {f"{worker}{number}" for worker in "abcd" for number in range(3)}


def lasting(told):
    """What a result says, without what is another in each run."""
    if isinstance(told, list):
        return [lasting(one) for one in told]
    return {k: lasting(v) for k, v in told.items() if k not in OF_A_RUN} if isinstance(told, dict) else told


def test_facts_that_hold_are_kept_as_the_library_would_and_shown_when_asked_for(tmp_path):
    tables = PipelineTables(str(tmp_path))
    by_library = validate_output(SOUND, NO_ROWS, BY_LIBRARY, tables, "library")
    assert replace(
        validate_output(SOUND, NO_ROWS, BY_TIDEMARK, tables, "tidemark"),
        gx_result_ids=by_library.gx_result_ids,
        seconds=0,
    ) == (replace(by_library, seconds=0))
    results = Path(tables.gx_folder, "uncommitted/validations")
    kept = {path.parts[-3]: json.loads(path.read_text()) for path in results.rglob("*.json")}
    assert lasting(kept["tidemark"]) == lasting(kept["library"])
    assert kept["tidemark"]["meta"]["run_id"]["run_name"] == "tidemark"
    update_data_docs(tables)
    pages = {
        path.parts[-3]: path.read_text() for path in Path(get_docs_index(tables)).parent.rglob("slices-invariants.html")
    }
    assert set(pages) == {"tidemark", "library"}
    assert all("null_keys" in page for page in pages.values())


def test_facts_that_do_not_hold_are_the_library_s_to_tell(tmp_path):
    wrong = SOUND.assign(null_keys=[0, 2, 0])
    verdict = validate_output(wrong, NO_ROWS, BY_TIDEMARK, PipelineTables(str(tmp_path)), "run")
    assert [len(found) for found in verdict.failures_by_slice] == [0, 1, 0]
    assert len(verdict.gx_result_ids) == 1


def test_old_results_are_forgotten(tmp_path, monkeypatch):
    monkeypatch.setattr(result_store, "MAX_RESULTS", 2)
    tables = PipelineTables(str(tmp_path))
    for number in range(4):
        validate_output(SOUND, NO_ROWS, BY_LIBRARY if number % 2 else BY_TIDEMARK, tables, f"run{number}")
    folders = {path.name for path in Path(result_store.get_results_folder(tables)).glob("*/*")}
    assert folders == {"run1", "run2", "run3"}, "those that a job finds, and its own"


def test_results_that_are_old_go_with_their_pages_and_the_first_page_is_without_them(tmp_path):
    tables = PipelineTables(str(tmp_path))
    for run in ("old", "new"):
        validate_output(SOUND, NO_ROWS, BY_TIDEMARK, tables, run)
    update_data_docs(tables)
    site = Path(get_docs_index(tables)).parent
    [aged] = Path(result_store.get_results_folder(tables)).glob("*/old/*")
    [page] = site.glob("validations/*/old/*")
    then = (datetime.now(UTC) - timedelta(days=2)).strftime("%Y%m%dT%H%M%S.%fZ")
    for folder in (aged, page):
        folder.rename(folder.with_name(then))
    before = datetime.now(UTC) - timedelta(days=1)
    would = delete_results_before(tables, before, dry_run=True)
    assert [path.rsplit("/", 1)[1] for path in would.files] == ["slices-invariants.html", "slices-invariants.json"]
    assert delete_results_before(tables, before, dry_run=False) == would
    assert delete_results_before(tables, before, dry_run=False) == RemovedFiles()
    assert {path.parts[-3] for path in site.rglob("slices-invariants.html")} == {"new"}
    told = Path(get_docs_index(tables)).read_text()
    assert ("/old/" in told, "/new/" in told) == (False, True)
    assert [path.parts[-3] for path in result_store.list_results(tables)] == ["new"]


@pytest.mark.parametrize("shown", [False, True])
def test_values_that_fail_are_counted_and_shown_only_where_the_file_lets_them_be(spark, tmp_path, shown):
    rows = spark.createDataFrame([(1,), (471147114711,)], "right_v bigint")
    bound = Expectation.model_validate({"expect_column_values_to_be_between": {"column": "right_v", "max_value": 50}})
    pipeline = SimpleNamespace(quality=[bound], expose_row_values=shown)
    tables = PipelineTables(str(tmp_path))
    verdict = validate_output(SOUND[:1], JobRows([0], {"emissions": rows}), pipeline, tables, "run")
    write_docs(tables, verdict.gx_result_ids)
    [finding] = verdict.failures
    [[measure]] = verdict.measurements_by_slice
    assert measure == Measurement(finding.expectation, "critical", 0.5, passed=False)
    assert finding.detail == ("found 1 of 2 values, such as [471147114711]" if shown else "found 1 of 2 values")
    files = [path.read_text(errors="replace") for path in Path(tables.gx_folder).rglob("*") if path.is_file()]
    assert any("471147114711" in text for text in files) == shown


@pytest.mark.parametrize("shown", [False, True])
def test_an_expectation_that_fails_on_a_value_quotes_it_only_where_the_file_lets_it(spark, tmp_path, shown):
    first, second = (datetime.fromtimestamp(number, UTC) for number in range(2))
    texts = [("secret4711", 1, first), ("secret4711", 1, second)]
    rows = spark.createDataFrame(texts, "left_v string, right_v int, _slice timestamp")
    greater = {"type": "expect_column_pair_values_a_to_be_greater_than_b", "column_A": "left_v", "column_B": "right_v"}
    pipeline = SimpleNamespace(quality=[Expectation.model_validate(greater)], expose_row_values=shown)
    tables = PipelineTables(str(tmp_path))
    verdict = validate_output(SOUND[:2], JobRows([0, 1_000_000], {"emissions": rows}), pipeline, tables, "run")
    write_docs(tables, verdict.gx_result_ids)
    assert [len(found) for found in verdict.failures_by_slice] == [1, 1]
    assert [[(one.value, one.passed) for one in found] for found in verdict.measurements_by_slice] == [
        [(None, False)]
    ] * 2
    for finding in verdict.failures:
        assert "[CAST_INVALID_INPUT]" in finding.detail
    # Of several slices that fail the results of the first are stored.
    assert ("secret4711" in verdict.failures_by_slice[0][0].detail) == shown
    files = [path.read_text(errors="replace") for path in Path(tables.gx_folder).rglob("*") if path.is_file()]
    assert any("secret4711" in text for text in files) == shown


def test_quantiles_of_one_column_are_told_apart_in_one_slice_as_in_several(spark, tmp_path):
    rows = spark.createDataFrame(
        [(v, datetime.fromtimestamp(v % 2, UTC)) for v in range(20)], "v int, _slice timestamp"
    )
    ranges = [{"quantiles": [share], "value_ranges": [[18, 19]]} for share in (0.0, 1.0)]
    name = "expect_column_quantile_values_to_be_between"
    asked = [Expectation(type=name, kwargs={"column": "v", "quantile_ranges": one}) for one in ranges]
    pipeline, tables = SimpleNamespace(quality=asked, notify=[], expose_row_values=False), PipelineTables(str(tmp_path))
    both = validate_output(SOUND[:2], JobRows([0, 1_000_000], {"emissions": rows}), pipeline, tables, "both")
    first = rows.where(F.unix_micros("_slice") == 0)
    alone = validate_output(SOUND[:1], JobRows([0], {"emissions": first}), pipeline, tables, "alone")
    assert (
        [one.passed for one in both.measurements_by_slice[0]]
        == [one.passed for one in alone.measurements_by_slice[0]]
        == [False, True]
    )
