"""Tests of comparing a slice's metrics with those of earlier slices."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from tidemark.config import Expectation
from tidemark.config.quality import create_default_expectations
from tidemark.config.types import to_micros
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.ledger.entry import Counts, Entry
from tidemark.quality.baseline_checks import compare_with_baseline, evaluate_baseline_checks
from tidemark.quality.gx.expectations import get_expectation_name
from tidemark.quality.waivers import apply_waivers, read_waivers, waive
from tidemark.timegrid.slices import Grid
from tidemark.watermarks.values import Watermarks

HOUR = 3_600_000_000
HOURLY = Grid(0, HOUR)


def create_entry(number, rows, late=0, emissions=None):
    counts = (Counts.with_remaining_evicted(rows, 0, late, 0, 0), Counts.with_remaining_evicted(rows, 0, 0, 0, 0))
    emissions = rows if emissions is None else emissions
    return Entry(
        number, "run", 1, 1, "{}", (0, 0), Watermarks(), (rows, rows), (0, 0), False, counts=counts, emissions=emissions
    )


def create_entries(get_counts, slice_count):
    """Create entries of so many hourly slices; `get_counts` returns the arguments of a number's entry."""
    return {number: create_entry(number, *get_counts(number)) for number in range(slice_count)}


def test_compare_with_baseline_uses_same_hour_of_four_weeks():
    earlier = create_entries(lambda number: (1000 + number % 24, 100), 30 * 24)
    earlier[30 * 24 - 24] = create_entry(30 * 24 - 24, 100_000)

    metrics = compare_with_baseline(earlier, [create_entry(30 * 24, 500, 100)], range(30 * 24, 30 * 24 + 1), HOURLY)

    metrics = metrics.iloc[0]
    assert metrics["rows"] == 1000
    assert metrics["rows_vs_baseline"] == pytest.approx(0.5), "the baseline is a median: an outlier does not matter"
    assert metrics["late_share"] == pytest.approx(0.1)
    assert metrics["late_share_vs_baseline"] == pytest.approx(2)
    assert metrics["match_rate_vs_baseline"] == pytest.approx(1)


def test_compare_with_baseline_counts_carried_rows():
    counts = (Counts(9, 0, 0, 0, 2, 7), Counts(9, 0, 0, 0, 4, 5))
    earlier = {number: replace(create_entry(number, 9), counts=counts) for number in range(14 * 24)}
    new = [replace(create_entry(336, 963), counts=(Counts(963, 7, 0, 0, 0, 970), counts[1]))]

    [metrics] = compare_with_baseline(earlier, new, range(336, 337), HOURLY).to_dict("records")

    names = ("carried_rows", "left_carried_rows", "right_carried_rows")
    assert [metrics[name] for name in names] == [975, 970, 5]
    assert metrics["carried_rows_vs_baseline"] != metrics["carried_rows_vs_baseline"], "few rows have no ratio"


@pytest.mark.parametrize(("days", "has_baseline"), [(6, False), (7, True)])
def test_compare_with_baseline_needs_a_week(days, has_baseline):
    earlier = create_entries(lambda _: (100,), days * 24)

    metrics = compare_with_baseline(earlier, [create_entry(days * 24, 100)], range(days * 24, days * 24 + 1), HOURLY)

    assert metrics["rows_vs_baseline"].notna().all() == has_baseline
    assert np.isnan(compare_with_baseline({}, [create_entry(0, 0)], range(1), HOURLY)["late_share"][0])


@pytest.mark.parametrize(("rows", "has_ratio"), [(24, False), (25, True)])
def test_compare_with_baseline_of_few_rows_has_no_ratio_of_counts(rows, has_ratio):
    earlier = create_entries(lambda _: (rows,), 10 * 24)

    metrics = compare_with_baseline(earlier, [create_entry(240, 0)], range(240, 241), HOURLY)

    assert metrics["rows_vs_baseline"].tolist() == [0 if has_ratio else pytest.approx(np.nan, nan_ok=True)]


