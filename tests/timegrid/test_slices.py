"""Tests of slice numbers and boundaries: slices of equal length and local days."""

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F

from tidemark.config.local_days import DAY_MICROS, find_irregular_day, find_repeated_midnight, get_day_start
from tidemark.config.types import from_micros, parse_instant, to_micros
from tidemark.errors import InputError, SliceOrderError
from tidemark.timegrid.slices import Grid, LocalDayGrid

HOUR = 3_600_000_000
STARTS = {
    "Europe/Berlin": "2026-03-20T23:00Z",
    "America/New_York": "2026-03-01T05:00Z",
    "Asia/Beirut": "2026-03-20T22:00Z",
    "America/Havana": "2026-03-01T05:00Z",
    "Australia/Lord_Howe": "2026-03-20T13:00Z",
    "America/Sao_Paulo": "2018-10-20T03:00Z",
    "Atlantic/Azores": "2026-03-20T01:00Z",
    "Europe/London": "2026-03-20T00:00Z",
}
"""Zones whose clocks change at night, from or to midnight, by half an hour, and from 01:00 back to midnight."""
HOURS_OF_DAYS = {
    ("Europe/Berlin", "2026-03-29"): 23,
    ("Europe/Berlin", "2026-10-25"): 25,
    ("America/New_York", "2026-03-08"): 23,
    ("America/New_York", "2026-11-01"): 25,
    ("Asia/Beirut", "2026-03-29"): 23,
    ("Asia/Beirut", "2026-10-24"): 25,
    ("America/Havana", "2026-03-08"): 23,
    ("America/Havana", "2026-11-01"): 25,
    ("Australia/Lord_Howe", "2026-04-05"): 24.5,
    ("Australia/Lord_Howe", "2026-10-04"): 23.5,
    ("America/Sao_Paulo", "2018-11-04"): 23,
    ("America/Sao_Paulo", "2019-02-16"): 25,
}


def create_grid(zone):
    return LocalDayGrid(to_micros(parse_instant(STARTS[zone])), DAY_MICROS, zone)


zones = st.sampled_from(sorted(STARTS))
numbers = st.integers(0, 20_000)


@settings(deadline=None, database=None)
@given(zones, numbers, st.data())
def test_local_day_grid_contains_instants_of_each_local_date(zone, number, data):
    grid = create_grid(zone)
    start, end = grid.start_of(number), grid.start_of(number + 1)
    assert 23 * HOUR <= end - start <= 25 * HOUR

    instant = data.draw(st.integers(start, end - 1))
    for inside in (start, instant, end - 1):
        assert grid.number_at(inside) == number
        local_date = from_micros(inside).astimezone(ZoneInfo(zone)).date()
        assert local_date == date(1970, 1, 1) + timedelta(days=grid.day_of(number))

    assert (grid.number_at(start - 1), grid.number_at(end)) == (number - 1, number + 1)
    assert [grid.first_from(instant) for instant in (start, start + 1, end)] == [number, number + 1, number + 1]
    assert grid.start_of_day(grid.day_of(number)) == start


@pytest.mark.parametrize(("zone", "day"), HOURS_OF_DAYS)
def test_local_day_grid_day_with_clock_change_is_a_single_slice(zone, day):
    grid = create_grid(zone)
    noon = datetime.fromisoformat(f"{day}T12:00").replace(tzinfo=ZoneInfo(zone))

    number = grid.number_at(to_micros(noon))

    assert grid.get_lengths(range(number, number + 1)) == {HOURS_OF_DAYS[zone, day] * HOUR}
    assert {24 * HOUR} == grid.get_lengths(range(number - 2, number - 1)) | grid.get_lengths(
        range(number + 2, number + 3)
    )
    before = from_micros(grid.start_of(number) - 1).astimezone(ZoneInfo(zone))
    assert before.date() == noon.date() - timedelta(days=1)


