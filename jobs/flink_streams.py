"""Run a pipeline's join, and those before it in a chain, as one Flink job that reads rows in the order of their clock.

Each input is a source with its own watermark, delayed as in its pipeline. The rows of one instant are read before their
watermarks, and Flink processes an instant before it reads the next one (`FlinkStreams.java`). So rows are late in Flink
where they are late in Tidemark. Flink gets row numbers, event times, and keys as text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from jobs.flink_java import run_java
from jobs.flink_keys import find_input_key, list_input_keys
from tidemark.config import Pipeline
from tidemark.config.output_stream import EVENT_TIMES
from tidemark.config.sides import SIDES, SideName
from tidemark.config.types import format_micros
from tidemark.errors import InputError, PipelineFileError
from tidemark.joins.rules.flink_common import compute_watermark_lag, to_inclusive_bounds
from tidemark.pipeline_tests.chain import TESTED, Chain, TableInput
from tidemark.streaming.flink_obstacles import find_obstacles_by_arrival
from tidemark.streaming.flink_query import format_join, format_windows, list_settings, list_window_bounds

_ID = "id"
_FIRST_FIELD = 4
"""Number of columns in a line of the output before the fields of its row."""
_ORDER = ("clock", "tiebreak")
"""Columns that order the rows; rows that are equal in both are simultaneous."""


@dataclass(frozen=True)
class _Stream:
    """A stream of the job: the rows of a table, or the output of a join."""

    name: str
    fields: tuple[tuple[str, str], ...]
    """Fields of its rows in order, each as the stream of a table and its column there."""
    has_windows: bool = False
    """True if it has the window bounds of a join."""


class FlinkStreams:
    """Description of the Flink job of a chain, which may be a single join."""

    def __init__(self, chain: Chain) -> None:
        """Describe the job.

        Raises:
            PipelineFileError: Flink cannot run one of the joins this way.
        """
        self.chain = chain
        for pipeline in chain.joins.values():
            for reason in _find_obstacles(pipeline, chain):
                raise PipelineFileError(f"{pipeline.name} {reason}")
        self._input_keys = list_input_keys(chain)

    def run(self, rows: DataFrame, folder: Path) -> DataFrame:
        """Run the job.

        Args:
            rows: Rows of all tables: `input` (name), `number`, `clock`, `tiebreak`, `event_time` (ms), `keys` (of
                `flink_keys.encode_keys`), and `is_filtered` for rows that only move the watermark.
            folder: Folder for files of the job.

        Returns:
            A row for each row of the last join's output: a column `number_INDEX` per input of the chain, null if
            absent, and `window_start` and `window_end` in ms, null without windows.
        """
        columns = rows.select("input", "number", *_ORDER, "event_time", "keys", "is_filtered").orderBy("number")
        lines = self.list_lines(row.asDict() for row in columns.toLocalIterator())
        (folder / "streams").write_text("\n".join(lines) + "\n", encoding="utf-8")
        run_java("FlinkStreams", folder, folder / "streams", folder / "output")
        answer = (folder / "output").read_text(encoding="utf-8").splitlines()
        names = [f"number_{index}" for index in range(len(self.chain.inputs))]
        schema = ", ".join(f"{name} long" for name in [*names, "window_start", "window_end"])
        output = self._parse_output(line for line in answer if line.startswith("row\t"))
        return rows.sparkSession.createDataFrame(list(output), schema)

    def list_lines(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
        """Yield the lines that the job reads: its definition, and its rows in order with their watermarks."""
        yield from self._list_definitions()
        yield from self._list_events(rows)
        yield "end"

    @cached_property
    def _key_count(self) -> int:
        return max(2, *map(len, self._input_keys.values()))

    def _list_definitions(self) -> Iterator[str]:
        """Yield the lines before the events."""
        chain, pipeline = self.chain, self.chain.pipeline
        yield "\t".join(["inputs", *map(self._input_name, chain.inputs)])
        yield f"keys\t{self._key_count}"
        if pipeline.dialect == "flink-datastream":
            for join in chain.joins:
                yield self._format_interval_join(join)
            yield f"output\t{self._join_name(TESTED)}"
            return
        joins = chain.joins.values()
        zone = next((each.time_zone for each in joins if each.join.window), pipeline.time_zone)
        cleanup = next((_get_cleanup(each) for each in joins if each.join.interval), 0)
        for name, value in list_settings(zone, cleanup).items():
            yield f"set\t{name}\t{value}"
        for join in chain.upstream_names:
            yield f"view\t{self._join_name(join)}\t{self._format_view(join)}"
        columns = [column for field, column in self._list_columns(TESTED).items() if field[1] == _ID]
        yield f"query\t{self._format_query(TESTED, [*columns, *list_window_bounds(pipeline.join)])}"

    def _find_stream(self, join: str, side: SideName) -> _Stream:
        """Find the stream that a join reads on one side."""
        pipeline = self.chain.joins[join]
        if side in pipeline.upstreams:
            upstream = pipeline.upstreams[side].pipeline
            fields = tuple(field for each in SIDES for field in self._find_stream(upstream, each).fields)
            has_windows = self.chain.joins[upstream].join.window is not None
            return _Stream(self._join_name(upstream), fields, has_windows=has_windows)
        source = TableInput(join, pipeline, side)
        columns = ["k", _ID, *(f"k{number}" for number in range(2, self._key_count + 1))]
        name = self._input_name(source)
        return _Stream(name, tuple((name, column) for column in columns))

    def _list_keys(self, join: str, side: SideName) -> Iterator[tuple[str, str]]:
        """Yield the fields that a join compares on one side."""
        for number in range(len(self.chain.joins[join].join.keys)):
            key = find_input_key(self.chain, join, side, number)
            index = self._input_keys[key.input.name].index(key)
            yield self._input_name(key.input), f"k{index + 1}" if index else "k"

    def _input_name(self, source: TableInput) -> str:
        return f"input_{self.chain.inputs.index(source)}"

    def _join_name(self, join: str) -> str:
        return f"join_{list(self.chain.joins).index(join)}"

    def _format_interval_join(self, join: str) -> str:
        """Return the line of an interval join of the DataStream API."""
        interval = self.chain.joins[join].join.interval
        assert interval is not None, "checked by _find_obstacles"
        left, right = (self._find_stream(join, side) for side in SIDES)
        positions = (
            ",".join(str(stream.fields.index(key)) for key in self._list_keys(join, side))
            for side, stream in zip(SIDES, (left, right), strict=True)
        )
        bounds = map(str, to_inclusive_bounds(interval))
        return "\t".join(["pairs", self._join_name(join), left.name, right.name, *bounds, *positions])

    def _list_columns(self, join: str) -> dict[tuple[str, str], str]:
        """Return the SQL of the fields of a join's output, over `l` and `r`."""
        sides = SIDES if self.chain.joins[join].join.type not in {"semi", "anti"} else SIDES[:1]
        return {
            field: f"{side[0]}.{_column_name(stream, field)}"
            for side in sides
            for stream in [self._find_stream(join, side)]
            for field in stream.fields
        }

    def _format_view(self, join: str) -> str:
        """Return the query of a join that another one reads, with the event time that the next join uses."""
        ((reader, side),) = self.chain.list_readers(join)
        column = getattr(self.chain.joins[reader], side).event_time.column
        time_side = next(each for each in SIDES if EVENT_TIMES[each] == column)
        stream, window = self._find_stream(join, time_side), self.chain.joins[join].join.window
        output = _Stream(self._join_name(join), tuple(self._list_columns(join)))
        columns = [f"{sql} AS {_column_name(output, field)}" for field, sql in self._list_columns(join).items()]
        columns.append(f"{time_side[0]}.{'window_time' if window and not stream.has_windows else 'ts'} AS ts")
        if window:
            columns += [f"{time_side[0]}.window_{end} AS window_{end}" for end in ("start", "end")]
        return self._format_query(join, columns)

    def _format_query(self, join: str, columns: list[str]) -> str:
        settings = self.chain.joins[join].join
        streams = {side: self._find_stream(join, side) for side in SIDES}
        names = ([_column_name(streams[side], key) for key in self._list_keys(join, side)] for side in SIDES)
        key_conditions = [f"l.{left} = r.{right}" for left, right in zip(*names, strict=True)]
        sides = {
            side: _table_name(stream) if stream.has_windows else format_windows(settings.window, _table_name(stream))
            for side, stream in streams.items()
        }
        return " ".join(format_join(settings, sides, key_conditions, columns).split())

    def _list_events(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
        """Yield the lines of the rows and their watermarks, instant by instant.

        Raises:
            InputError: The order of two rows is unknown, and the output depends on it.
        """
        names = {source.name: self._input_name(source) for source in self.chain.inputs}
        lags = {source.name: _compute_lag(source) for source in self.chain.inputs}
        watermarks: dict[str, int] = {}
        for order, group in groupby(rows, lambda row: [row[name] for name in _ORDER]):
            instant = list(group)
            if len(instant) > 1 and self.chain.pipeline.dialect == "flink-sql":
                inputs = " and ".join(sorted({row["input"] for row in instant}))
                raise InputError(
                    f"{len(instant)} rows of {inputs} have arrival {format_micros(order[0])} and the same tiebreak, "
                    "but the output depends on their order. Use tiebreaks that differ over all inputs."
                )
            for row in instant:
                watermark = row["event_time"] - lags[row["input"]]
                watermarks[row["input"]] = max(watermark, watermarks.get(row["input"], watermark))
            joined = [row for row in instant if not row["is_filtered"]]
            if len(instant) == len(joined) == 1:
                yield self._format_row("event", joined[0], watermarks)
                continue
            for row in joined:
                yield self._format_row("row", row, watermarks)
            if joined:
                yield "wait"
            for name in sorted({row["input"] for row in instant}):
                yield f"watermark\t{names[name]}\t{watermarks[name]}"
            yield "wait"

    def _format_row(self, kind: str, row: Mapping[str, Any], watermarks: Mapping[str, int]) -> str:
        source = next(source for source in self.chain.inputs if source.name == row["input"])
        key, *further = [key or "" for key in row["keys"]]
        fields = [self._input_name(source), key, row["event_time"], watermarks[row["input"]], row["number"], *further]
        return "\t".join([kind, *map(str, fields)])

    def _parse_output(self, lines: Iterable[str]) -> Iterator[list[int | None]]:
        """Yield the row numbers of the inputs, and the window's bounds or None, of each row."""
        fields = [*self._list_columns(TESTED)]
        if self.chain.pipeline.dialect == "flink-sql":
            fields = [field for field in fields if field[1] == _ID]
        positions = {name: position for position, (name, column) in enumerate(fields) if column == _ID}
        ids = [positions.get(self._input_name(source)) for source in self.chain.inputs]
        for line in lines:
            values = [None if value == "null" else value for value in line.split("\t")[_FIRST_FIELD:]]
            start, end, *_ = [*values[len(fields) :], None, None]
            row = [*(None if position is None else values[position] for position in ids), start, end]
            yield [None if value is None else int(value) for value in row]


def _get_cleanup(pipeline: Pipeline) -> int:
    return pipeline.join.min_cleanup_interval_ms if pipeline.dialect == "flink-sql" else 0


def _table_name(stream: _Stream) -> str:
    return f"{stream.name}_rows" if stream.name.startswith("input_") else stream.name


def _column_name(stream: _Stream, field: tuple[str, str]) -> str:
    """Return the SQL name of a stream's field."""
    name, column = field
    return column if stream.name == name else f"{name}_{column}"


def _compute_lag(source: TableInput) -> int:
    """Return by how much an input's watermark is behind its latest event time, in ms."""
    lag = compute_watermark_lag(source.pipeline)
    return {"left": lag.left, "right": lag.right}[source.side]


def _find_obstacles(pipeline: Pipeline, chain: Chain) -> Iterator[str]:
    """Yield the reasons why Flink cannot run a join of a chain this way."""
    yield from find_obstacles_by_arrival(pipeline)
    join = pipeline.join
    if len(list(chain.list_readers(pipeline.name))) > 1:
        yield "is read by two inputs of the chain, and this job supports one. Name another pipeline."
    if pipeline.dialect == "flink-datastream" and join.window:
        yield "is a window join of flink-datastream in a chain, and this job runs interval joins. Use flink-sql."
    if pipeline.dialect == "flink-datastream" and join.interval:
        lower, upper = to_inclusive_bounds(join.interval)
        if lower > upper:
            yield "has no time between its bounds, and Flink refuses such an interval. Correct join.interval."
    for other in chain.joins.values():
        if join.interval and other.join.interval and _get_cleanup(pipeline) != _get_cleanup(other):
            yield f"has another min_cleanup_interval than {other.name}, and a Flink job has only one. Use the same."
        if join.window and other.join.window and pipeline.time_zone != other.time_zone:
            yield f"has another time_zone than {other.name}, and a Flink job has only one. Use the same."
    yield from _find_input_obstacles(pipeline)


def _find_input_obstacles(pipeline: Pipeline) -> Iterator[str]:
    for side in SIDES:
        source = getattr(pipeline, side)
        if source.upstream and source.where:
            yield f"has {side}.where on the output of a pipeline, which Flink cannot evaluate. Remove it."
        if pipeline.dialect == "flink-sql" and not source.tiebreak:
            yield f"has {side} rows whose order is unknown if their arrivals are equal. Give {side} a tiebreak."
