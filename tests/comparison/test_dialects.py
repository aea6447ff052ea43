"""Each rule in which dialects differ appears where it was put, with exact counts, and no other does."""

import json
import re
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from tests.conftest import PROJECT
from tidemark import cli
from tidemark.comparison import RULES, dialects
from tidemark.spark.temporary_settings import tuned_for_tiny_queries

ROW = "k string, happened timestamp, arrived timestamp, v int"
START = datetime(2024, 1, 1, tzinfo=UTC)
INTERVAL = {"lower": "-30 minutes", "upper": "30 minutes"}
HALF = "flink-sql, min_cleanup half"
PROMPT = {"left__watermark_delay": "0 s", "right__watermark_delay": "0 s"}


@pytest.fixture
def told(spark, lake, write, pipeline):
    """All dialects over rows of both sides: key, minutes at which each happened and arrived, and `v`, by default 1."""

    def run(slices, left, right, **settings):
        for side, rows in (("left", left), ("right", right)):
            write(side, [(key, at(when), at(came), *(more or [1])) for key, when, came, *more in rows], ROW)
        with tuned_for_tiny_queries(spark):
            return dialects(spark, pipeline(**(PROMPT | settings)), str(lake), range(slices))

    return run


def at(minutes):
    return None if minutes is None else START + timedelta(minutes=minutes)


def emitted(told):
    return {one.dialect: (one.emissions, one.late) for one in told.answered if not one.refused}


def found(told):
    counts = Counter()
    for one in told.differences:
        counts[one.only_in, one.not_in, one.rule] += one.rows
    return dict(counts)


def test_rules_of_an_interval_join(told, lake, tmp_path, capsys):
    """Watermark at 0:40 at the end of the first hour, and at 1:21:00.001 before the last row."""
    tick, micros = 1 / 60_000, 0.0004 / 60
    left = [("a", 20, 20), ("c", 30, 30), ("b", 39, 39), ("z", 40, 41), ("d", 50, 70), ("e", 51, 85)]
    left += [("y", 81 + tick, 90)]
    right = [("z", 40, 40), ("a", 22, 50), ("b", 35, 65), ("c", 40, 66), ("d", 80 + micros, 80), ("y", 81 + tick, 91)]
    right += [("e", 81, 95)]
    answer = told(2, left, right, join={"keys": ["k"], "interval": INTERVAL})
    assert emitted(answer) == {"flink-datastream": (4, 2), "flink-sql": (6, 3), "spark": (4, 2)}
    assert found(answer) == {
        ("flink-sql", "flink-datastream", "late rows still join"): 2,
        ("flink-datastream", "spark", "at the watermark"): 1,
        ("flink-datastream", "spark", "whole milliseconds"): 1,
        ("spark", "flink-datastream", "watermark by batch"): 1,
        ("spark", "flink-datastream", "eviction"): 1,
        ("flink-sql", "spark", "late rows still join"): 1,
        ("flink-sql", "spark", "at the watermark"): 1,
        ("flink-sql", "spark", "whole milliseconds"): 1,
        ("spark", "flink-sql", "watermark by batch"): 1,
    }
    assert next(one for one in answer.differences if one.rule == "eviction").example["left_k"] == "e"

    command = ["dialects", str(tmp_path / "pipeline.yaml"), "--lake", str(lake)]
    assert cli.main([*command, "--to", "2024-01-01T01:00Z", "--json"]) == 0
    first_hour = json.loads(capsys.readouterr().out)
    assert [one["emissions"] for one in first_hour["answered"]] == [1, 2, 2]
    assert {one["section"] for one in first_hour["differences"]} == {
        "docs/dialects.md#late-rows-still-join",
        "docs/dialects.md#watermark-by-batch",
    }


def test_rules_of_an_outer_join(told):
    left = [("o", 5, 5), (None, 10, 10), ("q", 20, 20), ("t", None, 30, 0), ("w", 45, 45), ("p", 89, 89), ("v", 90, 90)]
    right = [(None, 12, 12), ("w", 45, 46), ("q", 25, 65), ("o", 10, 66), ("v", 90, 91)]
    join = {"type": "full", "keys": ["k"], "interval": INTERVAL, "condition": "left_v <> 0"}
    answer = told(2, left, right, dialect="flink-sql", join=join)
    assert {one.dialect: one.refused for one in answer.answered if one.refused} == {
        "flink-datastream": "join.type: flink-datastream has inner for interval joins, not full"
    }
    assert emitted(answer) == {"flink-sql": (8, 2), "spark": (6, 2), HALF: (7, 2)}
    assert found(answer) == {
        # The late row of `o` still finds its partner.
        ("flink-sql", HALF, "clean-up"): 2,
        (HALF, "flink-sql", "clean-up"): 1,
        ("flink-sql", "spark", "null keys"): 2,
        ("flink-sql", "spark", "late rows still join"): 2,
        ("flink-sql", "spark", "end of input"): 1,
        ("spark", "flink-sql", "null keys"): 1,
        ("spark", "flink-sql", "null event times"): 1,
        # The left row that Spark pads, because it dropped the partner.
        ("spark", "flink-sql", "late rows still join"): 1,
    }


def test_rules_of_windows(told):
    """In dialect spark, whose watermark here is that of the faster input; Flink has no such setting, and ignores it."""
    last = 10 - 1 / 60_000
    left = [("k", 5, 5), ("x", last, 10), ("g", 31, 65)]
    right = [("x", last, 11), ("k", 6, 12), ("f", 50, 50), ("g", 31, 66)]
    join = {"keys": ["k"], "window": {"tumbling": "10 minutes"}}
    answer = told(2, left, right, dialect="spark", join=join, spark={"watermark_policy": "max"})
    assert {dialect: emissions for dialect, (emissions, _) in emitted(answer).items()} == {
        "flink-datastream": 3,
        "flink-sql": 2,
        "spark": 2,
    }
    assert found(answer) == {
        ("flink-datastream", "flink-sql", "watermark kind"): 1,
        ("flink-datastream", "spark", "watermark policy"): 1,
        ("flink-sql", "spark", "watermark policy"): 1,
        ("spark", "flink-sql", "watermark by batch"): 1,
    }


def test_rules_of_sessions(told):
    left, right = [("k", 0, 0), ("k", 16, 16)], [("k", 8, 8)]
    answer = told(1, left, right, join={"keys": ["k"], "window": {"session": {"gap": "10 minutes"}}})
    assert [one.refused for one in answer.answered][2].startswith("join.window: spark joins on tumbling and sliding")
    assert found(answer) == {("flink-datastream", "flink-sql", "sessions"): 2}


def test_every_rule_has_its_section():
    text = (PROJECT / "docs" / "dialects.md").read_text()
    sections = {title.lower() for title in re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)}
    assert set(RULES) - {"not derived"} <= sections
