"""Read inputs as a streaming query has read them, with the clock of each row's batch.

A query over Delta tables reads a table as it stood when the query began, file by file in the order of their
modification, and then what each version adds, in the order of the log. The rows that a query has read from files are in
a table that is made of the same files, or that has a column with each row's file.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property, reduce
from urllib.parse import unquote

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from typing_extensions import override

from tidemark.config import CheckpointArrival
from tidemark.delta.table_reader import DeltaInput, get_file_name
from tidemark.errors import InputError, suggest_name
from tidemark.formatting import quote_identifier
from tidemark.spark.dataframe_utils import get_file_metadata
from tidemark.watermarks.query_trace import FilePosition, Offset, QueryTrace, read_texts

ARRIVAL_COLUMN = "_arrival"
"""Column with the arrival time of each row, a timestamp: the clock of its batch, or its commit time."""
FEED_COLUMNS = ("side", "chunk", "left", "right")
"""Columns of a table that feeds both inputs of a live query (`streaming.replay_source`), in order."""


def require_no_columns(table: DeltaInput, names: Collection[str]) -> None:
    """Require that a table has no column with the name of an internal column of arrivals.

    Raises:
        InputError: It has one.
    """
    if conflicts := [name for name in table.schema.names if name.lower() in names]:
        raise InputError(
            f"input {table.name} has a column {conflicts[0]}, a name that Tidemark uses for arrivals. Rename it, or "
            "name an arrival column."
        )


@dataclass(frozen=True)
class QueryInput(DeltaInput):
    """A table of which `read` returns the rows that a query has read, with `ARRIVAL_COLUMN`, for any version."""

    trace: QueryTrace
    source: int
    """Number of the source in the query."""
    side: str

    can_have_late_arriving_rows = False

    @cached_property
    @override
    def schema(self) -> T.StructType:
        """The table's columns, without `ARRIVAL_COLUMN`."""
        return super().read().schema

    def add_arrival_times(self, rows: DataFrame, file: Column, clocks: dict[str, int]) -> DataFrame:
        """Keep the rows of the files in `clocks` (microseconds by file) and add `ARRIVAL_COLUMN`."""
        table = self.spark.createDataFrame(list(clocks.items()), "file string, clock long")
        joined = rows.select(F.struct("*").alias("row"), file.alias("file")).join(F.broadcast(table), "file")
        return joined.select("row.*", F.timestamp_micros("clock").alias(ARRIVAL_COLUMN))


def create_query_input(table: DeltaInput, trace: QueryTrace, side: str, settings: CheckpointArrival) -> QueryInput:
    """Create an input with the rows that a query has read. If it read a table twice, left is the first source.

    Raises:
        InputError: The query has not read the table or its files, or a column has the name of `ARRIVAL_COLUMN`.
    """
    query_input = _find_query_input(table, trace, side, settings)
    require_no_columns(query_input, {ARRIVAL_COLUMN})
    return query_input


def _find_query_input(table: DeltaInput, trace: QueryTrace, side: str, settings: CheckpointArrival) -> QueryInput:
    sources, index = trace.list_sources(), 0 if side == "left" else -1
    location = (table.spark, table.name, table.path)
    detail = table.spark.sql(f"DESCRIBE DETAIL delta.{quote_identifier(table.path)}").first()
    assert detail is not None, "a Delta table has details"
    tables = sorted(source for source, table_id in sources.items() if table_id == detail["id"])
    if tables:
        starting_version = settings.starting_version
        return QueryTableInput(
            *location, trace, tables[index], side, lake=table.lake, starting_version=starting_version
        )
    files = [
        QueryFileInput(*location, trace, source, side, lake=table.lake, column=settings.file_column)
        for source, table_id in sorted(sources.items())
        if table_id is None
    ]
    readable = [candidate for candidate in files if candidate.clocks]
    if readable:
        return readable[index]
    if files:
        raise InputError(
            f"the query of checkpoint {trace.checkpoint} has read files, and input {table.name} has no row of them by "
            f"{f'its column {settings.file_column}' if settings.file_column else 'the names of its own files'}. Name "
            "the column with the path of each row's file: "
            "arrival: {streaming_checkpoint: CHECKPOINT, file_column: COLUMN}"
        )
    table_ids = ", ".join(sorted({table_id for table_id in sources.values() if table_id})) or "none yet"
    raise InputError(
        f"the query of checkpoint {trace.checkpoint} has not read the {side} table, whose id is {detail['id']}. "
        f"Name one of the tables it has read, with the ids: {table_ids}"
    )


