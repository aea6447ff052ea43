"""Every join as a pipeline over Delta: a job for each slice gives the same rows, in the same slices, as one for all."""

import json
import random
import shutil
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from pyspark.sql import functions as F

from tests.tiers import cases
from tidemark.config.local_days import get_day_start
from tidemark.errors import SliceOrderError
from tidemark.execution import replay
from tidemark.execution.run import execute
from tidemark.planning.plan import Request, create_plan

ROW = "k string, happened timestamp, arrived timestamp, v int, p int"
START = datetime(2024, 10, 26, 23, tzinfo=UTC)
"""Two hours before the clocks of Berlin are put back, so that the windows of the second hour wait for the end."""
SLICES = {"slices__start": "2024-10-26T23:00:00Z"}
WINDOWS = {
    "tumbling": {"tumbling": "20 minutes", "offset": "5 minutes"},
    "sliding": {"sliding": {"size": "30 minutes", "slide": "10 minutes"}},
    "session": {"session": {"gap": "6 minutes"}},
    "cumulate": {"cumulate": {"size": "1 hour", "step": "20 minutes"}},
}


def windowed(shape, **more):
    return {"keys": ["k"], "window": WINDOWS[shape], **more}


def ranged(**more):
    return {"keys": ["k"], "interval": {"lower": "-5 minutes", "upper": "10 minutes"}, **more}


JOINS = {
    "datastream interval, sources": ("flink-datastream", ranged()),
    "datastream interval, recorded": ("flink-datastream", ranged()),
    "datastream tumbling": ("flink-datastream", windowed("tumbling")),
    "datastream tumbling, restarted": ("flink-datastream", windowed("tumbling")),
    "datastream sliding, lateness": ("flink-datastream", windowed("sliding", allowed_lateness="20 minutes")),
    "datastream session, lateness": ("flink-datastream", windowed("session", allowed_lateness="20 minutes")),
    "datastream coGroup": ("flink-datastream", windowed("tumbling", api="cogroup", allowed_lateness="10 minutes")),
    "datastream latest": ("flink-datastream", windowed("tumbling", emit="latest", allowed_lateness="20 minutes")),
    "datastream sliding, count trigger": (
        "flink-datastream",
        windowed("sliding", trigger={"count": 2, "purging": True}, evictor={"count": 3}),
    ),
    "datastream session, continuous trigger": (
        "flink-datastream",
        windowed(
            "session",
            api="cogroup",
            allowed_lateness="20 minutes",
            trigger={"continuous_event_time": "2 minutes"},
            evictor={"time": "4 minutes", "evict_after": True},
        ),
    ),
    "datastream sliding, continuous trigger": (
        "flink-datastream",
        windowed(
            "sliding",
            api="cogroup",
            allowed_lateness="20 minutes",
            trigger={"continuous_event_time": "4 minutes"},
            evictor={"time": "0 seconds"},
        ),
    ),
    "datastream tumbling, trigger by the clock": (
        "flink-datastream",
        windowed("tumbling", trigger={"continuous_processing_time": "3 minutes"}, allowed_lateness="10 minutes"),
    ),
    "datastream processing time": ("flink-datastream", windowed("tumbling", time="processing")),
    "datastream processing time, session": (
        "flink-datastream",
        windowed("session", time="processing", trigger={"continuous_processing_time": "1 minute"}),
    ),
    "sql interval inner": ("flink-sql", ranged(type="inner")),
    "sql interval full": ("flink-sql", ranged(type="full", condition="left_v % 3 <> right_v % 3")),
    "sql interval left, processing time": (
        "flink-sql",
        ranged(type="left", time="processing", min_cleanup_interval="half", condition="left_v % 3 <> right_v % 3"),
    ),
    "sql tumbling full": ("flink-sql", windowed("tumbling", type="full", condition="left_v % 3 <> right_v % 3")),
    "sql cumulate semi, local time": ("flink-sql", windowed("cumulate", type="semi")),
    "sql session full, sources": ("flink-sql", windowed("session", type="full")),
    "sql session left": ("flink-sql", windowed("session", type="left")),
    "spark full, range": ("spark", ranged(type="full", condition="left_v % 3 <> right_v % 3 AND left_v <> 40")),
    "spark left, sliding": ("spark", windowed("sliding", type="left")),
    "spark semi, sliding": ("spark", windowed("sliding", type="semi")),
    "spark left, windows compared": (
        "spark",
        {
            "keys": ["k"],
            "type": "left",
            "window_inequality": {
                "left": WINDOWS["sliding"],
                "right": WINDOWS["tumbling"],
                "comparison": "left > right",
            },
        },
    ),
    "spark right, equal times": ("spark", {"keys": ["k"], "event_time_equality": True, "type": "right"}),
}
VARIANTS = {
    "datastream tumbling",
    "datastream sliding, lateness",
    "datastream latest",
    "datastream session, continuous trigger",
    "datastream sliding, continuous trigger",
    "datastream processing time, session",
    "sql interval inner",
    "sql session left",
    "spark left, sliding",
    "spark semi, sliding",
}
"""Of joins and triggers that others of the list have too."""
KEPT = "no row of {} is ever evicted, because {}: 0 are carried, and each slice adds about 50"
GROWS = {
    "spark left, windows compared": KEPT.format("right", "left > right holds for any later window of left"),
}
"""What the plans of joins say of rows that are kept for ever."""
SOURCES = {"left__partition": "p", "left__idle_timeout": "10 minutes", "right__idle_timeout": "90 seconds"}
RECORDED = {"left__recorded_watermark": "happened", "left__watermark_delay": None}
"""A watermark that a row may well have met: its own time, which is seldom above those before it."""
RESTARTED = {"restarts": ["2024-10-27T00:00:00Z", "2024-10-27T00:25:00Z"]}
"""With the second slice, and inside of it."""
BY_CLOCK = {f"{side}__event_time": "arrived" for side in ("left", "right")}
BY_CLOCK |= {f"{side}__watermark_delay": None for side in ("left", "right")}


