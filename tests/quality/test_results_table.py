"""Tests of table `quality`: its rows, summary and page, over a year of slices made without Spark."""

import json
from datetime import UTC, datetime, timedelta
from math import nan
from types import SimpleNamespace

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from rich.console import Console

from tests.conftest import write_pipeline
from tidemark.cli.app import main
from tidemark.cli.quality import render_histories
from tidemark.config import Expectation, load_pipeline
from tidemark.config.baseline_metrics import METRIC_COLUMNS
from tidemark.config.quality import DATA_DOCS_INDEX, create_default_expectations
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
    """Write a pipeline file and a year of results: hour 4,000 has too many rows, and half of its keys are null."""
    folder = tmp_path_factory.mktemp("year")
    settings = write_pipeline(folder / "orders.yaml", quality=[ROWS, KEYS, SET])
    names = [
        "expect_table_row_count_to_be_between(min_value 10, max_value 200)",
        "expect_column_values_to_not_be_null(column left_k, mostly 0.9)",
        "expect_column_distinct_values_to_be_in_set(column left_k, value_set ['a'])",
    ]
    failures = (
        ExpectationResult(names[0], "warning", "found 900", "warn"),
        ExpectationResult(names[1], "critical", "found 5 of 10", "waived"),
    )
    passed = Measurement(names[0], "warning", 100.0, passed=True), Measurement(names[1], "critical", 0.0, passed=True)
    failed = Measurement(names[0], "warning", 900.0, passed=False), Measurement(names[1], "critical", 0.5, passed=False)
    in_set = Measurement(names[2], "critical", None, passed=True)
    result = ValidationResult(
        tuple(failures if n == 4_000 else () for n in range(YEAR)),
        0.0,
        "",
        measurements_by_slice=tuple((*(failed if n == 4_000 else passed), in_set) for n in range(YEAR)),
    )
    grid = Grid.from_config(settings.slices)
    rows = create_result_rows(settings, grid, 0, "run", result)
    lake = folder / "lake"
    create_internal_table(PipelineTables.from_config(settings, str(lake)).quality, SCHEMA).append(rows)
    return folder / "orders.yaml", lake, rows


def test_create_result_rows_have_bounds_per_slice_and_expectation(year):
    _, _, rows = year

    [warned] = [row for row in rows.to_pylist() if row["outcome"] == "warned"]

    assert len(rows) == 3 * YEAR
    assert warned["slice"] == datetime(2024, 1, 1, tzinfo=UTC) + timedelta(hours=4_000)
    assert (warned["value"], warned["min_value"], warned["max_value"]) == (900, 10, 200)


@pytest.mark.parametrize(
    ("expectation", "expected"),
    [
        (ROWS, (10, 200)),
        (KEYS, (None, pytest.approx(0.1))),
        (SET, (None, None)),
        ({"type": "expect_table_row_count_to_equal", "value": 3}, (3, 3)),
        # The expectation's own bounds are of the values; the measurement is the share of values out of bounds.
        ({"type": "expect_column_values_to_be_between", "column": "k", "min_value": 5}, (None, 0)),
        ({"type": "expect_column_max_to_be_between", "column": "k", "max_value": "2024-01-01"}, (None, None)),
    ],
)
def test_get_value_bounds_are_of_the_measured_value(expectation, expected):
    assert get_value_bounds(Expectation.model_validate(expectation)) == expected


def test_append_rejection_results_each_rejected_attempt_has_own_time(year):
    file, lake, rows = year
    tables = PipelineTables.from_config(load_pipeline(file), str(lake / "elsewhere"))
    slice_rows = rows.filter(pc.equal(rows["slice"], datetime(2024, 6, 15, 16, tzinfo=UTC)))
    outcomes = pa.array(["failed", "passed", "failed"])
    failed = slice_rows.set_column(rows.schema.get_field_index("outcome"), "outcome", outcomes)
    started = datetime.now(UTC)

    for _ in range(2):
        append_rejection_results(tables, failed)

    stored = DeltaTableHandle.open(tables.rejection_results).read([*SCHEMA.names, "rejected_at"]).to_pylist()
    times = sorted({row["rejected_at"] for row in stored})
    assert started <= times[0] < times[1] <= datetime.now(UTC)
    assert [sum(row["rejected_at"] == time for row in stored) for time in times] == [2, 2]
    assert {row["outcome"] for row in stored} == {"failed"}
    summaries = summarize_results(read_results(tables.rejection_results), rows.to_pandas())
    counts = [(summary.evaluated, summary.outcomes) for summary in summaries]
    assert (YEAR + 2, {"passed": YEAR, "failed": 2}) in counts


def test_quality_command_json_has_worst_value_and_slice(year, capsys):
    file, lake, _ = year

    assert main(["quality", "show", str(file), "--lake", str(lake), "--json"]) == 0

    summaries = {summary["expectation"].partition("(")[0]: summary for summary in json.loads(capsys.readouterr().out)}
    worst_slice = "2024-06-15T16:00Z"
    count, keys, in_set = (summaries[expectation["type"]] for expectation in (ROWS, KEYS, SET))
    assert (count["evaluated"], count["outcomes"]) == (YEAR, {"passed": YEAR - 1, "warned": 1})
    assert (count["worst_value"], count["worst_slice"]) == (900, worst_slice)
    assert (keys["outcomes"]["waived"], keys["worst_value"], keys["worst_slice"]) == (1, 0.5, worst_slice)
    assert (in_set["outcomes"], in_set["worst_value"]) == ({"passed": YEAR}, None)


def create_results(expectation, bounds, *values_and_outcomes):
    """Create a result per hour of 2024-01-01, all with the same bounds."""
    rows = [
        (pd.Timestamp(2024, 1, 1, hour, tz="UTC"), "run", expectation, "warning", value, *bounds, outcome)
        for hour, (value, outcome) in enumerate(values_and_outcomes)
    ]
    return pd.DataFrame(rows, columns=SCHEMA.names)


