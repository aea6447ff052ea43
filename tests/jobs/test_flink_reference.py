"""Flink reference jobs over small inputs give the output of the pipeline."""

import random
from copy import deepcopy
from datetime import UTC, datetime, timedelta

import pytest

from jobs import flink_reference
from tests.conftest import PROJECT
from tidemark.comparison import ComparisonRequest, compare
from tidemark.config import load_pipeline
from tidemark.errors import PipelineFileError, UserError
from tidemark.execution.run import execute
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.spark.temporary_settings import tuned_for_tiny_queries
from tidemark.streaming.flink_query import create_flink_query
from tidemark.streaming.flink_windows import create_window_settings

START = datetime(2024, 1, 1, tzinfo=UTC)
AUTUMN_CLOCK_CHANGE = datetime(2024, 10, 27, 1, tzinfo=UTC)
"""The end of summer time in Europe/Berlin."""
BY_TIME = {"dialect": "flink-sql", "left__arrival": None, "right__arrival": None}
RECORDED = {"left__watermark_delay": None, "left__recorded_watermark": "w"}
BOUNDS = {"lower": "-30 minutes", "upper": "0 seconds", "lower_inclusive": False}
TRIGGERED = {
    "dialect": "flink-datastream",
    "left__tiebreak": "position",
    "right__tiebreak": "position",
    "join": {
        "keys": ["k"],
        "window": {"tumbling": "20 minutes", "offset": "-1 minute"},
        "allowed_lateness": "2 minutes",
        "trigger": {"delta": "90 seconds", "purging": True},
        "evictor": {"count": 3, "evict_after": True},
    },
}


def generate_rows(seed, start=START):
    """Generate rows over three hours on whole minutes: many simultaneous, some without a key, one without a time."""
    generator = random.Random(seed)
    for number in range(150):
        happened = start + timedelta(minutes=generator.randrange(180), microseconds=generator.choice([0, 400]))
        yield generator.choice(["a", "b", "", None]), None if number == 0 else happened, number / 2, [number]


@pytest.mark.skipif(not flink_reference.FLINK.exists(), reason="make flink-reference installs Flink")
@pytest.mark.parametrize(
    ("join", "start", "changes"),
    [
        ({"type": "full", "interval": BOUNDS}, START, {}),
        (
            {
                "type": "left",
                "window": {"sliding": {"size": "20 minutes", "slide": "10 minutes"}, "offset": "-1 minute"},
            },
            START,
            {},
        ),
        (
            {"type": "full", "window": {"tumbling": "20 minutes"}},
            AUTUMN_CLOCK_CHANGE - timedelta(hours=2),
            {"time_zone": "Europe/Berlin", "slices__start": "2024-10-26T00:00Z"},
        ),
    ],
    ids=["interval", "window", "local time"],
)
def test_run_flink_reference_sql_join_equals_the_pipeline(spark, lake, write, pipeline, join, start, changes):
    for side, seed in (("left", 1), ("right", 2)):
        write(side, list(generate_rows(seed, start)), "k string, happened timestamp, v double, tags array<int>")
    settings = pipeline(**BY_TIME, join={"keys": ["k"], **join}, **changes)

    with tuned_for_tiny_queries(spark):
        reference = flink_reference.run_flink_reference(spark, settings, str(lake))
        list(execute(spark, create_plan(spark, settings, str(lake), Request(drain=True)), lambda *_: None))
        comparison = compare(spark, settings, str(lake), ComparisonRequest(reference.table, try_settings=False), None)

    assert reference.rows_read == 2 * 149
    assert (comparison.same, comparison.causes) == (reference.rows, ())
    table = spark.read.format("delta").load(reference.table)
    emissions = {row["_emission"] for row in table.select("_emission").collect()}
    assert emissions == {"matched", "padded_left", *(["padded_right"] if join["type"] == "full" else [])}