@dataclass(frozen=True)
class QueryTableInput(QueryInput):
    """A Delta table that the query itself has read."""

    starting_version: int | None

    @cached_property
    @override
    def version(self) -> int:
        """The newest version from which the query has read rows."""
        last = self._offsets[-1]
        version, index = last.position if last else (0, 0)
        return max(0, version if index >= 0 else version - 1)

    @cached_property
    @override
    def schema(self) -> T.StructType:
        """The input's columns; of a feed, the columns of this side."""
        schema = super().schema
        if not self._is_feed:
            return schema
        inner = schema[self.side].dataType
        assert isinstance(inner, T.StructType), "a feed has a row of each side"
        return inner

    @override
    def read(self, version: int | None = None, paths: Collection[str] | None = None) -> DataFrame:
        parts = [self._read_version(at, files) for at, files in self._clocks_by_version.items()]
        rows = reduce(lambda some, more: some.unionByName(more, allowMissingColumns=True), parts)
        if not self._is_feed:
            return rows
        return rows.where(F.col("side") == self.side).select(f"{self.side}.*", ARRIVAL_COLUMN)

    def _read_version(self, version: int, clocks: dict[str, int]) -> DataFrame:
        rows = super().read(version)
        if self.has_unique_names(version):
            clocks_by_name = {get_file_name(file): clock for file, clock in clocks.items()}
            return self.add_arrival_times(rows, get_file_metadata(rows, "file_name"), clocks_by_name)
        clocks_by_uri = {uri: clock for file, clock in clocks.items() for uri in self.list_spark_uris(file)}
        return self.add_arrival_times(rows, get_file_metadata(rows, "file_path"), clocks_by_uri)

    @cached_property
    def _is_feed(self) -> bool:
        return tuple(super().read().columns) == FEED_COLUMNS

    @property
    def _offsets(self) -> list[Offset | None]:
        return self.trace.list_offsets(self.source)

    @cached_property
    def _clocks_by_version(self) -> dict[int, dict[str, int]]:
        """The clocks of the files that the query has read, by path, by a version that has the files."""
        live = set(self.list_files())
        clocks_by_version: dict[int, dict[str, int]] = defaultdict(dict)
        files = list(self._iterate_files())
        clocks = self.trace.find_read_clocks(self.source, (position for position, _ in files))
        for (position, file), clock in zip(files, clocks, strict=True):
            if clock is not None:
                clocks_by_version[self.version if file in live else position[0]][file] = clock
        return clocks_by_version or {self.version: {}}

    def _iterate_files(self) -> Iterator[tuple[FilePosition, str]]:
        """Yield position and decoded path of the files in the order in which Spark's source reads them."""
        first = next((end for end in self._offsets if end), None)
        start = self.starting_version or 0
        if first and self.starting_version is None and (first.is_snapshot or first.position[1] < 0):
            # A first batch that ends before the files of a version has read the complete table of the version before.
            start = first.position[0] if first.is_snapshot else first.position[0] - 1
            snapshot = self._list_snapshot(start) if first.is_snapshot else sorted(self.list_files(start))
            yield from (((start, index), file) for index, file in enumerate(snapshot))
            start += 1
        for version, added in self._list_added(range(start, self.version + 1)):
            yield from (((version, index), file) for index, file in enumerate(added))

    def _list_snapshot(self, version: int) -> list[str]:
        rows = super().read(version)
        files = (
            rows.select(get_file_metadata(rows, "file_modification_time"), get_file_metadata(rows, "file_path"))
            .distinct()
            .collect()
        )
        return [self.to_log_path(row[1]) for row in sorted(files)]

    def _list_added(self, versions: range) -> Iterator[tuple[int, list[str]]]:
        """Yield each version with its files that have new rows, in the order of the log."""
        if not versions:
            return
        paths = [f"{self.path}/_delta_log/{version:020d}.json" for version in versions]
        try:
            logs = read_texts(self.spark, paths)
        except AnalysisException:
            raise InputError(
                f"the log of input {self.name} no longer has versions {versions[0]} to {versions[-1]}, which the query "
                "has read. Keep delta.logRetentionDuration longer than the query's checkpoint."
            ) from None
        for version in versions:
            actions = [json.loads(line) for line in logs[f"{version:020d}.json"].splitlines() if line.strip()]
            added, removed = (
                [action[kind]["path"] for action in actions if kind in action and action[kind]["dataChange"]]
                for kind in ("add", "remove")
            )
            if added and removed:
                raise InputError(
                    f"version {version} of input {self.name} changed rows, and the checkpoint does not record whether "
                    "its query skipped that version or read the changed files. Name an arrival column."
                )
            yield version, [unquote(path) for path in added]


