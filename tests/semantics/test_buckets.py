"""Numbering of buckets on the driver."""

from hypothesis import given, settings
from hypothesis import strategies as st
from pandas import Series

from tidemark.config.local_days import DAY_MICROS
from tidemark.config.types import parse_instant, to_micros
from tidemark.timegrid.slices import Grid, LocalDayGrid
from tidemark.watermarks.buckets import Buckets

BERLIN = LocalDayGrid(to_micros(parse_instant("2026-03-20T23:00Z")), DAY_MICROS, "Europe/Berlin")


@settings(deadline=None, database=None)
@given(
    st.sampled_from([BERLIN, Grid(BERLIN.start, DAY_MICROS), Grid(5, 7_000_003)]),
    st.integers(0, 300),
    st.integers(1, 60),
    st.sampled_from([None, 1, 3, 1000]),
    st.integers(0, 2),
    st.data(),
)
def test_buckets_any_grid_are_ordered_and_within_a_slice(grid, first, size, per_slice, lane, data):
    slices = range(first, first + size)
    buckets = Buckets.create(grid, slices, per_slice)
    clock = st.integers(grid.start_of(slices.start), grid.start_of(slices.stop) - 1)
    earlier, later = sorted((data.draw(clock), data.draw(clock)))
    numbers = [buckets.find_bucket(lane, instant) for instant in (earlier, later)]
    assert numbers == sorted(numbers)
    assert buckets.find_slices(Series(numbers)).tolist() == [grid.number_at(earlier), grid.number_at(later)]
    assert numbers[0] < numbers[1] or later - earlier < buckets.width

    last = buckets.find_bucket(lane, grid.start_of(slices.stop) - 1)
    assert numbers[1] <= last < buckets.find_bucket(lane + 1, grid.start_of(slices.start))
    assert buckets.find_bucket(lane, grid.start_of(slices.start)) == lane * size * buckets.per_slice

    if per_slice == 1:
        assert last == (lane + 1) * size - 1