WHERE = {"left": "v % 4 <> 1", "right": "v % 5 <> 2"}
LEFT_OUT = {"left": lambda v: v % 4 == 1, "right": lambda v: v % 5 == 2}
WITH_WHERE = ("datastream interval, sources", "datastream tumbling, trigger by the clock", "sql interval full")
"""Joins for which it matters in other ways when a watermark moves."""


EVEN = "filter(array({}), v -> v % 2 = 0)"
FLATTEN = {
    "datastream interval, sources": EVEN.format("left_v, right_v"),
    "datastream coGroup": "transform(filter(right, r -> exists(left, l -> l.v % 3 = r.v % 3)), r -> r.v + size(left))",
    "sql interval full": EVEN.format("left_v, right_v"),
    "sql cumulate semi, local time": EVEN.format("left_v, left_p"),
    "sql session left": EVEN.format("left_v, right_v, left_p"),
    "spark full, range": EVEN.format("left_v, right_v"),
}
"""Of each kind of emissions some numbers of a pair, of a group, or of a left row: many, one or none."""


def more_of(name):
    """What a join of a name has of settings, beside the join."""
    if "sources" in name:
        return SOURCES
    if "recorded" in name:
        return RECORDED
    if "restarted" in name:
        return RESTARTED
    if "local time" in name:
        return {"time_zone": "Europe/Berlin"}
    dialect, join = JOINS[name]
    return BY_CLOCK if dialect == "flink-sql" and "time" in join else {}


def two_hours():
    """Rows of both inputs, a tenth of them up to an hour late."""
    chance = random.Random(7)
    for side in ("left", "right"):
        rows = []
        for number in range(100):
            arrived = START + timedelta(seconds=72 * number + chance.randrange(60))
            late = timedelta(minutes=chance.randrange(60) if chance.random() < 0.1 else chance.randrange(8))
            happened = max(START, arrived - late)
            rows.append((chance.choice(["a", "b", None]), happened, arrived, number, number % 3))
        yield side, rows


@pytest.fixture(scope="module")
def inputs(spark, tmp_path_factory):
    """A lake with two hours of both inputs."""
    lake = tmp_path_factory.mktemp("inputs")
    for side, rows in two_hours():
        spark.createDataFrame(rows, ROW).coalesce(1).write.format("delta").save(str(lake / side))
    return lake


def answer(spark, output):
    """Emissions and late rows, each as text, with how often."""
    emitted = spark.read.format("delta").load(f"{output}/emissions")
    late = spark.read.format("delta").load(f"{output}/late")
    names = [name for name in emitted.columns if name not in {"left", "right"}]
    lists = [f"sort_array({name}) AS {name}" for name in ("left", "right") if name in emitted.columns]
    return Counter(emitted.selectExpr(*names, *lists).toJSON().collect()), Counter(late.toJSON().collect())


