"""What is in the buffers after each event: as in the oracle, row by row."""

from pathlib import Path

import pytest

from tests.semantics.flink_datastream_interval import Event, oracle_of
from tidemark import conformance
from tidemark.spark.tuning import tuned_for_tiny_queries

FILE = Path(__file__).parent / "vectors" / "flink_datastream_interval.jsonl.gz"
VECTORS = [vector for vector in conformance.read_vectors(FILE) if len(vector["events"]) < 1000]


def buffers_of_the_oracle(vector):
    """After each event, the ids in the buffers."""
    oracle = oracle_of(vector)
    for event in vector["events"]:
        oracle.feed(Event(**event))
        yield {kept.id for buffer in oracle.buffers.values() for kept in buffer}


@pytest.fixture(scope="module")
def carried(spark):
    """Of each vector, a slice per event in one job: the rows that outlive their slice."""
    cases = [conformance.Case(vector, cut) for vector in VECTORS for cut in conformance.parse_cuts("each", vector)]
    with tuned_for_tiny_queries(spark):
        [rows] = [answer.carried.collect() for answer in conformance.replays(spark, cases)]
    lanes = [[] for _ in cases]
    for row in rows:
        lanes[row["lane"]].append(row)
    return {case.vector["name"]: kept for case, kept in zip(cases, lanes, strict=True)}


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["name"])
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
