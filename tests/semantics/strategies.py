"""Random vectors of each dialect, with what the oracle says of them."""

from hypothesis import strategies as st

from tests.semantics import (
    flink_datastream_interval,
    flink_datastream_window,
    flink_sql_window,
    processing_time_cases,
    spark_cases,
    sql_interval_cases,
)
from tidemark import conformance

CUTS = ["1", "2", "5", "each", "random:3"]


@st.composite
def events(draw, keys, disorder=4):
    """Rows in order of arrival, about a millisecond apart, some out of order, many at equal times."""
    event = st.tuples(st.sampled_from("LR"), st.sampled_from(keys), st.integers(-disorder, disorder))
    return [
        {"side": side, "key": key, "ts": number + 5 + disorder + jitter, "id": f"{side.lower()}{number}"}
        for number, (side, key, jitter) in enumerate(draw(st.lists(event, min_size=2, max_size=30)))
    ]


@st.composite
def flink(draw, dialect, oracle, params, keys):
    delays = {"delay_ms_left": draw(st.integers(0, 6)), "delay_ms_right": draw(st.integers(0, 6))}
    vector = {
        "name": "random",
        "dialect": dialect,
        "params": draw(params),
        "watermark": {"kind": draw(st.sampled_from(["datastream", "sql"])), **delays},
        "drain": draw(st.booleans()),
        "events": draw(st.sampled_from(keys).flatmap(lambda chosen: events(chosen, draw(st.sampled_from([4, 12]))))),
    }
    return {**vector, "expected": oracle.answer(vector)}


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


VECTORS = {
    "datastream_interval": flink(
        "datastream_interval", flink_datastream_interval, interval_params(), [["a"], ["a", "b"]]
    ),
    "datastream_window": flink(
        "datastream_window", flink_datastream_window, datastream_window_params(), [["a"], ["a", "b"]]
    ),
    "sql_interval": sql_interval_cases.vectors(),
    "sql_interval_proctime": processing_time_cases.vectors(),
    "sql_window": flink("sql_window", flink_sql_window, sql_window_params(), [["a"], ["a", "b"], ["a", None]]),
    "spark": spark_cases.vectors(),
}


@st.composite
def cases(draw, dialect):
    """A vector under a cut."""
    vector = draw(VECTORS[dialect])
    [cut] = conformance.parse_cuts(draw(st.sampled_from(CUTS)), vector)
    return conformance.Case(vector, cut)
