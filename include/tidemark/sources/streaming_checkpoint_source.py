"""Inputs as far as a streaming query has read them: each row with the clock of the batch that read its file.

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

from tidemark.config import Trace
from tidemark.delta.pipeline_tables import DeltaInput
from tidemark.delta.table import file_name
from tidemark.errors import InputError, nearest
from tidemark.formatting import quoted
from tidemark.spark.dataframe_utils import of_file
from tidemark.watermarks.query_trace import Offset, Position, QueryTrace, texts

ARRIVAL = "_arrival"
"""The column in which a traced input has the clock of each row's batch, a timestamp."""
FEED = ("side", "chunk", "left", "right")
"""The columns of a table that feeds both inputs of a query (`twin`), in its order."""


@dataclass(frozen=True)
class TracedInput(DeltaInput):
    """A table of rows that a query has read: `read` gives those, with `ARRIVAL`, whatever the version."""

    trace: QueryTrace
    source: int
    """The source's number in the query."""
    side: str

    lands_late = False

    @cached_property
    @override
    def schema(self) -> T.StructType:
        """The table's columns, without `ARRIVAL`."""
        return super().read().schema

    def arrived(self, rows: DataFrame, file: Column, clocks: dict[str, int]) -> DataFrame:
        """Rows of these files, with `ARRIVAL`."""
        table = self.spark.createDataFrame(list(clocks.items()), "file string, clock long")
        found = rows.select(F.struct("*").alias("row"), file.alias("file")).join(F.broadcast(table), "file")
        return found.select("row.*", F.timestamp_micros("clock").alias(ARRIVAL))


def traced_input(table: DeltaInput, trace: QueryTrace, side: str, settings: Trace) -> TracedInput:
    """A table as the query has seen its rows; where it has read them twice, the left input is of the first source.

    Raises:
        InputError: the query has not read them.
    """
    sources, which = trace.sources(), 0 if side == "left" else -1
    place = (table.spark, table.name, table.path)
    detail = table.spark.sql(f"DESCRIBE DETAIL delta.{quoted(table.path)}").first()
    assert detail is not None, "a Delta table has details"
    tables = sorted(source for source, its in sources.items() if its == detail["id"])
    if tables:
        started = settings.starting_version
        return TracedTable(*place, trace, tables[which], side, lake=table.lake, starting_version=started)
    files = [
        TracedFiles(*place, trace, source, side, lake=table.lake, column=settings.file)
        for source, its in sorted(sources.items())
        if its is None
    ]
    serving = [one for one in files if one.clocks]
    if serving:
        return serving[which]
    if files:
        raise InputError(
            f"the query of checkpoint {trace.checkpoint} has read files, and input {table.name} has no row of them by "
            f"{f'its column {settings.file}' if settings.file else 'the names of its own files'}; name the column that "
            "has the path of each row's file: arrival: {trace: CHECKPOINT, file: COLUMN}"
        )
    known = ", ".join(sorted({its for its in sources.values() if its})) or "none yet"
    raise InputError(
        f"the query of checkpoint {trace.checkpoint} has not read the {side} table, whose id is {detail['id']}; "
        f"it has read tables with the ids: {known}"
    )


