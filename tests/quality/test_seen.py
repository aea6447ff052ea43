"""The table `quality` summed up and drawn, over a year of slices that no Spark has run."""

import json
from datetime import UTC, datetime, timedelta

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.conftest import write_pipeline
from tidemark.cli.app import main
from tidemark.config import Expectation, load_pipeline
from tidemark.config.baseline_metrics import METRIC_COLUMNS
from tidemark.config.quality import create_default_expectations
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import DeltaTableHandle, create_internal_table
from tidemark.quality.baseline_checks import evaluate_baseline_checks
from tidemark.quality.results import ExpectationResult, Measurement, ValidationResult
from tidemark.quality.results_table import (
    SCHEMA,
    append_rejection_results,
    create_result_rows,
    get_value_bounds,
    read_results,
    summarize_results,
)
from tidemark.timegrid.slices import Grid

ROWS = {"type": "expect_table_row_count_to_be_between", "min_value": 10, "max_value": 200, "severity": "warning"}
KEYS = {"type": "expect_column_values_to_not_be_null", "column": "left_k", "mostly": 0.9}
SET = {"type": "expect_column_distinct_values_to_be_in_set", "column": "left_k", "value_set": ["a"]}
YEAR = 8_760


@pytest.fixture(scope="module")
def year(tmp_path_factory):
    """A pipeline file and a lake with a year's measures: hour 4,000 has too many rows, and half of its keys null."""
    folder = tmp_path_factory.mktemp("year")
    settings = write_pipeline(folder / "orders.yaml", quality=[ROWS, KEYS, SET])
    names = [
        "expect_table_row_count_to_be_between(min_value 10, max_value 200)",
        "expect_column_values_to_not_be_null(column left_k, mostly 0.9)",
        "expect_column_distinct_values_to_be_in_set(column left_k, value_set ['a'])",
    ]
    many = (
        ExpectationResult(names[0], "warning", "found 900", "warn"),
        ExpectationResult(names[1], "critical", "found 5 of 10", "waived"),
    )
    held = Measurement(names[0], "warning", 100.0, passed=True), Measurement(names[1], "critical", 0.0, passed=True)
    broken = Measurement(names[0], "warning", 900.0, passed=False), Measurement(names[1], "critical", 0.5, passed=False)
    known = Measurement(names[2], "critical", None, passed=True)
    verdict = ValidationResult(
        tuple(many if n == 4_000 else () for n in range(YEAR)),
        0.0,
        "",
        measurements_by_slice=tuple((*(broken if n == 4_000 else held), known) for n in range(YEAR)),
    )
    grid = Grid.from_config(settings.slices)
    rows = create_result_rows(settings, grid, 0, "run", verdict)
    lake = folder / "lake"
    create_internal_table(PipelineTables.from_config(settings, str(lake)).quality, SCHEMA).append(rows)
    return folder / "orders.yaml", lake, rows


def test_each_slice_and_expectation_is_a_row_with_its_bounds(year):
    _, _, rows = year
    [wrong] = [row for row in rows.to_pylist() if row["outcome"] == "warned"]
    assert len(rows) == 3 * YEAR
    assert wrong["slice"] == datetime(2024, 1, 1, tzinfo=UTC) + timedelta(hours=4_000)
    assert (wrong["value"], wrong["min_value"], wrong["max_value"]) == (900, 10, 200)


@pytest.mark.parametrize(
    ("expectation", "expected"),
    [
        (ROWS, (10, 200)),
        (KEYS, (None, pytest.approx(0.1))),
        (SET, (None, None)),
        ({"type": "expect_table_row_count_to_equal", "value": 3}, (3, 3)),
        # Its bounds are those of the values, and what is measured is how many break them.
        ({"type": "expect_column_values_to_be_between", "column": "k", "min_value": 5}, (None, 0)),
        ({"type": "expect_column_max_to_be_between", "column": "k", "max_value": "2024-01-01"}, (None, None)),
    ],
)
def test_bounds_are_those_of_what_is_measured(expectation, expected):
    assert get_value_bounds(Expectation.model_validate(expectation)) == expected


