"""Vectors of chains: the output of a first join is the left input of a second one, and C is its right input."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemark.config import Pipeline
from tidemark.config.loader import with_overrides
from tidemark.config.output_stream import EMISSION_ORDER, OUTPUT_WATERMARK, describe_upstream
from tidemark.config.sides import SIDES, SideName
from tidemark.execution.output_stream import add_drain, list_output_watermarks, place_emissions
from tidemark.execution.replay import ReplayResult
from tidemark.joins.base import Join
from tidemark.joins.datastream_interval import DatastreamIntervalJoin
from tidemark.joins.session_window import SessionWindowJoin
from tidemark.joins.sql_interval.join import SqlIntervalJoin
from tidemark.joins.upstream_windows import with_upstream_windows
from tidemark.joins.window import WindowJoin
from tidemark.planning.replay_strategy import ReplayLimits
from tidemark.timegrid.slices import SYNTHETIC_GRID
from tidemark.timegrid.time_columns import lit_long
from tidemark.watermarks.lanes import Lane
from tidemark_conformance.adapter import Row
from tidemark_conformance.flink import ADAPTERS, FlinkAdapter
from tidemark_conformance.lanes import create_lanes, create_table, list_columns, replay_tables, to_arrow
from tidemark_conformance.vectors import Case, Cut, Vector, failed_at_drain

ENDLESS_DRAIN = "at drain: does not end"
"""Error of a chain whose timers loop for ever at the end of the input."""
_SIDE_NAMES = {"a": "left", "b": "right"}
STREAM_COLUMNS = (("tiebreak", int), (OUTPUT_WATERMARK, int), (EMISSION_ORDER, list))
"""Columns of the second join's left input, besides those of any input."""


