"""Cases are cut into slices of the same rows, as lanes of at most two jobs."""

from tidemark.pipeline_tests.cuts import OWN_SLICES, SLICE_PER_ROW, TWO_JOBS, cut_lanes
from tidemark.timegrid.slices import Grid

CUTS = (OWN_SLICES, SLICE_PER_ROW, TWO_JOBS)


def test_cut_lanes_own_slices_and_slices_per_row_are_in_the_first_job():
    lanes, jobs = cut_lanes([((5, 6, 9), (0, 0, 7)), ((5,), (0,))], ["a", "b"], CUTS, "seed")

    assert [lane.slices for lane in lanes[:2]] == [(0, 0, 1), (0, 1, 2)]
    first, second = jobs
    assert set(lanes[2].slices) & set(first)
    assert set(lanes[2].slices) & set(second)
    assert lanes[2].slices == tuple(sorted(lanes[2].slices))
    assert [lane.slices for lane in lanes[3:]] == [(0,), (0,), (0,)]


def test_cut_lanes_micro_batches_stay_whole():
    lanes, _ = cut_lanes([((5, 6, 9, 10), (0, 0, 7, 7))], ["a"], (OWN_SLICES, TWO_JOBS), "seed")

    assert lanes[1].slices == (0, 0, 2, 2)


def test_cut_lanes_cases_without_rows_have_no_second_job():
    lanes, jobs = cut_lanes([((), ())], ["a"], CUTS, "seed")

    assert [lane.last for lane in lanes] == [0, 0, 0]
    assert jobs == [range(1)]


def test_lane_cut_maps_slices_back():
    lanes, _ = cut_lanes([((5, 6, 9), (3, 3, 7))], ["a"], CUTS, "seed")
    lane = lanes[0]

    assert [lane.own_slice_of(number) for number in (0, 1)] == [3, 7]
    assert [lane.find_slice(own) for own in (2, 3, 5, 7, 8)] == [-1, 0, 0, 1, 1]


def test_lane_cut_maps_clocks_to_replay_and_back():
    grid = Grid(0, 10)
    lanes, _ = cut_lanes([((31, 35, 72), (3, 3, 7))], ["a"], CUTS, "seed")

    for lane in lanes:
        clocks = [lane.from_own_clock(clock) for clock in (31, 35, 72, 79)]
        assert clocks == sorted(clocks)
        assert [lane.to_own_clock(clock, grid) for clock in clocks] == [31, 35, 72, 79], "79 is the end of the inputs"
        assert [lane.to_own_slice(clock) for clock in clocks] == [3, 3, 7, 7]
