"""Random vectors of Flink SQL's interval join on processing time with expected results: many rows per ms."""

from hypothesis import strategies as st

from tests.semantics.flink_sql_interval_proctime import compute_expected
from tests.semantics.sql_interval_cases import KEYS


@st.composite
def vectors(draw):
    """Draw vectors with clocks above 0, for any interval."""
    lower = draw(st.integers(-10, 6))
    params = {
        "join_type": draw(st.sampled_from(["inner", "left", "right", "full"])),
        "lower": lower,
        "upper": lower + draw(st.integers(-1, 12)),
        "lower_inclusive": draw(st.booleans()),
        "upper_inclusive": draw(st.booleans()),
        "allowed_lateness": 0,
        "min_cleanup_interval": draw(st.sampled_from([0, 0, 1, 4, 9])),
    }
    keys, step = draw(st.sampled_from(KEYS)), st.sampled_from(draw(st.sampled_from([[0, 1], [0, 1, 2, 9], [1, 3, 30]])))
    drawn = draw(st.lists(st.tuples(st.sampled_from("LR"), st.sampled_from(keys), step), min_size=2, max_size=40))
    clock, events = 100, []
    for number, (side, key, passed) in enumerate(drawn):
        clock += passed
        events.append({"side": side, "key": key, "ts": None, "pt": clock, "id": f"{side.lower()}{number}"})
    vector = {
        "name": "random",
        "dialect": "sql_interval_proctime",
        "params": params,
        "watermark": {"kind": "sql", "delay_ms_left": 0, "delay_ms_right": 0},
        "drain": draw(st.booleans()),
        "events": events,
    }
    if draw(st.booleans()):
        vector["end_pt"] = clock + draw(st.integers(0, 30))
    return {**vector, "expected": compute_expected(vector)}
