"""Rows that few inputs have give the same output and state with a job per slice or one job in total."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import functions as F

from tidemark.checkpoints.checkpoint_ref import CheckpointRef
from tidemark.checkpoints.verification import verify_checkpoint
from tidemark.cli.status_summary import summarize_status
from tidemark.execution.run import execute
from tidemark.ledger.ledger import Ledger
from tidemark.planning.planner import create_plan
from tidemark.planning.replay_strategy import DEFAULT_LIMITS
from tidemark.planning.request import Request

ROW = "k string, happened timestamp, arrived timestamp, p bigint"
INTERVAL = {"keys": ["k"], "interval": {"lower": "-5 minutes", "upper": "10 minutes"}}


def at(hour, minute=0):
    return datetime(2024, 1, 1, hour, minute, tzinfo=UTC)


@pytest.fixture
def run(spark, lake, pipeline, write):
    """Write rows of each side, run the slices up to a time, and return the pipeline's settings."""

    def run(rows, per_job, end=at(4), limits=DEFAULT_LIMITS, *, drain=True, **changes):
        if not lake.exists():
            for side, side_rows in rows.items():
                write(side, [row if len(row) > 3 else (*row, 0) for row in side_rows], ROW)
        settings = pipeline(output=f"per_job_{per_job}", **{"left__watermark_delay": "2 minutes", **changes})
        request = Request(end=end, drain=drain, slices_per_job=per_job)
        plan = replace(create_plan(spark, settings, str(lake), request), replay_limits=limits)
        list(execute(spark, plan, lambda *_: None))
        return settings

    return run


@pytest.mark.parametrize("per_job", [1, "auto"])
def test_unmatched_row_is_lost_at_the_end_of_input_after_empty_slices(spark, lake, run, per_job):
    """On processing time, a pending timer does not fire when the input ends."""
    rows = {"left": [("a", at(0), at(3, 55))], "right": [("b", at(0), at(1, 1))]}
    join = {**INTERVAL, "type": "left", "time": "processing"}
    sides = {f"{side}__watermark_delay": None for side in rows} | {f"{side}__event_time": "arrived" for side in rows}
    interval = {"lower": "-5 minutes", "upper": "2 hours"}
    settings = run(rows, per_job, end=at(5), dialect="flink-sql", join={**join, "interval": interval}, **sides)

    late = spark.read.format("delta").load(f"{lake}/{settings.output}/late")
    assert [tuple(row) for row in late.select("left.k", "reason").collect()] == [("a", "lost_at_end_of_input")]


def test_filtered_row_without_event_time_has_no_effect_on_simulated_lane(spark, lake, run):
    rows = {
        "left": [("a", at(0, 10), at(0, 10)), ("dropped", None, at(2, 30)), ("a", at(3), at(3))],
        "right": [("a", at(0, 12), at(0, 12)), ("a", at(3, 1), at(3, 1))],
    }
    changes = {"left__partition": "p", "left__where": "k <> 'dropped'"}
    join = {**INTERVAL, "min_cleanup_interval": "half"}
    settings = run(rows, "auto", dialect="flink-sql", join=join, **changes)

    emitted = spark.read.format("delta").load(f"{lake}/{settings.output}/emissions")
    assert sorted(row[0] for row in emitted.select(F.hour("left_happened")).collect()) == [0, 3]


def test_state_with_placeholder_time_is_independent_of_jobs(lake, run):
    """A row at 1970 requires the simulation of a whole job, also of slices in which it has no part."""
    minutes = (0, 3, 1, 9, 5)
    rows = {
        "left": [("a", at(hour, minute), at(hour, 50)) for hour in range(4) for minute in minutes],
        "right": [("a", datetime(1970, 1, 1, tzinfo=UTC), at(1, 5)), *(("a", at(h, 59), at(h, 59)) for h in range(4))],
    }
    bounds = {"interval": {"lower": "-90 minutes", "upper": "2 hours"}}
    ledgers = [
        Ledger.from_pipeline(run(rows, per_job, dialect="flink-sql", join={**INTERVAL, **bounds}), str(lake))
        for per_job in (1, "auto")
    ]
    by_job = [[entry.fingerprint for entry in ledger.entries.values()] for ledger in ledgers]
    assert by_job[0] == by_job[1]
    assert len(set(by_job[0])) == 4


