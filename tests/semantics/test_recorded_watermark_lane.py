"""Recorded watermarks compared with an oracle, simultaneous rows and lower values included."""

import os
from itertools import groupby

import pytest
from hypothesis import strategies as st

from tests.semantics.streams import (
    EVERY,
    GRID,
    SLICES,
    create_rows,
    draw_examples,
    get_watermarks,
    summarize_watermarks,
)
from tidemark.config.sides import SIDES
from tidemark.spark.temporary_settings import tuned_for_tiny_queries
from tidemark.watermarks.buckets import Buckets
from tidemark.watermarks.lanes import join_bucket_watermarks
from tidemark.watermarks.recorded_watermark_lane import RecordedWatermarkLane
from tidemark.watermarks.values import NO_WATERMARK, WatermarkLag

EXAMPLES = int(os.environ.get("TIDEMARK_EXAMPLES", "1000")) // 5
JOBS = [range(1), range(1, SLICES)]


@st.composite
def streams(draw):
    """Draw rows over a few slices, many at equal clocks, and the inputs with recorded watermarks."""
    recorded_sides = draw(st.sampled_from([("left",), ("right",), SIDES]))
    row = st.tuples(
        st.sampled_from(SIDES),
        st.sampled_from([0, 0, 1, 700, 3_000, 9_000]),
        st.integers(0, 1),
        st.integers(-6, 6),
        st.one_of(st.none(), st.integers(-9, 2), st.integers(-40, 40)),
    )
    clock, rows = 0, []
    for number, (side, pause, tiebreak, jitter, distance) in enumerate(draw(st.lists(row, min_size=2, max_size=40))):
        clock += pause
        is_recorded = side in recorded_sides and distance is not None
        rows.append(
            {"side": side, "clock": clock, "tiebreak": tiebreak, "id": number, "event_time": clock // 1000 + jitter}
            | {"recorded_watermark": clock // 1000 + distance if is_recorded else None}
        )
    rows = [row for row in rows if row["clock"] < SLICES * EVERY]
    return {
        "rows": sorted(rows, key=lambda row: (row["clock"], row["tiebreak"])),
        "recorded_sides": recorded_sides,
        "lag": {side: 0 if side in recorded_sides else draw(st.integers(0, 4)) for side in SIDES},
    }


def compute_watermarks(stream):
    """Return the slice and the left, right and combined watermark at each row's arrival, by id."""
    current, at_arrival = dict.fromkeys(SIDES, NO_WATERMARK), {}

    def raise_own(row):
        side = row["side"]
        is_recorded = side in stream["recorded_sides"]
        own = row["recorded_watermark"] if is_recorded else row["event_time"] - stream["lag"][side]
        return current[side] if own is None else max(current[side], own)

    for _, group in groupby(stream["rows"], key=lambda row: (row["clock"], row["tiebreak"])):
        simultaneous = list(group)
        for row in simultaneous:
            own = {row["side"]: raise_own(row)} if row["side"] in stream["recorded_sides"] else {}
            watermarks = current | own
            by_side = watermarks["left"], watermarks["right"]
            at_arrival[row["id"]] = (row["clock"] // EVERY, *by_side, min(watermarks.values()))
        for row in simultaneous:
            current[row["side"]] = raise_own(row)
    return at_arrival


@pytest.fixture(scope="module")
def drawn():
    return draw_examples(streams(), EXAMPLES)


@pytest.mark.parametrize("includes_all_rows", [True, False], ids=["every row", "late rows"])
def test_recorded_watermark_lane_random_streams_match_oracle(spark, drawn, includes_all_rows):
    lanes = [
        RecordedWatermarkLane(WatermarkLag(**stream["lag"]), recorded_sides=stream["recorded_sides"])
        for stream in drawn
    ]
    oracles = [compute_watermarks(stream) for stream in drawn]

    for job in JOBS:
        expected = {
            (lane, number): tuple(watermarks)
            for lane, oracle in enumerate(oracles)
            for number, (slice_number, *watermarks) in oracle.items()
            if slice_number in job
        }
        buckets = Buckets(GRID, job, 5_000)
        with tuned_for_tiny_queries(spark):
            rows = create_rows(spark, drawn, buckets, "recorded_watermark long")
            computed = RecordedWatermarkLane.compute_timelines(rows, lanes, buckets)
            labelled = join_bucket_watermarks(computed.rows, computed.timelines)
            on_time, candidates = RecordedWatermarkLane.split(labelled, includes_all_rows=includes_all_rows)
            assert "recorded_watermark" not in {*on_time.columns, *candidates.columns}
            actual = {(row["lane"], row["id"]): get_watermarks(row) for row in candidates.collect()}
            on_time_rows = on_time.collect()

        assert len(actual) + len(on_time_rows) == len(expected)
        for key, watermarks in actual.items():
            if includes_all_rows:
                assert watermarks == expected[key], key
            else:
                assert summarize_watermarks(watermarks) == summarize_watermarks(expected[key]), key
        for row in on_time_rows:
            assert row["watermark"] <= expected[row["lane"], row["id"]][2] < row["event_time"]
        lanes = [
            RecordedWatermarkLane(lane.lag, timeline.end_watermarks[job[-1]], recorded_sides=lane.recorded_sides)
            for lane, timeline in zip(lanes, computed.timelines, strict=True)
        ]
