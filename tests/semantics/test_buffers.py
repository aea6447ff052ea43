"""Buffered rows after each event compared with an oracle."""

from pathlib import Path

import pytest

import tidemark_conformance as conformance
from tests.semantics.flink_datastream_interval import Event, create_oracle
from tidemark.spark.temporary_settings import tuned_for_tiny_queries

FOLDER = Path(__file__).parent / "vectors"
FILES = [FOLDER / f"flink_datastream_interval{part}.jsonl.gz" for part in ("", "_restarted")]
VECTORS = [[vector for vector in conformance.read_vectors(file) if len(vector["events"]) < 1000] for file in FILES]


def list_oracle_buffers(vector):
    """Yield the ids in the buffers after each event."""
    oracle = create_oracle(vector)
    for at, event in enumerate(vector["events"]):
        if at in vector.get("restarts", ()):
            oracle.restart()
        oracle.feed(Event(**event))
        yield {row.id for buffer in oracle.buffers.values() for row in buffer}


@pytest.fixture(scope="module")
def carried(spark):
    """Replay each file in one job with a slice per event; returns the carried rows by vector."""
    by_vector = {}
    for vectors in VECTORS:
        cases = [conformance.Case(vector, cut) for vector in vectors for cut in conformance.parse_cuts("each", vector)]
        with tuned_for_tiny_queries(spark):
            [rows] = [answer.carried.collect() for answer in conformance.replay_cases(spark, cases)]
        by_vector |= {case.vector["name"]: [] for case in cases}
        for row in rows:
            by_vector[cases[row["lane"]].vector["name"]].append(row)
    return by_vector


@pytest.mark.parametrize("vector", [vector for vectors in VECTORS for vector in vectors], ids=lambda v: v["name"])
def test_carried_rows_after_each_event_match_oracle_buffers(carried, vector):
    for number, expected in enumerate(list_oracle_buffers(vector)):
        if number == len(vector["events"]) - 1 and vector["drain"]:
            continue  # the end of the input evicts every row in this slice
        buffered = {
            row[row["side"]]["id"]
            for row in carried[vector["name"]]
            if row["carried_from"] <= number and (row["evicted_in"] is None or row["evicted_in"] > number)
        }
        assert buffered == expected, f"after event {number}"