@pytest.mark.parametrize(("per_job", "max_cached_rows"), [("auto", 99), (1, 99), (1, 0)])
def test_timer_set_among_negative_times_is_pending_in_later_jobs(spark, lake, run, per_job, max_cached_rows):
    """It is set for a row that is not the oldest. In the next slice, no row has a negative time any more."""

    def place(key, ms, arrived):
        return key, datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms), arrived

    left = [place("k", ms, at(0, minute)) for minute, ms in enumerate((-50, 200, -10, 300))]
    right = [place(key, ms, at(0, minute)) for key, ms, minute in (("q", 60, 10), ("q", 95, 11), ("k", 96, 12))]
    rows = {
        "left": [*left, place("q", 1000, at(1, 0))],
        "right": [*right, place("q", 350, at(1, 1)), place("k", 250, at(1, 2))],
    }
    join = {"keys": ["k"], "interval": {"lower": "-100 ms", "upper": "100 ms"}}
    changes = {f"{side}__watermark_delay": "0 seconds" for side in rows} | {"time_bounds": "off"}
    limits = replace(DEFAULT_LIMITS, max_cached_rows=max_cached_rows)
    settings = run(rows, per_job, end=at(2), limits=limits, dialect="flink-sql", join=join, **changes)

    emitted = spark.read.format("delta").load(f"{lake}/{settings.output}/emissions").where("_emission = 'matched'")
    times = emitted.select(F.unix_millis("left_happened"), F.unix_millis("right_happened")).collect()
    assert sorted(map(tuple, times)) == [(200, 250), (300, 250)]


def test_verified_state_of_rows_that_match_later_is_equal(spark, lake, run):
    """In dialect spark, a row has no match until then. The number in the condition is beyond all event times."""
    rows = {
        "left": [("a", at(0, 10), at(0, 10)), *(("c", at(h, 30), at(h, 30)) for h in range(4))],
        "right": [("a", at(0, 12), at(2, 30)), *(("b", at(h, 40), at(h, 40)) for h in range(4))],
    }
    join = {"keys": ["k"], "interval": {"lower": "-5 minutes", "upper": "3 hours"}, "type": "left"}
    condition = "left_p >= -9000000000000000"
    delays = dict.fromkeys(("left__watermark_delay", "right__watermark_delay"), "4 hours")
    settings = run(rows, "auto", dialect="spark", join={**join, "condition": condition}, **delays)

    emitted = spark.read.format("delta").load(f"{lake}/{settings.output}/emissions")
    assert emitted.where(F.col("_emission") == "matched").count() == 1
    verified = verify_checkpoint(CheckpointRef.from_ledger(spark, settings, str(lake), at(2)))
    assert (verified.is_equal, verified.differing_rows) == (True, [])


def test_last_batch_of_a_drained_query_is_in_its_last_slice_and_runs_again(spark, lake, run):
    """Batches back to back evict by the watermark of the batch before. Only at the end a no-data batch evicts more."""
    rows = {
        "left": [("a", at(0, 10), at(0, 10)), ("b", at(2, 30), at(2, 30))],
        "right": [("x", at(0, 12), at(0, 12)), ("y", at(2, 40), at(2, 40))],
    }
    changes = {"join": {**INTERVAL, "type": "left"}, "spark": {"micro_batches": "back_to_back"}}
    outputs = [run(rows, per_job, dialect="spark", **changes) for per_job in (1, "auto")]

    def read(settings):
        emitted = spark.read.format("delta").load(f"{lake}/{settings.output}/emissions")
        entries = Ledger.from_pipeline(settings, str(lake)).entries.values()
        return emitted.select(F.hour("_slice"), "left_k").collect(), [entry.fingerprint for entry in entries]

    assert read(outputs[0]) == read(outputs[1])
    assert read(outputs[0])[0] == [(3, "a")]

    again = create_plan(spark, outputs[1], str(lake), Request(start=at(1), reprocess=True))
    results = list(execute(spark, again, lambda *_: None))
    assert [list(result.slices) for result in results] == [[1, 2, 3]]
    assert read(outputs[0]) == read(outputs[1])
    assert verify_checkpoint(CheckpointRef.from_ledger(spark, outputs[0], str(lake), at(4))).is_equal


@pytest.mark.parametrize("is_drained", [False, True])
def test_rerun_with_another_row_runs_a_no_data_batch_only_if_the_query_had_ended(spark, lake, run, write, is_drained):
    """In the first run the right input has no row in slice 0, so no batch of this slice could raise the watermark."""
    rows = {
        "left": [("a", at(0, 10), at(0, 10)), ("a", at(0, 8), at(1, 10))],
        "right": [("a", at(0, 8), at(1, 10))],
    }
    changes = {"dialect": "spark", "join": INTERVAL, "spark": {"micro_batches": "back_to_back"}}
    changes["left__watermark_delay"] = "0 seconds"
    if is_drained:
        ended = run(rows, "auto", at(1), **changes)
        assert summarize_status(ended, str(lake)).left.watermark == "2024-01-01T00:10Z"
    settings = run(rows, "auto", at(2), drain=False, **changes)

    write("right", [("a", at(0, 10), at(0, 10), 0)], ROW)
    again = create_plan(spark, settings, str(lake), Request(start=at(0), reprocess=True))
    (result,) = execute(spark, again, lambda *_: None)
    assert list(result.slices) == [0, 1]

    emitted = spark.read.format("delta").load(f"{lake}/{settings.output}/emissions")
    pairs = emitted.select(F.minute("left_happened"), F.minute("right_happened")).collect()
    on_time = [] if is_drained else [(8, 8), (8, 10), (10, 8)]
    assert sorted(map(tuple, pairs)) == [*on_time, (10, 10)]
    entries = Ledger.from_pipeline(settings, str(lake)).entries.values()
    assert [entry.drained for entry in entries] == [is_drained, False]
    assert verify_checkpoint(CheckpointRef.from_ledger(spark, settings, str(lake), at(2))).is_equal


