"""Run a pipeline's join, and those before it in a chain, as one Flink job that reads rows in the order of arrival.

Each input is a source with its own watermark, delayed as in its pipeline. The rows of one instant are read before their
watermarks, and Flink processes an instant before it reads the next one (`FlinkStreams.java`). So rows are late in Flink
where they are late in Tidemark. Flink gets row numbers, event times, and keys as text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from jobs.flink_java import run_java
from tidemark.config import Pipeline
from tidemark.config.output_stream import EVENT_TIMES
from tidemark.config.sides import SIDES, SideName
from tidemark.config.types import to_millis
from tidemark.errors import PipelineFileError
from tidemark.joins.keys import key_name
from tidemark.pipeline_tests.chain import TESTED, Chain, TableInput
from tidemark.streaming.flink_query import (
    find_query_obstacles,
    format_join,
    format_windows,
    list_settings,
    list_window_bounds,
)

_ID = "id"
_ORDER = ("clock", "tiebreak")
"""Columns that order the rows; rows that are equal in both are simultaneous."""


@dataclass(frozen=True)
class InputKey:
    """A column of a table that is a key of a join."""

    input: TableInput
    join: str
    """Name of the join in the chain: that of the input, or a later one."""
    side: SideName
    number: int
    """Index in `join.keys`."""
    column: str | None
    """Column of the table; None if the input's own join computes the key."""


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
            rows: Rows of all tables: `input` (name), `number`, `clock`, `tiebreak`, `event_time` (ms) and `keys` (of
                `key_texts`).
            folder: Folder for files of the job.

        Returns:
            A row for each row of the last join's output: a column `number_INDEX` per input of the chain, null if
            absent, and `window_start` and `window_end` in ms, null without windows.
        """
        lines = self.list_lines(row.asDict() for row in rows.orderBy("number").toLocalIterator())
        (folder / "streams").write_text("\n".join(lines) + "\n", encoding="utf-8")
        run_java("FlinkStreams", folder, folder / "streams", folder / "output")
        answer = (folder / "output").read_text(encoding="utf-8").splitlines()
        names = [f"number_{index}" for index in range(len(self.chain.inputs))]
        schema = ", ".join(f"{name} long" for name in [*names, "window_start", "window_end"])
        output = [self._parse_row(line) for line in answer if line.startswith("row\t")]
        return rows.sparkSession.createDataFrame(output, schema)

    def list_lines(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
        """Yield the lines that the job reads: its definition, and its rows in order with their watermarks."""
        yield from self._list_definitions()
        yield from self._list_events(rows)
        yield "end"

    @cached_property
    def _width(self) -> int:
        return max(2, *map(len, self._input_keys.values()))

    def _list_definitions(self) -> Iterator[str]:
        """Yield the lines before the events."""
        chain, pipeline = self.chain, self.chain.pipeline
        yield "\t".join(["inputs", *map(self._input_name, chain.inputs)])
        yield f"keys\t{self._width}"
        if pipeline.dialect == "flink-datastream":
            for join in chain.joins:
                yield self._describe_pairs(join)
            yield f"output\t{self._join_name(TESTED)}"
            return
        for name, value in list_settings(pipeline).items():
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
        columns = ["k", _ID, *(f"k{number}" for number in range(2, self._width + 1))]
        name = self._input_name(source)
        return _Stream(name, tuple((name, column) for column in columns))

    def _list_keys(self, join: str, side: SideName) -> Iterator[tuple[str, str]]:
        """Yield the fields that a join compares on one side."""
        for number in range(len(self.chain.joins[join].join.keys)):
            key = _find_input_key(self.chain, join, side, number)
            index = self._input_keys[key.input.name].index(key)
            yield self._input_name(key.input), f"k{index + 1}" if index else "k"

    def _input_name(self, source: TableInput) -> str:
        return f"input_{self.chain.inputs.index(source)}"

    def _join_name(self, join: str) -> str:
        return f"join_{list(self.chain.joins).index(join)}"

    def _describe_pairs(self, join: str) -> str:
        """Return the line of an interval join of the DataStream API."""
        interval = self.chain.joins[join].join.interval
        assert interval is not None, "checked by _find_obstacles"
        left, right = (self._find_stream(join, side) for side in SIDES)
        positions = (
            ",".join(str(stream.fields.index(key)) for key in self._list_keys(join, side))
            for side, stream in zip(SIDES, (left, right), strict=True)
        )
        bounds = map(str, interval.to_closed(1000))
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
        """Return the query of a join that another one reads, with the time attribute that it keeps."""
        ((reader, side),) = self.chain.list_readers(join)
        column = getattr(self.chain.joins[reader], side).event_time.column
        kept = next(each for each in SIDES if EVENT_TIMES[each] == column)
        stream, window = self._find_stream(join, kept), self.chain.joins[join].join.window
        output = _Stream(self._join_name(join), tuple(self._list_columns(join)))
        columns = [f"{sql} AS {_column_name(output, field)}" for field, sql in self._list_columns(join).items()]
        columns.append(f"{kept[0]}.{'window_time' if window and not stream.has_windows else 'ts'} AS ts")
        if window:
            columns += [f"{kept[0]}.window_{end} AS window_{end}" for end in ("start", "end")]
        return self._format_query(join, columns)

    def _format_query(self, join: str, columns: list[str]) -> str:
        settings = self.chain.joins[join].join
        streams = {side: self._find_stream(join, side) for side in SIDES}
        names = ([_column_name(streams[side], key) for key in self._list_keys(join, side)] for side in SIDES)
        same_keys = [f"l.{left} = r.{right}" for left, right in zip(*names, strict=True)]
        sides = {
            side: _table_name(stream) if stream.has_windows else format_windows(settings.window, _table_name(stream))
            for side, stream in streams.items()
        }
        return " ".join(format_join(settings, sides, same_keys, columns).split())

    def _list_events(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
        """Yield the lines of the rows and their watermarks, instant by instant."""
        names = {source.name: self._input_name(source) for source in self.chain.inputs}
        delays = {source.name: _compute_delay(source) for source in self.chain.inputs}
        watermarks: dict[str, int] = {}
        for _, group in groupby(rows, lambda row: [row[name] for name in _ORDER]):
            instant = list(group)
            for row in instant:
                watermark = row["event_time"] - delays[row["input"]]
                watermarks[row["input"]] = max(watermark, watermarks.get(row["input"], watermark))
            kind = "event" if len(instant) == 1 else "row"
            for row in instant:
                key, *further = [key or "" for key in row["keys"]]
                watermark = watermarks[row["input"]]
                fields = [names[row["input"]], key, row["event_time"], watermark, row["number"], *further]
                yield "\t".join([kind, *map(str, fields)])
            if kind == "row":
                yield "wait"
                for name in sorted({row["input"] for row in instant}):
                    yield f"watermark\t{names[name]}\t{watermarks[name]}"
                yield "wait"

    def _parse_row(self, line: str) -> list[int | None]:
        """Return the row numbers of the inputs, and the window's bounds or None."""
        _, _, _, _, *fields = line.split("\t")
        values = [None if field == "null" else field for field in fields]
        if self.chain.pipeline.dialect == "flink-datastream":
            names = [field for side in SIDES for field in self._find_stream(TESTED, side).fields]
            bounds: Sequence[str | None] = [None, None]
        else:
            names = [field for field in self._list_columns(TESTED) if field[1] == _ID]
            values, bounds = values[: len(names)], [*values[len(names) :], None, None][:2]
        numbers = {name: value for (name, column), value in zip(names, values, strict=True) if column == _ID}
        row = [*(numbers.get(self._input_name(source)) for source in self.chain.inputs), *bounds]
        return [None if value is None else int(value) for value in row]


