"""Tests of the days that expectations with `per: day` cover."""

from tidemark.config.local_days import DAY_MICROS
from tidemark.config.types import parse_instant, to_micros
from tidemark.quality.evaluation_scope import find_earlier_slices, find_last_slices_of_days
from tidemark.timegrid.slices import Grid, LocalDayGrid

START = to_micros(parse_instant("2026-03-27T00:00Z"))
TODAY = START // DAY_MICROS


def test_find_last_slices_of_days_hourly_slices_use_utc_days():
    grid = Grid(START + DAY_MICROS // 2, DAY_MICROS // 24)

    days = find_last_slices_of_days(grid, range(5, 40), None)

    assert days == {TODAY: 6, TODAY + 1: 30}
    assert find_earlier_slices(grid, range(5, 40), days) == range(5)
    assert find_earlier_slices(grid, range(14, 40), {TODAY + 1: 0}) == range(12, 14)
    assert find_last_slices_of_days(grid, range(5, 40), 40) == {**days, TODAY + 2: 34}


def test_find_last_slices_of_days_local_slices_have_a_day_each():
    grid = LocalDayGrid(START, DAY_MICROS, "Europe/London")
    assert grid.start_of(2) // DAY_MICROS == grid.start_of(3) // DAY_MICROS

    days = find_last_slices_of_days(grid, range(1, 5), None)

    assert days == {TODAY + 1 + offset: offset for offset in range(4)}
    assert find_earlier_slices(grid, range(1, 5), days) == range(1, 1)
