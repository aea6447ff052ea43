"""What-if is exact: each outcome is what a run under that value gives."""

import random
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from tests.conftest import PROJECT
from tests.tiers import cases
from tidemark import cli
from tidemark.comparison.what_if import Outcome, WhatIf, what_if
from tidemark.errors import UserError
from tidemark.execution.run import execute
from tidemark.planning.plan import Request, make_plan

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
def test_outcomes_are_what_runs_give(spark, lake, pipeline, write, name):
    chance = random.Random(3)
    for side in ("left", "right"):
        arrivals = [START + timedelta(seconds=50 * n + chance.randrange(50)) for n in range(120)]
        behind = [timedelta(seconds=chance.randrange(1500) if chance.random() < 0.3 else 20) for _ in arrivals]
        rows = zip(arrivals, behind, strict=True)
        write(side, [(chance.choice("ab"), max(START, at - late), at, n) for n, (at, late) in enumerate(rows)], ROW)
    changes, setting, minutes = CASES[name]
    values = [minute * MINUTE for minute in minutes]
    told = what_if(spark, pipeline(**changes), str(lake), setting.replace("__", "."), values, range(2))
    ran = [run(spark, lake, pipeline(**changes, **{setting: f"{n} minutes"}, output=f"run_{n}")) for n in minutes]
    found = [(one.matched, one.padded, sum(one.late.values())) for one in told.outcomes]
    assert found == ran
    assert len(set(found)) > 1
    if told.complete:
        assert not sum(told.complete.late.values())
        assert all(told.complete.matched >= one.matched for one in told.outcomes) or name == "lateness"


def run(spark, lake, settings):
    plan = make_plan(spark, settings, str(lake), Request(end=START + timedelta(hours=2), drain=True))
    list(execute(spark, plan, lambda *_: None))
    emitted = spark.read.format("delta").load(plan.tables.emissions).groupBy("_emission").count().collect()
    kinds = Counter({row["_emission"]: row["count"] for row in emitted})
    late = (
        spark.read.format("delta")
        .load(plan.tables.late)
        .where("reason IN ('late', 'late_for_window', 'behind_watermark')")
    )
    return kinds["matched"], kinds["padded_left"] + kinds["padded_right"], late.count()


def outcome(value, matched, state):
    return Outcome(value, matched, 0, {"left": 0, "right": 0}, state, 0, 0.0, None)


@pytest.mark.parametrize(
    ("outcomes", "told"),
    [
        (
            [("0 s", 900, 10), ("1 h", 992, 20), ("2 h", 1000, 82)],
            "1 h keeps 99.2% of pairs; the next 0.8% (at 2 h) cost 4.1x the state",
        ),
        (
            [("0 s", 1000, 10), ("1 h", 1000, 20)],
            "0 s keeps 100.0% of pairs; more than that costs state and keeps no more",
        ),
        ([("0 s", 100, 10), ("1 h", 500, 20)], "no value up to 1 h keeps 99% of pairs; 1 h keeps 50.0% of pairs"),
    ],
)
def test_the_recommendation_in_words(outcomes, told):
    found = tuple(outcome(*one) for one in outcomes)
    assert WhatIf("p", "left.watermark_delay", "", "", found, outcome(None, 1000, 0)).recommendation() == told


def test_a_setting_that_cannot_be_varied_is_one_line(capfd, lake):
    pipeline = str(PROJECT / "include" / "pipelines" / "flights_weather.yaml")
    arguments = ["what-if", pipeline, "--vary", "left.table", "--up-to", "1 h", "--to", "2013-01-02T00:00Z"]
    assert cli.main([*arguments, "--lake", str(lake)]) == 2
    assert "what can be varied is left.watermark_delay" in capfd.readouterr().err


def test_a_recorded_watermark_has_no_other_delay(pipeline):
    settings = pipeline(left__watermark_delay=None, left__watermark="w")
    with pytest.raises(UserError, match="the watermark of left is recorded; put left.watermark_delay in place of left"):
        what_if(None, settings, "lake", "right.watermark_delay", [MINUTE], range(1))
