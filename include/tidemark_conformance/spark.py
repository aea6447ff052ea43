"""Adapter of vectors that Spark's stream-stream join recorded."""

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
from tidemark.execution.replay import ReplayResult
from tidemark.joins.base import Join
from tidemark.joins.condition import Condition
from tidemark.joins.factory import create_lane
from tidemark.joins.join_type import JoinType
from tidemark.joins.rules.spark import StreamStreamRules, TimeRange
from tidemark.joins.spark_stream_stream import StreamStreamJoin
from tidemark.joins.window import AlignedWindows
from tidemark.joins.window_inequality import ComparedWindowAssigner, WindowInequalityJoin
from tidemark.watermarks.lanes import Lane
from tidemark.watermarks.micro_batch_lane import MicroBatchLane
from tidemark.watermarks.values import Watermarks
from tidemark_conformance.adapter import KEYS, Params, Row, VectorAdapter
from tidemark_conformance.vectors import Cut

_ROWS = T.StructType([T.StructField("v", T.LongType()), T.StructField("key", T.StringType())])


class SparkJoin(VectorAdapter):
    """A stream-stream join of Spark, with a micro-batch per step."""

    steps_per_bucket = 1
    columns = (("v", int),)

    @property
    @override
    def job_key(self) -> object:
        return (
            self.vector["window"] is not None,
            self._on_event_time,
            self._is_binned,
            self._window_inequality is not None,
        )

    @override
    def create_pipeline(self) -> Pipeline:
        left, right = (
            {} if (delay := self.vector[f"delay_{side}_ms"]) is None else {"watermark_delay": f"{delay} ms"}
            for side in SIDES
        )
        query = {
            "multiple_watermark_policy": self.vector["policy"],
            "late_watermark": self.vector["late_watermark"],
            "micro_batches": "idle" if self.vector["mode"] == "idle" else "back_to_back",
        }
        join = {"keys": [*KEYS, *self.params], "type": self._type, **self._shape}
        return Pipeline.model_validate(self.create_settings(left, right, "us", dialect="spark", join=join, spark=query))

    @cached_property
    @override
    def params(self) -> Params:
        params: Params = {"type": self._type, "condition": self._condition, "ranged": self.vector["bounds"] is not None}
        params |= {f"{side}_watermarked": self.vector[f"delay_{side}_ms"] is not None for side in SIDES}
        if window := self.vector["window"]:
            params |= _params_of(window)
        if compared := self._window_inequality:
            params |= {"operator": str(compared["operator"])}
            for side in SIDES:
                params |= {f"{side}_{name}": part for name, part in _params_of(compared[side]).items()}
        range_ = TimeRange.from_join(self._join)
        waits = {f"{side}_wait": wait for side, wait in range_.waits.items()}
        return {**params, "least": range_.min_difference, "greatest": range_.max_difference, **waits}

    @override
    def create_join(self, spark: SparkSession, adapters: Sequence[VectorAdapter]) -> Join:
        texts = {str(adapter.params["condition"]) for adapter in adapters}
        inputs: dict[str, T.StructType] = dict.fromkeys(SIDES, _ROWS)
        conditions = {text: Condition.parse(spark, text, inputs, [("key", "key")]) for text in sorted(texts) if text}
        rules = StreamStreamRules(
            JoinType(self.param_column("type"), frozenset(str(adapter.params["type"]) for adapter in adapters)),
            {side: self.param_column(f"{side}_watermarked") for side in SIDES},
            is_event_time_key=self.vector["window"] is not None or self._on_event_time,
            has_range=self.param_column("ranged"),
            min_difference=self.param_column("least"),
            max_difference=self.param_column("greatest"),
            waits={side: self.param_column(f"{side}_wait") for side in SIDES},
        )
        condition = Condition.select_by(self.param_column("condition"), conditions)
        if self._window_inequality:
            left, right = (self._windows(f"{side}_") for side in SIDES)
            return WindowInequalityJoin(
                rules, condition, ComparedWindowAssigner(left, right, self.param_column("operator"))
            )
        windows = self._windows() if self.vector["window"] else None
        return StreamStreamJoin(rules, condition, windows, self._on_event_time, self._is_binned)

    def _windows(self, prefix: str = "") -> AlignedWindows:
        size, slide = (self.param_column(f"{prefix}{name}") for name in ("size", "slide"))
        return AlignedWindows(size, slide, F.lit(0), is_cumulating=F.lit(False))

    @override
    def create_lane(self, pipeline: Pipeline, clocks: Sequence[int]) -> Lane:
        lane = create_lane(pipeline, Watermarks())
        assert isinstance(lane, MicroBatchLane), "the pipeline is of dialect spark"
        return replace(lane, schedule=dict.fromkeys(clocks))

    @override
    def read_steps(self) -> Iterator[list[Row]]:
        unit = 1 if self.vector.get("ts_unit") == "us" else 1000
        for batch in self.vector["batches"]:
            yield [
                {**row, "id": str(row["id"]), "side": side, "ts": None if row["ts"] is None else row["ts"] * unit}
                for side in SIDES
                for row in batch[side]
            ]

    @override
    def format_expected(self, cut: Cut) -> Iterator[str]:
        slices, step = {}, 0
        for batch in self.vector["executed"]:
            step = step if batch["input_index"] is None else batch["input_index"]
            slices[batch["batch"]] = cut.slice_of(step)
            yield from [f"slice {cut.slice_of(step)}: a row late"] * batch["rows_dropped_by_watermark"]
        for row in self.vector["expected"]:
            ids = row["left_id"], row["right_id"]
            starts = row.get("window_start_ms"), row.get("right_window_start_ms")
            yield f"slice {slices[row['batch']]}: {_format_pair(*ids, *starts)}"

    @override
    def format_replay(self, answer: ReplayResult) -> Iterator[tuple[int, str]]:
        for row in answer.joined.collect():
            left, right = row["left"], row["right"]
            ids = left and int(left["id"]), right and int(right["id"])
            starts = row["window_start"], row["right_window_start"] if self._window_inequality else None
            yield (left or right)["lane"], f"slice {row['slice']}: {_format_pair(*ids, *starts)}"
        for row in answer.late.collect():
            row_data = row[row["side"]]
            if row["reason"] in {"late", "late_for_window"}:
                copies = _count_windows(row_data, row["side"]) if row["reason"] == "late" else 1
                yield from [(row_data["lane"], f"slice {row['slice']}: a row late")] * copies

    @property
    def _type(self) -> str:
        return "semi" if self.vector["join_type"] == "leftsemi" else str(self.vector["join_type"])

    @property
    def _on_event_time(self) -> bool:
        return bool(self.vector.get("event_time_equality", False))

    @property
    def _is_binned(self) -> bool:
        interval = self._join.interval
        bounded = interval is not None and None not in {interval.lower, interval.upper}
        return bounded and not self._on_event_time

    @property
    def _window_inequality(self) -> dict[str, Any] | None:
        return self.vector.get("window_inequality")

    @cached_property
    def _join(self) -> JoinSettings:
        """The join section of the pipeline file, without the parameters of the lane."""
        return JoinSettings.model_validate({"keys": KEYS, "type": self._type, **self._shape})

    @property
    def _shape(self) -> dict[str, Any]:
        shape: dict[str, Any] = {"event_time_equality": self._on_event_time}
        if bounds := self.vector["bounds"]:
            names = [name for name in ("lower", "upper") if bounds[f"{name}_ms"] is not None]
            interval = {name: f"{bounds[f'{name}_ms']} ms" for name in names}
            shape["interval"] = interval | {f"{name}_inclusive": bounds[f"{name}_inclusive"] for name in names}
        if window := self.vector["window"]:
            shape["window"] = _window_settings(window)
        if compared := self._window_inequality:
            windows = {side: _window_settings(compared[side]) for side in SIDES}
            shape["window_inequality"] = {**windows, "comparison": f"left {compared['operator']} right"}
        return shape

    @property
    def _condition(self) -> str:
        """Conjuncts of ON other than keys and times; may be empty."""
        operators = {"min": ">=", "max": "<="}
        limits = [(side, end, self.vector.get(f"{side}_{end}_v")) for end in operators for side in SIDES]
        parts = [f"{side}_v {operators[end]} {number}" for side, end, number in limits if number is not None]
        if self.vector.get("v_differs"):
            parts.append("left_v <> right_v")
        if key := self.vector.get("left_key"):
            parts.append(f"left_key = '{key}'")
        return " AND ".join(parts)


def _window_settings(window: dict[str, Any]) -> dict[str, Any]:
    """Convert a vector's window to the form of pipeline files."""
    size, slide = f"{window['size_ms']} ms", window["slide_ms"]
    return {"tumbling": size} if slide is None else {"sliding": {"size": size, "slide": f"{slide} ms"}}


def _params_of(window: dict[str, Any]) -> Params:
    size, slide = window["size_ms"], window["slide_ms"] or window["size_ms"]
    return {"size": size * 1000, "slide": slide * 1000}


def _format_pair(left: int | None, right: int | None, window_start: int | None, right_window_start: int | None) -> str:
    return f"{left}, {right} in {window_start}, {right_window_start}"


def _count_windows(row: SparkRow, side: str) -> int:
    """Count the windows of a row; 1 if the join has no windows."""
    prefix = "" if "size" in row else f"{side}_"
    if f"{prefix}size" not in row:
        return 1
    size, slide = row[f"{prefix}size"], row[f"{prefix}slide"]
    return len(range(row["ts"] // slide * slide, row["ts"] - size, -slide))


ADAPTERS: dict[str, type[VectorAdapter]] = {"spark": SparkJoin}
