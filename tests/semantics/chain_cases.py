"""Random vectors of chains of two joins of Flink, with expected results.

Keys of the DataStream API are never null: a null key fails the job, and the rest of its event's rows are lost.
"""

from itertools import product

from hypothesis import strategies as st

from tests.semantics.flink_chain import compute_expected, create_chain

KEYS = [["a"], ["a", "b"]]
KEYS_OF_SQL = [*KEYS, ["a", "b", None]]
OUTER_TYPES = ["inner", "left", "right", "full"]


@st.composite
def interval_params(draw):
    """Draw bounds that at least one time meets. Without one, Flink's planner omits the join."""
    inclusive = {"lower_inclusive": draw(st.booleans()), "upper_inclusive": draw(st.booleans())}
    lower, width = draw(st.integers(-10, 6)), draw(st.integers(0, 12)) + list(inclusive.values()).count(False)
    return {"lower": lower, "upper": lower + width, **inclusive}


@st.composite
def datastream_window_params(draw):
    kind = draw(st.sampled_from(["tumbling", "sliding", "session"]))
    params = {"window": kind, "allowed_lateness": draw(st.integers(0, 8))}
    if kind == "session":
        return {**params, "gap": draw(st.integers(1, 6))}
    more = {"slide": draw(st.integers(1, 12))} if kind == "sliding" else {}
    return {**params, "size": draw(st.integers(1, 12)), **more}


@st.composite
def sql_windows(draw):
    tvf, step, steps = draw(st.sampled_from(["TUMBLE", "HOP", "CUMULATE"])), draw(st.integers(1, 6)), st.integers(1, 4)
    if tvf == "TUMBLE":
        return {"tvf": tvf, "size": step, "offset": draw(st.integers(0, step - 1))}
    return {"tvf": tvf, "size": step * draw(steps), "slide" if tvf == "HOP" else "step": step}


@st.composite
def joins(draw, api):
    """Draw both joins, without the columns that the second one reads."""
    kinds = [draw(st.sampled_from(["interval", "window"])) for _ in range(2)]
    if api == "datastream":
        params = {"interval": interval_params(), "window": datastream_window_params()}
        return [{"dialect": f"datastream_{kind}", "params": draw(params[kind])} for kind in kinds]
    # Flink takes the minimal cleanup interval from an option, and joins equal windows only. Both are the same twice.
    window = draw(sql_windows())
    cleanup = {"allowed_lateness": 0, "min_cleanup_interval": draw(st.sampled_from([0, 0, 0, 3, 9]))}
    params = {"interval": interval_params().map(lambda bounds: {**bounds, **cleanup}), "window": st.just(window)}
    types = st.sampled_from(OUTER_TYPES)
    return [{"dialect": f"sql_{kind}", "params": {"join_type": draw(types), **draw(params[kind])}} for kind in kinds]


@st.composite
def events(draw, keys):
    """Draw rows in order of arrival, many late, and some near the epoch, at which null times are read."""
    begin, step = draw(st.sampled_from([1, 100])), draw(st.sampled_from([1, 1, 4]))
    jitter, key = draw(st.sampled_from([4, 12, 30])), st.sampled_from(draw(st.sampled_from(keys)))
    late = st.one_of(st.integers(-3, 2), st.integers(-jitter, 2))
    event = st.tuples(st.sampled_from("ABC"), key, key, late)
    drawn = draw(st.lists(event, min_size=draw(st.sampled_from([3, 20, 30])), max_size=45))
    return [
        {"side": side, "key": key, "key2": key2, "ts": max(1, begin + at * step + late), "id": f"{side.lower()}{at}"}
        for at, (side, key, key2, late) in enumerate(drawn)
    ]


@st.composite
def vectors(draw):
    api = draw(st.sampled_from(["datastream", "sql"]))
    first, second = draw(joins(api))
    second["key"] = draw(st.sampled_from(["a_key", "b_key", "a_key2", "b_key2"]))
    if api == "sql":
        second["rowtime"] = draw(st.sampled_from("ab"))
    delays = {f"delay_ms_{name}": draw(st.integers(0, 6)) for name in "abc"}
    vector = {
        "name": "random",
        "first": first,
        "second": second,
        "watermark": {"kind": draw(st.sampled_from(["datastream", "sql"])), **delays},
        "drain": draw(st.booleans()),
        "events": draw(events(KEYS_OF_SQL if api == "sql" else KEYS)),
    }
    if may_never_end(vector):
        vector["drain"] = False
    return {**vector, "expected": compute_expected(vector)}


def list_vectors_of_late_firings():
    """Return vectors in which a late row of A matches several rows of B, and each pair fires a window of its own.

    A pair of the first join is late for the second one too, so that it fires with all pairs before it. The row of A is
    in two sliding windows, of which the later one fires first.
    """
    times = [("B", 31), *[("B", 32)] * 5, ("C", 34), ("A", 42), ("B", 43), ("C", 41), ("A", 33)]
    session, sliding = {"window": "session", "gap": 2}, {"window": "sliding", "size": 4, "slide": 2}
    windows = [{**window, "allowed_lateness": 8} for window in (session, sliding, {"window": "tumbling", "size": 12})]
    vectors = [
        {
            "name": f"late firings of {first['window']} and {second['window']} windows",
            "first": {"dialect": "datastream_window", "params": first},
            "second": {"dialect": "datastream_window", "params": second, "key": "b_key2"},
            "watermark": {"kind": "sql", "delay_ms_a": 5, "delay_ms_b": 2, "delay_ms_c": 6},
            "drain": False,
            "events": create_rows(times),
        }
        for first in windows[:2]
        for second in windows
    ]
    return [{**vector, "expected": compute_expected(vector)} for vector in vectors]


def list_vectors_of_late_lookups():
    """Return vectors in which several pairs of one event are late, and the first one removes the row that all match.

    That row of C has expired, as have the rows of B, but the timers of later rows are to remove them. A chain with a
    minimal cleanup interval is simulated row by row.
    """
    times = [*(("B", ts) for ts in (60, 33, 35, 31, 34, 32)), ("C", 60), ("C", 30), ("A", 60), ("A", 32)]
    columns = {"key": "b_key2", "rowtime": "a"}
    vectors = [
        {
            "name": f"late lookups of {first} and {second} joins, cleanup interval {interval}",
            "first": {"dialect": "sql_interval", "params": {**params, "join_type": first}},
            "second": {"dialect": "sql_interval", "params": {**params, "join_type": second}, **columns},
            "watermark": {"kind": "sql", "delay_ms_a": 0, "delay_ms_b": 0, "delay_ms_c": 0},
            "drain": True,
            "events": create_rows(times),
        }
        for interval in (0, 40)
        for params in [{"lower": -10, "upper": 10, "allowed_lateness": 0, "min_cleanup_interval": interval}]
        for first, second in product(("inner", "full"), repeat=2)
    ]
    return [{**vector, "expected": compute_expected(vector)} for vector in vectors]


def create_rows(times):
    """Create the rows of one key, by their sides and event times."""
    names = {"key": "a", "key2": "a"}
    return [{"side": side, **names, "ts": ts, "id": f"{side.lower()}{at}"} for at, (side, ts) in enumerate(times)]


def may_never_end(vector):
    """Return True if timers of the second join may loop for ever at the end of the input (section 4)."""
    if {vector["first"]["dialect"], vector["second"]["dialect"]} != {"sql_interval"}:
        return False
    chain = create_chain(vector)
    delay, waits = max(chain.first.oracle.wait_by_side.values()), chain.second.oracle.wait_by_side.values()
    return delay > 0 and min(waits) < -(delay + 1)