@settings(deadline=None, database=None)
@given(st.integers(-(2**63), 2**63 - 1), zones)
def test_local_day_grid_number_at_accepts_any_long(instant, zone):
    grid = create_grid(zone)

    number = grid.number_at(instant)

    assert grid.start_of(number) <= instant < grid.start_of(number + 1)
    assert abs(number - (instant - grid.start) // DAY_MICROS) <= 1


@settings(deadline=None, database=None)
@given(st.integers(1, 10**12), st.integers(-(10**15), 10**15), st.integers(-(10**15), 10**15))
def test_grid_number_at_is_the_slice_that_contains_the_instant(every, start, instant):
    grid = Grid(start, every)

    number = grid.number_at(instant)

    assert grid.start_of(number) <= instant < grid.start_of(number + 1)
    assert grid.start_of(grid.first_from(instant) - 1) < instant <= grid.start_of(grid.first_from(instant))


def create_columns(grid):
    """Create a struct of all columns that a grid computes from column `clock`."""
    clock = F.col("clock")
    number = grid.number_column(clock)
    start = F.unix_micros(grid.timestamp_column(number))
    return F.struct(
        number, start, grid.offset_column(clock, number), grid.end_column(start), grid.day_column(start)
    )  # fmt: skip


def test_local_day_grid_columns_equal_python_results(spark):
    """Check all zones in one job: around the boundaries of the first day and of days with a clock change."""
    expected = {}
    for zone in STARTS:
        grid = create_grid(zone)
        irregular = [number for number in range(370) if grid.get_lengths(range(number, number + 1)) != {DAY_MICROS}]
        numbers_nearby = {number + offset for number in (0, *irregular) for offset in (-1, 0, 1, 2)}
        for clock in (grid.start_of(number) - before for number in numbers_nearby for before in (0, 1)):
            number = grid.number_at(clock)
            start = grid.start_of(number)
            expected[zone, clock] = number, start, clock - start, grid.start_of(number + 1), grid.day_of(number)
    columns = F.coalesce(*(F.when(F.col("zone") == zone, create_columns(create_grid(zone))) for zone in STARTS))

    rows = spark.createDataFrame(list(expected), "zone string, clock long").select("zone", "clock", columns)

    assert {(zone, clock): tuple(values) for zone, clock, values in rows.collect()} == expected


class LaterClockChangeGrid(LocalDayGrid):
    """Local days by rules under which the clocks of 2026 changed a week later."""

    def start_of(self, number):
        return super().start_of(number) + (HOUR if 9 <= number < 16 else 0)


def test_check_time_zone_other_database_version_raises(spark):
    create_grid("Europe/Berlin").check_time_zone(spark, range(5, 12))
    other = LaterClockChangeGrid(to_micros(parse_instant(STARTS["Europe/Berlin"])), DAY_MICROS, "Europe/Berlin")
    message = (
        "slice 2026-03-29T23:00Z starts at 2026-03-29T22:00Z by the time zone database of Spark's Java, whose version"
    )

    with pytest.raises(InputError, match=message):
        other.check_time_zone(spark, range(5, 12))


def test_parse_boundary_instant_within_a_day_names_both_boundaries():
    grid = create_grid("Europe/Berlin")
    assert grid.parse_boundary(parse_instant("2026-10-25T00:00+02:00"), "--from") == grid.number_at(
        to_micros(parse_instant("2026-10-25T12:00Z"))
    )

    message = "slices are days of Europe/Berlin: use 2026-10-24T22:00Z or 2026-10-25T23:00Z"
    with pytest.raises(SliceOrderError, match=message):
        grid.parse_boundary(parse_instant("2026-10-25T00:00Z"), "--from")
    with pytest.raises(SliceOrderError, match="before the pipeline's first slice, 2026-03-20T23:00Z"):
        grid.parse_boundary(parse_instant("2026-03-20T00:00Z"), "--from")


@pytest.mark.parametrize("grid", [Grid(0, 3_600_000_000), create_grid("Europe/Berlin")], ids=["hours", "days"])
def test_parse_boundary_instant_in_last_slice_of_calendar_names_its_start(grid):
    with pytest.raises(SliceOrderError, match=r"is not on a slice boundary; .*: use 9999-12-31T23:00Z$"):
        grid.parse_boundary(parse_instant("9999-12-31T23:30Z"), "--to")


@pytest.mark.parametrize(
    ("zone", "first", "expected"),
    [
        ("Pacific/Apia", "2011-01-01", "2011-12-30"),
        ("Pacific/Apia", "2012-01-01", None),
        ("America/St_Johns", "2010-01-01", "2010-11-07"),
        ("America/St_Johns", "2010-11-08", None),
        ("Antarctica/Casey", "2010-01-01", "2010-03-05"),
        ("America/Sao_Paulo", "1990-01-01", None),
        ("Africa/Casablanca", "2010-01-01", None),
    ],
)
def test_find_irregular_day_returns_skipped_or_interrupted_day(zone, first, expected):
    irregular_day = find_irregular_day((date.fromisoformat(first) - date(1970, 1, 1)).days, zone)

    assert irregular_day == (expected and date.fromisoformat(expected))


def test_find_repeated_midnight_returns_day_that_begins_twice():
    first = (date(2026, 1, 1) - date(1970, 1, 1)).days
    assert find_repeated_midnight(first, "America/Havana") == date(2026, 11, 1)
    assert find_repeated_midnight(first, "Atlantic/Azores") == date(2026, 10, 25)
    assert [find_repeated_midnight(first, zone) for zone in ("Europe/Berlin", "Asia/Beirut", "Etc/GMT-2")] == [None] * 3
    assert get_day_start(first, "Etc/GMT-2") == to_micros(datetime(2025, 12, 31, 22, tzinfo=UTC))


def test_label_of_slice_after_year_9999_is_a_number():
    assert Grid(0, 3_600_000_000).label(10**9) == "3,600,000,000,000,000,000 µs"
    assert LocalDayGrid(0, DAY_MICROS, "Europe/Berlin").label(10**7).endswith(" µs")
