"""Vectors of Flink's DataStream windows with triggers, evictors and processing time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from pydantic import ValidationError
from pyspark.sql import Row as SparkRow
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from typing_extensions import override

from tidemark.config.sides import SIDES
from tidemark.execution.replay import Replay
from tidemark.joins import Join
from tidemark.joins.custom_trigger import TriggeredJoin
from tidemark.joins.firing_spec import Firing
from tidemark.joins.keys import key_name
from tidemark.joins.rules import flink_datastream
from tidemark.joins.window import Windows
from tidemark_conformance.adapter import KEYS, REFUSED, Kind, Params
from tidemark_conformance.flink import DatastreamWindow
from tidemark_conformance.vectors import Cut, Vector

_AMOUNTS = {"count": "count", "delta": "threshold"}
_NO_TIMESTAMP = "Record has no timestamp"
_NO_INTERVAL = "/ by zero"


def is_told_by(vector: Vector) -> bool:
    """Whether a vector of windows tells of triggers, evictors and time."""
    params = vector.get("params")
    return isinstance(params, dict) and not {"trigger", "evictor", "time"}.isdisjoint(params)


class DatastreamTrigger(DatastreamWindow):
    """DataStream API, window join and coGroup: whatever fires them."""

    columns = (("pt", int),)

    @property
    @override
    def group(self) -> object:
        return super().group, not self.refused and self.pipeline().takes_null_times

    @property
    @override
    def join_settings(self) -> dict[str, Any]:
        given = self.vector["params"]
        settings = {**super().join_settings, "time": given.get("time", "event")}
        if trigger := given.get("trigger"):
            amount = trigger.get(_AMOUNTS.get(trigger["type"], "interval"), True)
            timed = trigger["type"] != "count" and amount is not True
            settings["trigger"] = {trigger["type"]: f"{amount} ms" if timed else amount, "purging": trigger["purge"]}
        if evictor := given.get("evictor"):
            kept = evictor["count"] if evictor["type"] == "count" else f"{evictor['size_ms']} ms"
            settings["evictor"] = {evictor["type"]: kept, "after": evictor["after"]}
        return settings

    @property
    @override
    def refused(self) -> bool:
        if not self._is_refusal:
            return False
        try:
            self.pipeline()
        except ValidationError:
            return True
        return False

    @property
    def _is_refusal(self) -> bool:
        """Whether the engine has no such join; an interval of 0 it notices at the first row only."""
        error = self.vector["expected"].get("error", "")
        return bool(error.startswith("setup") or _NO_INTERVAL in error)

    @property
    @override
    def _last(self) -> int:
        return -1 if self.vector["expected"].get("error", "").startswith("setup") else super()._last

    @cached_property
    @override
    def params(self) -> Params:
        given = self.vector["params"]
        processing = given.get("time") == "processing"
        trigger = given.get("trigger") or {"type": "processing_time" if processing else "event_time", "purge": False}
        evictor = given.get("evictor") or {"type": "", "after": False}
        return {
            **super().params,
            "trigger": trigger["type"],
            "amount": trigger.get(_AMOUNTS.get(trigger["type"], "interval"), 0),
            "purging": trigger["purge"],
            "evictor": evictor["type"],
            "kept": evictor.get("count", evictor.get("size_ms", 0)),
            "evicts_after": evictor["after"],
            "processing": processing,
        }

    @override
    def join(self, _spark: SparkSession, others: Sequence[Kind]) -> Join:
        given, lateness = self.vector["params"], self.param("lateness")
        sessions = given["window"] == "session"
        evictor = F.when(self.param("evictor") != "", self.param("evictor"))
        names = ("trigger", "amount", "purging", "kept", "evicts_after", "processing")
        gap = self.param("gap") if sessions else F.lit(None).cast("long")
        firing = Firing(**{name: self.param(name) for name in names}, evictor=evictor, lateness=lateness, gap=gap)
        shape = None
        if not sessions:
            shape = Windows(self.param("size"), self.param("slide"), self.param("offset"), F.lit(False))
        now = F.coalesce("left.pt", "right.pt", F.lit(0))
        rules = flink_datastream.WindowRules(lateness)
        return TriggeredJoin(shape, rules, firing, now, True, "some", given["mode"] == "cogroup")

    @override
    def clocks(self, cut: Cut, slices: range) -> dict[int, int]:
        events = self.vector["events"][: self._last + 1]
        clock, found = -1, {}
        for number in slices:
            for at, event in enumerate(events):
                if cut.slice_of(at) == number:
                    clock = max(clock, event.get("pt", clock))
            if number == len(cut.starts) and self.vector["drain"] and not self._fails:
                clock = max(clock, self.vector.get("end_pt", clock))
            found[number] = clock
        return found

    @override
    def expected(self, cut: Cut) -> Iterator[str]:
        if self._is_refusal:
            yield REFUSED
        elif _NO_TIMESTAMP in self.vector["expected"].get("error", ""):
            yield from self._came_out(cut)
            yield f"slice {cut.slice_of(self._last)}: a row without a timestamp"
        else:
            yield from super().expected(cut)

    def _came_out(self, cut: Cut) -> Iterator[str]:
        for row in self.vector["expected"]["rows"]:
            yield f"slice {self.slice_at(cut, row['at'])}: {self.emitted(row)}"

    @override
    def found(self, answer: Replay) -> Iterator[tuple[int, str]]:
        reason, lane = F.col("reason") == "no_event_time_for_window", F.coalesce("left.lane", "right.lane")
        for at, number in answer.late.where(reason).select(lane, "slice").distinct().collect():
            yield at, f"slice {number}: a row without a timestamp"
        yield from super().found(answer)

    @override
    def is_beyond(self, cut: Cut, text: str) -> bool:
        """Firings at the row at which a row without a timestamp ends the engine's job: it has an order of its own."""
        ended = _NO_TIMESTAMP in self.vector["expected"].get("error", "")
        return ended and text.startswith(f"slice {cut.slice_of(self._last)}: (")

    @override
    def found_emission(self, row: SparkRow) -> tuple[int, str]:
        if self.vector["params"]["mode"] == "join":
            return super().found_emission(row)
        firing = {"ts": row["result_time"], "window_start": row["window_start"], "window_end": row["window_end"]}
        ids = {f"{side}_ids": sorted(its["id"] for its in row[side]) for side in SIDES}
        return row[key_name(KEYS.index("lane"))], self.emitted({**firing, **ids})

    @override
    def found_loss(self, row: SparkRow, its: SparkRow) -> Iterator[str]:
        if row["reason"] not in {"late_for_window", "lost_at_end", "no_event_time_for_window"}:
            yield "late" if row["reason"] == "late" else "rejected"
