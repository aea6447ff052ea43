"""Watermarks of a job that has restarted at any instant, as they are accumulated on the driver: no Spark."""

import os

import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.semantics.streams import EVERY, GRID, SLICES
from tidemark.config.sides import SIDES
from tidemark.watermarks.buckets import NO_WATERMARK, Buckets, WatermarkLag
from tidemark.watermarks.job_restarts import RestartedLane

EXAMPLES = int(os.environ.get("TIDEMARK_EXAMPLES", "1000")) // 40
LAG = {"left": 2, "right": 0}
JOBS = [range(1), range(1, SLICES)]
CLOCKS = st.one_of(
    st.integers(-1, SLICES * EVERY), st.sampled_from([n * EVERY + more for n in range(4) for more in (0, 1)])
)
ROWS = st.lists(st.tuples(CLOCKS.filter(lambda clock: 0 <= clock < SLICES * EVERY), st.sampled_from(SIDES),
                          st.integers(0, 40)), max_size=25)  # fmt: skip


class Oracle:
    """The watermarks after rows and restarts, in order."""

    def __init__(self):
        self.marks = dict.fromkeys(SIDES, NO_WATERMARK)

    def feed(self, row):
        _, side, time = row
        if side is None:
            self.marks = dict.fromkeys(SIDES, NO_WATERMARK)
        else:
            self.marks[side] = max(self.marks[side], time - LAG[side])

    @property
    def combined(self):
        return min(self.marks.values())


def maxima_of(rows, lane, buckets):
    """As `bucket_maxima` has them."""
    starts = lane.epochs(GRID.start_of(buckets.slices[0]), GRID.start_of(buckets.slices[-1] + 1))
    table = pd.DataFrame(rows, columns=["clock", "side", "time"])
    epoch = [sum(start <= clock for start in starts) - 1 for clock in table["clock"]]
    table["bucket"] = [buckets.number_of(0, clock) + n for clock, n in zip(table["clock"], epoch, strict=True)]
    newest = {f"{side}_newest": table["time"].where(table["side"] == side) for side in SIDES}
    named = table.assign(**newest, oldest=table["time"], rejected=0)
    return named.groupby("bucket", as_index=False).agg(
        dict.fromkeys(newest, "max") | {"oldest": "min", "rejected": "sum"}
    )


@settings(max_examples=EXAMPLES, deadline=None)
@given(rows=ROWS, restarts=st.sets(CLOCKS, max_size=4), width=st.sampled_from([EVERY, 13_000, 1_000]))
def test_they_begin_anew_wherever_slices_and_buckets_are_cut(rows, restarts, width):
    rows.sort(key=lambda row: row[0])
    lane = RestartedLane(WatermarkLag(**LAG), restarts=tuple(sorted(restarts)))
    told = sorted([*rows, *((clock, None, 0) for clock in restarts)], key=lambda one: (one[0], one[1] is not None))
    oracle, passed = Oracle(), []  # the clock of each row or restart, and the watermarks before and after it
    for one in told:
        before = {**oracle.marks}
        oracle.feed(one)
        passed.append((*one, before, {**oracle.marks}))
    for job in JOBS:
        buckets = RestartedLane.fitting([lane], Buckets(GRID, job, width))
        mine = [row for row in rows if buckets.holds(row[0])]
        line = lane.timeline(maxima_of(mine, lane, buckets), buckets)
        for number in job:
            up_to = [marks for clock, *_, marks in passed if clock < GRID.start_of(number + 1)]
            marks = up_to[-1] if up_to else dict.fromkeys(SIDES, NO_WATERMARK)
            assert (line.ends[number].left, line.ends[number].right) == (marks["left"], marks["right"])
            assert line.reached[number] == line.ends[number].combined
        known = line.buckets.set_index("bucket")
        assert known.index.is_monotonic_increasing
        assert known.index.is_unique
        starts = lane.epochs(GRID.start_of(job[0]), GRID.start_of(job[-1] + 1))
        for at, (clock, side, _, before, after) in enumerate(passed):
            if side is None or not buckets.holds(clock):
                continue
            number = buckets.number_of(0, clock) + sum(start <= clock for start in starts) - 1
            row, end = known.loc[number], GRID.start_of(GRID.number_at(clock) + 1)
            assert row["before"] <= min(before.values()) <= min(after.values()) <= row["after"]
            later = [min(marks.values()) for later, *_, marks in passed[at:] if later < end]
            assert row["end"] == max(later), "what it has met by the end of its slice"
        lane = RestartedLane(lane.lag, line.ends[job[-1]], restarts=lane.restarts)


def test_nothing_is_said_of_results_in_a_slice_with_a_restart():
    lane = RestartedLane(WatermarkLag(0, 0), restarts=(EVERY, 3 * EVERY - 1))
    line = lane.timeline(maxima_of([(0, "left", 9), (0, "right", 8)], lane, Buckets(GRID, range(4), EVERY, 3)),
                         Buckets(GRID, range(4), EVERY, 3))  # fmt: skip
    assert lane.least_in(range(4), GRID, line.ends) == [NO_WATERMARK] * 4
    assert [line.ends[n].combined for n in range(4)] == [8, *[NO_WATERMARK] * 3]
    assert lane.newest(line.ends[0]) is None
