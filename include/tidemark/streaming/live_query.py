"""Run a pipeline's join as a real Structured Streaming query, to compare with.

By default its rows are written again as a feed, and the query reads one file per batch: a slice. With `micro_batches:
idle` a file without rows of either input follows each slice, where an idle query would run a batch without data. At
rate `now` there is no feed: the query reads the input tables.
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
from tidemark.config.types import format_duration, to_micros
from tidemark.delta.paths import resolve_path
from tidemark.errors import PipelineFileError
from tidemark.formatting import ToDict
from tidemark.joins.output_schema import check_expressions
from tidemark.joins.rules.spark import has_state_eviction
from tidemark.ledger.ledger import Ledger
from tidemark.sources.resolution import open_inputs
from tidemark.spark.engine import get_engine, require_classic_session
from tidemark.spark.temporary_settings import list_column_mapping_settings, override_settings
from tidemark.streaming.replay_source import Rate, read_feed, write_feed
from tidemark.streaming.resume_query import filter_at_source, join_sides, select_side
from tidemark.streaming.spark_query import create_spark_query
from tidemark.timegrid.slices import Grid
from tidemark.watermarks.query_trace import QueryTrace

OnBatches = Callable[[int, int | None], None]
"""Callback with the number of completed batches, and with their total if known."""
_REPLAY_SLICES = timedelta(minutes=1)


@dataclass(frozen=True)
class LiveQueryPaths:
    """Locations of a live query's tables."""

    table: str
    """The output of the query."""
    checkpoint: str
    feed: str
    replay: str
    """A pipeline file that replays the query."""

    @classmethod
    def from_pipeline(cls, pipeline: Pipeline, lake: str, into: str | None, checkpoint: str | None) -> LiveQueryPaths:
        """Return paths under the pipeline's folder, except those that the user gives."""
        root = Ledger.from_pipeline(pipeline, lake).tables.live_query
        return cls(
            resolve_path(lake, into) if into else f"{root}/emissions",
            resolve_path(lake, checkpoint) if checkpoint else f"{root}/_checkpoint",
            f"{root}/feed",
            f"{root}/replay.yaml",
        )


@dataclass(frozen=True)
class LiveQueryResult(ToDict):
    """Result of a live query."""

    pipeline: str
    rate: str
    table: str
    rows: int
    """Number of rows in the table."""
    dropped: int
    """Number of late rows dropped in this run, as counted by the engine: one per window."""
    batches: int
    """Number of batches of this run and of earlier ones."""
    watermark_ms: int
    """Watermark of the last batch."""
    checkpoint: str
    replay: str | None
    """A pipeline file that replays the query; None if the lake is not a local folder."""
    replay_to: str
    """End of that file's last slice with a batch."""
    seconds: float