@dataclass(frozen=True)
class ChainAdapter:
    """A vector of two joins as a lane of two jobs."""

    vector: Vector

    @cached_property
    def first(self) -> FlinkAdapter:
        """The first join, over the inputs A and B."""
        return self._create_adapter("first", ("a", "b"), {"A": "L", "B": "R"})

    @cached_property
    def second(self) -> FlinkAdapter:
        """The second join, whose right input is C."""
        return self._create_adapter("second", (None, "c"), {"C": "R"})

    @property
    def watermark_delay(self) -> int:
        """Time that the first operator subtracts from its watermarks, ms."""
        if self.vector["first"]["dialect"] != "sql_interval":
            return 0
        params = self.first.params
        return max(0, int(params["upper"]), -int(params["lower"]))

    @property
    def job_key(self) -> object:
        """Key of the vectors that can share a job."""
        dialects = self.vector["first"]["dialect"], self.vector["second"]["dialect"]
        return *dialects, self.first.job_key, self.second.job_key

    def create_second_pipeline(self) -> Pipeline:
        """Return the second pipeline, whose left input is the output stream of the first one."""
        overrides = {
            "tiebreak": "tiebreak",
            "recorded_watermark": {"column": OUTPUT_WATERMARK, "unit": "ms"},
            "upstream": describe_upstream(self.first.create_pipeline()).model_dump(mode="json"),
        }
        left = {f"left.{name}": value for name, value in overrides.items()}
        return with_overrides(self.second.create_pipeline(), left)

    def create_second_join(self, join: Join) -> Join:
        """Return the second join over the output of the first one."""
        if isinstance(join, SessionWindowJoin | DatastreamIntervalJoin | SqlIntervalJoin):
            return replace(join, upstream_sides=("left",))
        if not isinstance(join, WindowJoin):
            return join
        event_times: dict[SideName, str] = {"left": "ts"} if self.vector["first"]["dialect"] == "sql_window" else {}
        return replace(join, windows=with_upstream_windows(join.windows, event_times), upstream_sides=("left",))

    def validate(self) -> None:
        """Read all fields, so that a missing or malformed one raises an exception."""
        self.create_second_pipeline()
        hash(self.job_key)
        for adapter in (self.first, self.second):
            to_arrow([row for step in adapter.read_steps() for row in step], list_columns(adapter))
        Counter(self.format_expected(Cut("1", ())))

    def is_undecidable(self, cut: Cut, text: str) -> bool:  # noqa: ARG002
        """Return True if the engine's output cannot confirm a text, because its job failed at this row."""
        return "error" in self.vector["expected"] and text.endswith("rejected")

    def read_intermediate_row(self, row: Row) -> Row:
        """Convert an emission of the first join to a row of the second one's left input."""
        second = self.vector["second"]
        side, column = second["key"].split("_")
        ids = [row[name] and row[name]["id"] for name in ("left", "right")]
        key_row, time = row[_SIDE_NAMES[side]], row["result_time"]
        if rowtime := second.get("rowtime"):
            time_row = row[_SIDE_NAMES[rowtime]]
            is_window = self.vector["first"]["dialect"] == "sql_window"
            time = time_row and (row["window_end"] - 1 if is_window else time_row["ts"])
        position = {"arrival": row["clock"], "tiebreak": row["tiebreak"], EMISSION_ORDER: row["emission_order"]}
        return {"key": key_row and key_row[column], "ts": time, "id": json.dumps(ids), **position}

    def format_expected(self, cut: Cut) -> Iterator[str]:
        """Yield one text per row of the engine: emissions of both joins, and late rows."""
        expected = self.vector["expected"]
        if failed_at_drain(self.vector) and not expected["error"].startswith(ENDLESS_DRAIN):
            raise ValueError("only an evictor fails at the end of the input, and only a chain never ends")
        for join in (self.first, self.second):
            is_first = join is self.first
            for row in expected["first_rows" if is_first else "rows"]:
                yield f"{_name(is_first)} {join.slice_at(cut, row['at'])}: {_format_row(row)}"
            for row in expected["dropped_first" if is_first else "dropped_second"]:
                text = join.format_dropped_row({**row, "id": row["id"] if is_first else _format_ids(row)})
                yield f"{_name(is_first)} {join.slice_at(cut, row['at'])}: {text}"

    def format_first(self, result: ReplayResult) -> Iterator[tuple[int, str]]:
        """Yield lane and text of each output row of the first join."""
        for row in result.joined.collect():
            names = {f"{name}_id": row[side] and row[side]["id"] for name, side in _SIDE_NAMES.items()}
            yield (
                _lane(row),
                f"first {row['slice']}: {_format_row({**row.asDict(), **names, 'ts': row['result_time']})}",
            )
        yield from self._format_late(result, self.first)

    def format_second(self, result: ReplayResult) -> Iterator[tuple[int, str]]:
        """Yield lane and text of each output row of the second join."""
        for row in result.joined.collect():
            a_id, b_id = json.loads(row["left"]["id"]) if row["left"] else (None, None)
            names = {"a_id": a_id, "b_id": b_id, "c_id": row["right"] and row["right"]["id"]}
            yield (
                _lane(row),
                f"second {row['slice']}: {_format_row({**row.asDict(), **names, 'ts': row['result_time']})}",
            )
        yield from self._format_late(result, self.second)

    def _format_late(self, result: ReplayResult, join: FlinkAdapter) -> Iterator[tuple[int, str]]:
        is_first = join is self.first
        for row in result.late.collect():
            row_data = row[row["side"]]
            row_id = row_data["id"]
            if not is_first:
                ids = json.loads(row_id) if row["side"] == "left" else row_id
                row_id = _format_ids({"a_id": ids[0], "b_id": ids[1]} if row["side"] == "left" else {"c_id": ids})
            is_upstream = not is_first and row["side"] == "left" and self.vector["first"]["dialect"] == "sql_window"
            texts = join.format_late_row(row, row_data)
            if is_upstream and self.vector["second"]["dialect"] == "sql_window":
                texts = iter([f"late for {None if row_data['ts'] is None else row_data['ts'] + 1}"])
            for text in texts:
                yield row_data["lane"], f"{_name(is_first)} {row['slice']}: {row_id} {text}"

    def _create_adapter(self, name: str, inputs: tuple[str | None, str], sides: dict[str, str]) -> FlinkAdapter:
        join, watermark = self.vector[name], self.vector["watermark"]
        left, right = (watermark[f"delay_ms_{each}"] if each else None for each in inputs)
        vector = {
            **{key: self.vector[key] for key in ("name", "expected", "drain")},
            "params": {"mode": "join", **join["params"]} if join["dialect"] == "datastream_window" else join["params"],
            "watermark": {"kind": watermark["kind"], "delay_ms_left": left, "delay_ms_right": right},
            "events": [{**event, "side": sides.get(event["side"])} for event in self.vector["events"]],
        }
        adapter = ADAPTERS[join["dialect"]](vector)
        assert isinstance(adapter, FlinkAdapter)
        return adapter


