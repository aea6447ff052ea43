"""Random vectors of Spark's stream-stream join, with the expected results of the oracle."""

from hypothesis import strategies as st

from tests.semantics.spark_stream_stream import PRESERVED, compute_expected

TYPES = ["leftsemi", "left", "right", "full", "inner"]
DELAYS = st.sampled_from([0, 1, 2, 5])


@st.composite
def vectors(draw):
    shapes = ["range", "lower", "upper", "tumbling", "sliding", "compared", "equal", "equal in range"]
    shape = draw(st.sampled_from(shapes))
    operator = draw(st.sampled_from(["<", "<=", ">", ">="]))
    micros = draw(st.booleans())
    vector = {
        "name": "random",
        "engine": "spark-4.1.3",
        "mode": draw(st.sampled_from(["idle", "busy"])),
        "policy": draw(st.sampled_from(["min", "max"])),
        "late_watermark": draw(st.sampled_from(["previous_batch", "current_batch"])),
        "bounds": draw(bounds(shape)),
        "window": draw(windows(shape)) if shape in {"tumbling", "sliding"} else None,
        "window_inequality": draw(compared(operator)) if shape == "compared" else None,
        "event_time_equality": shape.startswith("equal"),
        "ts_unit": "us" if micros else "ms",
        "batches": draw(batches(1000 if micros else 1)),
        **draw(join_types({"<": "lower", ">": "upper"}[operator[0]] if shape == "compared" else shape)),
    }
    vector |= draw(conditions(vector))
    return {**vector, **compute_expected(vector)}


@st.composite
def join_types(draw, shape):
    """Draw a join type that Spark supports with the drawn watermarks."""
    delays = {side: draw(st.none() | DELAYS | DELAYS | DELAYS) for side in ("left", "right")}
    allowed = {"inner"}
    if shape in {"range", "lower", "upper"}:
        if delays["right"] is not None and shape != "lower":
            allowed |= {"left", "leftsemi", "full"}
        if delays["left"] is not None and shape != "upper":
            allowed |= {"right", "full"}
    elif delays != {"left": None, "right": None}:
        allowed = set(TYPES)
    kind = draw(st.sampled_from([kind for kind in TYPES if kind in allowed]))
    return {"join_type": kind, **{f"delay_{side}_ms": delay for side, delay in delays.items()}}


@st.composite
def bounds(draw, shape):
    if shape not in {"range", "lower", "upper", "equal in range"}:
        return None
    lower = draw(st.integers(-5, 5)) if shape != "equal in range" else draw(st.integers(-2, 0))
    ends = {"lower": lower, "upper": lower + draw(st.integers(0, 6))}
    drawn = {}
    for name, end in ends.items():
        is_given = shape not in {"lower", "upper"} or shape == name
        drawn |= {
            f"{name}_ms": end if is_given else None,
            f"{name}_inclusive": draw(st.booleans()) if is_given else None,
        }
    return drawn


@st.composite
def windows(draw, shape):
    size = draw(st.integers(1, 6))
    return {"size_ms": size, "slide_ms": draw(st.integers(1, size)) if shape == "sliding" else None}


@st.composite
def compared(draw, operator):
    sides = {side: draw(windows(draw(st.sampled_from(["tumbling", "sliding"])))) for side in ("left", "right")}
    return {**sides, "operator": operator}


@st.composite
def conditions(draw, vector):
    """Draw conjuncts besides keys and times; few different ones, as each is compiled separately."""
    if not draw(st.booleans()):
        return {}
    drawn = draw(st.sampled_from([{"v_differs": True}, {"left_min_v": 3}, {"right_min_v": 4, "left_max_v": 6}]))
    # Without a bound of the side, Spark's reading of v >= n is the only limit, which was never recorded.
    return drawn if set(PRESERVED[vector["join_type"]]) <= find_limited_sides(vector) else {}


def find_limited_sides(vector):
    """Return the sides that a condition on times, or the key, limits."""
    if vector["window_inequality"]:
        return {"right" if "<" in vector["window_inequality"]["operator"] else "left"}
    bounds = vector["bounds"] or {}
    return {side for side, bound in (("left", "upper_ms"), ("right", "lower_ms")) if bounds.get(bound, 0) is not None}


@st.composite
def batches(draw, unit):
    """Draw steps of rows whose times roughly increase with the steps."""
    jitter = st.integers(-6 * unit, 6 * unit)
    row = st.tuples(
        st.sampled_from(["left", "right"]),
        st.sampled_from(["a", "a", "a", "b", None]),
        st.none() | jitter | jitter | jitter | jitter,
        st.none() | st.integers(1, 8) | st.integers(1, 8),
    )
    steps, number = [], 0
    for step, rows in enumerate(draw(st.lists(st.lists(row, max_size=7), min_size=2, max_size=7))):
        drawn = {"left": [], "right": []}
        for side, key, off, v in rows:
            number += 1
            ts = None if off is None else (4 * step + 2) * unit + off
            drawn[side].append({"id": number, "key": key, "ts": ts, "v": v})
        steps.append(drawn)
    return steps
