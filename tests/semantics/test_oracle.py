"""The oracles (plain Python, one event at a time) reproduce the recorded output of the engines."""

from collections import Counter
from pathlib import Path

import pytest

from tests.semantics import (
    flink_chain,
    flink_datastream_interval,
    flink_datastream_trigger,
    flink_datastream_window,
    flink_sql_interval,
    flink_sql_interval_proctime,
    flink_sql_window,
    spark_stream_stream,
)
from tidemark_conformance import read_vectors
from tidemark_conformance.vectors import failed_at_drain

FOLDER = Path(__file__).parent / "vectors"
FLINK = {
    "flink_datastream_interval": (flink_datastream_interval, 92),
    "flink_datastream_window": (flink_datastream_window, 92),
    "flink_datastream_trigger": (flink_datastream_trigger, 120),
    "flink_sql_interval": (flink_sql_interval, 117),
    "flink_sql_interval_proctime": (flink_sql_interval_proctime, 50),
    "flink_sql_window": (flink_sql_window, 92),
    "flink_sql_window_zone": (flink_sql_window, 26),
    # Written by these oracles, not recorded: boundaries that no recorded vector covers, and restarts.
    "flink_datastream_interval_restarted": (flink_datastream_interval, 28),
    "flink_datastream_window_restarted": (flink_datastream_window, 14),
    "flink_sql_interval_restarted": (flink_sql_interval, 32),
    "flink_sql_interval_derived": (flink_sql_interval, 13),
    "flink_datastream_trigger_derived": (flink_datastream_trigger, 10),
}
SPARK = ("spark", "spark_derived", "spark_window_inequality")


def read_file(name):
    return list(read_vectors(FOLDER / f"{name}.jsonl.gz"))


def count_rows(rows):
    """Return a multiset of rows, whose values may be lists."""
    return Counter(repr(sorted(row.items())) for row in rows)


def list_windows(rows):
    """Return the ends of windows by event, in the order in which the event emits them."""
    ends = {}
    for row in rows:
        if row.get("window_end") is not None:
            ends.setdefault(row["at"], {})[row["window_end"]] = None
    return {at: list(ends_at) for at, ends_at in ends.items()}


@pytest.mark.parametrize(
    ("oracle", "vector"),
    [
        pytest.param(FLINK[name][0], vector, id=f"{name}-{vector['name']}")
        for name in FLINK
        for vector in read_file(name)
    ],
)
def test_oracle_flink_vector_reproduces_output(oracle, vector):
    answer, expected = oracle.compute_expected(vector), vector["expected"]
    assert count_rows(answer["rows"]) == count_rows(expected["rows"])
    assert count_rows(answer["dropped"]) == count_rows(expected["dropped"])
    assert answer.get("error") == expected.get("error")


@pytest.mark.parametrize("vector", read_file("flink_chain"), ids=lambda vector: vector["name"])
def test_oracle_chain_vector_reproduces_output(vector):
    answer, expected = flink_chain.compute_expected(vector), vector["expected"]
    if failed_at_drain(vector):  # the engine's timers loop for ever, and the oracle ends
        answer = {**answer, "error": expected["error"]}
        answer |= {name: [row for row in answer[name] if row["at"] != "drain"] for name in ("rows", "first_rows")}
    for name in ("rows", "first_rows", "dropped_first", "dropped_second"):
        assert count_rows(answer[name]) == count_rows(expected[name]), name
    for name in ("rows", "first_rows"):
        assert list_windows(answer[name]) == list_windows(expected[name]), name
    for name in ("watermark_out_first", "watermark_out", "error"):
        assert answer.get(name) == expected.get(name)


@pytest.mark.parametrize("vector", [vector for name in SPARK for vector in read_file(name)], ids=lambda v: v["name"])
def test_oracle_spark_vector_reproduces_output(vector):
    answer = spark_stream_stream.compute_expected(vector)
    assert count_rows(answer["expected"]) == count_rows(vector["expected"])
    assert answer["watermarks"] == vector["watermarks"]
    assert answer["executed"] == vector["executed"]


def test_vector_files_all_have_expected_counts():
    assert {name: len(read_file(name)) for name in FLINK} == {name: count for name, (_, count) in FLINK.items()}
    assert [len(read_file(name)) for name in SPARK] == [87, 2, 28]
    assert len(read_file("flink_chain")) == 90
