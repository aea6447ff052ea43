"""Each outcome of `vary_setting` equals a run under that value."""

import random
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from tests.conftest import PROJECT
from tests.tiers import cases
from tidemark import cli
from tidemark.comparison.what_if import Outcome, WhatIf, get_current_value, vary_setting
from tidemark.errors import UserError
from tidemark.execution.run import execute
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request

ROW = "k string, happened timestamp, arrived timestamp, v int"
START = datetime(2024, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
RANGE = {"keys": ["k"], "interval": {"lower": "-5 minutes", "upper": "10 minutes"}}
CASES = {
    "delay": ({}, "left__watermark_delay", [0, 6]),
    "lateness": (
        {"join": {"keys": ["k"], "window": {"sliding": {"size": "20 minutes", "slide": "10 minutes"}}}},
        "join__allowed_lateness",
        [0, 15],
    ),
    "bound of an outer join": (
        {"dialect": "flink-sql", "join": {**RANGE, "type": "full"}},
        "join__interval__upper",
        [0, 20],
    ),
}


@pytest.mark.parametrize("name", cases(CASES, fast=["bound of an outer join"]))
def test_vary_setting_each_outcome_equals_a_run(spark, lake, pipeline, write, name):
    generator = random.Random(3)
    for side in ("left", "right"):
        arrivals = [START + timedelta(seconds=50 * n + generator.randrange(50)) for n in range(120)]
        delays = [timedelta(seconds=generator.randrange(1500) if generator.random() < 0.3 else 20) for _ in arrivals]
        rows = zip(arrivals, delays, strict=True)
        write(
            side,
            [
                (generator.choice("ab"), max(START, arrival - delay), arrival, n)
                for n, (arrival, delay) in enumerate(rows)
            ],
            ROW,
        )
    changes, setting, minutes = CASES[name]
    values = [minute * MINUTE for minute in minutes]
    result = vary_setting(spark, pipeline(**changes), str(lake), setting.replace("__", "."), values, range(2))
    runs = [
        run_pipeline(spark, lake, pipeline(**changes, **{setting: f"{n} minutes"}, output=f"run_{n}")) for n in minutes
    ]
    outcomes = [(each.matched, each.padded, sum(each.late.values())) for each in result.outcomes]

    assert outcomes == runs
    assert (result.current is None, result.notes) == (False, ())
    assert len(set(outcomes)) > 1

    if result.without_lateness:
        assert not sum(result.without_lateness.late.values())
        assert all(result.without_lateness.matched >= each.matched for each in result.outcomes) or name == "lateness"


def run_pipeline(spark, lake, settings):
    plan = create_plan(spark, settings, str(lake), Request(end=START + timedelta(hours=2), drain=True))
    list(execute(spark, plan, lambda *_: None))
    emitted = spark.read.format("delta").load(plan.tables.emissions).groupBy("_emission").count().collect()
    kinds = Counter({row["_emission"]: row["count"] for row in emitted})
    late = (
        spark.read.format("delta")
        .load(plan.tables.late)
        .where("reason IN ('late', 'late_for_window', 'late_but_processed')")
    )
    return kinds["matched"], kinds["padded_left"] + kinds["padded_right"], late.count()


def create_outcome(value, matched, state):
    return Outcome(value, matched, 0, {"left": 0, "right": 0}, state, 0, 0.0, None)


@pytest.mark.parametrize(
    ("outcomes", "recommendation"),
    [
        (
            [("0 s", 900, 10), ("1 h", 992, 20), ("2 h", 1000, 82)],
            "1 h keeps 99.2% of pairs; the next 0.8% (at 2 h) cost 4.1x the state",
        ),
        (
            [("0 s", 1000, 10), ("1 h", 1000, 20)],
            "0 s keeps 100.0% of pairs; higher values cost state and keep no more",
        ),
        ([("0 s", 900, 10), ("1 h", 995, 20)], "1 h keeps 99.5% of pairs; no higher value was tried"),
        (
            [("0 s", 900, 10), ("1 h", 1000, 20)],
            "1 h keeps 100.0% of pairs; higher values cost state and keep no more",
        ),
        ([("0 s", 100, 10), ("1 h", 500, 20)], "no value up to 1 h keeps 99% of pairs; 1 h keeps 50.0% of pairs"),
    ],
)
def test_recommend_names_value_and_cost(outcomes, recommendation):
    varied = tuple(create_outcome(*values) for values in outcomes)

    what_if = WhatIf("p", "left.watermark_delay", "", "", varied, create_outcome(None, 1000, 0))

    assert what_if.recommend() == recommendation


def test_what_if_invariable_setting_prints_the_choices(capfd, lake):
    pipeline = str(PROJECT / "include" / "pipelines" / "flights_weather.yaml")
    arguments = ["what-if", pipeline, "--vary", "left.table", "--max", "1 h", "--to", "2013-01-02T00:00Z"]
    assert cli.main([*arguments, "--lake", str(lake)]) == 2
    assert "Choose one of left.watermark_delay" in capfd.readouterr().err


def test_vary_setting_recorded_watermark_raises(pipeline):
    settings = pipeline(left__watermark_delay=None, left__recorded_watermark="w")
    with pytest.raises(UserError, match="the watermark of left is recorded. Replace left.recorded_watermark"):
        vary_setting(None, settings, "lake", "right.watermark_delay", [MINUTE], range(1))


def test_current_value_is_that_of_the_pipeline_file(pipeline):
    settings = pipeline(left__watermark_delay="7 minutes")

    assert get_current_value(settings, "left.watermark_delay") == 7 * MINUTE
    assert get_current_value(settings, "join.interval.lower") == -30 * MINUTE
    assert get_current_value(settings.model_copy(update={"join": None}), "join.interval.lower") is None
