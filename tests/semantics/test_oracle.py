from pathlib import Path

import pytest

from tests.semantics.flink_datastream_interval import answer
from tidemark.conformance import read_vectors

VECTORS = list(read_vectors(Path(__file__).parent / "vectors" / "flink_datastream_interval.jsonl.gz"))


def in_order(rows):
    return sorted(tuple(row.items()) for row in rows)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["name"])
def test_oracle_reproduces_the_engine(vector):
    told = answer(vector)
    assert in_order(told["rows"]) == in_order(vector["expected"]["rows"])
    assert in_order(told["dropped"]) == in_order(vector["expected"]["dropped"])


def test_no_vector_is_missing():
    assert len(VECTORS) == 92
