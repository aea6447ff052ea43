"""Adapter of vectors of DataStream windows with triggers, evictors or processing time."""

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
from tidemark.execution.replay import ReplayResult
from tidemark.joins.base import Join
from tidemark.joins.custom_trigger import CustomTriggerJoin
from tidemark.joins.firing_spec import FiringColumns
from tidemark.joins.keys import key_name
from tidemark.joins.rules import flink_datastream
from tidemark.joins.window import AlignedWindows
from tidemark_conformance.adapter import KEYS, REFUSED, Params, VectorAdapter
from tidemark_conformance.flink import DatastreamWindow
from tidemark_conformance.vectors import Cut, Vector

_AMOUNTS = {"count": "count", "delta": "threshold"}
_NO_TIMESTAMP = "Record has no timestamp"
_NO_INTERVAL = "/ by zero"


def has_trigger_settings(vector: Vector) -> bool:
    """Return True if a window vector has a trigger, an evictor or a time domain."""
    params = vector.get("params")
    return isinstance(params, dict) and not {"trigger", "evictor", "time"}.isdisjoint(params)


class DatastreamTrigger(DatastreamWindow):
    """Window join and coGroup of the DataStream API, with any trigger and evictor."""

    columns = (("pt", int),)

    @property
    @override
    def job_key(self) -> object:
        return super().job_key, not self.is_refused and self.create_pipeline().can_join_null_times

    @property
    @override
    def join_settings(self) -> dict[str, Any]:
        params = self.vector["params"]
        settings = {**super().join_settings, "time": params.get("time", "event")}
        if trigger := params.get("trigger"):
            amount = trigger.get(_AMOUNTS.get(trigger["type"], "interval"), True)
            timed = trigger["type"] != "count" and amount is not True
            settings["trigger"] = {trigger["type"]: f"{amount} ms" if timed else amount, "purging": trigger["purge"]}
        if evictor := params.get("evictor"):
            amount = evictor["count"] if evictor["type"] == "count" else f"{evictor['size_ms']} ms"
            settings["evictor"] = {evictor["type"]: amount, "evict_after": evictor["after"]}
        return settings

    @property
    @override
    def is_refused(self) -> bool:
        if not self._is_engine_refusal:
            return False
        try:
            self.create_pipeline()
        except ValidationError:
            return True
        return False

    @property
    def _is_engine_refusal(self) -> bool:
        """True if the engine does not support the join. It notices an interval of 0 only at the first row."""
        error = self.vector["expected"].get("error", "")
        return bool(error.startswith("setup") or _NO_INTERVAL in error)

    @property
    @override
    def _last(self) -> int:
        return -1 if self.vector["expected"].get("error", "").startswith("setup") else super()._last

    @cached_property
    @override
    def params(self) -> Params:
        params = self.vector["params"]
        processing = params.get("time") == "processing"
        trigger = params.get("trigger") or {"type": "processing_time" if processing else "event_time", "purge": False}
        evictor = params.get("evictor") or {"type": "", "after": False}
        return {
            **super().params,
            "trigger": trigger["type"],
            "trigger_amount": trigger.get(_AMOUNTS.get(trigger["type"], "interval"), 0),
            "is_purging": trigger["purge"],
            "evictor": evictor["type"],
            "evictor_amount": evictor.get("count", evictor.get("size_ms", 0)),
            "evicts_after": evictor["after"],
            "is_processing_time": processing,
        }

    @override
    def create_join(self, _spark: SparkSession, adapters: Sequence[VectorAdapter]) -> Join:
        params, lateness = self.vector["params"], self.param_column("lateness")
        sessions = params["window"] == "session"
        evictor = F.when(self.param_column("evictor") != "", self.param_column("evictor"))
        names = (
            "trigger",
            "trigger_amount",
            "is_purging",
            "evictor_amount",
            "evicts_after",
            "is_processing_time",
        )
        gap = self.param_column("gap") if sessions else F.lit(None).cast("long")
        firing = FiringColumns(
            **{name: self.param_column(name) for name in names}, evictor=evictor, lateness=lateness, gap=gap
        )
        shape = None
        if not sessions:
            shape = AlignedWindows(
                self.param_column("size"), self.param_column("slide"), self.param_column("offset"), F.lit(False)
            )
        now = F.coalesce("left.pt", "right.pt", F.lit(0))
        rules = flink_datastream.WindowRules(lateness)
        return CustomTriggerJoin(shape, rules, firing, now, True, "some", params["mode"] == "cogroup")

    @override
    def processing_times(self, cut: Cut, slices: range) -> dict[int, int]:
        events = self.vector["events"][: self._last + 1]
        clock, times = -1, {}
        for number in slices:
            for at, event in enumerate(events):
                if cut.slice_of(at) == number:
                    clock = max(clock, event.get("pt", clock))
            if number == len(cut.starts) and not self._has_error:
                clock = max(clock, self.vector.get("end_pt", clock))
            times[number] = clock
        return times

    @override
    def format_expected(self, cut: Cut) -> Iterator[str]:
        if self._is_engine_refusal:
            yield REFUSED
        elif _NO_TIMESTAMP in self.vector["expected"].get("error", ""):
            yield from self._format_rows(cut)
            yield f"slice {cut.slice_of(self._last)}: a row without a timestamp"
        else:
            yield from super().format_expected(cut)

    def _format_rows(self, cut: Cut) -> Iterator[str]:
        for row in self.vector["expected"]["rows"]:
            yield f"slice {self.slice_at(cut, row['at'])}: {self.format_row(row)}"

    @override
    def format_replay(self, answer: ReplayResult) -> Iterator[tuple[int, str]]:
        reason, lane = F.col("reason") == "no_event_time_for_window", F.coalesce("left.lane", "right.lane")
        for lane_number, number in answer.late.where(reason).select(lane, "slice").distinct().collect():
            yield lane_number, f"slice {number}: a row without a timestamp"
        yield from super().format_replay(answer)

    @override
    def is_undecidable(self, cut: Cut, text: str) -> bool:
        """Return True for firings in the slice in which a row without a timestamp failed the engine's job.

        The engine runs timers of the same time in an order of its own.
        """
        failed = _NO_TIMESTAMP in self.vector["expected"].get("error", "")
        return failed and text.startswith(f"slice {cut.slice_of(self._last)}: (")

    @override
    def format_emission(self, row: SparkRow) -> tuple[int, str]:
        if self.vector["params"]["mode"] == "join":
            return super().format_emission(row)
        firing = {"ts": row["result_time"], "window_start": row["window_start"], "window_end": row["window_end"]}
        ids = {f"{side}_ids": sorted(row_data["id"] for row_data in row[side]) for side in SIDES}
        return row[key_name(KEYS.index("lane"))], self.format_row({**firing, **ids})

    @override
    def format_late_row(self, row: SparkRow, row_data: SparkRow) -> Iterator[str]:
        if row["reason"] not in {"late_for_window", "lost_at_end_of_input", "no_event_time_for_window"}:
            yield "late" if row["reason"] == "late" else "rejected"