@pytest.mark.filterwarnings("error:createDataFrame attempted Arrow")
@pytest.mark.parametrize("name", cases(JOINS, fast=JOINS.keys() - VARIANTS))
def test_one_job_or_one_a_slice(spark, lake, pipeline, inputs, name, monkeypatch):
    shutil.copytree(inputs, lake)
    dialect, join = JOINS[name]
    answers = []
    # The one job goes the way of millions of rows.
    for output, slices, cached_rows in (("whole", "auto", 0), ("sliced", 1, replay.MAX_CACHED_ROWS)):
        monkeypatch.setattr(replay, "MAX_CACHED_ROWS", cached_rows)
        monkeypatch.setattr(replay, "MAX_RETAINED_SHARE", 1.0)
        given = {"dialect": dialect, "join": join, "output": output, "left__watermark_delay": "2 minutes"}
        settings = pipeline(**(given | SLICES | more_of(name)))
        plan = create_plan(spark, settings, str(lake), Request(slices_per_job=slices, drain=True))
        assert [note for note in plan.notes if "evicted" in note] == ([GROWS[name]] if name in GROWS else [])
        done = list(execute(spark, plan, lambda *_: None))
        assert len(done) == (1 if slices == "auto" else plan.slices) > 0
        assert all(result.verdict.outcome == "passed" for result in done)
        answers.append(answer(spark, lake / output))
    assert answers[0] == answers[1]
    emitted, late = answers[0]
    assert emitted
    assert any(f'"reason":"{reason}"' in row for row in late for reason in ("late", "behind_watermark", "lost_at_end"))
    panes = {json.loads(row)["_pane"] for row in emitted}
    assert (len(panes) > 1) == any(
        word in name for word in ("lateness", "coGroup", "trigger", "session") if dialect == "flink-datastream"
    )


DAYS = datetime(2026, 10, 23, 22, tzinfo=UTC)
"""A midnight of Berlin, two days before that on which its clocks are put back."""
LOCAL_DAYS = {"slices__every": "1 day", "slices__start": DAYS, "slices__time_zone": "Europe/Berlin"}


def three_days():
    """The rows of `two_hours` at 36 times their distances."""
    for side, rows in two_hours():
        yield side, [(k, *(DAYS + 36 * (time - START) for time in times), v, p) for k, *times, v, p in rows]


def unsliced(rows):
    """How often rows are there, whatever their slices."""
    found = Counter()
    for row, count in rows.items():
        found[json.dumps({name: value for name, value in json.loads(row).items() if name != "_slice"})] += count
    return found


def test_local_days_in_one_job_or_one_a_day_give_the_rows_of_hours(spark, lake, pipeline, write, monkeypatch):
    for side, rows in three_days():
        write(side, rows, ROW)
    join = {"keys": ["k"], "interval": {"lower": "-3 hours", "upper": "6 hours"}}
    idle = {"left__partition": "p", "left__idle_timeout": "6 hours", "right__idle_timeout": "54 minutes"}
    answers, ledgers = {}, {}
    for output, per_job, more in (
        ("hours", "auto", {"slices__start": DAYS}),
        ("whole", "auto", LOCAL_DAYS),
        ("sliced", 1, LOCAL_DAYS),
    ):
        given = {"join": join, "output": output, "left__watermark_delay": "72 minutes", **idle, **more}
        plan = create_plan(spark, pipeline(**given), str(lake), Request(slices_per_job=per_job, drain=True))
        done = list(execute(spark, plan, lambda *_: None))
        assert all(result.verdict.outcome == "passed" for result in done)
        answers[output] = answer(spark, lake / output)
        ledgers[output] = [
            (len(result.slices), row["slice"], row["slice_end"]) for result in done for row in result.rows
        ]
    assert answers["whole"] == answers["sliced"]
    assert all(map(len, answers["whole"]))
    days = [timedelta(hours=hours) for hours in (0, 24, 49, 73)]
    assert [row[1:] for row in ledgers["sliced"]] == [(DAYS + start, DAYS + end) for start, end in pairwise(days)]
    assert [row[0] for rows in (ledgers["whole"], ledgers["sliced"]) for row in rows] == [3, 3, 3, 1, 1, 1]
    assert list(map(unsliced, answers["whole"])) == list(map(unsliced, answers["hours"]))
    with pytest.raises(SliceOrderError, match=r"other settings \(slices.time_zone was Europe/Berlin, now None"):
        create_plan(spark, pipeline(**given | {"slices__time_zone": "UTC"}), str(lake), Request())
    monkeypatch.setattr("tidemark.timegrid.slices.get_day_start", lambda day, zone: get_day_start(day, zone) + day % 2)
    told = (
        "a slice was committed as the day 2026-10-23T22:00Z to 2026-10-24T22:00Z of Europe/Berlin, which is 2026-10-2"
    )
    with pytest.raises(SliceOrderError, match=told):
        create_plan(spark, pipeline(**given), str(lake), Request())


