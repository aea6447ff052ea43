"""Random vectors of each dialect, with the expected results of the oracles."""

from hypothesis import assume
from hypothesis import strategies as st

from tests.semantics import (
    chain_cases,
    flink_datastream_interval,
    flink_datastream_trigger,
    flink_datastream_window,
    flink_sql_interval,
    flink_sql_window,
    processing_time_cases,
    spark_cases,
    sql_interval_cases,
)
from tests.semantics.cuts import CUTS, cut_vector
from tests.semantics.recorded_watermarks import with_recorded_watermarks


@st.composite
def events(draw, keys, disorder=4):
    """Draw rows in order of arrival, about a millisecond apart, some out of order, many at equal times."""
    event = st.tuples(st.sampled_from("LR"), st.sampled_from(keys), st.integers(-disorder, disorder))
    return [
        {"side": side, "key": key, "ts": number + 5 + disorder + jitter, "id": f"{side.lower()}{number}"}
        for number, (side, key, jitter) in enumerate(draw(st.lists(event, min_size=2, max_size=30)))
    ]


@st.composite
def flink_vectors(draw, dialect, oracle, params, keys):
    delays = {"delay_ms_left": draw(st.integers(0, 6)), "delay_ms_right": draw(st.integers(0, 6))}
    vector = {
        "name": "random",
        "dialect": dialect,
        "params": draw(params),
        "watermark": {"kind": draw(st.sampled_from(["datastream", "sql"])), **delays},
        "drain": draw(st.booleans()),
        "events": draw(st.sampled_from(keys).flatmap(lambda chosen: events(chosen, draw(st.sampled_from([4, 12]))))),
    }
    return {**vector, "expected": oracle.compute_expected(vector)}


@st.composite
def with_ties(draw, vectors, oracle):
    """Draw vectors in which a third of the rows arrive at the position of the row before."""
    vector = draw(vectors)
    first, *others = vector["events"]
    events = [first, *(draw(st.sampled_from([event, event, {**event, "simultaneous": True}])) for event in others)]
    vector = {**vector, "events": sql_interval_cases.with_equal_ids(events)}
    return {**vector, "expected": oracle.compute_expected(vector)}


@st.composite
def interval_params(draw):
    lower = draw(st.integers(-8, 8))
    return {
        "lower": lower,
        "upper": lower + draw(st.integers(0, 10)),
        "lower_inclusive": draw(st.booleans()),
        "upper_inclusive": draw(st.booleans()),
    }


@st.composite
def datastream_window_params(draw):
    more = {
        "mode": draw(st.sampled_from(["join", "cogroup"])),
        "window": draw(st.sampled_from(["tumbling", "sliding", "session"])),
        "allowed_lateness": draw(st.integers(0, 8)),
    }
    if more["window"] == "session":
        return {**more, "gap": draw(st.integers(1, 6))}
    more["size"] = slide = draw(st.integers(1, 12))
    if more["window"] == "sliding":
        more["slide"] = slide = draw(st.integers(1, 12))
    return {**more, "offset": draw(st.integers(1 - slide, slide - 1))}


@st.composite
def trigger_params(draw):
    more = draw(datastream_window_params())
    kinds = ["event_time", "processing_time", "continuous_event_time", "continuous_processing_time", "count", "delta"]
    kind = draw(st.sampled_from([None, *(kinds[:-1] if more["window"] == "session" else kinds)]))
    trigger = kind and {"type": kind, "purge": draw(st.booleans())}
    if kind and "continuous" in kind:
        trigger["interval"] = draw(st.integers(1, 8))
    elif kind == "count":
        trigger["count"] = draw(st.integers(0, 5))
    elif kind == "delta":
        trigger["threshold"] = draw(st.integers(-2, 5))
    after = {"after": draw(st.booleans())}
    evictors = {
        "count": {"type": "count", "count": draw(st.integers(0, 4)), **after},
        "time": {"type": "time", "size_ms": draw(st.integers(0, 6)), **after},
        None: None,
    }
    evictor = evictors[draw(st.sampled_from([None, "count", "time"]))]
    return {**more, "time": draw(st.sampled_from(["event", "processing"])), "trigger": trigger, "evictor": evictor}


@st.composite
def trigger_vectors(draw):
    """Draw vectors with a processing-time clock, which sometimes stands still."""
    vector = draw(flink_vectors("datastream_window", flink_datastream_trigger, trigger_params(), [["a"], ["a", "b"]]))
    params, clock = vector["params"], draw(st.integers(0, 10))
    kind = params["trigger"]["type"] if params["trigger"] else "by default"
    timeless = params["time"] == "processing" and kind not in {"delta", "continuous_event_time"}
    none = draw(st.sampled_from([0, 5])) if timeless else 0
    events = []
    for event in vector["events"]:
        clock += draw(st.sampled_from([0, 0, 1, 1, 2, 7]))
        ts = None if none and draw(st.integers(0, none)) == 0 else event["ts"]
        events.append({**event, "pt": clock, "ts": ts})
    vector = {**vector, "events": events}
    if draw(st.booleans()):
        vector["end_pt"] = clock + draw(st.integers(0, 12))
    return {**vector, "expected": flink_datastream_trigger.compute_expected(vector)}


