"""What a Structured Streaming query did, read from its checkpoint: its micro-batches, and which files each has read.

Offsets are those of Delta sources. Such a source reads the table as it stood when the query began, file by file in the
order of their modification, and then what each version adds, in the order of the log.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any
from urllib.parse import unquote

from delta.tables import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from typing_extensions import override

from tidemark import spec
from tidemark.errors import InputError
from tidemark.lake import DeltaInput
from tidemark.slices import Grid
from tidemark.spec import Pipeline

ARRIVAL = "_arrival"
"""The column in which a traced input has the clock of each row's batch, a timestamp."""
FEED = ("side", "chunk", "left", "right")
"""The columns of a table that feeds both inputs of a query (`twin`), in its order."""
_POLICY = "spark.sql.streaming.multipleWatermarkPolicy"
_NOT_READ = (-1, 0)
_Place = tuple[int, int]
"""A version of a table, and the index of a file among those that it adds."""


@dataclass(frozen=True)
class Offset:
    """How far a batch has read a source: up to a file of a version, inclusive; a negative index is before its files."""

    table: str
    """The id in the table's metadata."""
    version: int
    index: int
    snapshot: bool
    """Whether the files are still those of the table as it stood at the version."""

    @property
    def place(self) -> _Place:
        """To compare with the places of files."""
        return self.version, self.index


@dataclass(frozen=True)
class Batch:
    """A micro-batch that was committed."""

    clock: int
    """Its timestamp in microseconds; one that is not after that of the batch before counts as 1 ms after it."""
    watermark: int
    """In ms, by which it evicted; the one of the batch before made its rows late."""
    offsets: tuple[Offset | None, ...]
    """By source: where the batch ended, None where the source had nothing yet."""


@dataclass(frozen=True)
class QueryTrace:
    """The batches of a query, those without rows too, from its first to the last one committed."""

    checkpoint: str
    batches: tuple[Batch, ...]
    pending: int | None
    """Clock of a batch that has begun and is not committed."""

    @classmethod
    def read(cls, spark: SparkSession, checkpoint: str, pipeline: Pipeline) -> QueryTrace:
        """Read a checkpoint's offset and commit logs.

        Raises:
            InputError: there is none, its beginning is gone, or it is of another format or of other settings.
        """
        offsets, commits = (_log(spark, f"{checkpoint}/{kind}") for kind in ("offsets", "commits"))
        if not offsets:
            raise InputError(f"{checkpoint} is not the checkpoint of a streaming query: it has no offset log")
        if 0 not in offsets:
            raise InputError(
                f"checkpoint {checkpoint} begins with batch {min(offsets)}: Spark has removed the offsets of those "
                "before; run the query with spark.sql.streaming.minBatchesToRetain above the number of its batches"
            )
        clock, batches = 0, []
        for number in sorted(offsets):
            header, sources = offsets[number][0], offsets[number][1:]
            if number == 0:
                _refuse_other_settings(checkpoint, header.get("conf", {}), pipeline)
            clock = max(clock + 1000, header["batchTimestampMs"] * 1000)
            ends = tuple(_offset(told, checkpoint) for told in sources)
            batches.append((number, Batch(clock, header["batchWatermarkMs"], ends)))
        waiting = [batch.clock for number, batch in batches if number not in commits]
        done = tuple(batch for number, batch in batches if number in commits)
        if not done:
            raise InputError(f"checkpoint {checkpoint} has no batch that was committed yet")
        return cls(checkpoint, done, min(waiting, default=None))

    def end(self, grid: Grid) -> int:
        """Number of the first slice of which not every batch is known; the slices before it can run."""
        last = grid.number_at(self.batches[-1].clock)
        return last + 1 if self.pending is None else min(last + 1, grid.number_at(self.pending))

    def source_of(self, table: str, side: str) -> int:
        """Which source of the query is the table with this id: of two, the left input's is the first.

        Raises:
            InputError: none is.
        """
        ids = {n: end.table for batch in self.batches for n, end in enumerate(batch.offsets) if end is not None}
        found = sorted(number for number, its in ids.items() if its == table)
        if not found:
            known = ", ".join(sorted(set(ids.values()))) or "none yet"
            raise InputError(
                f"the query of checkpoint {self.checkpoint} has not read the {side} table, whose id is {table}; "
                f"it has read tables with the ids: {known}"
            )
        return found[0 if side == "left" else -1]


