"""The oracles, plain Python, one event at a time, do what the engines did."""

from collections import Counter
from pathlib import Path

import pytest

from tests.semantics import (
    flink_datastream_interval,
    flink_datastream_trigger,
    flink_datastream_window,
    flink_sql_interval,
    flink_sql_interval_proctime,
    flink_sql_window,
    spark_stream_stream,
)
from tidemark_conformance import read_vectors

FOLDER = Path(__file__).parent / "vectors"
FLINK = {
    "flink_datastream_interval": (flink_datastream_interval, 92),
    "flink_datastream_window": (flink_datastream_window, 92),
    "flink_datastream_trigger": (flink_datastream_trigger, 120),
    "flink_sql_interval": (flink_sql_interval, 117),
    "flink_sql_interval_proctime": (flink_sql_interval_proctime, 50),
    "flink_sql_window": (flink_sql_window, 92),
    "flink_sql_window_zone": (flink_sql_window, 26),
    # Not recorded but written by these oracles: boundaries that no recorded vector stands on, and restarts.
    "flink_datastream_interval_restarted": (flink_datastream_interval, 28),
    "flink_datastream_window_restarted": (flink_datastream_window, 14),
    "flink_sql_interval_restarted": (flink_sql_interval, 32),
    "flink_sql_interval_derived": (flink_sql_interval, 5),
    "flink_datastream_trigger_derived": (flink_datastream_trigger, 2),
}
SPARK = ("spark", "spark_derived", "spark_window_inequality")


def vectors(name):
    return list(read_vectors(FOLDER / f"{name}.jsonl.gz"))


def counted(rows):
    """A multiset of rows, whose values may be lists."""
    return Counter(repr(sorted(row.items())) for row in rows)


@pytest.mark.parametrize(
    ("oracle", "vector"),
    [pytest.param(FLINK[name][0], vector, id=f"{name}-{vector['name']}") for name in FLINK for vector in vectors(name)],
)
def test_oracle_reproduces_flink(oracle, vector):
    told, expected = oracle.answer(vector), vector["expected"]
    assert counted(told["rows"]) == counted(expected["rows"])
    assert counted(told["dropped"]) == counted(expected["dropped"])
    assert told.get("error") == expected.get("error")


@pytest.mark.parametrize("vector", [vector for name in SPARK for vector in vectors(name)], ids=lambda v: v["name"])
def test_oracle_reproduces_spark(vector):
    told = spark_stream_stream.answer(vector)
    assert counted(told["expected"]) == counted(vector["expected"])
    assert told["watermarks"] == vector["watermarks"]
    assert told["executed"] == vector["executed"]


def test_no_vector_is_missing():
    assert {name: len(vectors(name)) for name in FLINK} == {name: count for name, (_, count) in FLINK.items()}
    assert [len(vectors(name)) for name in SPARK] == [87, 2, 28]