@pytest.mark.parametrize(
    ("values_and_outcomes", "expected"),
    [
        ([(0.0, "passed"), (70.0, "passed"), (95.0, "passed")], (95, "2024-01-01T02:00Z", "passed")),
        # A stricter bound than the one that is stored, such as `strict_max`, lets a value at the bound fail.
        ([(100.0, "passed"), (99.0, "warned"), (98.0, "warned")], (99, "2024-01-01T01:00Z", "warned")),
        ([(0.5, "passed"), (nan, "failed"), (nan, "warned")], (None, "2024-01-01T01:00Z", "failed")),
        ([(nan, "passed")], (None, None, None)),
    ],
)
def test_summarize_results_worst_value_is_of_a_failed_slice_if_any_failed(values_and_outcomes, expected):
    name = "expect_column_max_to_be_between(column a, min_value -1000, max_value 100)"

    [history] = summarize_results(create_results(name, (-1000.0, 100.0), *values_and_outcomes))

    assert (history.worst_value, history.worst_slice, history.worst_outcome) == expected


@pytest.mark.parametrize(
    ("expectation", "bounds", "result", "shown"),
    [
        ("expect_column_mean_to_be_between(column a)", (0, 100), (150, "warned"), ["warning, 0 to 100", "150"]),
        (
            "expect_column_values_to_be_between(column a, min_value 0, max_value 100)",
            (None, 0.0),
            (0.25, "warned"),
            ["warning, allowed to violate: 0% of values", "25% of values"],
        ),
        (
            "expect_column_values_to_be_between(column late_share, max_value 0.5) on history",
            (None, 0.5),
            (0.25, "passed"),
            ["warning, at most 0.5", "0.25", "nearest to a bound"],
        ),
    ],
)
def test_render_histories_shows_bounds_of_numbers_and_shares(expectation, bounds, result, shown):
    console = Console(width=120, record=True)
    orders = SimpleNamespace(name="orders")

    with console.capture() as capture:
        console.print(render_histories(orders, summarize_results(create_results(expectation, bounds, result))))

    assert all(text in capture.get() for text in shown)


def test_render_histories_breaks_lines_of_80_columns_between_words():
    arguments = "column scheduled_departure_of_the_flight, min_value 0, max_value 100"
    name = f"expect_column_values_to_be_between({arguments}) on history per day"
    histories = summarize_results(create_results(name, (None, 0.0), (0.25, "warned"), (0.0, "passed")))
    console = Console(width=80, record=True)

    with console.capture() as capture:
        console.print(render_histories(SimpleNamespace(name="orders"), histories))

    words = capture.get().split()
    assert set(name.split()) <= set(words)
    assert "2 evaluated: 1 passed, 1 warned" in capture.get()
    assert "in slice 2024-01-01T00:00Z" in " ".join(words)


def test_quality_command_prints_expectations_outcomes_and_data_docs(year, capsys):
    file, lake, _ = year
    first_page = lake / "orders" / DATA_DOCS_INDEX
    first_page.parent.mkdir(parents=True)
    first_page.touch()

    assert main(["quality", "show", str(file), "--lake", str(lake)]) == 0

    output = capsys.readouterr().out
    assert "expect_table_row_count_to_be_between" in output
    assert "1 warned" in output
    index = lake / "orders" / DATA_DOCS_INDEX
    assert (f"Data Docs: {index}" in output) == index.exists()


def test_quality_report_draws_values_and_escapes_names(year, tmp_path, capsys):
    file, lake, _ = year
    page = tmp_path / "quality.html"

    assert main(["quality", "show", str(file), "--lake", str(lake), "--report", str(page)]) == 0

    text = page.read_text()
    # Two expectations measure a number; each has a chart for wide and for narrow screens.
    assert text.count("<svg ") == 4
    assert "value_set [&#39;a&#39;]): 8,760 slices" in text.replace("<wbr>", "")
    assert "<script" not in text
    assert main(["quality", "show", str(file), "--lake", str(lake), "--report", "quality.pdf"]) == 2


def test_quality_command_without_results_names_suggest(tmp_path, capsys):
    write_pipeline(tmp_path / "bare.yaml")

    assert main(["quality", "show", str(tmp_path / "bare.yaml"), "--lake", str(tmp_path / "lake")]) == 0

    assert f"tidemark quality suggest {tmp_path}/bare.yaml proposes some." in capsys.readouterr().out


def test_create_result_rows_baseline_checks_have_bounds(pipeline):
    share = {"type": "expect_column_values_to_be_between", "column": "late_share", "max_value": 0.4, "on": "history"}
    settings = pipeline(quality=[share])
    metrics = pd.DataFrame({name: [0.5, float("nan")] for name in METRIC_COLUMNS})
    checks = evaluate_baseline_checks(metrics, [*settings.quality, *create_default_expectations()])
    failures, measurements = zip(*checks, strict=True)
    result = ValidationResult(failures, 0.0, "", measurements_by_slice=measurements)

    rows = create_result_rows(settings, Grid.from_config(settings.slices), 0, "run", result)

    names = ("value", "min_value", "max_value", "outcome")
    assert [[row[name] for name in names] for row in rows.to_pylist()[:6]] == [
        [0.5, None, 0.4, "failed"],
        [0.5, 0.5, 2, "passed"],
        [0.5, 0.5, 2, "passed"],
        [0.5, None, 3, "passed"],
        [0.5, None, 0, "warned"],
        [0.5, None, 0, "warned"],
    ]
    assert [row["value"] for row in rows.to_pylist()[6:]] == [None] * 6
