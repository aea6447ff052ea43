"""What is in the buffers after each event: as in the oracle, row by row."""

from pathlib import Path

import pytest

import tidemark_conformance as conformance
from tests.semantics.flink_datastream_interval import Event, oracle_of
from tidemark.spark.temporary_settings import tuned_for_tiny_queries

FOLDER = Path(__file__).parent / "vectors"
FILES = [FOLDER / f"flink_datastream_interval{part}.jsonl.gz" for part in ("", "_restarted")]
VECTORS = [[one for one in conformance.read_vectors(file) if len(one["events"]) < 1000] for file in FILES]


def buffers_of_the_oracle(vector):
    """After each event, the ids in the buffers."""
    oracle = oracle_of(vector)
    for at, event in enumerate(vector["events"]):
        if at in vector.get("restarts", ()):
            oracle.restart()
        oracle.feed(Event(**event))
        yield {kept.id for buffer in oracle.buffers.values() for kept in buffer}


@pytest.fixture(scope="module")
def carried(spark):
    """Of each vector, a slice per event in one job of its file: the rows that outlive their slice."""
    kept = {}
    for vectors in VECTORS:
        cases = [conformance.Case(vector, cut) for vector in vectors for cut in conformance.parse_cuts("each", vector)]
        with tuned_for_tiny_queries(spark):
            [rows] = [answer.carried.collect() for answer in conformance.replays(spark, cases)]
        kept |= {case.vector["name"]: [] for case in cases}
        for row in rows:
            kept[cases[row["lane"]].vector["name"]].append(row)
    return kept


@pytest.mark.parametrize("vector", [vector for vectors in VECTORS for vector in vectors], ids=lambda v: v["name"])
def test_buffers_after_each_event(carried, vector):
    for number, expected in enumerate(buffers_of_the_oracle(vector)):
        if number == len(vector["events"]) - 1 and vector["drain"]:
            continue  # the end of the input evicts every row in this slice
        found = {
            row[row["side"]]["id"]
            for row in carried[vector["name"]]
            if row["carried_from"] <= number and (row["evicted_in"] is None or row["evicted_in"] > number)
        }
        assert found == expected, f"after event {number}"