@dataclass(frozen=True)
class TracedTable(TracedInput):
    """A Delta table that the query itself has read."""

    starting_version: int | None

    @cached_property
    @override
    def version(self) -> int:
        """The newest version that the query has read rows of."""
        last = self._offsets[-1]
        version, index = last.position if last else (0, 0)
        return max(0, version if index >= 0 else version - 1)

    @cached_property
    @override
    def schema(self) -> T.StructType:
        """The input's columns: of a feed those of its side."""
        schema = super().schema
        if not self._is_feed:
            return schema
        inner = schema[self.side].dataType
        assert isinstance(inner, T.StructType), "a feed has a row of each side"
        return inner

    @override
    def read(self, version: int | None = None, paths: Collection[str] | None = None) -> DataFrame:
        parts = [self._arrived(at, files) for at, files in self._files.items()]
        rows = reduce(lambda some, more: some.unionByName(more, allowMissingColumns=True), parts)
        if not self._is_feed:
            return rows
        return rows.where(F.col("side") == self.side).select(f"{self.side}.*", ARRIVAL)

    def _arrived(self, version: int, clocks: dict[str, int]) -> DataFrame:
        rows = super().read(version)
        return self.arrived(rows, of_file(rows, "file_name"), clocks)

    @cached_property
    def _is_feed(self) -> bool:
        return tuple(super().read().columns) == FEED

    @property
    def _offsets(self) -> list[Offset | None]:
        return self.trace.offsets(self.source)

    @cached_property
    def _files(self) -> dict[int, dict[str, int]]:
        """Names of the files that the query has read, with the clocks of their batches, by a version that has them."""
        live = _names(super().read().inputFiles())
        found: dict[int, dict[str, int]] = defaultdict(dict)
        files = list(self._in_order())
        clocks = self.trace.clocks(self.source, (position for position, _ in files))
        for (position, name), clock in zip(files, clocks, strict=True):
            if clock is not None:
                found[self.version if name in live else position[0]][name] = clock
        return found or {self.version: {}}

    def _in_order(self) -> Iterator[tuple[Position, str]]:
        """The files in the order in which the source offers them."""
        first = next((end for end in self._offsets if end), None)
        start = self.starting_version or 0
        if first and self.starting_version is None and (first.snapshot or first.position[1] < 0):
            # A first batch that ends before the files of a version has read the whole table as it stood before.
            start = first.position[0] if first.snapshot else first.position[0] - 1
            names = self._snapshot(start) if first.snapshot else sorted(_names(super().read(start).inputFiles()))
            yield from (((start, index), name) for index, name in enumerate(names))
            start += 1
        for version, names in self._added(range(start, self.version + 1)):
            yield from (((version, index), name) for index, name in enumerate(names))

    def _snapshot(self, version: int) -> list[str]:
        rows = super().read(version)
        found = rows.select(of_file(rows, "file_modification_time"), of_file(rows, "file_path")).distinct().collect()
        return [file_name(row[1]) for row in sorted(found)]

    def _added(self, versions: range) -> Iterator[tuple[int, list[str]]]:
        """The files with new rows of each version, in the order of the log."""
        if not versions:
            return
        paths = [f"{self.path}/_delta_log/{version:020d}.json" for version in versions]
        try:
            logs = texts(self.spark, paths)
        except AnalysisException:
            raise InputError(
                f"the log of input {self.name} no longer has versions {versions[0]} to {versions[-1]}, which the query "
                "has read; keep delta.logRetentionDuration longer than the life of its checkpoint"
            ) from None
        for version in versions:
            actions = [json.loads(line) for line in logs[f"{version:020d}.json"].splitlines() if line.strip()]
            came, went = (
                [action[kind]["path"] for action in actions if kind in action and action[kind]["dataChange"]]
                for kind in ("add", "remove")
            )
            if came and went:
                raise InputError(
                    f"version {version} of input {self.name} changed rows: the checkpoint does not tell whether its "
                    "query skipped that version or read the changed files again"
                )
            yield version, [file_name(path) for path in came]


def _names(files: list[str]) -> set[str]:
    return {file_name(file) for file in files}


@dataclass(frozen=True)
class TracedFiles(TracedInput):
    """A Delta table of rows that the query has read from files."""

    column: str | None
    """Has the path of each row's file; None where the table is made of the very files."""

    @override
    def read(self, version: int | None = None, paths: Collection[str] | None = None) -> DataFrame:
        rows = super().read(version)
        return self.arrived(rows, self._file(rows), self.clocks)

    @cached_property
    def clocks(self) -> dict[str, int]:
        """The clocks of the batches that have read them, of the files that the table has rows of, as it names them."""
        listed = self.trace.files(self.spark, self.source)
        clocks = dict(zip(map(_bare, listed), self.trace.clocks(self.source, listed.values()), strict=True))
        # An URI, or a path as people write it.
        clocks |= {unquote(path): clock for path, clock in clocks.items()}
        rows = super().read()
        names = (row[0] for row in rows.select(self._file(rows)).distinct().collect())
        found = {name: clocks.get(_bare(name)) for name in names if name is not None}
        read = {name: clock for name, clock in found.items() if clock is not None}
        if read and self.column is None:
            self._refuse_rewritten(clocks)
        return read

    def _refuse_rewritten(self, clocks: dict[str, int | None]) -> None:
        """See that no file which the query has read, by its `clocks`, is gone: its rows would be lost."""
        own = {unquote(_bare(file)) for file in super().read().inputFiles()}
        gone = sorted({unquote(path) for path, clock in clocks.items() if clock is not None} - own)
        if gone:
            raise InputError(
                f"input {self.name} no longer has {len(gone)} of the files that the query of checkpoint "
                f"{self.trace.checkpoint} has read, such as {gone[0]}: it was rewritten; restore an older version, or "
                "name a column that has the path of each row's file: arrival: {trace: CHECKPOINT, file: COLUMN}"
            )

    def _file(self, rows: DataFrame) -> Column:
        if self.column is None:
            return of_file(rows, "file_path")
        if self.column not in self.schema.names:
            hint = nearest(self.column, self.schema.names, "it has")
            raise InputError(f"input {self.name} has no column {self.column} (named as file); {hint}")
        return F.col(quoted(self.column))


def _bare(path: str) -> str:
    """A path without its scheme: stores are called by several."""
    return re.sub(r"^[a-zA-Z][a-zA-Z0-9+.-]*:(?=/)", "", path).lstrip("/")
