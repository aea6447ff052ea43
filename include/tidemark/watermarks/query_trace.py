"""What a Structured Streaming query did, from its checkpoint: its micro-batches, and how far each read its sources.

Of a source of files the checkpoint has the paths too, of a Delta table only the version and the number of a file.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tidemark.config import Pipeline
from tidemark.errors import InputError
from tidemark.timegrid.slices import Grid

Position = tuple[int, int]
"""A version of a table and the index of a file among those that it adds; or a number of a source's log and 0."""
_POLICY = "spark.sql.streaming.multipleWatermarkPolicy"
_NOT_READ = (-1, 0)


@dataclass(frozen=True)
class Offset:
    """How far a batch has read a source, inclusive: to a file of a table's version, or to a number of its own log."""

    table: str | None
    """The id in the metadata of a Delta table, None for a source of files."""
    position: Position
    """The last file that was read; a negative index is before the files of a version."""
    snapshot: bool = False
    """Whether the files are still those of the table as it stood at the version."""


@dataclass(frozen=True)
class Batch:
    """A micro-batch that was committed."""

    clock: int
    """The batch's timestamp in microseconds; one that is not after that of the batch before counts as 1 ms after it."""
    watermark: int
    """The watermark in ms by which the batch evicted; the one of the batch before made its rows late."""
    offsets: tuple[Offset | None, ...]
    """Where the batch ended, by source; None where the source had nothing yet."""


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
            ends = tuple(_offset(logged, checkpoint) for logged in sources)
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

    def sources(self) -> dict[int, str | None]:
        """The sources that were read, by their number in the query: `Offset.table`."""
        return {n: end.table for batch in self.batches for n, end in enumerate(batch.offsets) if end is not None}

    def offsets(self, source: int) -> list[Offset | None]:
        """How far each batch has read a source."""
        return [batch.offsets[source] for batch in self.batches]

    def clocks(self, source: int, positions: Iterable[Position]) -> Iterator[int | None]:
        """The clock of the batch that has read each file of a source, None where none has."""
        ends = [end.position if end else _NOT_READ for end in self.offsets(source)]
        for position in positions:
            batch = bisect_left(ends, position)
            yield self.batches[batch].clock if batch < len(ends) else None

    def files(self, spark: SparkSession, source: int) -> dict[str, Position]:
        """The files that a source of files has listed for the query, by their paths as URIs.

        Raises:
            InputError: the list is gone.
        """
        log = f"{self.checkpoint}/sources/{source}"
        listed = _log(spark, log)
        if not listed:
            raise InputError(f"{log} is gone: without it nobody knows which files the query has read")
        return {one["path"]: (one["batchId"], 0) for lines in listed.values() for one in lines}


def texts(spark: SparkSession, paths: str | list[str]) -> dict[str, str]:
    """The contents of small files, by name."""
    files = spark.read.text(paths, wholetext=True)
    rows = files.select("value", F.col("_metadata.file_name").alias("name")).collect()
    return {row["name"]: row["value"] for row in rows}


def _log(spark: SparkSession, folder: str) -> dict[int, list[Any]]:
    """A metadata log, its compacted files too: by batch the lines after the first, which tells the format."""
    try:
        files = texts(spark, folder)
    except AnalysisException:
        return {}
    found = {}
    for name, text in files.items():
        number = name.removesuffix(".compact")
        if number.isdigit():
            version, *lines = text.splitlines()
            if version != "v1":
                raise InputError(f"{folder}/{name} has format {version}; this version of Tidemark reads v1")
            found[int(number)] = [None if line == "-" else json.loads(line) for line in lines if line]
    return found


def _offset(logged: dict[str, Any] | None, checkpoint: str) -> Offset | None:
    match logged:
        case None:
            return None
        case {"reservoirId": table, "reservoirVersion": version, "index": index, "isStartingVersion": bool(snapshot)}:
            return Offset(table, (int(version), int(index)), snapshot)
        case {"logOffset": number}:
            return Offset(None, (int(number), 0))
    raise InputError(f"checkpoint {checkpoint} is of a query that reads something else than Delta tables and files")


def _refuse_other_settings(checkpoint: str, conf: dict[str, str], pipeline: Pipeline) -> None:
    policy = conf.get(_POLICY, pipeline.spark.watermark_policy)
    if policy != pipeline.spark.watermark_policy:
        raise InputError(
            f"the query of checkpoint {checkpoint} ran with {_POLICY} {policy}, and the pipeline file says "
            f"spark.watermark_policy: {pipeline.spark.watermark_policy}"
        )