@dataclass(frozen=True)
class QueryFileInput(QueryInput):
    """A Delta table of rows that the query has read from files."""

    column: str | None
    """Column with the path of each row's file; None if the table consists of these files."""

    @override
    def read(self, version: int | None = None, paths: Collection[str] | None = None) -> DataFrame:
        rows = super().read(version)
        return self.add_arrival_times(rows, self._file_column(rows), self.clocks)

    @cached_property
    def clocks(self) -> dict[str, int]:
        """The clock of the batch that read each file, in microseconds, by the table's names of the files."""
        listed = self.trace.list_files(self.spark, self.source)
        clocks = dict(
            zip(map(_without_scheme, listed), self.trace.find_read_clocks(self.source, listed.values()), strict=True)
        )
        # A table may name a file by its URI or by its path.
        clocks |= {unquote(path): clock for path, clock in clocks.items()}
        rows = super().read()
        names = (row[0] for row in rows.select(self._file_column(rows)).distinct().collect())
        clock_of_file = {name: clocks.get(_without_scheme(name)) for name in names if name is not None}
        clock_of_read_file = {name: clock for name, clock in clock_of_file.items() if clock is not None}
        if clock_of_read_file and self.column is None:
            self._require_all_files(clocks)
        return clock_of_read_file

    def _require_all_files(self, clocks: dict[str, int | None]) -> None:
        """Require that the table still has all files with a clock: the rows of others would be lost."""
        present = {unquote(_without_scheme(file)) for file in super().read().inputFiles()}
        missing = sorted({unquote(path) for path, clock in clocks.items() if clock is not None} - present)
        if missing:
            raise InputError(
                f"input {self.name} no longer has {len(missing)} of the files that the query of checkpoint "
                f"{self.trace.checkpoint} has read, such as {missing[0]}: it was rewritten. Restore an older version, "
                "or name the column with the path of each row's file: "
                "arrival: {streaming_checkpoint: CHECKPOINT, file_column: COLUMN}"
            )

    def _file_column(self, rows: DataFrame) -> Column:
        if self.column is None:
            return get_file_metadata(rows, "file_path")
        if self.column not in self.schema.names:
            hint = suggest_name(self.column, self.schema.names)
            raise InputError(f"input {self.name} has no column {self.column} (named as file_column). {hint}")
        return F.col(quote_identifier(self.column))


def _without_scheme(path: str) -> str:
    """Remove the scheme of a path: one store may have several, such as s3 and s3a."""
    return re.sub(r"^[a-zA-Z][a-zA-Z0-9+.-]*:(?=/)", "", path).lstrip("/")
