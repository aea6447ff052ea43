"""Streams whose job has recorded the watermark of an input beside each of its rows.

The watermark comes right before the row, and nothing comes of the row's own time: its lag is infinite.
"""

import math

from hypothesis import strategies as st


def lags(watermark: dict) -> dict[str, float]:
    """How far each side's watermark stays behind its greatest timestamp; infinitely where it is recorded."""
    extra = 1 if watermark["kind"] == "datastream" else 0
    delays = {side[0].upper(): watermark[f"delay_ms_{side}"] for side in ("left", "right")}
    return {side: math.inf if delay is None else delay + extra for side, delay in delays.items()}


def plain(event: dict) -> tuple[dict, int | None]:
    """An event as the oracles know it, and the watermark that comes before it, if one does."""
    return {name: value for name, value in event.items() if name != "watermark"}, event.get("watermark")


@st.composite
def as_recorded(draw, vectors, answer, sides):
    """Vectors of which some sides have recorded their watermarks: behind or ahead of the rows, and at times lower."""
    vector = draw(vectors)
    watermark = vector["watermark"] | {f"delay_ms_{side}": None for side in sides}
    events, marks = [], st.one_of(st.integers(-9, 3), st.integers(-3, 12), st.sampled_from([None, -25, 25]))
    for event in vector["events"]:
        known = {"L": "left", "R": "right"}[event["side"]] in sides and event["ts"] is not None
        ahead = draw(marks) if known else None
        events.append(event if ahead is None else {**event, "watermark": event["ts"] + ahead})
    vector = {**vector, "watermark": watermark, "events": events}
    return {**vector, "expected": answer(vector)}