def is_chain(vector: Vector) -> bool:
    """Return True if a vector has two joins."""
    return "first" in vector and "second" in vector


def replay_chains(spark: SparkSession, cases: Sequence[Case], limits: ReplayLimits) -> list[Counter[str]]:
    """Replay chains side by side, and return the texts of their outputs."""
    groups: dict[object, list[int]] = defaultdict(list)
    for number, case in enumerate(cases):
        groups[ChainAdapter(case.vector).job_key, case.cut.single_job].append(number)
    outputs: list[Counter[str]] = [Counter() for _ in cases]
    for numbers in groups.values():
        for lane, text in _replay_lanes(spark, [cases[number] for number in numbers], limits):
            outputs[numbers[lane]][text] += 1
    return outputs


def _replay_lanes(spark: SparkSession, cases: Sequence[Case], limits: ReplayLimits) -> Iterator[tuple[int, str]]:
    """Replay chains that can share jobs: yields lane and text of each output row."""
    cases = [_without_endless_drain(case) for case in cases]
    adapters = [ChainAdapter(case.vector) for case in cases]
    firsts, seconds = [adapter.first for adapter in adapters], [adapter.second for adapter in adapters]
    stream = list[Row]()
    pipelines = [first.create_pipeline() for first in firsts]
    lanes, join = create_lanes(cases, firsts, pipelines), firsts[0].create_join(spark, firsts)
    tables = [create_table(spark, cases, firsts, side, [("key2", str)]) for side in SIDES]
    for result in replay_tables(cases, tables, pipelines[0], lanes, join, firsts[0].steps_per_bucket, limits):
        yield from adapters[0].format_first(result)
        for lane, row in _read_output_stream(result, adapters, lanes):
            stream.append({**seconds[lane].params, **row, "lane": lane})
    columns = [*list_columns(seconds[0]), *STREAM_COLUMNS]
    left, right = spark.createDataFrame(to_arrow(stream, columns)), create_table(spark, cases, seconds, "right")
    pipelines = [adapter.create_second_pipeline() for adapter in adapters]
    join = adapters[0].create_second_join(seconds[0].create_join(spark, seconds))
    lanes = create_lanes(cases, seconds, pipelines)
    for result in replay_tables(cases, [left, right], pipelines[0], lanes, join, seconds[0].steps_per_bucket, limits):
        yield from adapters[0].format_second(result)


def _without_endless_drain(case: Case) -> Case:
    """Return a case without its end of input if that did not end in the engine."""
    return replace(case, vector={**case.vector, "drain": False}) if failed_at_drain(case.vector) else case


def _read_output_stream(
    result: ReplayResult, adapters: Sequence[ChainAdapter], lanes: Sequence[Lane]
) -> Iterator[tuple[int, Row]]:
    """Yield lane and row of the second join's left input, from a job of the first join."""
    advances = add_drain(result.list_increments(), lanes, result.timelines, SYNTHETIC_GRID)
    joined = result.joined.withColumn("lane", F.coalesce("left.lane", "right.lane"))
    for row in place_emissions(joined, advances).collect():
        yield row["lane"], adapters[row["lane"]].read_intermediate_row(row.asDict())
    for row in _list_watermarks(advances, adapters).collect():
        position = {"arrival": row["clock"], "tiebreak": row["tiebreak"]}
        yield row["lane"], {"key": None, "ts": None, "id": "", **position, OUTPUT_WATERMARK: row["watermark"]}


def _list_watermarks(advances: DataFrame, adapters: Sequence[ChainAdapter]) -> DataFrame:
    delay = F.get(F.array(*(lit_long(adapter.watermark_delay) for adapter in adapters)), F.col("lane").cast("int"))
    return list_output_watermarks(advances, delay)


def _name(is_first: bool) -> str:  # noqa: FBT001 - a name for both joins
    return "first" if is_first else "second"


def _lane(row: Any) -> int:
    return int((row["left"] or row["right"])["lane"])


def _format_row(row: Row) -> str:
    return f"{_format_ids(row)} at {row['ts']} in {row.get('window_start'), row.get('window_end')}"


def _format_ids(row: Row) -> str:
    return str((row.get("a_id"), row.get("b_id"), row.get("c_id")))