def test_each_attempt_that_is_refused_has_rows_with_the_time_of_its_own(year):
    file, lake, rows = year
    tables = PipelineTables.from_config(load_pipeline(file), str(lake / "elsewhere"))
    here = rows.filter(pc.equal(rows["slice"], datetime(2024, 6, 15, 16, tzinfo=UTC)))
    outcomes = pa.array(["failed", "passed", "failed"])
    failed = here.set_column(rows.schema.get_field_index("outcome"), "outcome", outcomes)
    began = datetime.now(UTC)
    for _ in range(2):
        append_rejection_results(tables, failed)
    stored = DeltaTableHandle.open(tables.rejection_results).read([*SCHEMA.names, "rejected_at"]).to_pylist()
    times = sorted({row["rejected_at"] for row in stored})
    assert began <= times[0] < times[1] <= datetime.now(UTC)
    assert [sum(row["rejected_at"] == time for row in stored) for time in times] == [2, 2]
    assert {row["outcome"] for row in stored} == {"failed"}
    counted = [
        (one.evaluated, one.outcomes)
        for one in summarize_results(read_results(tables.rejection_results), rows.to_pandas())
    ]
    assert (YEAR + 2, {"passed": YEAR, "failed": 2}) in counted


def test_the_worst_value_is_told_and_where_it_was(year, capsys):
    file, lake, _ = year
    assert main(["quality", str(file), "--lake", str(lake), "--json"]) == 0
    told = {one["expectation"].partition("(")[0]: one for one in json.loads(capsys.readouterr().out)}
    at = "2024-06-15T16:00Z"
    count, keys, known = (told[one["type"]] for one in (ROWS, KEYS, SET))
    assert (count["evaluated"], count["outcomes"]) == (YEAR, {"passed": YEAR - 1, "warned": 1})
    assert (count["worst_value"], count["worst_slice"]) == (900, at)
    assert (keys["outcomes"]["waived"], keys["worst_value"], keys["worst_slice"]) == (1, 0.5, at)
    assert (known["outcomes"], known["worst_value"]) == ({"passed": YEAR}, None)


def test_the_table_names_expectations_slices_and_data_docs(year, capsys):
    file, lake, _ = year
    assert main(["quality", str(file), "--lake", str(lake)]) == 0
    shown = capsys.readouterr().out
    assert "expect_table_row_count_to_be_between" in shown
    assert "1 warned" in shown
    assert f"Data Docs: {lake}/orders/gx" in shown.replace("\n", "")


def test_the_page_draws_each_value_and_escapes_names(year, tmp_path, capsys):
    file, lake, _ = year
    page = tmp_path / "quality.html"
    assert main(["quality", str(file), "--lake", str(lake), "--report", str(page)]) == 0
    text = page.read_text()
    # Two expectations come to numbers, each drawn for a desk and for a phone.
    assert text.count("<svg ") == 4
    assert "value_set [&#39;a&#39;]): 8,760 slices" in text.replace("<wbr>", "")
    assert "<script" not in text
    assert main(["quality", str(file), "--lake", str(lake), "--report", "quality.pdf"]) == 2


def test_without_a_table_the_way_to_one_is_told(tmp_path, capsys):
    write_pipeline(tmp_path / "bare.yaml")
    assert main(["quality", str(tmp_path / "bare.yaml"), "--lake", str(tmp_path / "lake")]) == 0
    assert "tidemark quality suggest orders" in " ".join(capsys.readouterr().out.split())


def test_figures_beside_earlier_slices_have_the_bounds_of_the_file_and_of_the_defaults(pipeline):
    share = {"type": "expect_column_values_to_be_between", "column": "late_share", "max_value": 0.4, "on": "history"}
    settings = pipeline(quality=[share])
    figures = pd.DataFrame({name: [0.5, float("nan")] for name in METRIC_COLUMNS})
    told = evaluate_baseline_checks(figures, [*settings.quality, *create_default_expectations()])
    findings, measures = zip(*told, strict=True)
    rows = create_result_rows(
        settings,
        Grid.from_config(settings.slices),
        0,
        "run",
        ValidationResult(findings, 0.0, "", measurements_by_slice=measures),
    )
    names = ("value", "min_value", "max_value", "outcome")
    found = [[row[name] for name in names] for row in rows.to_pylist()[:4]]
    assert found == [
        [0.5, None, 0.4, "failed"],
        [0.5, 0.5, 2, "passed"],
        [0.5, 0.5, 2, "passed"],
        [0.5, None, 3, "passed"],
    ]
    assert [row["value"] for row in rows.to_pylist()[4:]] == [None] * 4
