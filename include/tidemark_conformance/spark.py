"""Vectors of Spark's stream-stream join."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from pyspark.sql import Row as SparkRow
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from typing_extensions import override

from tidemark.config import Join as JoinSettings
from tidemark.config import Pipeline
from tidemark.config.sides import SIDES
from tidemark.execution.replay import Replay
from tidemark.joins import Join, lane_of
from tidemark.joins.condition import Condition
from tidemark.joins.rules.spark import Range, Rules
from tidemark.joins.spark_stream_stream import MicroBatchJoin
from tidemark.joins.window import Windows
from tidemark.joins.window_inequality import ComparedWindowJoin, ComparedWindows
from tidemark.joins.window_output import JoinType
from tidemark.watermarks.buckets import Lane, Watermarks
from tidemark.watermarks.micro_batches import QueryLane
from tidemark_conformance.adapter import KEYS, Kind, Params, Row
from tidemark_conformance.vectors import Cut

_ROWS = T.StructType([T.StructField("v", T.LongType())])


class StreamStream(Kind):
    """A micro-batch a step."""

    steps_per_bucket = 1
    columns = (("v", int),)

    @property
    @override
    def group(self) -> object:
        return self.vector["window"] is not None, self._on_event_time, self._binned, self._compared is not None

    @override
    def pipeline(self) -> Pipeline:
        left, right = (
            {} if (delay := self.vector[f"delay_{side}_ms"]) is None else {"watermark_delay": f"{delay} ms"}
            for side in SIDES
        )
        query = {
            "watermark_policy": self.vector["policy"],
            "late_watermark": self.vector["late_watermark"],
            "batches": "idle" if self.vector["mode"] == "idle" else "back_to_back",
        }
        join = {"keys": [*KEYS, *self.params], "type": self._type, **self._shape}
        return Pipeline.model_validate(self.settings(left, right, "us", dialect="spark", join=join, spark=query))

    @cached_property
    @override
    def params(self) -> Params:
        params: Params = {"type": self._type, "condition": self._condition, "ranged": self.vector["bounds"] is not None}
        params |= {f"{side}_watermarked": self.vector[f"delay_{side}_ms"] is not None for side in SIDES}
        if window := self.vector["window"]:
            params |= _params_of(window)
        if compared := self._compared:
            params |= {"operator": str(compared["operator"])}
            for side in SIDES:
                params |= {f"{side}_{name}": part for name, part in _params_of(compared[side]).items()}
        range_ = Range.of_join(self._join)
        waits = {f"{side}_wait": wait for side, wait in range_.waits.items()}
        return {**params, "least": range_.least, "greatest": range_.greatest, **waits}

    @override
    def join(self, spark: SparkSession, others: Sequence[Kind]) -> Join:
        texts = {str(other.params["condition"]) for other in others}
        inputs: dict[str, T.StructType] = dict.fromkeys(SIDES, _ROWS)
        conditions = {text: Condition.of(spark, text, inputs) for text in sorted(texts) if text}
        rules = Rules(
            JoinType(self.param("type"), frozenset(str(other.params["type"]) for other in others)),
            {side: self.param(f"{side}_watermarked") for side in SIDES},
            keyed=self.vector["window"] is not None or self._on_event_time,
            ranged=self.param("ranged"),
            least=self.param("least"),
            greatest=self.param("greatest"),
            waits={side: self.param(f"{side}_wait") for side in SIDES},
        )
        condition = Condition.chosen(self.param("condition"), conditions)
        if self._compared:
            left, right = (self._windows(f"{side}_") for side in SIDES)
            return ComparedWindowJoin(rules, condition, ComparedWindows(left, right, self.param("operator")))
        windows = self._windows() if self.vector["window"] else None
        return MicroBatchJoin(rules, condition, windows, self._on_event_time, self._binned)

    def _windows(self, of: str = "") -> Windows:
        return Windows(self.param(f"{of}size"), self.param(f"{of}slide"), F.lit(0), cumulating=F.lit(False))

    @override
    def lane(self, pipeline: Pipeline, clocks: Sequence[int]) -> Lane:
        lane = lane_of(pipeline, Watermarks())
        assert isinstance(lane, QueryLane), "the pipeline is of dialect spark"
        return replace(lane, schedule=dict.fromkeys(clocks))

    @override
    def steps(self) -> Iterator[list[Row]]:
        unit = 1 if self.vector.get("ts_unit") == "us" else 1000
        for batch in self.vector["batches"]:
            yield [
                {**row, "id": str(row["id"]), "side": side, "ts": None if row["ts"] is None else row["ts"] * unit}
                for side in SIDES
                for row in batch[side]
            ]

    @override
    def expected(self, cut: Cut) -> Iterator[str]:
        slices, last = {}, 0
        for executed in self.vector["executed"]:
            last = last if executed["input_index"] is None else executed["input_index"]
            slices[executed["batch"]] = cut.slice_of(last)
            yield from [f"slice {cut.slice_of(last)}: a row late"] * executed["rows_dropped_by_watermark"]
        for row in self.vector["expected"]:
            ids = row["left_id"], row["right_id"]
            starts = row.get("window_start_ms"), row.get("right_window_start_ms")
            yield f"slice {slices[row['batch']]}: {_text(*ids, *starts)}"

    @override
    def found(self, answer: Replay) -> Iterator[tuple[int, str]]:
        for row in answer.joined.collect():
            left, right = row["left"], row["right"]
            ids = left and int(left["id"]), right and int(right["id"])
            starts = row["window_start"], row["right_window_start"] if self._compared else None
            yield (left or right)["lane"], f"slice {row['slice']}: {_text(*ids, *starts)}"
        for row in answer.late.collect():
            its = row[row["side"]]
            if row["reason"] in {"late", "late_for_window"}:
                copies = _copies(its, row["side"]) if row["reason"] == "late" else 1
                yield from [(its["lane"], f"slice {row['slice']}: a row late")] * copies

    @property
    def _type(self) -> str:
        return "semi" if self.vector["join_type"] == "leftsemi" else str(self.vector["join_type"])

    @property
    def _on_event_time(self) -> bool:
        return bool(self.vector.get("event_time_equality", False))

    @property
    def _binned(self) -> bool:
        interval = self._join.interval
        bounded = interval is not None and None not in {interval.lower, interval.upper}
        return bounded and not self._on_event_time

    @property
    def _compared(self) -> dict[str, Any] | None:
        return self.vector.get("window_inequality")

    @cached_property
    def _join(self) -> JoinSettings:
        """The join without what its lane adds."""
        return JoinSettings.model_validate({"keys": KEYS, "type": self._type, **self._shape})

    @property
    def _shape(self) -> dict[str, Any]:
        shape: dict[str, Any] = {"event_time_equality": self._on_event_time}
        if bounds := self.vector["bounds"]:
            given = [name for name in ("lower", "upper") if bounds[f"{name}_ms"] is not None]
            interval = {name: f"{bounds[f'{name}_ms']} ms" for name in given}
            shape["interval"] = interval | {f"{name}_inclusive": bounds[f"{name}_inclusive"] for name in given}
        if window := self.vector["window"]:
            shape["window"] = _window(window)
        if compared := self._compared:
            windows = {side: _window(compared[side]) for side in SIDES}
            shape["window_inequality"] = {**windows, "holds": f"left {compared['operator']} right"}
        return shape

    @property
    def _condition(self) -> str:
        """The conjuncts of ON beside keys and times, empty for none."""
        signs = {"min": ">=", "max": "<="}
        given = [(side, of, self.vector.get(f"{side}_{of}_v")) for of in signs for side in SIDES]
        parts = [f"{side}_v {signs[of]} {number}" for side, of, number in given if number is not None]
        if self.vector.get("v_differs"):
            parts.append("left_v <> right_v")
        return " AND ".join(parts)


def _window(told: dict[str, Any]) -> dict[str, Any]:
    """A vector's windows as a pipeline file has them."""
    size, slide = f"{told['size_ms']} ms", told["slide_ms"]
    return {"tumbling": size} if slide is None else {"sliding": {"size": size, "slide": f"{slide} ms"}}


def _params_of(window: dict[str, Any]) -> Params:
    size, slide = window["size_ms"], window["slide_ms"] or window["size_ms"]
    return {"size": size * 1000, "slide": slide * 1000}


def _text(left: int | None, right: int | None, window_start: int | None, right_window_start: int | None) -> str:
    return f"{left}, {right} in {window_start}, {right_window_start}"


def _copies(row: SparkRow, side: str) -> int:
    """How many windows a row is in; one without windows."""
    of = "" if "size" in row else f"{side}_"
    if f"{of}size" not in row:
        return 1
    size, slide = row[f"{of}size"], row[f"{of}slide"]
    return len(range(row["ts"] // slide * slide, row["ts"] - size, -slide))


KINDS: dict[str, type[Kind]] = {"spark": StreamStream}
