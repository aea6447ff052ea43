"""Random vectors of Flink SQL's interval join with expected results: small times, rows later than the interval."""

from hypothesis import strategies as st

from tests.semantics.flink_sql_interval import compute_expected

KEYS = [["a"], ["a", "b"], ["a", "b", "c", None]]


@st.composite
def vectors(draw):
    """Draw vectors with times above 0. `lower` may exceed `upper`, and either wait may be negative."""
    # Rare, because a lane with a cleanup interval is always simulated row by row.
    cleanup = draw(st.sampled_from([0, 0, 0, 0, 3, 9]))
    lower = draw(st.integers(-10, 6))
    params = {
        "join_type": draw(st.sampled_from(["inner", "left", "right", "full"])),
        "lower": lower,
        "upper": lower + draw(st.integers(-1, 14)),
        "lower_inclusive": draw(st.booleans()),
        "upper_inclusive": draw(st.booleans()),
        "allowed_lateness": draw(st.sampled_from([0, 0, 0, 2, 7])),
        "min_cleanup_interval": cleanup,
    }
    # Far above 0 no row has partners before 0, which would require a row-by-row simulation.
    begin = draw(st.sampled_from([1, 100]))
    jitter, step = draw(st.sampled_from([8, 25, 40])), draw(st.sampled_from([1, 1, 4]))
    keys = draw(st.sampled_from(KEYS))
    late = st.one_of(st.integers(-3, 2), st.integers(-jitter, 2))
    event = st.tuples(st.sampled_from("LR"), st.sampled_from(keys), late)
    drawn = draw(st.lists(event, min_size=draw(st.sampled_from([2, 25])), max_size=40))
    events = [
        {"side": side, "key": key, "ts": max(1, begin + number * step + late), "id": f"{side.lower()}{number}"}
        for number, (side, key, late) in enumerate(drawn)
    ]
    vector = {
        "name": "random",
        "dialect": "sql_interval",
        "params": params,
        "watermark": {
            "kind": draw(st.sampled_from(["datastream", "sql"])),
            "delay_ms_left": draw(st.integers(0, 4)),
            "delay_ms_right": draw(st.integers(0, 4)),
        },
        "drain": draw(st.booleans()),
        "events": events,
    }
    return {**vector, "expected": compute_expected(vector)}


@st.composite
def vectors_with_ties(draw):
    """Draw vectors in which many rows arrive at one position, as copies of a row or as other rows.

    Many late rows find an expired row that is still cached: only one of the copies matches and removes it.
    """
    keys = draw(st.sampled_from(["a", "a", "ab"]))
    late = st.sampled_from([0, 0, 0, *range(25)])
    event = st.tuples(
        st.sampled_from("LR"), st.sampled_from(keys), late, st.sampled_from([1, 2, 2, 3]), st.integers(0, 9)
    )
    events = []
    for number, (side, key, late, copies, tie) in enumerate(draw(st.lists(event, min_size=20, max_size=30))):
        row = {"side": side, "key": key, "ts": 100 + number - late, "id": f"{side.lower()}{number}"}
        tied = {**row, "simultaneous": True}
        events += [tied if events and tie == 0 else row, *[tied] * (copies - 1)]
    vector = {
        "name": "random",
        "dialect": "sql_interval",
        "params": {
            "join_type": draw(st.sampled_from(["inner", "left", "right", "full", "full"])),
            "lower": draw(st.integers(-9, 2)),
            "upper": draw(st.integers(2, 9)),
            "lower_inclusive": True,
            "upper_inclusive": True,
            "allowed_lateness": draw(st.sampled_from([0, 0, 3])),
            "min_cleanup_interval": draw(st.sampled_from([0, 0, 0, 0, 5])),
        },
        "watermark": {"kind": "sql", "delay_ms_left": draw(st.integers(0, 3)), "delay_ms_right": 1},
        "drain": draw(st.booleans()),
        "events": with_equal_ids(events),
    }
    return {**vector, "expected": compute_expected(vector)}


def with_equal_ids(events):
    """Give rows that differ in their id alone one id: their order decides which of them matches."""
    position, renamed = {}, []
    for event in events:
        position = position if event.get("simultaneous") else {}
        identity = event["side"], event["key"], event["ts"]
        renamed.append({**event, "id": position.setdefault(identity, event["id"])})
    return renamed