@pytest.mark.parametrize("name", cases(FLATTEN, fast=["sql interval full"]))
def test_flatten_gives_the_rows_that_an_unnest_behind_the_join_would(spark, lake, pipeline, inputs, name):
    shutil.copytree(inputs, lake)
    dialect, join = JOINS[name]
    flatten = f"transform({FLATTEN[name]}, (v, at) -> named_struct('v', v, 'at', at))"
    read, ledgers = spark.read.format("delta").load, {}
    given = {"dialect": dialect, "join": join, "left__watermark_delay": "2 minutes", **SLICES, **more_of(name)}
    for output, slices, more in (("pairs", "auto", {}), ("whole", "auto", {"explode": flatten}),
                                 ("sliced", 1, {"explode": flatten})):  # fmt: skip
        settings = pipeline(**given, **more, output=output)
        plan = create_plan(spark, settings, str(lake), Request(slices_per_job=slices, drain=True))
        done = list(execute(spark, plan, lambda *_: None))
        assert all(result.verdict.outcome == "passed" for result in done)
        ledgers[output] = {row["slice"]: (row["emissions"], row["pairs"]) for result in done for row in result.rows}
    pairs = read(str(lake / "pairs/emissions"))
    told = [column for column in pairs.columns if column.startswith("_")]
    lists = {side: F.sort_array(side) for side in ("left", "right") if side in pairs.columns}
    unnested = pairs.withColumns(lists).selectExpr(f"inline({flatten})", *told)
    assert 0 < unnested.count() != pairs.count()
    for output in ("whole", "sliced"):
        found = read(str(lake / output / "emissions"))
        assert found.columns == ["v", "at", *told]
        assert found.exceptAll(unnested).isEmpty()
        assert unnested.exceptAll(found).isEmpty()
        rows = {row["_slice"].astimezone(UTC): row["count"] for row in found.groupBy("_slice").count().collect()}
        counted = {start: (rows.get(start, 0), count) for start, (count, _) in ledgers["pairs"].items()}
        assert ledgers[output] == counted


@pytest.mark.parametrize("name", cases(WITH_WHERE, fast=WITH_WHERE[:1]))
def test_rows_left_out_are_as_rows_of_keys_that_nobody_asks_for(spark, lake, pipeline, inputs, write, name):
    """Such rows move the watermark, and what becomes of them themselves is left out of this comparison."""
    shutil.copytree(inputs, lake)
    for side, rows in two_hours():
        alone = [(f"alone {side} {row[3]}", *row[1:]) if LEFT_OUT[side](row[3]) else row for row in rows]
        write(f"{side}_alone", alone, ROW)
    dialect, join = JOINS[name]
    given = {"dialect": dialect, "join": join, "left__watermark_delay": "2 minutes", **SLICES, **more_of(name)}
    asked = {
        "alone": ("auto", {f"{side}__table": f"{side}_alone" for side in WHERE}),
        "where": (1, {f"{side}__where": text for side, text in WHERE.items()}),
    }
    answers, ledger = {}, []
    for output, (slices, changes) in asked.items():
        settings = pipeline(**given, **changes, output=output)
        plan = create_plan(spark, settings, str(lake), Request(slices_per_job=slices, drain=True))
        done = list(execute(spark, plan, lambda *_: None))
        assert all(result.verdict.outcome == "passed" for result in done)
        ledger = [row for result in done for row in result.rows]
        found = answer(spark, lake / output)
        answers[output] = [{row: n for row, n in rows.items() if '"alone ' not in row} for rows in found]
    assert answers["where"] == answers["alone"]
    assert all(answers["where"])
    assert [sum(row[f"{side}_filtered"] for row in ledger) for side in WHERE] == [25, 20]


@pytest.mark.parametrize(("dialect", "bound"), [("flink-datastream", "20 days"), ("spark", "30 minutes")])
def test_bounds_whose_sum_no_int_holds(spark, lake, pipeline, write, dialect, bound):
    """In the unit of the dialect: a 32-bit integer has 24 days of milliseconds, or 35 minutes of microseconds."""
    write("left", [("a", START, START, 1, 0)], ROW)
    write("right", [("a", START, START, 2, 0), ("b", START, START, 3, 0)], ROW)
    join = {"keys": ["k"], "interval": {"lower": f"-{bound}", "upper": bound}}
    plan = create_plan(spark, pipeline(dialect=dialect, join=join, **SLICES), str(lake), Request(drain=True))
    (done,) = execute(spark, plan, lambda *_: None)
    assert done.rows[0]["emissions"] == 1
