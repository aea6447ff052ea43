"""Flink's DataStream interval join, one event at a time, by section a of semantics/flink.md."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.semantics.recorded_watermarks import parse_lags, split_event


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
    lag: dict[str, float]  # side -> lag of its watermark behind its greatest timestamp
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
        self.advance(event.side, event.ts - self.lag[event.side])
        return pairs, late

    def _probe(self, event: Event) -> Iterable[tuple[str, str]]:
        # The order matters only to a window join that reads the pairs. It is that of a state sorted by time.
        for other in sorted(self.buffers["R" if event.side == "L" else "L"], key=lambda buffered: buffered.ts):
            left, right = (event, other) if event.side == "L" else (other, event)
            if other.key == event.key and left.ts + self.lower <= right.ts <= left.ts + self.upper:
                yield left.id, right.id

    def advance(self, side: str, watermark: float) -> None:
        before = self.combined
        self.watermarks[side] = max(self.watermarks[side], watermark)
        if self.combined > before:  # timers fire only at an advance
            wait = {"L": max(0, self.upper), "R": max(0, -self.lower)}
            for side_name, buffer in self.buffers.items():
                self.buffers[side_name] = [e for e in buffer if e.ts + wait[side_name] > self.combined]

    def restart(self) -> None:
        """Restart the job from its last checkpoint: buffers and timers are recovered, watermarks are not."""
        self.watermarks = dict.fromkeys(self.watermarks, -math.inf)


def create_oracle(vector: dict) -> Oracle:
    params = vector["params"]
    return Oracle(
        lower=params["lower"] + (not params.get("lower_inclusive", True)),
        upper=params["upper"] - (not params.get("upper_inclusive", True)),
        lag=parse_lags(vector["watermark"]),
    )


def compute_expected(vector: dict) -> dict:
    """Return the expected result of a vector's events, in the form of the vector."""
    oracle, rows, dropped = create_oracle(vector), [], []
    ts = {event["id"]: event["ts"] for event in vector["events"]}
    for at, event in enumerate(vector["events"]):
        if at in vector.get("restarts", ()):
            oracle.restart()
        row, recorded = split_event(event)
        if recorded is not None:
            oracle.advance(event["side"], recorded)
        pairs, late = oracle.feed(Event(**row))
        rows += [{"left_id": a, "right_id": b, "ts": max(ts[a], ts[b]), "at": at} for a, b in pairs]
        if late:
            dropped.append({"side": event["side"], "id": event["id"], "at": at})
    return {"rows": rows, "dropped": dropped}