def list_input_keys(chain: Chain) -> dict[str, list[InputKey]]:
    """List the keys that are columns of each table: those of its own join, then those of later joins.

    Raises:
        PipelineFileError: A key of a later join is not a column of a table.
    """
    keys = [
        _find_input_key(chain, join, side, number)
        for join, pipeline in chain.joins.items()
        for side in SIDES
        for number in range(len(pipeline.join.keys))
    ]
    keys.sort(key=lambda key: key.column is not None)
    return {source.name: [key for key in keys if key.input == source] for source in chain.inputs}


def _find_input_key(chain: Chain, join: str, side: SideName, number: int) -> InputKey:
    pipeline = chain.joins[join]
    if side not in pipeline.upstreams:
        return InputKey(TableInput(join, pipeline, side), join, side, number, None)
    name = getattr(pipeline.join.keys[number], side)
    source, column = _find_source(chain, pipeline.upstreams[side].pipeline, name, pipeline)
    return InputKey(source, join, side, number, column)


def _find_source(chain: Chain, join: str, name: str, reader: Pipeline) -> tuple[TableInput, str]:
    """Find the table's column that an output column of a join has the values of.

    Raises:
        PipelineFileError: It is a computed column.
    """
    pipeline = chain.joins[join]
    if isinstance(pipeline.select, dict):
        name = pipeline.select.get(name, name)
    for side in SIDES:
        column = name.removeprefix(f"{side}_")
        if column != name and column.isidentifier():
            if side in pipeline.upstreams:
                return _find_source(chain, pipeline.upstreams[side].pipeline, column, reader)
            return TableInput(join, pipeline, side), column
    raise PipelineFileError(
        f"{reader.name} has the key {name}, which is no column of a table, and Flink gets only those. Use one as key."
    )


