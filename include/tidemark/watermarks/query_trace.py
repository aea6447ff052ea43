"""Read a Structured Streaming query's checkpoint: its micro-batches and the source offsets of each.

For a source of files the checkpoint also has the paths, for a Delta table only a version and the index of a file.
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

FilePosition = tuple[int, int]
"""Version of a table and index of a file among those it adds; or the number of an entry in a source's log, and 0."""
_POLICY = "spark.sql.streaming.multipleWatermarkPolicy"
_NOT_READ = (-1, 0)


@dataclass(frozen=True)
class Offset:
    """Last file of a source that a batch has read."""

    table: str | None
    """Id in the metadata of a Delta table, None for a source of files."""
    position: FilePosition
    """Position of the file, inclusive. A negative index is before the files of a version."""
    is_snapshot: bool = False
    """True while the files are those of the table's initial snapshot at this version."""


@dataclass(frozen=True)
class Batch:
    """A committed micro-batch."""

    clock: int
    """Timestamp, microseconds; at least 1 ms after the previous batch."""
    watermark: int
    """Watermark that evicted rows in this batch, ms. The previous batch's watermark made rows late."""
    offsets: tuple[Offset | None, ...]
    """End of the batch by source; None if the source had nothing yet."""


@dataclass(frozen=True)
class QueryTrace:
    """The committed batches of a query, empty ones included."""

    checkpoint: str
    batches: tuple[Batch, ...]
    pending_clock: int | None
    """Clock of the earliest batch that has begun but is not committed."""

    @classmethod
    def read(cls, spark: SparkSession, checkpoint: str, pipeline: Pipeline) -> QueryTrace:
        """Read a checkpoint's offset and commit logs.

        Raises:
            InputError: There is no checkpoint, its first batches are missing, or its format or settings differ.
        """
        offsets, commits = (_read_log(spark, f"{checkpoint}/{log}") for log in ("offsets", "commits"))
        if not offsets:
            raise InputError(
                f"{checkpoint} is not a checkpoint of a streaming query: it has no offset log. Name the query's "
                "checkpointLocation."
            )
        if 0 not in offsets:
            raise InputError(
                f"Checkpoint {checkpoint} begins with batch {min(offsets)}: Spark has removed the offsets before it. "
                "Run the query with spark.sql.streaming.minBatchesToRetain above the number of its batches."
            )
        clock = 0
        batches = []
        for batch_id in sorted(offsets):
            header = offsets[batch_id][0]
            sources = offsets[batch_id][1:]
            if batch_id == 0:
                _check_policy(checkpoint, header.get("conf", {}), pipeline)
            clock = max(clock + 1000, header["batchTimestampMs"] * 1000)
            ends = tuple(_parse_offset(offset, checkpoint) for offset in sources)
            batches.append((batch_id, Batch(clock, header["batchWatermarkMs"], ends)))
        pending = [batch.clock for batch_id, batch in batches if batch_id not in commits]
        committed = tuple(batch for batch_id, batch in batches if batch_id in commits)
        if not committed:
            raise InputError(f"Checkpoint {checkpoint} has no committed batch yet. Wait for the query's first batch.")
        return cls(checkpoint, committed, min(pending, default=None))

    def find_end_slice(self, grid: Grid) -> int:
        """Return the first slice whose batches are incomplete; the slices before it can run."""
        last = grid.number_at(self.batches[-1].clock)
        return last + 1 if self.pending_clock is None else min(last + 1, grid.number_at(self.pending_clock))

    def list_sources(self) -> dict[int, str | None]:
        """Return `Offset.table` of the sources that were read, by their number in the query."""
        ends = ((n, offset) for batch in self.batches for n, offset in enumerate(batch.offsets))
        return {n: offset.table for n, offset in ends if offset is not None}

    def list_offsets(self, source: int) -> list[Offset | None]:
        """Return the offset of a source at the end of each batch."""
        return [batch.offsets[source] for batch in self.batches]

    def find_read_clocks(self, source: int, positions: Iterable[FilePosition]) -> Iterator[int | None]:
        """Yield the clock of the batch that read each file of a source; None if no batch has read it."""
        ends = [offset.position if offset else _NOT_READ for offset in self.list_offsets(source)]
        for position in positions:
            batch = bisect_left(ends, position)
            yield self.batches[batch].clock if batch < len(ends) else None

    def list_files(self, spark: SparkSession, source: int) -> dict[str, FilePosition]:
        """Return the positions of the files that a source of files listed for the query, by path (URI).

        Raises:
            InputError: The list is missing.
        """
        log = f"{self.checkpoint}/sources/{source}"
        batches = _read_log(spark, log)
        if not batches:
            raise InputError(f"{log} is missing: the files that the query has read are unknown. Restore the folder.")
        return {file["path"]: (file["batchId"], 0) for files in batches.values() for file in files}


def read_texts(spark: SparkSession, paths: str | list[str]) -> dict[str, str]:
    """Return the contents of small files by name."""
    files = spark.read.text(paths, wholetext=True)
    rows = files.select("value", F.col("_metadata.file_name").alias("name")).collect()
    return {row["name"]: row["value"] for row in rows}


def _read_log(spark: SparkSession, folder: str) -> dict[int, list[Any]]:
    """Return the entries of a metadata log by batch, those of compacted files included; {} if there is no log."""
    try:
        files = read_texts(spark, folder)
    except AnalysisException:
        return {}
    batches = {}
    for name, content in files.items():
        batch = name.removesuffix(".compact")
        if batch.isdigit():
            version, *lines = content.splitlines()
            if version != "v1":
                raise InputError(f"{folder}/{name} has format {version}. This version of Tidemark reads format v1.")
            batches[int(batch)] = [None if line == "-" else json.loads(line) for line in lines if line]
    return batches


def _parse_offset(offset: dict[str, Any] | None, checkpoint: str) -> Offset | None:
    match offset:
        case None:
            return None
        case {"reservoirId": table, "reservoirVersion": version, "index": index, "isStartingVersion": bool(snapshot)}:
            return Offset(table, (int(version), int(index)), snapshot)
        case {"logOffset": number}:
            return Offset(None, (int(number), 0))
    raise InputError(
        f"Checkpoint {checkpoint} is of a query with sources that are neither Delta tables nor files. "
        "Use a query that reads only these."
    )


def _check_policy(checkpoint: str, conf: dict[str, str], pipeline: Pipeline) -> None:
    policy = conf.get(_POLICY, pipeline.spark.multiple_watermark_policy)
    if policy != pipeline.spark.multiple_watermark_policy:
        raise InputError(
            f"The query of checkpoint {checkpoint} ran with {_POLICY} {policy}, but the pipeline file has "
            f"spark.multiple_watermark_policy: {pipeline.spark.multiple_watermark_policy}. Make the two equal."
        )
