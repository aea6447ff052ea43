"""Random streams: the engine, under random cuts, equals the oracle."""

import json
import os

from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from tests.semantics.flink_datastream_interval import answer
from tidemark import conformance

EXAMPLES = int(os.environ.get("TIDEMARK_EXAMPLES", "25"))


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


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(vector=vectors(), cut=st.sampled_from(["1", "2", "each", "random:3"]))
def test_engine_equals_oracle(spark, vector, cut):
    note(f"as a vector file: {json.dumps(vector)}")
    with conformance.tuned_for_tiny_queries(spark):
        [chosen] = conformance.parse_cuts(cut, vector)
        verdict = conformance.check(spark, vector, chosen)
    assert verdict.passed, verdict


@settings(max_examples=200, deadline=None)
@given(vector=vectors())
def test_the_oracle_never_pairs_a_row_with_itself_or_twice(vector):
    pairs = [(row["left_id"], row["right_id"]) for row in vector["expected"]["rows"]]
    assert len(pairs) == len(set(pairs))
