"""A real Flink of the same join, over small inputs: the twin's table and the pipeline's emissions are the same."""

import random
from copy import deepcopy
from datetime import UTC, datetime, timedelta

import pytest

from jobs import flink_twin
from tests.conftest import PROJECT
from tidemark.comparison import Asked, compare
from tidemark.config import load_pipeline
from tidemark.errors import PipelineFileError, UserError
from tidemark.execution.run import execute
from tidemark.planning.plan import Request, make_plan
from tidemark.spark.temporary_settings import tuned_for_tiny_queries
from tidemark.streaming.flink_query import flink_query
from tidemark.streaming.flink_windows import flink_windows

START = datetime(2024, 1, 1, tzinfo=UTC)
CLOCKS_GO_BACK = datetime(2024, 10, 27, 1, tzinfo=UTC)
"""In Berlin."""
BY_TIME = {"dialect": "flink-sql", "left__arrival": None, "right__arrival": None}
RECORDED = {"left__watermark_delay": None, "left__watermark": "w"}
BOUNDS = {"lower": "-30 minutes", "upper": "0 seconds", "lower_inclusive": False}
TRIGGERED = {
    "dialect": "flink-datastream",
    "left__tiebreak": "place",
    "right__tiebreak": "place",
    "join": {
        "keys": ["k"],
        "window": {"tumbling": "20 minutes", "offset": "-1 minute"},
        "allowed_lateness": "2 minutes",
        "trigger": {"delta": "90 seconds", "purging": True},
        "evictor": {"count": 3, "after": True},
    },
}


def rows_of(seed, start=START):
    """Rows over three hours on whole minutes, so that many are simultaneous; without keys, and one without a time."""
    chance = random.Random(seed)
    for number in range(150):
        happened = start + timedelta(minutes=chance.randrange(180), microseconds=chance.choice([0, 400]))
        yield chance.choice(["a", "b", "", None]), None if number == 0 else happened, number / 2, [number]


@pytest.mark.skipif(not flink_twin.FLINK.exists(), reason="make flink-twin installs Flink")
@pytest.mark.parametrize(
    ("join", "start", "more"),
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
            CLOCKS_GO_BACK - timedelta(hours=2),
            {"time_zone": "Europe/Berlin", "slices__start": "2024-10-26T00:00Z"},
        ),
    ],
    ids=["interval", "window", "local time"],
)
def test_flink_and_tidemark_give_the_same_rows(spark, lake, write, pipeline, join, start, more):
    for side, seed in (("left", 1), ("right", 2)):
        write(side, list(rows_of(seed, start)), "k string, happened timestamp, v double, tags array<int>")
    settings = pipeline(**BY_TIME, join={"keys": ["k"], **join}, **more)
    with tuned_for_tiny_queries(spark):
        told = flink_twin.twin(spark, settings, str(lake))
        list(execute(spark, make_plan(spark, settings, str(lake), Request(drain=True)), lambda *_: None))
        found = compare(spark, settings, str(lake), Asked(told.table, try_settings=False), None)
    assert told.given == 2 * 149
    assert (found.same, found.causes) == (told.rows, ())
    kinds = {row["_emission"] for row in spark.read.format("delta").load(told.table).select("_emission").collect()}
    assert kinds == {"matched", "padded_left", *(["padded_right"] if join["type"] == "full" else [])}


@pytest.mark.skipif(not flink_twin.FLINK.exists(), reason="make flink-twin installs Flink")
def test_flink_and_tidemark_fire_the_same_windows(spark, lake, write, pipeline):
    columns = "k string, happened timestamp, v double, arrived timestamp, place bigint"
    for side, seed in (("left", 1), ("right", 2)):
        chance = random.Random(seed)
        late = [timedelta(minutes=chance.randrange(15)) for _ in range(150)]
        rows = [(k, at, v, (at or START) + delay) for (k, at, v, _), delay in zip(rows_of(seed), late, strict=True)]
        write(side, [(*row, place) for place, row in enumerate(rows)], columns)
    settings = pipeline(**deepcopy(TRIGGERED))
    with tuned_for_tiny_queries(spark):
        told = flink_twin.twin(spark, settings, str(lake))
        list(execute(spark, make_plan(spark, settings, str(lake), Request(drain=True)), lambda *_: None))
        found = compare(spark, settings, str(lake), Asked(told.table, try_settings=False), None)
    assert told.rows > 20
    assert (found.same, found.causes) == (told.rows, ())


def test_windows_are_told_in_milliseconds(pipeline):
    spans = {"left_delay": 600_000, "right_delay": 0, "allowed_lateness": 120_000, "delta": 90_000}
    windows = {"size": 1_200_000, "offset": -60_000}
    told = flink_windows(pipeline(**deepcopy(TRIGGERED)))
    assert told == {**spans, **windows, "purging": 1, "evictor_count": 3, "evictor_after": 1}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"join": {"keys": ["k"], "interval": {"lower": "0 s", "upper": "1 hour"}}}, "has no window"),
        ({"join__trigger": "processing_time", "join__evictor": None}, "asks the clock"),
        ({"join__api": "cogroup"}, "is a coGroup; this twin writes pairs"),
        ({"join__condition": "left_v > 1"}, "has a join.condition, which is Spark SQL"),
        ({"left__tiebreak": None}, "give both inputs a tiebreak"),
        ({"left__partition": "k"}, "has partitions or idle_after on left"),
    ],
    ids=["interval", "clock", "coGroup", "condition", "order", "partitions"],
)
def test_windows_without_a_twin_are_one_line(pipeline, changes, message):
    with pytest.raises(PipelineFileError, match=message):
        flink_windows(pipeline(**(deepcopy(TRIGGERED) | changes)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dialect": "spark"}, "orders is of dialect spark; this twin is a real Flink"),
        ({"left__arrival": "arrived", "right__arrival": "arrived"}, "runs by arrival; .* leave `arrival` out"),
        ({"join__condition": "left_v > 1"}, "has a join.condition, which is Spark SQL"),
        (
            {"left__arrival": "arrived", "right__arrival": "arrived", **RECORDED},
            "recorded as left.watermark; .* a delay",
        ),
        ({"join": {"keys": ["k"], "window": {"session": {"gap": "1 hour"}}}}, "joins on sessions"),
        ({"join__interval__lower": "-100 days"}, "further apart than 99 days"),
        (
            {"join": {"keys": ["k"], "window": {"tumbling": "1 day"}}, "time_zone": "Australia/Adelaide"},
            "is in Australia/Adelaide, where delays decide which rows a window has",
        ),
    ],
    ids=["dialect", "arrival", "condition", "recorded", "sessions", "far apart", "time zone"],
)
def test_what_has_no_twin_is_one_line(pipeline, changes, message):
    with pytest.raises(PipelineFileError, match=message):
        flink_query(pipeline(**(BY_TIME | changes)), "rows", "answer")


def test_without_flink_the_remedy_is_one_line(monkeypatch, lake):
    monkeypatch.setattr(flink_twin, "FLINK", PROJECT / ".venv-nowhere" / "bin" / "python")
    settings = load_pipeline(PROJECT / "benchmarks" / "flights_weather_sql.yaml")
    with pytest.raises(UserError, match="there is no Flink in .venv-nowhere; run make flink-twin"):
        flink_twin.twin(None, settings, str(lake))