def key_texts(keys: Sequence[InputKey], types: Sequence[T.DataType], source: str) -> Column:
    """Return an array of a table's keys as texts; null keys are null.

    Args:
        keys: The keys of the input.
        types: Common type of each key with that of the other side.
        source: Column of the rows with the struct of a table's row.
    """
    values = (
        F.col(key_name(key.number)) if key.column is None else F.col(source).getField(key.column).cast(dtype)
        for key, dtype in zip(keys, types, strict=True)
    )
    # Text in base64 contains no separators. Without the prefix, an empty text would be read as null.
    return F.array(*(F.concat(F.lit("="), F.base64(value.cast("string").cast("binary"))) for value in values))


def _table_name(stream: _Stream) -> str:
    return f"{stream.name}_rows" if stream.name.startswith("input_") else stream.name


def _column_name(stream: _Stream, field: tuple[str, str]) -> str:
    """Return the SQL name of a stream's field."""
    name, column = field
    return column if stream.name == name else f"{name}_{column}"


def _compute_delay(source: TableInput) -> int:
    """Return by how much an input's watermark is behind its latest event time, in ms."""
    delay = getattr(source.pipeline, source.side).watermark_delay
    return (to_millis(delay) if delay else 0) + (source.pipeline.dialect == "flink-datastream")


def _find_obstacles(pipeline: Pipeline, chain: Chain) -> Iterator[str]:
    """Yield the reasons why Flink cannot run a join of a chain this way."""
    yield from find_query_obstacles(pipeline)
    join, last = pipeline.join, chain.pipeline
    if len(list(chain.list_readers(pipeline.name))) > 1:
        yield "is read by two inputs of the chain, and this job supports one. Name another pipeline."
    if pipeline.dialect == "flink-datastream" and join.window:
        yield "is a window join of flink-datastream in a chain, and this job runs interval joins. Use flink-sql."
    if pipeline.dialect == "flink-sql" and join.min_cleanup_interval_ms != last.join.min_cleanup_interval_ms:
        yield f"has another min_cleanup_interval than {last.name}, and a Flink job has only one. Use the same."
    if pipeline.restarts:
        yield "has restarts, and this job does not fail. Remove them."
    for side in SIDES:
        source = getattr(pipeline, side)
        if source.partition or source.idle_timeout:
            yield f"has partitions or idle_timeout on {side}, and this job has one watermark per input. Remove them."
        if source.upstream and source.where:
            yield f"has {side}.where on the output of a pipeline, which Flink cannot evaluate. Remove it."
        if pipeline.dialect == "flink-sql" and not source.tiebreak:
            yield f"depends on the order of rows, which simultaneous rows lack. Give {side} a tiebreak."
