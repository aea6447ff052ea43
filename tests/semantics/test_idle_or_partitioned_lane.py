"""Watermarks of idle and partitioned inputs compared with an oracle, for several cuts into jobs."""

import os
from dataclasses import replace

import pytest
from hypothesis import strategies as st

from tests.semantics.source_watermarks import create_oracle
from tests.semantics.streams import EVERY, GRID, SLICES, create_rows, draw_examples, get_watermarks
from tidemark.joins.factory import create_lane
from tidemark.spark.temporary_settings import tuned_for_tiny_queries
from tidemark.watermarks.buckets import Buckets
from tidemark.watermarks.idle_or_partitioned_lane import IdleOrPartitionedLane
from tidemark.watermarks.lanes import join_bucket_watermarks
from tidemark.watermarks.source_statistics import compute_source_statistics
from tidemark.watermarks.values import WatermarkLag, Watermarks

EXAMPLES = int(os.environ.get("TIDEMARK_EXAMPLES", "1000")) // 5
PARTITIONS = {"none": [None], "some": ["a", "b", "c"]}


@st.composite
def streams(draw):
    """Draw rows over a few slices, in bursts and pauses, many at equal clocks."""
    parts = {side: PARTITIONS[draw(st.sampled_from(["none", "some"]))] for side in ("left", "right")}
    row = st.tuples(
        st.sampled_from(["left", "right"]),
        st.integers(0, 2),
        st.sampled_from([0, 0, 0, 1, 700, 1_000, 3_000, 9_000]),
        st.sampled_from([-(2**63), 0, 1, 2, 2**63 - 1]),
        st.integers(-6, 6),
    )
    clock, rows = 0, []
    for number, (side, partition, pause, tiebreak, jitter) in enumerate(draw(st.lists(row, min_size=2, max_size=40))):
        clock += pause
        named = parts[side][partition % len(parts[side])]
        rows.append(
            {"side": side, "partition": named, "clock": clock, "tiebreak": tiebreak, "id": number}
            | {"event_time": clock // 1000 + jitter}
        )
    idle_timeout = st.sampled_from([None, 1_000, 2_999, 8_000])
    return {
        "rows": sorted((r for r in rows if r["clock"] < SLICES * EVERY), key=lambda r: (r["clock"], r["tiebreak"])),
        "delay": {side: draw(st.integers(0, 4)) for side in ("left", "right")},
        "idle_timeout": {side: draw(idle_timeout) for side in ("left", "right")},
        "is_union": draw(st.booleans()),
    }


def create_overtaking_stream():
    """Create a stream whose right input holds the watermark back and overtakes the idle left one between two rows."""
    rows = [("right", "b", 1000, 0), ("left", None, 1700, -2), ("right", "b", 1701, 4), ("right", "b", 1702, -2)]
    rows.append(("right", "a", 1702, 4))
    rows = [
        {"side": side, "partition": partition, "clock": clock, "tiebreak": 1, "id": number, "event_time": time}
        for number, (side, partition, clock, time) in enumerate(rows)
    ]
    return {
        "rows": rows,
        "delay": {"left": 4, "right": 0},
        "idle_timeout": {"left": 1_000, "right": 1_000},
        "is_union": False,
    }


def create_catching_up_stream():
    """Create a union whose left input wakes up, lags, and catches up between two rows of a bucket."""
    rows = [("left", 0, 0), ("right", 100, 0), ("right", 2000, 10), ("left", 2100, 3), ("right", 2200, 12)]
    rows += [("left", 2300, 12), ("right", 2400, 20), ("left", 2500, 13)]
    rows = [
        {"side": side, "partition": None, "clock": clock, "tiebreak": 0, "id": number, "event_time": time}
        for number, (side, clock, time) in enumerate(rows)
    ]
    delay = {"left": 0, "right": 0}
    return {"rows": rows, "delay": delay, "idle_timeout": {"left": 1_000, "right": None}, "is_union": True}


@pytest.mark.parametrize(
    ("dialect", "join", "is_union"),
    [
        ("flink-datastream", {"window": {"tumbling": "10 minutes"}}, True),
        ("flink-datastream", {"interval": {"lower": "0 seconds", "upper": "10 minutes"}}, False),
        ("flink-sql", {"window": {"tumbling": "10 minutes"}}, False),
    ],
)
def test_create_lane_with_idle_timeout_is_union_for_datastream_windows(pipeline, dialect, join, is_union):
    settings = pipeline(dialect=dialect, join={"keys": ["k"], **join}, left__idle_timeout="5 minutes")

    lane = create_lane(settings, Watermarks(), None, None)

    assert (type(lane), lane.is_union) == (IdleOrPartitionedLane, is_union)


@pytest.fixture(scope="module")
def drawn():
    return [create_overtaking_stream(), create_catching_up_stream(), *draw_examples(streams(), EXAMPLES)]


@pytest.mark.parametrize("includes_all_rows", [True, False], ids=["every row", "late rows"])
@pytest.mark.parametrize("jobs", [[range(SLICES)], [range(n, n + 1) for n in range(SLICES)]], ids=["one job", "jobs"])
def test_idle_or_partitioned_lane_random_streams_match_oracle(spark, drawn, jobs, includes_all_rows):
    oracles = [create_oracle(stream) for stream in drawn]
    lanes = [
        IdleOrPartitionedLane(
            WatermarkLag(**stream["delay"]), idle_timeouts=stream["idle_timeout"], is_union=stream["is_union"]
        )
        for stream in drawn
    ]

    for job in jobs:
        expected, expected_ends = {}, []
        for lane, (stream, oracle) in enumerate(zip(drawn, oracles, strict=True)):
            oracle.at_arrival.clear()
            for number in job:
                oracle.feed([row for row in stream["rows"] if row["clock"] // EVERY == number])
                oracle.advance_clock((number + 1) * EVERY - 1)
                expected_ends.append((lane, number, *oracle.watermarks()))
            expected |= {(lane, number): tuple(watermarks) for number, *watermarks in oracle.at_arrival}
        buckets = IdleOrPartitionedLane.refine_buckets(lanes, Buckets(GRID, job, 5_000))

        with tuned_for_tiny_queries(spark):
            rows = create_rows(spark, drawn, buckets, "partition string")
            computed = IdleOrPartitionedLane.compute_timelines(rows, lanes, buckets)
            labelled = join_bucket_watermarks(computed.rows, computed.timelines, IdleOrPartitionedLane.bucket_schema)
            on_time, candidates = IdleOrPartitionedLane.split(labelled, includes_all_rows=includes_all_rows)
            actual = {(row["lane"], row["id"]): get_watermarks(row) for row in candidates.collect()}
            on_time_rows = on_time.collect()

        assert computed.bucket_statistics[["left_rows", "right_rows"]].to_numpy().sum() == len(expected)
        for key, watermarks in actual.items():
            if includes_all_rows:
                assert watermarks == expected[key], key
            else:
                assert watermarks[2] == expected[key][2], key
                assert find_limiting_side(watermarks) == find_limiting_side(expected[key]), key
        for row in on_time_rows:
            assert row["watermark"] <= expected[row["lane"], row["id"]][2] < row["event_time"]
        assert len(actual) + len(on_time_rows) == len(expected)
        ends = [
            (lane, number, *get_by_side(timeline.end_watermarks[number]))
            for lane, timeline in enumerate(computed.timelines)
            for number in job
        ]
        assert ends == expected_ends
        lanes = [
            replace(lane, initial_watermarks=timeline.end_watermarks[job[-1]])
            for lane, timeline in zip(lanes, computed.timelines, strict=True)
        ]


def test_source_statistics_beside_rejected_rows_have_exact_tiebreaks(spark):
    row = {"side": "left", "partition": None, "clock": 0, "event_time": 0, "id": 0}
    rows = [{**row, "tiebreak": tiebreak} for tiebreak in (2**53 + 1, 2**63 - 1)]
    rows.append({**row, "side": "right", "tiebreak": 0, "rejected": "null_key"})
    buckets = Buckets(GRID, range(1), 5_000)

    statistics = compute_source_statistics(create_rows(spark, [{"rows": rows}], buckets, "partition string"))

    [left] = statistics[statistics["side"] == "left"].to_dict("records")
    assert (left["least_tiebreak"], left["greatest_tiebreak"]) == (2**53 + 1, 2**63 - 1)


def find_limiting_side(watermarks):
    left, right, combined = watermarks
    return "left" if left == combined else "right" if right == combined else "neither"


def get_by_side(watermarks):
    return watermarks.left, watermarks.right, watermarks.combined