@pytest.mark.parametrize(
    ("rows", "late_rows", "ratio"),
    [
        (100, 80, 8),
        # A twentieth of 198 rows is late by the baseline, which is fewer than ten rows.
        (99, 80, None),
        (3, 3, None),
    ],
)
def test_compare_with_baseline_of_few_late_rows_has_no_ratio_of_shares(rows, late_rows, ratio):
    earlier = create_entries(lambda _: (1_000, 100), 10 * 24)

    metrics = compare_with_baseline(earlier, [create_entry(240, rows, late_rows)], range(240, 241), HOURLY)

    [value] = metrics["late_share_vs_baseline"]
    assert value == pytest.approx(np.nan if ratio is None else ratio, nan_ok=True)


@pytest.mark.parametrize("every", [HOUR, 7 * HOUR])
def test_compare_with_baseline_any_job_size_gives_equal_metrics(every):
    grid, chance = Grid(0, every), np.random.default_rng(1)
    entries = {n: create_entry(n, int(chance.integers(50, 90)), int(chance.integers(9))) for n in range(400)}

    all_metrics = compare_with_baseline({}, entries.values(), range(400), grid)

    for first, stop in ((0, 1), (170, 171), (170, 300), (399, 400)):
        earlier = {number: entry for number, entry in entries.items() if number < first or number > stop}
        metrics = compare_with_baseline(earlier, [entries[n] for n in range(first, stop)], range(first, stop), grid)
        assert metrics.equals(all_metrics.loc[first : stop - 1])


def test_evaluate_baseline_checks_evaluates_each_slice():
    earlier = create_entries(lambda _: (100,), 14 * 24)
    metrics = compare_with_baseline(earlier, [create_entry(336, 30), create_entry(337, 100)], range(336, 338), HOURLY)
    bound = {"column": "emissions", "min_value": 100, "strict_min": True}
    expectation = Expectation(type="expect_column_values_to_be_between", on="history", kwargs=bound)

    (failures, first), (_, second) = evaluate_baseline_checks(metrics, [*create_default_expectations(), expectation])

    assert [(failure.severity, failure.detail) for failure in failures] == [
        ("warning", "found 0.3"),
        ("critical", "found 30"),
    ]
    assert failures[0].expectation == (
        "expect_column_values_to_be_between(column rows_vs_baseline, min_value 0.5, max_value 2) on history"
    )
    assert [measurement.passed for measurement in first] == [False, True, True, True, True, False]
    assert [measurement.passed for measurement in second] == [True, True, True, True, True, False]
    assert [measurement.value for measurement in second] == [1, 1, None, None, None, 100]


def test_evaluate_baseline_checks_rows_ahead_of_one_input_warn_with_details():
    entries = [create_entry(0, 100), replace(create_entry(1, 100), rows_ahead=(0, 0))]
    entries.append(replace(create_entry(2, 100), rows_ahead=(2, 0)))
    metrics = compare_with_baseline({}, entries, range(3), HOURLY)
    details = {(2, "left_rows_ahead"): "Event times are ahead"}

    results = evaluate_baseline_checks(metrics, create_default_expectations()[-2:], details)

    assert [[measurement.value for measurement in measurements] for _, measurements in results] == [
        [None, None],
        [0, 0],
        [2, 0],
    ]
    assert [len(failures) for failures, _ in results] == [0, 0, 1]
    [failure] = results[2][0]
    assert (failure.severity, failure.outcome, failure.detail) == (
        "warning",
        "warned",
        "found 2. Event times are ahead",
    )


def test_waive_selects_the_failing_expectation_of_a_column(pipeline, lake):
    bound = {"type": "expect_column_values_to_be_between", "max_value": 2}
    baseline = {**bound, "on": "history", "column": "rows_vs_baseline", "min_value": 1}
    settings = pipeline(
        quality=[baseline, {**bound, "column": "left_v"}, {**bound, "column": "left_v", "severity": "info"}]
    )
    metrics = pd.DataFrame({"rows_vs_baseline": [3.0]})
    [([failure], _)] = evaluate_baseline_checks(metrics, settings.quality[:1])
    start = settings.slices.start

    waiver = waive(settings, str(lake), start, "rows_vs_baseline", "a storm", "ada")

    tables, grid = PipelineTables.from_config(settings, str(lake)), Grid.from_config(settings.slices)
    waivers = read_waivers(tables, grid, {0: 1})[to_micros(start)]
    assert apply_waivers([failure], waivers)[0].on_failure == "waived"
    assert waiver.expectation == failure.expectation
    other = waive(settings, str(lake), start, "left_v", "a storm", "ada")
    assert other.expectation == get_expectation_name(settings.quality[1])
