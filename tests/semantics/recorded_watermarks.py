"""Streams whose job recorded the watermark of an input in each of its rows.

The watermark is emitted right before the row. The row's own time has no effect: its lag is infinite.
"""

import math

from hypothesis import strategies as st


def parse_lags(watermark: dict) -> dict[str, float]:
    """Return the lag of each side's watermark; infinite if it is recorded."""
    extra = 1 if watermark["kind"] == "datastream" else 0
    delays = {side[0].upper(): watermark[f"delay_ms_{side}"] for side in ("left", "right")}
    return {side: math.inf if delay is None else delay + extra for side, delay in delays.items()}


def split_event(event: dict) -> tuple[dict, int | None]:
    """Split an event into that of the oracles and the recorded watermark before it, if any."""
    position = {"watermark", "simultaneous"}
    return {name: value for name, value in event.items() if name not in position}, event.get("watermark")


@st.composite
def with_recorded_watermarks(draw, vectors, answer, sides):
    """Draw vectors with recorded watermarks of some sides: below or above the event times, and sometimes falling."""
    vector = draw(vectors)
    watermark = vector["watermark"] | {f"delay_ms_{side}": None for side in sides}
    events, distances = [], st.one_of(st.integers(-9, 3), st.integers(-3, 12), st.sampled_from([None, -25, 25]))
    for event in vector["events"]:
        is_recorded = {"L": "left", "R": "right"}[event["side"]] in sides and event["ts"] is not None
        distance = draw(distances) if is_recorded else None
        events.append(event if distance is None else {**event, "watermark": event["ts"] + distance})
    vector = {**vector, "watermark": watermark, "events": events}
    return {**vector, "expected": answer(vector)}
