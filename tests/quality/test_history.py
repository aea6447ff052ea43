"""A slice's figures beside those of earlier slices."""

import numpy as np
import pandas as pd
import pytest

from tidemark.config import Expectation
from tidemark.config.quality import create_default_expectations
from tidemark.config.types import to_micros
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.ledger.ledger import Counts, Entry
from tidemark.quality.baseline_checks import compare_with_baseline, evaluate_baseline_checks
from tidemark.quality.gx.expectations import get_expectation_name
from tidemark.quality.waivers import apply_waivers, read_waivers, waive
from tidemark.timegrid.slices import Grid
from tidemark.watermarks.watermarks import Watermarks

HOUR = 3_600_000_000
HOURLY = Grid(0, HOUR)


def entry(number, rows, late=0, emissions=None):
    counts = (Counts.with_remaining_evicted(rows, 0, late, 0, 0), Counts.with_remaining_evicted(rows, 0, 0, 0, 0))
    emissions = rows if emissions is None else emissions
    return Entry(
        number, "run", 1, 1, "{}", (0, 0), Watermarks(), (rows, rows), (0, 0), False, counts=counts, emissions=emissions
    )


def entries(of_hour, count):
    """So many slices of a day whose hours have so many rows each."""
    return {number: entry(number, *of_hour(number)) for number in range(count)}


def test_a_slice_is_compared_with_the_same_hour_of_four_weeks():
    known = entries(lambda number: (100 + number % 24, 10), 30 * 24)
    known[30 * 24 - 24] = entry(30 * 24 - 24, 10_000)
    same = compare_with_baseline(known, [entry(30 * 24, 50, 10)], range(30 * 24, 30 * 24 + 1), HOURLY).iloc[0]
    assert same["rows"] == 100
    assert same["rows_vs_baseline"] == pytest.approx(0.5), (
        "the median of an hour that usually has 200, one odd day or not"
    )
    assert same["late_share"] == pytest.approx(0.1)
    assert same["late_share_vs_baseline"] == pytest.approx(2)
    assert same["match_rate_vs_baseline"] == pytest.approx(1)


@pytest.mark.parametrize(("days", "known"), [(6, False), (7, True)])
def test_the_usual_needs_a_week(days, known):
    before = entries(lambda _: (100,), days * 24)
    figures = compare_with_baseline(before, [entry(days * 24, 100)], range(days * 24, days * 24 + 1), HOURLY)
    assert figures["rows_vs_baseline"].notna().all() == known
    assert np.isnan(compare_with_baseline({}, [entry(0, 0)], range(1), HOURLY)["late_share"][0])


def test_few_rows_are_not_compared():
    before = entries(lambda _: (9,), 10 * 24)
    figures = compare_with_baseline(before, [entry(240, 1)], range(240, 241), HOURLY)
    assert figures["rows_vs_baseline"].isna().all()


@pytest.mark.parametrize("every", [HOUR, 7 * HOUR])
def test_figures_do_not_depend_on_how_slices_are_cut(every):
    grid, chance = Grid(0, every), np.random.default_rng(1)
    every_slice = {n: entry(n, int(chance.integers(50, 90)), int(chance.integers(9))) for n in range(400)}
    whole = compare_with_baseline({}, every_slice.values(), range(400), grid)
    for first, stop in ((0, 1), (170, 171), (170, 300), (399, 400)):
        before = {number: one for number, one in every_slice.items() if number < first or number > stop}
        cut = compare_with_baseline(before, [every_slice[n] for n in range(first, stop)], range(first, stop), grid)
        assert cut.equals(whole.loc[first : stop - 1])


def test_expectations_on_figures_are_judged_slice_by_slice():
    known = entries(lambda _: (100,), 14 * 24)
    figures = compare_with_baseline(known, [entry(336, 30), entry(337, 100)], range(336, 338), HOURLY)
    bound = {"column": "emissions", "min_value": 100, "strict_min": True}
    asked = Expectation(type="expect_column_values_to_be_between", on="history", kwargs=bound)
    (few, measures), (_, usual) = evaluate_baseline_checks(figures, [*create_default_expectations(), asked])
    assert [(one.severity, one.detail) for one in few] == [("warning", "found 0.3"), ("critical", "found 30")]
    assert few[0].expectation == (
        "expect_column_values_to_be_between(column rows_vs_baseline, min_value 0.5, max_value 2) on history"
    )
    assert [one.passed for one in measures] == [False, True, True, False]
    assert [one.passed for one in usual] == [True, True, True, False]
    assert [one.value for one in usual] == [1, 1, None, 100]


def test_a_waiver_is_of_the_expectation_that_keeps_a_slice_back(pipeline, lake):
    bound = {"type": "expect_column_values_to_be_between", "max_value": 2}
    usual = {**bound, "on": "history", "column": "rows_vs_baseline", "min_value": 1}
    settings = pipeline(
        quality=[usual, {**bound, "column": "left_v"}, {**bound, "column": "left_v", "severity": "info"}]
    )
    figures = pd.DataFrame({"rows_vs_baseline": [3.0]})
    [([found], _)] = evaluate_baseline_checks(figures, settings.quality[:1])
    at = settings.slices.start
    told = waive(settings, str(lake), at, "rows_vs_baseline", "a storm", "ada")
    waivers = read_waivers(PipelineTables.from_config(settings, str(lake)), Grid.from_config(settings.slices), {0: 1})[
        to_micros(at)
    ]
    assert apply_waivers([found], waivers)[0].on_failure == "waived"
    assert told.expectation == found.expectation
    assert waive(settings, str(lake), at, "left_v", "a storm", "ada").expectation == get_expectation_name(
        settings.quality[1]
    )
