"""Random streams: the engine, under random cuts, equals the oracle.

A Spark job costs seconds whatever its size, so Hypothesis first draws all cases, and a few jobs replay them. When one
fails, Hypothesis looks for the smallest that does, and prints it as a vector file.
"""

import contextlib
import json
import os

from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from tests.semantics.flink_datastream_interval import answer
from tidemark import conformance
from tidemark.session import tuned_for_tiny_queries

EXAMPLES = int(os.environ.get("TIDEMARK_EXAMPLES", "1000"))
BATCH = 400


@st.composite
def vectors(draw):
    lower = draw(st.integers(-8, 8))
    params = {
        "lower": lower,
        "upper": lower + draw(st.integers(0, 10)),
        "lower_inclusive": draw(st.booleans()),
        "upper_inclusive": draw(st.booleans()),
    }
    delays = {"delay_ms_left": draw(st.integers(0, 6)), "delay_ms_right": draw(st.integers(0, 6))}
    keys = draw(st.sampled_from([["a"], ["a", "b"]]))
    event = st.tuples(st.sampled_from("LR"), st.sampled_from(keys), st.integers(-4, 4))
    events = [
        {"side": side, "key": key, "ts": number + 5 + jitter, "id": f"{side.lower()}{number}"}
        for number, (side, key, jitter) in enumerate(draw(st.lists(event, min_size=2, max_size=30)))
    ]
    vector = {
        "name": "random",
        "dialect": "datastream_interval",
        "params": params,
        "watermark": {"kind": draw(st.sampled_from(["datastream", "sql"])), **delays},
        "drain": draw(st.booleans()),
        "events": events,
    }
    return {**vector, "expected": answer(vector)}


@st.composite
def cases(draw):
    vector = draw(vectors())
    [cut] = conformance.parse_cuts(draw(st.sampled_from(["1", "2", "7", "each", "random:3"])), vector)
    return conformance.Case(vector, cut)


def test_engine_equals_oracle(spark):
    drawn = []

    @settings(max_examples=EXAMPLES, phases=[Phase.generate], database=None, suppress_health_check=list(HealthCheck))
    @given(cases())
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
        assert not failed, smallest(spark, failed)


def smallest(spark, failed):
    """What to say of failures: how many, and the smallest such case that a minute's search finds."""
    seed = min(failed, key=lambda case: len(case.vector["events"]))
    limits = settings(max_examples=60, database=None, suppress_health_check=list(HealthCheck), deadline=None)
    with contextlib.suppress(NoSuchExample):  # chance may not come upon it again
        seed = find(cases(), lambda case: not conformance.check(spark, [case])[0].passed, settings=limits)
    [verdict] = conformance.check(spark, [seed])
    return f"{len(failed)} cases fail; {verdict}; as a vector file: {json.dumps(seed.vector)}"


@settings(max_examples=200, deadline=None)
@given(vector=vectors())
def test_the_oracle_never_pairs_a_row_with_itself_or_twice(vector):
    pairs = [(row["left_id"], row["right_id"]) for row in vector["expected"]["rows"]]
    assert len(pairs) == len(set(pairs))
