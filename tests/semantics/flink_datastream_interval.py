"""Flink's DataStream interval join, one event at a time, as semantics/flink.md section a tells it."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Event:
    side: str  # L or R
    key: str
    ts: int
    id: str


@dataclass
class Oracle:
    """Feed events in arrival order; each gives the pairs it emits and whether it was late."""

    lower: int  # inclusive, ms
    upper: int
    lag: dict[str, int]  # side -> how far its watermark stays behind its greatest timestamp
    watermarks: dict[str, float] = field(default_factory=lambda: {"L": -math.inf, "R": -math.inf})
    buffers: dict[str, list[Event]] = field(default_factory=lambda: {"L": [], "R": []})

    @property
    def combined(self) -> float:
        return min(self.watermarks.values())

    def feed(self, event: Event) -> tuple[list[tuple[str, str]], bool]:
        pairs, late = [], event.ts < self.combined
        if not late:
            pairs = list(self._probe(event))
            self.buffers[event.side].append(event)
        self._advance(event)
        return pairs, late

    def _probe(self, event: Event) -> Iterable[tuple[str, str]]:
        for other in self.buffers["R" if event.side == "L" else "L"]:
            left, right = (event, other) if event.side == "L" else (other, event)
            if other.key == event.key and left.ts + self.lower <= right.ts <= left.ts + self.upper:
                yield left.id, right.id

    def _advance(self, event: Event) -> None:
        before = self.combined
        self.watermarks[event.side] = max(self.watermarks[event.side], event.ts - self.lag[event.side])
        if self.combined > before:  # timers fire at an advance only
            wait = {"L": max(0, self.upper), "R": max(0, -self.lower)}
            for side, buffer in self.buffers.items():
                self.buffers[side] = [e for e in buffer if e.ts + wait[side] > self.combined]


def oracle_of(vector: dict) -> Oracle:
    params, watermark = vector["params"], vector["watermark"]
    extra = 1 if watermark["kind"] == "datastream" else 0
    return Oracle(
        lower=params["lower"] + (not params.get("lower_inclusive", True)),
        upper=params["upper"] - (not params.get("upper_inclusive", True)),
        lag={"L": watermark["delay_ms_left"] + extra, "R": watermark["delay_ms_right"] + extra},
    )


def answer(vector: dict) -> dict:
    """What the engine is expected to do with a vector's events, in the vector's own form."""
    oracle, rows, dropped = oracle_of(vector), [], []
    ts = {event["id"]: event["ts"] for event in vector["events"]}
    for at, event in enumerate(vector["events"]):
        pairs, late = oracle.feed(Event(**event))
        rows += [{"left_id": a, "right_id": b, "ts": max(ts[a], ts[b]), "at": at} for a, b in pairs]
        if late:
            dropped.append({"side": event["side"], "id": event["id"], "at": at})
    return {"rows": rows, "dropped": dropped}