def run_live_query(
    spark: SparkSession, pipeline: Pipeline, lake: str, paths: LiveQueryPaths, rate: Rate, on_batches: OnBatches
) -> LiveQueryResult:
    """Run a pipeline's join as a streaming query until all input rows are read.

    Raises:
        PipelineFileError: The dialect is not spark, or expressions do not fit the inputs.
        InputError: An input is unusable, or the live query exists already.
        UserError: The session is of Spark Connect.
    """
    require_classic_session(spark, "tidemark stream")
    began = time.monotonic()
    if pipeline.dialect != "spark" or pipeline.checkpoint_arrival:
        reason = "replays a streaming checkpoint" if pipeline.checkpoint_arrival else f"has dialect {pipeline.dialect}"
        raise PipelineFileError(
            f"{pipeline.name} {reason}. A live query needs `dialect: spark`, and no streaming checkpoint as arrival."
        )
    grid = Grid.from_config(pipeline.slices)
    inputs = open_inputs(spark, pipeline, lake)
    check_expressions(spark, pipeline, grid, *(source.side.schema for source in inputs))
    batches = None
    if rate == "now":
        streams = [spark.readStream.format("delta").load(source.table.path) for source in inputs]
    else:
        pauses = rate == "slice" and pipeline.spark.micro_batches == "idle" and has_state_eviction(pipeline)
        batches = write_feed(inputs, grid, paths.feed, rate, pauses=pauses)
        streams = [read_feed(spark, paths.feed, side) for side in SIDES]
    query = asdict(create_spark_query(pipeline, inputs))
    sides: dict[str, DataFrame] = {
        side: select_side(filter_at_source(rows, query[side]), side, query[side]["columns"], query[side]["time"])
        for side, rows in zip(SIDES, streams, strict=True)
    }
    with override_settings(spark, _session_settings(spark, query["settings"], batches)):
        rows = join_sides(query, sides)
        sink = rows.writeStream.format("delta").outputMode("append").option("checkpointLocation", paths.checkpoint)
        with override_settings(spark, list_column_mapping_settings(rows.schema)):
            running = sink.trigger(availableNow=True).start(paths.table)
    dropped = _await_end(running, on_batches, batches)
    trace = QueryTrace.read(spark, paths.checkpoint, pipeline)
    replay_grid = _replay_grid(trace)
    return LiveQueryResult(
        pipeline=pipeline.name,
        rate=f"{rate} rows" if isinstance(rate, int) else rate,
        table=paths.table,
        rows=spark.read.format("delta").load(paths.table).count(),
        dropped=dropped,
        batches=len(trace.batches),
        watermark_ms=trace.batches[-1].watermark,
        checkpoint=paths.checkpoint,
        replay=_write_replay(pipeline, paths, trace, has_feed=rate != "now"),
        replay_to=replay_grid.label(trace.find_end_slice(replay_grid)),
        seconds=round(time.monotonic() - began, 1),
    )


def _session_settings(spark: SparkSession, query_settings: dict[str, str], batches: int | None) -> dict[str, str]:
    """Return the session settings for the start of the query, which it then keeps."""
    return {
        **query_settings,
        "spark.sql.shuffle.partitions": str(get_engine(spark).count_cores()),
        # A trace needs all batches, and the count of late rows needs their progress.
        "spark.sql.streaming.minBatchesToRetain": str((batches or 0) + 1000),
        "spark.sql.streaming.numRecentProgressUpdates": str((batches or 0) + 1000),
    }


def _await_end(query: StreamingQuery, on_batches: OnBatches, batches: int | None) -> int:
    """Wait for the end of a query, and return the number of rows that it dropped."""
    try:
        while not query.awaitTermination(1):
            last = query.lastProgress
            on_batches(last["batchId"] + 1 if last else 0, batches)
    finally:
        query.stop()
    operators = (operator for batch in query.recentProgress for operator in batch["stateOperators"])
    return sum(operator["numRowsDroppedByWatermark"] for operator in operators)


def _replay_grid(trace: QueryTrace) -> Grid:
    every = to_micros(_REPLAY_SLICES)
    return Grid(trace.batches[0].clock // every * every, every)


def _write_replay(pipeline: Pipeline, paths: LiveQueryPaths, trace: QueryTrace, *, has_feed: bool) -> str | None:
    """Write the pipeline file with which `run` replays the query, and return its path."""
    if "://" in paths.replay:
        return None
    arrival = {"streaming_checkpoint": paths.checkpoint}
    table = {"table": paths.feed} if has_feed else {}
    # The checkpoint has the batches, and with them the completeness of the inputs. `quality` has the suite's
    # expectations, and periods may not fit the slices of the replay.
    replaced: dict[str, Any] = {"spark": {"micro_batches"}, **{side: {"complete"} for side in SIDES}}
    replaced |= dict.fromkeys(("expectation_suite", "compare", "compact", "airflow", "notify"), True)
    settings = pipeline.model_dump(mode="json", exclude_defaults=True, exclude=replaced)
    settings |= {side: {**settings[side], **table, "arrival": arrival} for side in SIDES}
    settings |= {
        "name": f"{pipeline.name}_replay",
        "output": f"{pipeline.output}/live_query/replay",
        "slices": {"every": format_duration(_REPLAY_SLICES), "start": _replay_grid(trace).label(0)},
    }
    path = Path(paths.replay)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    return str(path)