@pytest.mark.skipif(not flink_reference.FLINK.exists(), reason="make flink-reference installs Flink")
def test_run_flink_reference_triggered_window_equals_the_pipeline(spark, lake, write, pipeline):
    columns = "k string, happened timestamp, v double, arrived timestamp, position bigint"
    for side, seed in (("left", 1), ("right", 2)):
        generator = random.Random(seed)
        delays = [timedelta(minutes=generator.randrange(15)) for _ in range(150)]
        rows = [
            (key, time, v, (time or START) + delay)
            for (key, time, v, _), delay in zip(generate_rows(seed), delays, strict=True)
        ]
        write(side, [(*row, position) for position, row in enumerate(rows)], columns)
    settings = pipeline(**deepcopy(TRIGGERED))

    with tuned_for_tiny_queries(spark):
        reference = flink_reference.run_flink_reference(spark, settings, str(lake))
        list(execute(spark, create_plan(spark, settings, str(lake), Request(drain=True)), lambda *_: None))
        comparison = compare(spark, settings, str(lake), ComparisonRequest(reference.table, try_settings=False), None)

    assert reference.rows > 20
    assert (comparison.same, comparison.causes) == (reference.rows, ())


def test_create_window_settings_converts_spans_to_milliseconds(pipeline):
    spans = {"left_delay": 600_000, "right_delay": 0, "allowed_lateness": 120_000, "delta": 90_000}
    windows = {"size": 1_200_000, "offset": -60_000}

    settings = create_window_settings(pipeline(**deepcopy(TRIGGERED)))

    assert settings == {**spans, **windows, "purging": 1, "evictor_count": 3, "evictor_after": 1}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"join": {"keys": ["k"], "interval": {"lower": "0 s", "upper": "1 hour"}}}, "has no window"),
        ({"join__trigger": "processing_time", "join__evictor": None}, "depends on processing time"),
        ({"join__api": "cogroup"}, "is a coGroup, and this job writes pairs"),
        ({"join__condition": "left_v > 1"}, "has a join.condition in Spark SQL"),
        ({"left__tiebreak": None}, "Give both inputs a tiebreak"),
        ({"left__partition": "k"}, "has partitions or idle_timeout on left"),
    ],
    ids=["interval", "clock", "coGroup", "condition", "order", "partitions"],
)
def test_create_window_settings_unsupported_join_raises(pipeline, changes, message):
    with pytest.raises(PipelineFileError, match=message):
        create_window_settings(pipeline(**(deepcopy(TRIGGERED) | changes)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dialect": "spark"}, "orders has dialect spark. A Flink reference needs"),
        ({"left__arrival": "arrived", "right__arrival": "arrived"}, "runs by arrival, .* Remove `arrival`"),
        ({"join__condition": "left_v > 1"}, "has a join.condition in Spark SQL"),
        (
            {"left__arrival": "arrived", "right__arrival": "arrived", **RECORDED},
            "left.recorded_watermark.* Name a delay",
        ),
        ({"join": {"keys": ["k"], "window": {"session": {"gap": "1 hour"}}}}, "joins on sessions"),
        ({"join__interval__lower": "-100 days"}, "more than 99 days apart"),
        (
            {"join": {"keys": ["k"], "window": {"tumbling": "1 day"}}, "time_zone": "Australia/Adelaide"},
            "is in Australia/Adelaide, where delays decide the rows of a window",
        ),
    ],
    ids=["dialect", "arrival", "condition", "recorded", "sessions", "far apart", "time zone"],
)
def test_create_flink_query_unsupported_join_raises(pipeline, changes, message):
    with pytest.raises(PipelineFileError, match=message):
        create_flink_query(pipeline(**(BY_TIME | changes)), "rows", "answer")


def test_run_flink_reference_without_flink_names_the_remedy(monkeypatch, lake):
    monkeypatch.setattr(flink_reference, "FLINK", PROJECT / ".venv-nowhere" / "bin" / "python")
    settings = load_pipeline(PROJECT / "benchmarks" / "flights_weather_sql.yaml")
    with pytest.raises(UserError, match="Flink is not installed in .venv-nowhere. Run make flink-reference"):
        flink_reference.run_flink_reference(None, settings, str(lake))
