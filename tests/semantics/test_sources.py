"""Watermarks of inputs that have partitions or fall idle: as in the oracle, however the stream is cut into jobs."""

import os

import pytest
from hypothesis import strategies as st

from tests.semantics.sources_oracle import oracle_of
from tests.semantics.streams import EVERY, GRID, SLICES, drawn_from, marks_of, placed
from tidemark.spark.temporary_settings import tuned_for_tiny_queries
from tidemark.watermarks.buckets import Buckets, WatermarkLag, with_buckets
from tidemark.watermarks.idle_and_partitioned import SourceLane

EXAMPLES = int(os.environ.get("TIDEMARK_EXAMPLES", "1000")) // 5
PARTITIONS = {"none": [None], "some": ["a", "b", "c"]}


@st.composite
def streams(draw):
    """Rows over a few slices, in clumps and pauses, many at equal clocks."""
    parts = {side: PARTITIONS[draw(st.sampled_from(["none", "some"]))] for side in ("left", "right")}
    row = st.tuples(
        st.sampled_from(["left", "right"]),
        st.integers(0, 2),
        st.sampled_from([0, 0, 1, 700, 1_000, 3_000, 9_000]),
        st.integers(0, 1),
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
    idle_after = st.sampled_from([None, 1_000, 2_999, 8_000])
    return {
        "rows": sorted((r for r in rows if r["clock"] < SLICES * EVERY), key=lambda r: (r["clock"], r["tiebreak"])),
        "delay": {side: draw(st.integers(0, 4)) for side in ("left", "right")},
        "idle_after": {side: draw(idle_after) for side in ("left", "right")},
    }


def overtakes_what_holds():
    """A left input falls idle, the right one holds the watermark, and overtakes that between simultaneous rows."""
    at = [("right", "b", 1000, 0), ("left", None, 1700, -2), ("right", "b", 1701, 4), ("right", "b", 1702, -2)]
    at.append(("right", "a", 1702, 4))
    rows = [
        {"side": side, "partition": partition, "clock": clock, "tiebreak": 1, "id": number, "event_time": time}
        for number, (side, partition, clock, time) in enumerate(at)
    ]
    return {"rows": rows, "delay": {"left": 4, "right": 0}, "idle_after": {"left": 1_000, "right": 1_000}}


@pytest.fixture(scope="module")
def drawn():
    return [overtakes_what_holds(), *drawn_from(streams(), EXAMPLES)]


@pytest.mark.parametrize("exact", [True, False], ids=["every row", "late rows"])
@pytest.mark.parametrize("jobs", [[range(SLICES)], [range(n, n + 1) for n in range(SLICES)]], ids=["one job", "jobs"])
def test_labels_equal_the_oracle(spark, drawn, jobs, exact):
    oracles = [oracle_of(stream) for stream in drawn]
    lanes = [SourceLane(WatermarkLag(**stream["delay"]), idle_after=stream["idle_after"]) for stream in drawn]
    for job in jobs:
        expected, ends = {}, []
        for lane, (stream, oracle) in enumerate(zip(drawn, oracles, strict=True)):
            oracle.met.clear()
            for number in job:
                oracle.feed([row for row in stream["rows"] if row["clock"] // EVERY == number])
                oracle.wait((number + 1) * EVERY - 1)
                ends.append((lane, number, *oracle.marks()))
            expected |= {(lane, one[0]): one[1:] for one in oracle.met}
        buckets = SourceLane.fitting(lanes, Buckets(GRID, job, 5_000))
        with tuned_for_tiny_queries(spark):
            rows = placed(spark, drawn, buckets, "partition string")
            told = SourceLane.timelines(rows, lanes, buckets)
            known = with_buckets(told.rows, told.lines, SourceLane.known_of_buckets)
            settled, maybe_late = SourceLane.split(known, exact=exact)
            found = {(row["lane"], row["id"]): marks_of(row) for row in maybe_late.collect()}
            on_time = settled.collect()
        lines = told.lines
        assert told.maxima[["left_rows", "right_rows"]].to_numpy().sum() == len(expected)
        for key, marks in found.items():
            its = expected[key]
            assert (marks if exact else (marks[2], held_by(marks))) == (its if exact else (its[2], held_by(its))), key
        for row in on_time:
            assert row["watermark"] <= expected[row["lane"], row["id"]][2] < row["event_time"]
        assert len(found) + len(on_time) == len(expected)
        stands = [(lane, n, *_end(line.ends[n])) for lane, line in enumerate(lines) for n in job]
        assert stands == ends
        lanes = [
            SourceLane(lane.lag, line.ends[job[-1]], idle_after=lane.idle_after)
            for lane, line in zip(lanes, lines, strict=True)
        ]


def held_by(marks):
    left, right, combined = marks
    return "left" if left == combined else "right" if right == combined else "neither"


def _end(watermarks):
    return watermarks.left, watermarks.right, watermarks.combined
