"""Exact watermarks from broadcast positions, late positions and increments, compared with an oracle."""

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
from tidemark.planning.replay_strategy import COUNT_COLUMNS, JobStatistics
from tidemark.spark.temporary_settings import tuned_for_tiny_queries
from tidemark.timegrid.slices import Grid
from tidemark.watermarks.broadcast_positions import BroadcastPositions
from tidemark.watermarks.buckets import EVENT_TIME, NO_LEAD, Buckets, compute_bucket_statistics
from tidemark.watermarks.exact import is_late_candidate, with_exact_watermarks_of_selected
from tidemark.watermarks.increments import WatermarkIncrements
from tidemark.watermarks.lanes import Lane, join_bucket_watermarks
from tidemark.watermarks.late_positions import LatePositions
from tidemark.watermarks.values import NO_WATERMARK, WatermarkLag

DEFAULT_BUCKETS = Buckets(GRID, range(SLICES), 20_000)
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


def index_rows(drawn):
    return {(lane, row["id"]): row for lane, stream in enumerate(drawn) for row in stream["rows"]}


def label_rows(spark, drawn, buckets=DEFAULT_BUCKETS):
    """Compute the timelines of streams, and join their rows with the watermarks of their buckets."""
    lanes = [Lane(WatermarkLag(**stream["lag"])) for stream in drawn]
    computed = Lane.compute_timelines(create_rows(spark, drawn, buckets), lanes, buckets)
    return computed, join_bucket_watermarks(computed.rows, computed.timelines)


def compute_expected(drawn):
    return {
        (lane, number): watermarks
        for lane, stream in enumerate(drawn)
        for number, watermarks in compute_watermarks(stream).items()
    }


def collect(rows):
    return [(row["lane"], row["id"], get_watermarks(row)) for row in rows.collect()]


def test_late_candidates_random_streams_have_exact_watermarks(spark, drawn):
    rows = index_rows(drawn)
    expected = compute_expected(drawn)

    with tuned_for_tiny_queries(spark):
        computed, labelled = label_rows(spark, drawn)
        selected, in_order = Lane.split(labelled, includes_all_rows=False)
        positions = BroadcastPositions.collect(labelled.where(is_late_candidate(includes_all_rows=False)))
        looked_up = positions.with_exact_watermarks(labelled, EVENT_TIME, includes_all_rows=False)
        among_increments = with_exact_watermarks_of_selected(
            labelled, positions.rows, EVENT_TIME, includes_all_rows=False
        )
        assert sorted(selected.columns) == sorted(looked_up.columns) == sorted(among_increments.columns)
        on_time, *candidates = (collect(part) for part in (selected, in_order, looked_up, among_increments))

    unfiltered = {key for key, row in rows.items() if row["rejected"] != "filtered"}
    assert sorted((lane, number) for lane, number, _ in (*on_time, *candidates[0])) == sorted(unfiltered)
    assert on_time
    for *key, watermarks in on_time:
        assert watermarks[2] <= expected[*key][2] < rows[*key]["event_time"]
        assert not rows[*key]["rejected"]

    assert sorted(candidates[0]) == sorted(candidates[1]) == sorted(candidates[2])
    for *key, watermarks in candidates[0]:
        is_equal = summarize_watermarks(watermarks) == summarize_watermarks(expected[*key])
        assert rows[*key]["rejected"] or is_equal

    distinct = {(key[0], rows[*key]["clock"], rows[*key]["tiebreak"]) for *key, _ in candidates[0]}
    assert positions.count == len(distinct)
    row_counts = {name: int(name == "left_rows") * 2 for name in COUNT_COLUMNS}
    statistics = JobStatistics(computed.bucket_statistics[["bucket"]].assign(**row_counts), computed.timelines)
    comparisons = statistics.compute_comparisons_per_row(positions.counts, "positions") * statistics.row_count
    assert round(comparisons) == 2 * len(distinct)


def test_late_positions_random_streams_split_late_and_rejected_rows_exactly(spark, drawn):
    rows = index_rows(drawn)
    expected = compute_expected(drawn)

    with tuned_for_tiny_queries(spark):
        _, labelled = label_rows(spark, drawn)
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


def test_late_candidates_in_long_buckets_are_few(spark):
    # All rows are in one bucket, in which the watermark rises by 20 s. Only the row that is late by its clock is
    # compared with the others.
    clocks = [number * 1_000_000 for number in range(20)]
    rows = [{"side": side, "clock": clock, "tiebreak": 0} for clock in clocks for side in SIDES]
    rows = [{**row, "id": number, "event_time": row["clock"] // 1000} for number, row in enumerate(rows)]
    rows[30]["event_time"] -= 4_001
    stream = {"rows": rows, "lag": dict.fromkeys(SIDES, 4_000)}

    with tuned_for_tiny_queries(spark):
        _, labelled = label_rows(spark, [stream], Buckets(Grid(0, 20_000_000), range(1), 20_000_000))
        positions = BroadcastPositions.collect(labelled.where(is_late_candidate(includes_all_rows=False)))
        [late] = positions.with_exact_watermarks(labelled, EVENT_TIME, includes_all_rows=False).collect()

    assert (late["id"], late["watermark"]) == (30, 10_000)


def test_bucket_statistics_rows_without_recorded_watermark_have_no_lead(spark):
    rows = [
        {"side": side, "clock": clock, "tiebreak": 0, "id": 0, "event_time": 9, "recorded": recorded}
        for side, clock, recorded in [("left", 5_000, 3), ("left", 2_000, -1), ("left", 1_000, None)]
    ]

    with tuned_for_tiny_queries(spark):
        frame = create_rows(spark, [{"rows": rows}], Buckets(GRID, range(1), EVERY), "recorded long")
        [statistics] = compute_bucket_statistics(frame, "recorded").collect()

    assert (statistics["left_lead"], statistics["right_lead"]) == (-2, NO_LEAD)


def test_watermark_increments_random_streams_give_exact_watermarks(spark, drawn):
    expected = compute_expected(drawn)

    with tuned_for_tiny_queries(spark):
        _, labelled = label_rows(spark, drawn)
        increments = WatermarkIncrements.collect(labelled, EVENT_TIME)
        rows = increments.with_watermarks(labelled)
        assert sorted(rows.columns) == sorted(Lane.split(labelled, includes_all_rows=True)[1].columns)
        assert {(lane, number): watermarks for lane, number, watermarks in collect(rows)} == expected

    assert increments.counts["increments"].max() > 1
