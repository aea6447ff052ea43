"""Check the oracle of idle inputs against watermarks of a real Flink, recorded by `tests.flink_parity.idle_inputs`."""

import json
from pathlib import Path

import pytest

from tests.semantics.source_watermarks import NONE, create_oracle

SIDES = {"L": "left", "R": "right"}
VECTORS = [json.loads(line) for line in Path(__file__).with_name("idle_inputs.jsonl").read_text().splitlines()]
DATASTREAM_LAG = 1
"""Milliseconds that a DataStream watermark is lower than the newest event time."""


@pytest.mark.parametrize("join", ["datastream_interval", "datastream_window", "sql_window"])
def test_oracle_of_idle_inputs_has_watermarks_of_real_flink(join):
    vectors = [vector for vector in VECTORS if vector["join"] == join]
    assert vectors
    for vector in vectors:
        oracle = create_oracle(
            {
                "delay": dict.fromkeys(SIDES.values(), DATASTREAM_LAG),
                "idle_timeout": dict.fromkeys(SIDES.values()),
                "is_union": join == "datastream_window",
            }
        )
        assert [process(oracle, clock, event) for clock, event in enumerate(vector["events"])] == vector["watermarks"]


def process(oracle, clock, event):
    """Process an event, and return the combined watermark after it."""
    if "idle" in event:
        for partition in oracle.inputs[SIDES[event["idle"]]].partitions.values():
            partition.is_active = False
        oracle.flush()
        oracle.align()
        oracle.advance()
    else:
        row = {"side": SIDES[event["side"]], "partition": None, "event_time": event["ts"], "id": event["id"]}
        oracle.feed([row | {"clock": clock, "tiebreak": 0}])
    return None if oracle.combined == NONE else oracle.combined
