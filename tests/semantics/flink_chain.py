"""A chain of two joins of Flink, one event at a time, by semantics/flink_chains.md.

The oracle of the first join feeds that of the second one: first the rows that an event emits, then its watermark. The
order of these rows can decide what the second join emits. It is that of the single oracles: by the times of buffered
rows, then by their arrival. The engine's heap state reads rows in the order of hashes.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

from tests.semantics import flink_datastream_interval, flink_datastream_window, flink_sql_interval, flink_sql_window
from tests.semantics.flink_datastream_window import LONG_MAX, LONG_MIN, JobFailedError

SIDES = {"A": "L", "B": "R", "C": "R"}
NO_WINDOW = flink_sql_window.Window(None, 0)
"""Window of a padded side. The engine reads its end as 0."""


class Emission(NamedTuple):
    left: str | None  # id; None pads
    right: str | None
    window: Any = None


Output = tuple[list[Emission], list[dict]]  # emissions, and for each loss the fields that describe it


@dataclass(frozen=True)
class Row:
    """A row of an input, or an intermediate row."""

    side: str  # L or R, of the join that reads it
    key: str | None
    ts: int | None
    id: str
    window: flink_sql_window.Window | None = None  # of an intermediate row
    names: dict = field(default_factory=dict)  # ids of its events, as in the vector


class Join(ABC):
    """The oracle of a single join. All have the same form of output."""

    module: Any

    def __init__(self, vector: dict) -> None:
        self.oracle = self.module.create_oracle(vector)

    @property
    def watermark(self) -> int | None:
        """Watermark that the operator has emitted."""
        return None if self.oracle.combined in {-math.inf, LONG_MIN} else self.oracle.combined

    @abstractmethod
    def feed(self, row: Row) -> Output:
        """Return the output for a row and its watermark, in the order of the operator."""

    @abstractmethod
    def advance(self, side: str, watermark: int) -> list[Emission]:
        """Return the output for a watermark."""

    def find_result_time(self, emission: Emission, _times: list[int | None]) -> int | None:
        """Return the time of an emission, given the times of its rows."""
        return None if emission.window is NO_WINDOW else emission.window.end - 1


class DatastreamInterval(Join):
    module = flink_datastream_interval

    def feed(self, row: Row) -> Output:
        if row.key is None:
            raise JobFailedError("java.lang.NullPointerException: Assigned key must not be null!")
        pairs, late = self.oracle.feed(self.module.Event(row.side, row.key, row.ts, row.id))
        return [Emission(*pair) for pair in pairs], [{}] * late

    def advance(self, side: str, watermark: int) -> list[Emission]:
        self.oracle.advance(side, watermark)
        return []

    def find_result_time(self, _emission: Emission, times: list[int | None]) -> int:
        return max(times)


class DatastreamWindow(Join):
    module = flink_datastream_window

    def __init__(self, vector: dict) -> None:
        super().__init__(vector)
        self.arrivals: dict[str, int] = {}

    def feed(self, row: Row) -> Output:
        self.arrivals[row.id] = len(self.arrivals)
        firings, dropped = self.oracle.feed(self.module.Event(row.side, row.key, row.ts, row.id))
        return self._join(firings), [{}] * dropped

    def advance(self, side: str, watermark: int) -> list[Emission]:
        return self._join(self.oracle.deliver(side, watermark))

    def _join(self, firings: list[flink_datastream_window.Firing]) -> list[Emission]:
        return [
            Emission(left, right, firing.window)
            for firing in firings
            for left, right in product(*(sorted(firing.ids(side), key=self.arrivals.get) for side in "LR"))
        ]


class SqlInterval(Join):
    module = flink_sql_interval

    @property
    def watermark(self) -> int | None:
        return self.oracle.emitted_watermark

    def feed(self, row: Row) -> Output:
        time = row.ts or 0  # the operator reads null as 0
        return [Emission(*ids) for ids in self.oracle.feed(self.module.Row(row.side, row.key, time, row.id))], []

    def advance(self, side: str, watermark: int) -> list[Emission]:
        return [Emission(*ids) for ids in self.oracle.advance_watermarks({side: watermark})]

    def find_result_time(self, _emission: Emission, _times: list[int | None]) -> None:
        return None


class SqlWindow(Join):
    module = flink_sql_window

    def feed(self, row: Row) -> Output:
        time = -1 if row.window is NO_WINDOW else row.ts
        pairs, losses = self.oracle.feed(self.module.Event(row.side, row.key, time, row.id, row.window))
        return self._to_emissions(pairs), [{**to_bounds(window), "by": reason} for reason, window in losses]

    def advance(self, side: str, watermark: int) -> list[Emission]:
        return self._to_emissions(self.oracle.advance(side, watermark))

    def _to_emissions(self, pairs: list[flink_sql_window.Pair]) -> list[Emission]:
        ids = [[copy and copy.event.id for copy in pair] for pair in pairs]
        return [Emission(*names, (left or right).window) for names, (left, right) in zip(ids, pairs, strict=True)]


JOINS = {
    "datastream_interval": DatastreamInterval,
    "datastream_window": DatastreamWindow,
    "sql_interval": SqlInterval,
    "sql_window": SqlWindow,
}


@dataclass
class Chain:
    """Feed events in arrival order, and then the ends of the inputs; `expected` collects the output."""

    vector: dict
    expected: dict
    first: Join
    second: Join
    rows: dict[str, Row] = field(default_factory=dict)  # by id, as the events
    events: dict[str | None, dict] = field(default_factory=dict)

    def feed(self, event: dict, at: int) -> None:
        name, event_id = event["side"], event["id"]
        self.events[event_id] = event
        names = {f"{name.lower()}_id": event_id}
        row = self.rows[event_id] = Row(SIDES[name], event["key"], event["ts"], event_id, names=names)
        if name == "C":
            self._feed_second(row, at)
        else:
            emissions, losses = self.first.feed(row)
            self.expected["dropped_first"] += [{"side": name, "id": event_id, "at": at, **loss} for loss in losses]
            self._pass_on(emissions, at)

    def drain(self) -> None:
        """End the inputs in the order A, B, C."""
        for side in "LR":
            self._pass_on(self.first.advance(side, LONG_MAX), "drain")
        self._collect(self.second.advance("R", LONG_MAX), "drain")

    def _pass_on(self, emissions: list[Emission], at: int | str) -> None:
        """Feed the second join with the emissions of an event, and then with the watermark."""
        self.expected["first_rows"] += [self._describe(self.first, emission, at) for emission in emissions]
        for emission in emissions:
            self._feed_second(self._create_intermediate_row(emission), at)
        if self.first.watermark is not None:
            self._collect(self.second.advance("L", self.first.watermark), at)

    def _feed_second(self, row: Row, at: int | str) -> None:
        emissions, losses = self.second.feed(row)
        self.expected["dropped_second"] += [{**row.names, "at": at, **loss} for loss in losses]
        self._collect(emissions, at)

    def _collect(self, emissions: list[Emission], at: int | str) -> None:
        self.expected["rows"] += [self._describe(self.second, emission, at) for emission in emissions]

    def _create_intermediate_row(self, emission: Emission) -> Row:
        """Create a row with the key, and in SQL with the time or window, that the second join reads."""
        second, window = self.vector["second"], emission.window
        sides = {"a": emission.left, "b": emission.right}
        key_side, column = second["key"].split("_")
        time = self._find_result_time(self.first, emission)
        if "rowtime" in second:
            picked = self.rows.get(sides[second["rowtime"]])
            time = None if picked is None else picked.ts if window is None else time
        is_in_window = self.vector["first"]["dialect"] == second["dialect"] == "sql_window"
        row = Row(
            side="L",
            key=self.events.get(sides[key_side], {}).get(column),
            ts=time,
            id=f"pair {len(self.rows)}",
            window=None if not is_in_window else NO_WINDOW if time is None else window,
            names={f"{name}_id": value for name, value in sides.items()},
        )
        self.rows[row.id] = row
        return row

    def _describe(self, join: Join, emission: Emission, at: int | str) -> dict:
        """Return an emission in the form of the vector."""
        names = dict.fromkeys(("a_id", "b_id") if join is self.first else ("a_id", "b_id", "c_id"))
        for row_id in emission[:2]:
            names |= self.rows[row_id].names if row_id else {}
        window = to_bounds(emission.window) if emission.window is not NO_WINDOW else {}
        return {**names, "ts": self._find_result_time(join, emission), **window, "at": at}

    def _find_result_time(self, join: Join, emission: Emission) -> int | None:
        times = [self.rows[row_id].ts for row_id in emission[:2] if row_id]
        return join.find_result_time(emission, times)


def to_bounds(window: Any) -> dict:
    """Return the bounds of a window, if there is one, as in the vector."""
    if window is None:
        return {}
    return {"window_start": window.start, "window_end": None if window is NO_WINDOW else window.end}


def create_chain(vector: dict) -> Chain:
    names = ("rows", "first_rows", "dropped_first", "dropped_second", "watermark_out_first", "watermark_out")
    joins = []
    for name, inputs in (("first", "ab"), ("second", " c")):
        delays = [vector["watermark"].get(f"delay_ms_{each}") for each in inputs]
        watermark = {"kind": vector["watermark"]["kind"], "delay_ms_left": delays[0], "delay_ms_right": delays[1]}
        join = vector[name]
        joins.append(JOINS[join["dialect"]]({"params": join["params"], "watermark": watermark}))
    return Chain(vector, {name: [] for name in names}, *joins)


def compute_expected(vector: dict) -> dict:
    """Return the expected result of a vector's events, in the form of the vector.

    A chain ends, also where the engine's timers loop for ever.
    """
    chain = create_chain(vector)
    for at, event in enumerate(vector["events"]):
        try:
            chain.feed(event, at)
        except JobFailedError as failure:
            return {**chain.expected, "error": f"at event {at}: {failure}"}
        chain.expected["watermark_out_first"].append(chain.first.watermark)
        chain.expected["watermark_out"].append(chain.second.watermark)
    if vector["drain"]:
        chain.drain()
    return chain.expected
