"""The streaming twin: a pipeline's join run as a real Structured Streaming query, into a Delta table.

By default its rows are written once more, as a feed, and the query reads a file of it a batch: a slice. With `batches:
idle` a file without rows of either input follows each slice, where an idle query would run its batch without data. At
rate `now` there is no feed: the query reads the inputs as they lie.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tidemark.config import Pipeline
from tidemark.config.sides import SIDES
from tidemark.config.types import format_duration, micros
from tidemark.delta.paths import place
from tidemark.errors import PipelineFileError
from tidemark.joins.output_schema import check_expressions
from tidemark.joins.rules.spark import evicts
from tidemark.ledger.ledger import Ledger
from tidemark.sources.stored_input import stored_inputs
from tidemark.spark.engine import engine_of, need_classic
from tidemark.spark.temporary_settings import session_settings
from tidemark.streaming.replay_source import Rate, read_feed, write_feed
from tidemark.streaming.resume_query import joined, of_source, side_rows
from tidemark.streaming.spark_query import query_text
from tidemark.timegrid.slices import Grid
from tidemark.watermarks.query_trace import QueryTrace

Progress = Callable[[int, int | None], None]
"""Is told how many batches have ended, and how many there will be, where that is known."""
_REPLAY_SLICES = timedelta(minutes=1)


@dataclass(frozen=True)
class TwinPaths:
    """Where a twin's tables are."""

    table: str
    """What the query emits."""
    checkpoint: str
    feed: str
    replay: str
    """A pipeline file that replays the query."""

    @classmethod
    def of(cls, pipeline: Pipeline, lake: str, into: str | None, checkpoint: str | None) -> TwinPaths:
        """Under the pipeline's folder, but for what the user has named."""
        root = Ledger.of(pipeline, lake).tables.twin
        return cls(
            place(lake, into) if into else f"{root}/emissions",
            place(lake, checkpoint) if checkpoint else f"{root}/_checkpoint",
            f"{root}/feed",
            f"{root}/replay.yaml",
        )


@dataclass(frozen=True)
class TwinResult:
    """What a twin has done."""

    pipeline: str
    rate: str
    table: str
    rows: int
    """That the table holds."""
    dropped: int
    """Rows that came behind the watermark, as the engine counts them: one for each window, in this run."""
    batches: int
    """That the query has run, in this run and those before."""
    watermark_ms: int
    """The watermark of the last batch."""
    checkpoint: str
    replay: str | None
    """A pipeline file that replays the query, None where the lake is not on this machine."""
    replay_to: str
    """The end of that file's last slice with a batch."""
    seconds: float

    def describe(self) -> dict[str, Any]:
        """Give it to scripts: JSON-ready."""
        return asdict(self)


def stream(
    spark: SparkSession, pipeline: Pipeline, lake: str, paths: TwinPaths, rate: Rate, progress: Progress
) -> TwinResult:
    """Run a pipeline's join as a streaming query until its inputs are read.

    Raises:
        PipelineFileError: it is not of dialect spark, or its expressions do not suit the inputs.
        InputError: an input does not serve, or there is a twin already.
        UserError: the session is a Spark Connect server's.
    """
    need_classic(spark, "tidemark stream")
    began = time.monotonic()
    if pipeline.dialect != "spark" or pipeline.trace:
        what = "replays a trace" if pipeline.trace else f"is of dialect {pipeline.dialect}"
        raise PipelineFileError(f"{pipeline.name} {what}; a twin is a Spark query of its own: dialect: spark, no trace")
    grid = Grid.of(pipeline.slices)
    inputs = stored_inputs(spark, pipeline, lake)
    check_expressions(spark, pipeline, grid, *(source.side.schema for source in inputs))
    batches = None
    if rate == "now":
        read = [spark.readStream.format("delta").load(source.table.path) for source in inputs]
    else:
        pauses = rate == "slice" and pipeline.spark.batches == "idle" and evicts(pipeline)
        batches = write_feed(inputs, grid, paths.feed, rate, pauses=pauses)
        read = [read_feed(spark, paths.feed, side) for side in SIDES]
    query = asdict(query_text(pipeline, inputs))
    sides: dict[str, DataFrame] = {
        side: side_rows(of_source(rows, query[side]), side, query[side]["columns"], query[side]["time"])
        for side, rows in zip(SIDES, read, strict=True)
    }
    with session_settings(spark, _settings(spark, query["settings"], batches)):
        sink = joined(query, sides).writeStream.format("delta").outputMode("append")
        running = sink.trigger(availableNow=True).option("checkpointLocation", paths.checkpoint).start(paths.table)
    dropped = _followed(running, progress, batches)
    trace = QueryTrace.read(spark, paths.checkpoint, pipeline)
    return TwinResult(
        pipeline.name,
        f"{rate} rows" if isinstance(rate, int) else rate,
        paths.table,
        spark.read.format("delta").load(paths.table).count(),
        dropped,
        len(trace.batches),
        trace.batches[-1].watermark,
        paths.checkpoint,
        _write_replay(pipeline, paths, trace, fed=rate != "now"),
        _replay_grid(trace).name(trace.end(_replay_grid(trace))),
        round(time.monotonic() - began, 1),
    )


def _settings(spark: SparkSession, query: dict[str, str], batches: int | None) -> dict[str, str]:
    """The session's settings while the query starts, which it then keeps."""
    return {
        **query,
        "spark.sql.shuffle.partitions": str(engine_of(spark).cores()),
        # A trace needs all of its batches, and the engine's own count of late rows their progress.
        "spark.sql.streaming.minBatchesToRetain": str((batches or 0) + 1000),
        "spark.sql.streaming.numRecentProgressUpdates": str((batches or 0) + 1000),
    }


def _followed(query: StreamingQuery, progress: Progress, batches: int | None) -> int:
    """Wait for the end of a query; gives how many rows it has dropped."""
    try:
        while not query.awaitTermination(1):
            last = query.lastProgress
            progress(last["batchId"] + 1 if last else 0, batches)
    finally:
        query.stop()
    operators = (operator for batch in query.recentProgress for operator in batch["stateOperators"])
    return sum(operator["numRowsDroppedByWatermark"] for operator in operators)


def _replay_grid(trace: QueryTrace) -> Grid:
    every = micros(_REPLAY_SLICES)
    return Grid(trace.batches[0].clock // every * every, every)


def _write_replay(pipeline: Pipeline, paths: TwinPaths, trace: QueryTrace, *, fed: bool) -> str | None:
    """Write the pipeline file with which `run` replays the query; gives its path."""
    if "://" in paths.replay:
        return None
    arrival = {"trace": paths.checkpoint}
    table = {"table": paths.feed} if fed else {}
    settings = pipeline.model_dump(mode="json", exclude_defaults=True)
    settings |= {side: {**settings[side], **table, "arrival": arrival} for side in SIDES}
    settings |= {
        "name": f"{pipeline.name}_replay",
        "output": f"{pipeline.output}/twin/replay",
        "slices": {"every": format_duration(_REPLAY_SLICES), "start": _replay_grid(trace).name(0)},
    }
    path = Path(paths.replay)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    return str(path)
