"""Watermarks that were recorded: what each row met, as in the oracle, rows of one place and lower records included."""

import os
from itertools import groupby

import pytest
from hypothesis import strategies as st

from tests.semantics.streams import EVERY, GRID, SLICES, drawn_from, marks_of, placed, told_of
from tidemark.config.sides import SIDES
from tidemark.spark.temporary_settings import tuned_for_tiny_queries
from tidemark.watermarks.buckets import NO_WATERMARK, Buckets, WatermarkLag, with_buckets
from tidemark.watermarks.from_column import RecordedLane

EXAMPLES = int(os.environ.get("TIDEMARK_EXAMPLES", "1000")) // 5
JOBS = [range(1), range(1, SLICES)]


@st.composite
def streams(draw):
    """Rows over a few slices, many at equal clocks, and which of the inputs has recorded its watermarks."""
    recorded = draw(st.sampled_from([("left",), ("right",), SIDES]))
    row = st.tuples(
        st.sampled_from(SIDES),
        st.sampled_from([0, 0, 1, 700, 3_000, 9_000]),
        st.integers(0, 1),
        st.integers(-6, 6),
        st.one_of(st.none(), st.integers(-9, 2), st.integers(-40, 40)),
    )
    clock, rows = 0, []
    for number, (side, pause, tiebreak, jitter, mark) in enumerate(draw(st.lists(row, min_size=2, max_size=40))):
        clock += pause
        known = side in recorded and mark is not None
        rows.append(
            {"side": side, "clock": clock, "tiebreak": tiebreak, "id": number, "event_time": clock // 1000 + jitter}
            | {"recorded": clock // 1000 + mark if known else None}
        )
    rows = [row for row in rows if row["clock"] < SLICES * EVERY]
    return {
        "rows": sorted(rows, key=lambda row: (row["clock"], row["tiebreak"])),
        "recorded": recorded,
        "lag": {side: 0 if side in recorded else draw(st.integers(0, 4)) for side in SIDES},
    }


def met(stream):
    """Of each row by its id: its slice, and the left, the right and the combined watermark that it met."""
    marks, found = dict.fromkeys(SIDES, NO_WATERMARK), {}

    def raised(row):
        own = row["recorded"] if row["side"] in stream["recorded"] else row["event_time"] - stream["lag"][row["side"]]
        return marks[row["side"]] if own is None else max(marks[row["side"]], own)

    for _, place in groupby(stream["rows"], key=lambda row: (row["clock"], row["tiebreak"])):
        together = list(place)
        for row in together:
            seen = marks | ({row["side"]: raised(row)} if row["side"] in stream["recorded"] else {})
            found[row["id"]] = (row["clock"] // EVERY, seen["left"], seen["right"], min(seen.values()))
        for row in together:
            marks[row["side"]] = raised(row)
    return found


@pytest.fixture(scope="module")
def drawn():
    return drawn_from(streams(), EXAMPLES)


@pytest.mark.parametrize("exact", [True, False], ids=["every row", "late rows"])
def test_rows_have_met_what_they_recorded(spark, drawn, exact):
    lanes = [RecordedLane(WatermarkLag(**stream["lag"]), recorded=stream["recorded"]) for stream in drawn]
    oracles = [met(stream) for stream in drawn]
    for job in JOBS:
        expected = {
            (lane, number): tuple(marks)
            for lane, oracle in enumerate(oracles)
            for number, (of, *marks) in oracle.items()
            if of in job
        }
        buckets = Buckets(GRID, job, 5_000)
        with tuned_for_tiny_queries(spark):
            told = RecordedLane.timelines(placed(spark, drawn, buckets, "recorded long"), lanes, buckets)
            on_time, maybe_late = RecordedLane.split(with_buckets(told.rows, told.lines), exact=exact)
            assert "recorded" not in {*on_time.columns, *maybe_late.columns}
            found = {(row["lane"], row["id"]): marks_of(row) for row in maybe_late.collect()}
            settled = on_time.collect()
        assert len(found) + len(settled) == len(expected)
        for key, marks in found.items():
            assert marks == expected[key] if exact else told_of(marks) == told_of(expected[key]), key
        for row in settled:
            assert row["watermark"] <= expected[row["lane"], row["id"]][2] < row["event_time"]
        lanes = [
            RecordedLane(lane.lag, line.ends[job[-1]], recorded=lane.recorded)
            for lane, line in zip(lanes, told.lines, strict=True)
        ]
