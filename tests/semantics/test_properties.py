"""Random streams: the engine, under random cuts, equals the oracle.

A Spark job costs seconds whatever its size, so Hypothesis first draws all cases, and a few jobs replay them. When one
fails, Hypothesis looks for the smallest that does, and prints it as a vector file.
"""

import contextlib
import json
import os

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis.errors import NoSuchExample

from tests.semantics.strategies import VECTORS, cases
from tidemark import conformance
from tidemark.spark.tuning import tuned_for_tiny_queries

EXAMPLES = int(os.environ.get("TIDEMARK_EXAMPLES", "1000")) // len(VECTORS)
BATCH = 2000


@pytest.mark.parametrize("dialect", VECTORS)
def test_engine_equals_oracle(spark, dialect):
    drawn = []

    @settings(max_examples=EXAMPLES, phases=[Phase.generate], database=None, suppress_health_check=list(HealthCheck))
    @given(cases(dialect))
    def draw(case):
        drawn.append(case)

    draw()
    assert len(drawn) >= EXAMPLES
    with tuned_for_tiny_queries(spark):
        failed = [
            case
            for start in range(0, len(drawn), BATCH)
            for case, verdict in zip(
                drawn[start : start + BATCH], conformance.check(spark, drawn[start : start + BATCH]), strict=False
            )
            if not verdict.passed
        ]
        assert not failed, smallest(spark, dialect, failed)


def smallest(spark, dialect, failed):
    """What to say of failures: how many, and the smallest such case that a minute's search finds."""
    seed = min(failed, key=lambda case: len(json.dumps(case.vector)))
    limits = settings(max_examples=60, database=None, suppress_health_check=list(HealthCheck), deadline=None)
    with contextlib.suppress(NoSuchExample):  # chance may not come upon it again
        seed = find(cases(dialect), lambda case: not conformance.check(spark, [case])[0].passed, settings=limits)
    [verdict] = conformance.check(spark, [seed])
    return f"{len(failed)} cases fail; {verdict}; as a vector file: {json.dumps(seed.vector)}"


@settings(max_examples=200, deadline=None)
@given(vector=VECTORS["datastream_interval"])
def test_the_oracle_never_pairs_a_row_with_itself_or_twice(vector):
    pairs = [(row["left_id"], row["right_id"]) for row in vector["expected"]["rows"]]
    assert len(pairs) == len(set(pairs))
