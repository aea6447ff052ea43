"""Rows told by their places, and by the steps of watermarks: what they met, as in the oracle."""

import os
from itertools import groupby

import pytest
from hypothesis import strategies as st

from tests.semantics.streams import EVERY, GRID, SLICES, drawn_from, marks_of, placed, told_of
from tidemark.config.sides import SIDES
from tidemark.spark.temporary_settings import tuned_for_tiny_queries
from tidemark.watermarks.buckets import EVENT_TIME, NO_WATERMARK, Buckets, Lane, WatermarkLag, with_buckets
from tidemark.watermarks.increments import Steps
from tidemark.watermarks.late_positions import Places

EXAMPLES = int(os.environ.get("TIDEMARK_EXAMPLES", "1000")) // 5


@st.composite
def streams(draw):
    """Rows over a few slices, many at equal clocks, some rejected or left out by `where`, and the inputs' lags."""
    row = st.tuples(
        st.sampled_from(SIDES),
        st.sampled_from([0, 0, 1, 700, 3_000, 9_000]),
        st.integers(0, 1),
        st.integers(-9, 9),
        st.sampled_from([None] * 8 + ["null_key", "filtered"]),
    )
    clock, rows = 0, []
    for number, (side, pause, tiebreak, jitter, rejected) in enumerate(draw(st.lists(row, min_size=2, max_size=40))):
        clock += pause
        rows.append(
            {"side": side, "clock": clock, "tiebreak": tiebreak, "id": number, "event_time": clock // 1000 + jitter}
            | {"rejected": rejected}
        )
    return {
        "rows": sorted(
            (row for row in rows if row["clock"] < SLICES * EVERY), key=lambda row: (row["clock"], row["tiebreak"])
        ),
        "lag": {side: draw(st.integers(0, 4)) for side in SIDES},
    }


def met(stream):
    """Of each row by its id: the left, the right and the combined watermark that it met."""
    marks, found = dict.fromkeys(SIDES, NO_WATERMARK), {}
    for _, place in groupby(stream["rows"], key=lambda row: (row["clock"], row["tiebreak"])):
        together = list(place)
        found |= dict.fromkeys((row["id"] for row in together), (*marks.values(), min(marks.values())))
        for row in together:
            if row["rejected"] != "null_key":
                side = row["side"]
                marks[side] = max(marks[side], row["event_time"] - stream["lag"][side])
    return found


@pytest.fixture(scope="module")
def drawn():
    return drawn_from(streams(), EXAMPLES)


def lanes_of(drawn):
    return [Lane(WatermarkLag(**stream["lag"])) for stream in drawn], Buckets(GRID, range(SLICES), 20_000)


def test_only_those_at_the_watermark_or_behind_are_told_apart_and_with_what_they_met(spark, drawn):
    lanes, buckets = lanes_of(drawn)
    rows = {(lane, row["id"]): row for lane, stream in enumerate(drawn) for row in stream["rows"]}
    expected = {(lane, number): marks for lane, stream in enumerate(drawn) for number, marks in met(stream).items()}
    with tuned_for_tiny_queries(spark):
        told = Lane.timelines(placed(spark, drawn, buckets), lanes, buckets)
        known = with_buckets(told.rows, told.lines)
        places = Places.behind(known, EVENT_TIME)
        away, (others, there) = places.away(known), places.split(places.beside(known))
        assert sorted(away.columns) == sorted(others.columns) == sorted(there.columns)
        on_time, kept, maybe_late = (
            [(row["lane"], row["id"], marks_of(row)) for row in one.collect()] for one in (away, others, there)
        )
    assert sorted(on_time) == sorted(kept)
    taking_part = {key for key, row in rows.items() if row["rejected"] != "filtered"}
    assert sorted((lane, number) for lane, number, _ in (*on_time, *maybe_late)) == sorted(taking_part)
    for *key, marks in on_time:
        assert marks[2] <= expected[*key][2] < rows[*key]["event_time"]
        assert not rows[*key]["rejected"]
    assert maybe_late
    for *key, marks in maybe_late:
        assert rows[*key]["rejected"] or told_of(marks) == told_of(expected[*key])
    behind = [key for key in taking_part if rows[key]["rejected"] or rows[key]["event_time"] <= expected[key][2]]
    assert places.count == len({(key[0], rows[key]["clock"], rows[key]["tiebreak"]) for key in behind})


def test_steps_tell_each_row_all_that_it_met(spark, drawn):
    lanes, buckets = lanes_of(drawn)
    expected = {(lane, number): marks for lane, stream in enumerate(drawn) for number, marks in met(stream).items()}
    with tuned_for_tiny_queries(spark):
        told = Lane.timelines(placed(spark, drawn, buckets), lanes, buckets)
        known = with_buckets(told.rows, told.lines)
        steps = Steps.of(known, EVENT_TIME)
        rows = steps.with_watermarks(known)
        assert sorted(rows.columns) == sorted(Lane.split(known, exact=True)[1].columns)
        assert {(row["lane"], row["id"]): marks_of(row) for row in rows.collect()} == expected
    assert steps.counts["steps"].max() > 1