@dataclass(frozen=True)
class TracedInput(DeltaInput):
    """An input as far as a query has read it: its rows with the clocks of their batches."""

    trace: QueryTrace
    side: str
    starting_version: int | None

    lands_late = False

    @classmethod
    def of(cls, table: DeltaInput, trace: QueryTrace, side: str, settings: spec.Trace) -> TracedInput:
        """The same table, seen by the query.

        Raises:
            InputError: the query does not read it.
        """
        found = cls(table.spark, table.name, table.path, trace, side, settings.starting_version)
        _ = found._source
        return found

    @cached_property
    @override
    def version(self) -> int:
        """The newest version that the query has read rows of."""
        last = self._ends[-1]
        return max(0, last[0] if last[1] >= 0 else last[0] - 1)

    @cached_property
    @override
    def schema(self) -> T.StructType:
        """The input's columns: of a feed those of its side."""
        schema = super().read().schema
        if not self._is_feed:
            return schema
        inner = schema[self.side].dataType
        assert isinstance(inner, T.StructType), "a feed has a row of each side"
        return inner

    @override
    def read(self, version: int | None = None) -> DataFrame:
        """The rows that the query has read, with `ARRIVAL`; all of them, whatever the version."""
        parts = [self._arrived(at, files) for at, files in self._files.items()]
        rows = reduce(lambda some, more: some.unionByName(more, allowMissingColumns=True), parts)
        if not self._is_feed:
            return rows
        return rows.where(F.col("side") == self.side).select(f"{self.side}.*", ARRIVAL)

    def _arrived(self, version: int, files: dict[str, int]) -> DataFrame:
        table = self.spark.createDataFrame(list(files.items()), "_file string, _clock long")
        rows = super().read(version).select("*", F.col("_metadata.file_name").alias("_file"))
        arrived = rows.join(F.broadcast(table), "_file")
        return arrived.withColumn(ARRIVAL, F.timestamp_micros("_clock")).drop("_file", "_clock")

    @cached_property
    def _is_feed(self) -> bool:
        return tuple(super().read().columns) == FEED

    @cached_property
    def _source(self) -> int:
        detail = DeltaTable.forPath(self.spark, self.path).detail().select("id").first()
        assert detail is not None, "a Delta table has details"
        return self.trace.source_of(detail["id"], self.side)

    @property
    def _offsets(self) -> Iterator[Offset | None]:
        return (batch.offsets[self._source] for batch in self.trace.batches)

    @cached_property
    def _ends(self) -> list[_Place]:
        """Where each batch ended."""
        return [end.place if end else _NOT_READ for end in self._offsets]

    @cached_property
    def _files(self) -> dict[int, dict[str, int]]:
        """Names of the files that the query has read, with the clocks of their batches, by a version that has them."""
        live = _names(super().read().inputFiles())
        found: dict[int, dict[str, int]] = defaultdict(dict)
        for place, name in self._in_order():
            batch = bisect_left(self._ends, place)
            if batch < len(self._ends):
                found[self.version if name in live else place[0]][name] = self.trace.batches[batch].clock
        return found or {self.version: {}}

    def _in_order(self) -> Iterator[tuple[_Place, str]]:
        """The files in the order in which the source offers them."""
        first = next((end for end in self._offsets if end), None)
        start = self.starting_version or 0
        if first and self.starting_version is None and (first.snapshot or first.index < 0):
            # A first batch that ends before the files of a version has read the whole table as it stood before.
            start = first.version if first.snapshot else first.version - 1
            names = self._snapshot(start) if first.snapshot else sorted(_names(super().read(start).inputFiles()))
            yield from (((start, index), name) for index, name in enumerate(names))
            start += 1
        for version, names in self._added(range(start, self.version + 1)):
            yield from (((version, index), name) for index, name in enumerate(names))

    def _snapshot(self, version: int) -> list[str]:
        file = F.col("_metadata")
        rows = super().read(version).select(file.file_modification_time, file.file_path).distinct().collect()
        return [unquote(row[1]).rsplit("/", 1)[-1] for row in sorted(rows)]

    def _added(self, versions: range) -> Iterator[tuple[int, list[str]]]:
        """The files with new rows of each version, in the order of the log."""
        if not versions:
            return
        paths = [f"{self.path}/_delta_log/{version:020d}.json" for version in versions]
        try:
            logs = _texts(self.spark, paths)
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
            yield version, [unquote(path).rsplit("/", 1)[-1] for path in came]


def _names(files: list[str]) -> set[str]:
    return {unquote(file).rsplit("/", 1)[-1] for file in files}


def _texts(spark: SparkSession, paths: str | list[str]) -> dict[str, str]:
    """The contents of small files, by name."""
    files = spark.read.text(paths, wholetext=True)
    rows = files.select("value", F.col("_metadata.file_name").alias("name")).collect()
    return {row["name"]: row["value"] for row in rows}


def _log(spark: SparkSession, folder: str) -> dict[int, list[Any]]:
    """A metadata log: by batch the lines after the first, which tells the format."""
    try:
        files = _texts(spark, folder)
    except AnalysisException:
        return {}
    found = {}
    for name, text in files.items():
        if name.isdigit():
            version, *lines = text.splitlines()
            if version != "v1":
                raise InputError(f"{folder}/{name} has format {version}; this version of Tidemark reads v1")
            found[int(name)] = [None if line == "-" else json.loads(line) for line in lines if line]
    return found


def _offset(told: dict[str, Any] | None, checkpoint: str) -> Offset | None:
    if told is None:
        return None
    if not isinstance(told, dict) or "reservoirId" not in told:
        raise InputError(f"checkpoint {checkpoint} is of a query that reads something else than Delta tables")
    return Offset(
        told["reservoirId"], int(told["reservoirVersion"]), int(told["index"]), snapshot=told["isStartingVersion"]
    )


def _refuse_other_settings(checkpoint: str, conf: dict[str, str], pipeline: Pipeline) -> None:
    policy = conf.get(_POLICY, pipeline.spark.watermark_policy)
    if policy != pipeline.spark.watermark_policy:
        raise InputError(
            f"the query of checkpoint {checkpoint} ran with {_POLICY} {policy}, and the pipeline file says "
            f"spark.watermark_policy: {pipeline.spark.watermark_policy}"
        )
