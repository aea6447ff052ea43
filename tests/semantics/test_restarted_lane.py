"""Watermarks of jobs that restart at any instant, as the driver accumulates them. Needs no Spark."""

import os

import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.semantics.streams import EVERY, GRID, SLICES
from tidemark.config.sides import SIDES
from tidemark.watermarks.buckets import NO_LEAD, Buckets
from tidemark.watermarks.restarted_lane import RestartedLane
from tidemark.watermarks.values import NO_WATERMARK, WatermarkLag

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
        self.watermarks = dict.fromkeys(SIDES, NO_WATERMARK)

    def feed(self, row):
        _, side, time = row
        if side is None:
            self.watermarks = dict.fromkeys(SIDES, NO_WATERMARK)
        else:
            self.watermarks[side] = max(self.watermarks[side], time - LAG[side])


def compute_statistics(rows, lane, buckets):
    """Aggregate buckets as `compute_bucket_statistics` does."""
    starts = lane.epoch_starts(GRID.start_of(buckets.slices[0]), GRID.start_of(buckets.slices[-1] + 1))
    table = pd.DataFrame(rows, columns=["clock", "side", "time"])
    epochs = [sum(start <= clock for start in starts) - 1 for clock in table["clock"]]
    table["bucket"] = [buckets.find_bucket(0, clock) + n for clock, n in zip(table["clock"], epochs, strict=True)]
    newest = {f"{side}_newest": table["time"].where(table["side"] == side) for side in SIDES}
    lead = table["time"] - table["clock"] // 1000
    newest |= {f"{side}_lead": lead.where(table["side"] == side, NO_LEAD) for side in SIDES}
    rejected = dict.fromkeys(("left_rejected", "right_rejected"), 0)
    by_bucket = table.assign(**newest, **rejected, oldest=table["time"]).groupby("bucket", as_index=False)
    return by_bucket.agg(dict.fromkeys(newest, "max") | {"oldest": "min"} | dict.fromkeys(rejected, "sum"))


@settings(max_examples=EXAMPLES, deadline=None)
@given(rows=ROWS, restarts=st.sets(CLOCKS, max_size=4), width=st.sampled_from([EVERY, 13_000, 1_000]))
def test_restarted_lane_any_slices_and_buckets_matches_oracle(rows, restarts, width):
    rows.sort(key=lambda row: row[0])
    lane = RestartedLane(WatermarkLag(**LAG), restarts=tuple(sorted(restarts)))
    changes = [*rows, *((clock, None, 0) for clock in restarts)]
    oracle, history = Oracle(), []  # the clock of each row or restart, and the watermarks before and after it
    for change in sorted(changes, key=lambda change: (change[0], change[1] is not None)):
        before = {**oracle.watermarks}
        oracle.feed(change)
        history.append((*change, before, {**oracle.watermarks}))

    for job in JOBS:
        buckets = RestartedLane.refine_buckets([lane], Buckets(GRID, job, width))
        job_rows = [row for row in rows if buckets.contains(row[0])]
        timeline = lane.compute_timeline(compute_statistics(job_rows, lane, buckets), buckets)

        for number in job:
            earlier = [watermarks for clock, *_, watermarks in history if clock < GRID.start_of(number + 1)]
            expected = earlier[-1] if earlier else dict.fromkeys(SIDES, NO_WATERMARK)
            end = timeline.end_watermarks[number]
            assert (end.left, end.right) == (expected["left"], expected["right"])
            assert timeline.combined_at_end[number] == end.combined
        table = timeline.buckets.set_index("bucket")
        assert table.index.is_monotonic_increasing
        assert table.index.is_unique
        starts = lane.epoch_starts(GRID.start_of(job[0]), GRID.start_of(job[-1] + 1))
        for at, (clock, side, _, before, after) in enumerate(history):
            if side is None or not buckets.contains(clock):
                continue
            number = buckets.find_bucket(0, clock) + sum(start <= clock for start in starts) - 1
            row, slice_end = table.loc[number], GRID.start_of(GRID.number_at(clock) + 1)
            assert row["combined_before"] <= min(before.values()) <= min(after.values()) <= row["combined_after"]
            assert min(after.values()) <= max(row["combined_before"], clock // 1000 + row["watermark_lead"])
            later = [min(watermarks.values()) for later, *_, watermarks in history[at:] if later < slice_end]
            assert row["end_watermark"] == max(later), "greatest watermark from the row to the end of its slice"
        lane = RestartedLane(lane.lag, timeline.end_watermarks[job[-1]], restarts=lane.restarts)


def test_least_combined_watermarks_slice_with_restart_is_no_watermark():
    lane = RestartedLane(WatermarkLag(0, 0), restarts=(EVERY, 3 * EVERY - 1))
    buckets = Buckets(GRID, range(4), EVERY, 3)

    statistics = compute_statistics([(0, "left", 9), (0, "right", 8)], lane, buckets)
    timeline = lane.compute_timeline(statistics, buckets)

    assert lane.least_combined_watermarks(range(4), GRID, timeline.end_watermarks) == [NO_WATERMARK] * 4
    assert [timeline.end_watermarks[n].combined for n in range(4)] == [8, *[NO_WATERMARK] * 3]
    assert lane.newest_event_time(timeline.end_watermarks[0]) is None