@st.composite
def sql_window_params(draw):
    tvf = draw(st.sampled_from(["TUMBLE", "HOP", "CUMULATE", "SESSION"]))
    more = {"join_type": draw(st.sampled_from(["inner", "left", "right", "full", "semi", "anti"])), "tvf": tvf}
    if tvf == "SESSION":
        return {**more, "gap": draw(st.integers(1, 6))}
    step = draw(st.integers(1, 6))
    match tvf:
        case "HOP":
            more |= {"size": step * draw(st.integers(1, 4)), "slide": step}
        case "CUMULATE":
            more |= {"size": step * draw(st.integers(1, 4)), "step": step}
        case _:
            more |= {"size": step}
    return {**more, "offset": draw(st.integers(0, step - 1))}


DATASTREAM_WINDOWS = flink_vectors(
    "datastream_window", flink_datastream_window, datastream_window_params(), [["a"], ["a", "b"]]
)
VECTORS = {
    "datastream_interval": flink_vectors(
        "datastream_interval", flink_datastream_interval, interval_params(), [["a"], ["a", "b"]]
    ),
    "datastream_window": st.one_of(DATASTREAM_WINDOWS, with_ties(DATASTREAM_WINDOWS, flink_datastream_window)),
    "datastream_trigger": trigger_vectors(),
    "sql_interval": st.one_of(sql_interval_cases.vectors(), sql_interval_cases.vectors_with_ties()),
    "sql_interval_proctime": processing_time_cases.vectors(),
    "sql_window": flink_vectors("sql_window", flink_sql_window, sql_window_params(), [["a"], ["a", "b"], ["a", None]]),
    "spark": spark_cases.vectors(),
    "chain": chain_cases.vectors(),
}
_SLIDING = st.fixed_dictionaries({
    "mode": st.just("join"),
    "window": st.just("sliding"),
    "allowed_lateness": st.integers(0, 8),
    "size": st.integers(1, 12),
    "slide": st.integers(1, 12),
})  # fmt: skip
_SESSION = st.fixed_dictionaries({
    "join_type": st.sampled_from(["inner", "left", "right", "full"]),
    "tvf": st.just("SESSION"),
    "gap": st.integers(1, 6),
})  # fmt: skip
_SLIDING_VECTORS = flink_vectors("datastream_window", flink_datastream_window, _SLIDING, [["a"], ["a", "b"]])
_SESSION_VECTORS = flink_vectors("sql_window", flink_sql_window, _SESSION, [["a"], ["a", "b"]])
RECORDED = {
    "datastream_interval": with_recorded_watermarks(
        VECTORS["datastream_interval"], flink_datastream_interval.compute_expected, ["left"]
    ),
    "datastream_window": with_recorded_watermarks(
        _SLIDING_VECTORS, flink_datastream_window.compute_expected, ["right"]
    ),
    "sql_interval": st.one_of(
        with_recorded_watermarks(VECTORS["sql_interval"], flink_sql_interval.compute_expected, sides)
        for sides in (["left"], ["left", "right"])
    ),
    "sql_window": with_recorded_watermarks(_SESSION_VECTORS, flink_sql_window.compute_expected, ["left", "right"]),
}
"""Vectors with recorded watermarks. They are lanes of separate jobs, with the kinds that can share a job."""


@st.composite
def with_restarts(draw, vectors, answer, later=0):
    """Draw vectors shifted by `later` ms whose restarts change the result: many rows of an epoch are old."""
    vector = draw(vectors)
    numbers = st.integers(1, len(vector["events"]) - 1)
    restarts = sorted(draw(st.sets(numbers, min_size=1, max_size=3)))
    older = [0, *(draw(st.integers(0, 20)) for _ in restarts)]
    events = [
        {**event, "ts": event["ts"] + later - older[sum(start <= at for start in restarts)]}
        for at, event in enumerate(vector["events"])
    ]
    vector = {**vector, "events": events}
    expected = answer({**vector, "restarts": restarts})
    assume(expected != answer(vector))
    return {**vector, "restarts": restarts, "expected": expected}


_TUMBLING = st.fixed_dictionaries({
    "mode": st.sampled_from(["join", "cogroup"]),
    "window": st.just("tumbling"),
    "allowed_lateness": st.just(0),
    "size": st.integers(1, 12),
})  # fmt: skip
_TUMBLING_VECTORS = flink_vectors("datastream_window", flink_datastream_window, _TUMBLING, [["a"], ["a", "b"]])
RESTARTED = {
    "datastream_interval": with_restarts(VECTORS["datastream_interval"], flink_datastream_interval.compute_expected),
    "datastream_window": with_restarts(_TUMBLING_VECTORS, flink_datastream_window.compute_expected),
    "sql_interval": with_recorded_watermarks(
        with_restarts(sql_interval_cases.vectors(), flink_sql_interval.compute_expected, 20),
        flink_sql_interval.compute_expected,
        ["left"],
    ),
}
"""Vectors of restarted jobs, one kind with recorded watermarks. They are lanes of separate jobs too."""


@st.composite
def cases(draw, dialect):
    """Draw a vector and a cut."""
    special = [kinds[dialect] for kinds in (RECORDED, RESTARTED) if dialect in kinds]
    number = draw(st.integers(0, 4))
    vector = draw(special[number] if number < len(special) else VECTORS[dialect])
    return cut_vector(
        vector, draw(st.sampled_from(["2", "each"] if number < len(special) else CUTS)), draw(st.integers(0, 99))
    )
