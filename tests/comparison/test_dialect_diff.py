"""`compare_dialects` finds each injected rule with exact counts, and no other."""

import json
import re
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from tests.conftest import PROJECT
from tidemark import cli
from tidemark.comparison import RULES, compare_dialects, dialect_diff
from tidemark.spark.temporary_settings import tuned_for_tiny_queries

ROW = "k string, happened timestamp, arrived timestamp, v int"
START = datetime(2024, 1, 1, tzinfo=UTC)
INTERVAL = {"lower": "-30 minutes", "upper": "30 minutes"}
HALF = "flink-sql, min_cleanup_interval half"
PROMPT = {"left__watermark_delay": "0 s", "right__watermark_delay": "0 s"}


@pytest.fixture
def compare_rows(spark, lake, write, pipeline):
    """Compare dialects over rows of both sides: key, event time and arrival in minutes, and `v`, by default 1."""

    def run(slices, left, right, **settings):
        for side, rows in (("left", left), ("right", right)):
            write(side, [(key, at(time), at(arrival), *(v or [1])) for key, time, arrival, *v in rows], ROW)
        with tuned_for_tiny_queries(spark):
            return compare_dialects(spark, pipeline(**(PROMPT | settings)), str(lake), range(slices))

    return run


def at(minutes):
    return None if minutes is None else START + timedelta(minutes=minutes)


def count_emissions(comparison):
    """Return emitted and late rows by dialect."""
    return {result.dialect: (result.emissions, result.late) for result in comparison.results if not result.unsupported}


def count_differences(comparison):
    """Return rows by both dialects and the rule."""
    counts = Counter()
    for part in comparison.differences:
        counts[part.only_in, part.not_in, part.rule] += part.rows
    return dict(counts)


def test_compare_dialects_interval_join_attributes_rules(compare_rows, lake, tmp_path, capsys):
    """Watermark at 0:40 at the end of the first hour, and at 1:21:00.001 before the last row."""
    tick, micros = 1 / 60_000, 0.0004 / 60
    left = [("a", 20, 20), ("c", 30, 30), ("b", 39, 39), ("z", 40, 41), ("d", 50, 70), ("e", 51, 85)]
    left += [("y", 81 + tick, 90)]
    right = [("z", 40, 40), ("a", 22, 50), ("b", 35, 65), ("c", 40, 66), ("d", 80 + micros, 80), ("y", 81 + tick, 91)]
    right += [("e", 81, 95)]
    comparison = compare_rows(2, left, right, join={"keys": ["k"], "interval": INTERVAL})
    assert count_emissions(comparison) == {"flink-datastream": (4, 2), "flink-sql": (6, 3), "spark": (4, 2)}
    assert count_differences(comparison) == {
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
    assert next(part for part in comparison.differences if part.rule == "eviction").example["left_k"] == "e"

    command = ["compare", "dialects", str(tmp_path / "pipeline.yaml"), "--lake", str(lake)]
    assert cli.main([*command, "--to", "2024-01-01T01:00Z", "--json"]) == 0
    first_hour = json.loads(capsys.readouterr().out)
    assert [result["emissions"] for result in first_hour["results"]] == [1, 2, 2]
    assert {part["section"] for part in first_hour["differences"]} == {
        "docs/dialects.md#late-rows-still-join",
        "docs/dialects.md#watermark-by-batch",
    }


def test_compare_dialects_outer_join_attributes_rules(compare_rows):
    left = [("o", 5, 5), (None, 10, 10), ("q", 20, 20), ("t", None, 30, 0), ("w", 45, 45), ("p", 89, 89), ("v", 90, 90)]
    right = [(None, 12, 12), ("w", 45, 46), ("q", 25, 65), ("o", 10, 66), ("v", 90, 91)]
    join = {"type": "full", "keys": ["k"], "interval": INTERVAL, "condition": "left_v <> 0"}
    comparison = compare_rows(2, left, right, dialect="flink-sql", join=join)

    assert {result.dialect: result.unsupported for result in comparison.results if result.unsupported} == {
        "flink-datastream": "join.type: flink-datastream does not support full for interval joins. Use inner."
    }
    assert count_emissions(comparison) == {"flink-sql": (8, 2), "spark": (6, 2), HALF: (7, 2)}
    assert count_differences(comparison) == {
        # The late row of `o` still finds its partner.
        ("flink-sql", HALF, "cleanup timer"): 2,
        (HALF, "flink-sql", "cleanup timer"): 1,
        ("flink-sql", "spark", "null keys"): 2,
        ("flink-sql", "spark", "late rows still join"): 2,
        ("flink-sql", "spark", "end of input"): 1,
        ("spark", "flink-sql", "null keys"): 1,
        ("spark", "flink-sql", "null event times"): 1,
        # The left row that Spark pads, because it dropped the partner.
        ("spark", "flink-sql", "late rows still join"): 1,
    }


def test_compare_dialects_window_join_attributes_rules(compare_rows):
    """In dialect spark, whose watermark here is that of the faster input; Flink has no such setting, and ignores it."""
    last = 10 - 1 / 60_000
    left = [("k", 5, 5), ("x", last, 10), ("g", 31, 65)]
    right = [("x", last, 11), ("k", 6, 12), ("f", 50, 50), ("g", 31, 66)]
    join = {"keys": ["k"], "window": {"tumbling": "10 minutes"}}
    comparison = compare_rows(2, left, right, dialect="spark", join=join, spark={"multiple_watermark_policy": "max"})

    assert {dialect: emissions for dialect, (emissions, _) in count_emissions(comparison).items()} == {
        "flink-datastream": 3,
        "flink-sql": 2,
        "spark": 2,
    }
    assert count_differences(comparison) == {
        ("flink-datastream", "flink-sql", "watermark kind"): 1,
        ("flink-datastream", "spark", "watermark policy"): 1,
        ("flink-sql", "spark", "watermark policy"): 1,
        ("spark", "flink-sql", "watermark by batch"): 1,
    }


def test_compare_dialects_sessions_attributes_rules(compare_rows):
    left, right = [("k", 0, 0), ("k", 16, 16)], [("k", 8, 8)]
    comparison = compare_rows(1, left, right, join={"keys": ["k"], "window": {"session": {"gap": "10 minutes"}}})
    assert [result.unsupported for result in comparison.results][2].startswith(
        "join.window: spark joins on tumbling and sliding"
    )
    assert count_differences(comparison) == {("flink-datastream", "flink-sql", "sessions"): 2}


def test_apply_dialect_removes_settings_of_other_dialects(pipeline):
    settings = pipeline(watermark_strategy="sql", flink_version="1.17")

    assert dialect_diff._apply_dialect(settings, {"dialect": "spark"}).watermark_strategy is None
    assert dialect_diff._apply_dialect(settings, {"dialect": "flink-sql"}).watermark_strategy == "sql"


def test_every_rule_has_a_section_in_the_docs():
    text = (PROJECT / "docs" / "dialects.md").read_text()
    sections = {title.lower() for title in re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)}
    assert set(RULES) - {"not derived"} <= sections
