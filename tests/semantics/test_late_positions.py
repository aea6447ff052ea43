"""Exact watermarks from late positions and from increments, compared with an oracle."""

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
from tidemark.watermarks.buckets import EVENT_TIME, Buckets
from tidemark.watermarks.increments import WatermarkIncrements
from tidemark.watermarks.lanes import Lane, join_bucket_watermarks
from tidemark.watermarks.late_positions import LatePositions
from tidemark.watermarks.values import NO_WATERMARK, WatermarkLag

EXAMPLES = int(os.environ.get("TIDEMARK_EXAMPLES", "1000")) // 5


@st.composite
def streams(draw):
    """Draw rows over a few slices, many at equal clocks, some rejected or filtered, and the lags of the inputs."""
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


def compute_watermarks(stream):
    """Return the left, right and combined watermark at each row's arrival, by id."""
    current, at_arrival = dict.fromkeys(SIDES, NO_WATERMARK), {}
    for _, group in groupby(stream["rows"], key=lambda row: (row["clock"], row["tiebreak"])):
        simultaneous = list(group)
        watermarks = (*current.values(), min(current.values()))
        at_arrival |= dict.fromkeys((row["id"] for row in simultaneous), watermarks)
        for row in simultaneous:
            if row["rejected"] != "null_key":
                side = row["side"]
                current[side] = max(current[side], row["event_time"] - stream["lag"][side])
    return at_arrival


@pytest.fixture(scope="module")
def drawn():
    return draw_examples(streams(), EXAMPLES)


def create_lanes(drawn):
    return [Lane(WatermarkLag(**stream["lag"])) for stream in drawn], Buckets(GRID, range(SLICES), 20_000)


def compute_expected(drawn):
    return {
        (lane, number): watermarks
        for lane, stream in enumerate(drawn)
        for number, watermarks in compute_watermarks(stream).items()
    }


def collect(rows):
    return [(row["lane"], row["id"], get_watermarks(row)) for row in rows.collect()]


def test_late_positions_random_streams_split_late_and_rejected_rows_exactly(spark, drawn):
    lanes, buckets = create_lanes(drawn)
    rows = {(lane, row["id"]): row for lane, stream in enumerate(drawn) for row in stream["rows"]}
    expected = compute_expected(drawn)

    with tuned_for_tiny_queries(spark):
        computed = Lane.compute_timelines(create_rows(spark, drawn, buckets), lanes, buckets)
        labelled = join_bucket_watermarks(computed.rows, computed.timelines)
        positions = LatePositions.find(labelled, EVENT_TIME)
        selected = positions.select_on_time(labelled)
        annotated_on_time, annotated_late = positions.split_annotated(positions.annotate(labelled))
        assert sorted(selected.columns) == sorted(annotated_on_time.columns) == sorted(annotated_late.columns)
        on_time, split_on_time, late = (collect(part) for part in (selected, annotated_on_time, annotated_late))

    assert sorted(on_time) == sorted(split_on_time)

    unfiltered = {key for key, row in rows.items() if row["rejected"] != "filtered"}
    assert sorted((lane, number) for lane, number, _ in (*on_time, *late)) == sorted(unfiltered)
    for *key, watermarks in on_time:
        assert watermarks[2] <= expected[*key][2] < rows[*key]["event_time"]
        assert not rows[*key]["rejected"]
    assert late

    for *key, watermarks in late:
        is_equal = summarize_watermarks(watermarks) == summarize_watermarks(expected[*key])
        assert rows[*key]["rejected"] or is_equal
    late_keys = [key for key in unfiltered if rows[key]["rejected"] or rows[key]["event_time"] <= expected[key][2]]
    assert positions.count == len({(key[0], rows[key]["clock"], rows[key]["tiebreak"]) for key in late_keys})


def test_watermark_increments_random_streams_give_exact_watermarks(spark, drawn):
    lanes, buckets = create_lanes(drawn)
    expected = compute_expected(drawn)

    with tuned_for_tiny_queries(spark):
        computed = Lane.compute_timelines(create_rows(spark, drawn, buckets), lanes, buckets)
        labelled = join_bucket_watermarks(computed.rows, computed.timelines)
        increments = WatermarkIncrements.collect(labelled, EVENT_TIME)
        rows = increments.with_watermarks(labelled)
        assert sorted(rows.columns) == sorted(Lane.split(labelled, exact=True)[1].columns)
        assert {(lane, number): watermarks for lane, number, watermarks in collect(rows)} == expected

    assert increments.counts["increments"].max() > 1