def test_row_between_two_windows_is_never_carried(lake, run):
    """The other input has no row yet, so there is no watermark that could evict it."""
    rows = {"left": [("a", at(0, 7), at(0, 10))], "right": [("a", at(3), at(3))]}
    window = {"sliding": {"size": "5 minutes", "slide": "10 minutes"}}
    settings = run(rows, 1, dialect="flink-datastream", join={"keys": ["k"], "window": window})

    entries = Ledger.from_pipeline(settings, str(lake)).entries
    assert [sum(entry.carried) for entry in entries.values()] == [0, 0, 0, 0]


def test_watermark_of_the_last_microsecond_of_9999_is_exact(spark, lake, run):
    """Slices lack rows of one input, so that the maxima of its event times have nulls."""
    last = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    rows = {"left": [("a", last, at(0, 10)), ("b", last, at(2, 10))], "right": [("x", at(1), at(1))]}
    changes = {
        "left__watermark_delay": "0 seconds",
        "spark": {"multiple_watermark_policy": "max"},
        "time_bounds": "off",
    }
    settings = run(rows, "auto", dialect="spark", join=INTERVAL, **changes)

    late = spark.read.format("delta").load(f"{lake}/{settings.output}/late")
    assert [row[0] for row in late.select("right.k").collect()] == ["x"]


def test_late_row_meets_a_simultaneous_row_that_has_recorded_a_lower_watermark(spark, lake, run):
    """The right row is on time and the left one late, so the late firing has both."""

    def ms(minute):
        return int(at(0, minute).timestamp() * 1000)

    rows = {
        "left": [("z", at(0, 5), at(0, 20), ms(5)), ("k", at(0, 5), at(0, 30), ms(15))],
        "right": [("z", at(0, 20), at(0, 21), ms(20)), ("k", at(0, 5), at(0, 30), ms(20))],
    }
    changes = {f"{side}__recorded_watermark": {"column": "p", "unit": "ms"} for side in rows}
    changes |= {f"{side}__watermark_delay": None for side in rows}
    join = {"keys": ["k"], "window": {"tumbling": "10 minutes"}, "allowed_lateness": "1 hour"}
    settings = run(rows, "auto", dialect="flink-datastream", join=join, **changes)

    emitted = spark.read.format("delta").load(f"{lake}/{settings.output}/emissions")
    assert [row[0] for row in emitted.select("left_k").collect()] == ["k"]


def test_purged_window_does_not_fire_in_a_job_without_rows(spark, lake, run):
    """The clock of the rows is behind, so that the watermark purges a window before its first processing-time timer."""
    rows = {side: [("k", at(0, 45), at(0, 1)), ("z", at(1, 5), at(0, 2))] for side in ("left", "right")}
    window = {"sliding": {"size": "1 hour", "slide": "20 minutes"}}
    join = {"keys": ["k"], "window": window, "trigger": {"continuous_processing_time": "3 minutes"}}
    changes = {f"{side}__watermark_delay": "0 seconds" for side in rows}
    changes["slices"] = {"every": "10 minutes", "start": "2024-01-01T00:00:00Z"}

    def read(per_job):
        settings = run(rows, per_job, end=at(0, 20), dialect="flink-datastream", join=join, **changes)
        emitted = spark.read.format("delta").load(f"{lake}/{settings.output}/emissions")
        columns = (F.minute("_slice"), "_pane", F.minute("_window_start"), "left_k")
        return sorted(map(tuple, emitted.select(*columns).collect()))

    emitted = read(1)
    assert emitted == read("auto")
    assert {start for _, _, start, key in emitted if key == "k"} == {20, 40}


@pytest.mark.parametrize("per_job", [1, "auto"])
def test_row_waits_for_windows_that_end_earlier_and_fire_later(spark, lake, run, per_job):
    """In Adelaide, 02:00 is followed by 03:00 at 16:30Z. Windows that end at 02:40 to 03:00 fire at 17:00Z."""

    def utc(hour, minute):
        return datetime(2024, 10, 5, hour, minute, tzinfo=UTC)

    rows = [("a", utc(15, 45), utc(15, 50)), ("z", utc(16, 45), utc(16, 46)), ("z", utc(17, 30), utc(17, 31))]
    join = {"keys": ["k"], "window": {"sliding": {"size": "2 hours", "slide": "10 minutes"}}}
    settings = run(
        {"left": rows, "right": rows},
        per_job,
        end=utc(18, 0),
        dialect="flink-sql",
        join=join,
        time_zone="Australia/Adelaide",
        slices__start="2024-10-05T15:00Z",
        left__watermark_delay="0 s",
        right__watermark_delay="0 s",
    )

    emissions = spark.read.format("delta").load(f"{lake}/{settings.output}/emissions").where("left_k = 'a'")
    by_slice = {row["_slice"].hour: row["count"] for row in emissions.groupBy("_slice").count().collect()}
    assert by_slice == {16: 9, 17: 3}
