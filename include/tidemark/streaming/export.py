"""Export a checkpoint to a live query: the buffered rows, the watermarks, and the query itself.

`export_markers` shows why a query that reads these rows first emits no pair twice and loses none.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from tidemark.checkpoints.checkpoint_ref import CheckpointRef
from tidemark.checkpoints.copy import read_buffered_rows
from tidemark.config.sides import SIDES
from tidemark.errors import UserError
from tidemark.formatting import ToDict
from tidemark.joins.factory import create_join, create_lane
from tidemark.joins.spark_stream_stream import StreamStreamJoin
from tidemark.sources.resolution import open_inputs
from tidemark.sources.stored_input import get_schemas
from tidemark.spark.temporary_settings import list_column_mapping_settings, override_settings
from tidemark.streaming import resume_query
from tidemark.streaming.export_markers import continue_from_state, create_watermark_seed_row, mark_rows
from tidemark.streaming.spark_query import create_spark_query
from tidemark.watermarks.micro_batch_lane import MicroBatchLane
from tidemark.watermarks.values import END_OF_INPUT, NO_WATERMARK

FORMAT = 1
"""Version of `state.json`."""
QUERY_MODULE = Path(resume_query.__file__).name


@dataclass(frozen=True)
class ExportResult(ToDict):
    """An exported checkpoint."""

    pipeline: str
    at: str
    folder: str
    left: int
    """Number of buffered left rows."""
    right: int
    """Number of buffered right rows."""
    watermarks_ms: dict[str, int | None]
    query: str | None
    """The module that resumes the join; None for Flink's dialects."""


def export_checkpoint(state: CheckpointRef, to: str) -> ExportResult:
    """Export a checkpoint to a new folder: Delta tables `left` and `right` (`mark_rows`), `state.json` and a README.

    In dialect spark the export contains a script with the query that resumes from it, and in each table a row that
    restores the side's watermark.

    Raises:
        UserError: The folder is not empty or not local, or no query can resume from the state.
        CheckFailedError, SliceOrderError, InputError: The checkpoint has expired and cannot be rebuilt.
    """
    folder = _resolve_new_folder(to)
    pipeline = state.pipeline
    watermarks = state.entry.watermarks
    _require_resumable(state)
    inputs = open_inputs(state.spark, pipeline, state.lake)
    join = create_join(pipeline, state.spark, get_schemas(inputs))
    rows, _ = read_buffered_rows(state)
    query = None
    for source in inputs:
        table = mark_rows(state, source, rows, join)
        if isinstance(join, StreamStreamJoin):
            seed_row = create_watermark_seed_row(state, inputs, source.side.name, join)
            table = table if seed_row is None else table.unionByName(seed_row)
        # One file, so that the first micro-batch reads all of it.
        with override_settings(state.spark, list_column_mapping_settings(table.schema)):
            table.coalesce(1).write.format("delta").save(f"{folder}/{source.side.name}")
    if isinstance(join, StreamStreamJoin):
        query = asdict(continue_from_state(create_spark_query(pipeline, inputs), join, max(0, watermarks.combined)))
        shutil.copy(str(resume_query.__file__), folder / QUERY_MODULE)
    result = ExportResult(
        pipeline.name,
        state.end_label,
        str(folder),
        *state.entry.carried,
        {name: _finite_watermark(getattr(watermarks, name)) for name in (*SIDES, "combined")},
        str(folder / QUERY_MODULE) if query else None,
    )
    content = {
        "format": FORMAT,
        **result.to_dict(),
        "dialect": pipeline.dialect,
        "inputs": {
            side: {"table": getattr(pipeline, side).table, "version": version, "where": getattr(pipeline, side).where}
            for side, version in zip(SIDES, state.entry.versions, strict=True)
        },
        "query": query,
    }
    (folder / "state.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
    readme = _SPARK_README if query else _FLINK_README
    (folder / "README.md").write_text(readme.format(**asdict(result)), encoding="utf-8")
    return result


def _resolve_new_folder(to: str) -> Path:
    if "://" in to:
        raise UserError(f"--to {to} is not a local folder. Export to one, and copy it.")
    folder = Path(to).resolve()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"--to {to} is not empty. Name a new folder.")
    return folder


def _require_resumable(state: CheckpointRef) -> None:
    """Check that a query that has just read the state equals the pipeline at that point.

    Raises:
        UserError: It would not.
    """
    pipeline, watermarks = state.pipeline, state.entry.watermarks
    if pipeline.join.window_inequality:
        raise UserError(
            f"{pipeline.name} compares windows: a row may be in the state for some of its windows only, which a new "
            "query cannot restore. Start the query from the input tables."
        )
    if pipeline.checkpoint_arrival:
        checkpoint = pipeline.checkpoint_arrival.streaming_checkpoint
        raise UserError(f"{pipeline.name} replays a query. Resume that from its own checkpoint, {checkpoint}.")
    if state.entry.is_end_of_input:
        raise UserError(
            f"the input was drained at {state.end_label}, so no row can follow. Export an earlier checkpoint."
        )
    lane = create_lane(pipeline, watermarks)
    if isinstance(lane, MicroBatchLane) and lane.next_watermark(watermarks) != (watermarks.batch or 0):
        raise UserError(
            f"at {state.end_label} a batch without data is still to run, and a new query would start with its "
            "watermark. Run the last slice with --drain, or export where the watermark has not just advanced."
        )


def _finite_watermark(watermark: int) -> int | None:
    return None if watermark in {NO_WATERMARK, END_OF_INPUT} else watermark


_SPARK_README = """\
# {pipeline}, from {at} on

The backfill ended at {at}. `left` and `right` are Delta tables of the rows that were in its buffers ({left} and
{right}), each with one further row that restores its side's watermark. `resume_query.py` resumes the query:

```python
import sys
sys.path.insert(0, "{folder}")
from resume_query import resume

left = ...   # streaming DataFrames of the rows after the backfill, with the inputs' own columns
right = ...
rows = resume(spark, left, right)
rows.writeStream.format("delta").option("checkpointLocation", "...").start("...")
```

It emits exactly what an uninterrupted join emits after {at}: no pair of two rows of the state again, no row of the
state alone that already has a partner, and no live row that is late for the backfill's watermark.

- The live rows are those that no slice before {at} has read. `state.json` contains the versions of the inputs that were
  read. Of these the rows with a clock at or after {at} follow, then the rows of later versions.
- Start it with a new checkpoint. Keep this folder in place as long as that checkpoint is used.
- Live rows may be waiting when it starts. The output depends, as always, on how they are divided into micro-batches;
  rows that the first one would evict are evicted with the second.
- The pipeline's `time_bounds` is not part of the query.
"""
_FLINK_README = """\
# {pipeline}, at {at}

`left` and `right` are Delta tables of the rows that were in the buffers at {at} ({left} and {right}). They contain the
input's own columns, and in `_tidemark` the event time and `already_emitted`, true if the row has a partner (null if
unknown). `state.json` contains the watermarks in ms, and the versions of the inputs that were read.

A Flink job reads these rows first, then the rows that follow, filtered by each input's `where` in `state.json`.
Matching pairs of two of these rows have been emitted already, so the job has to mark the rows with a column and drop
such pairs. For inner interval joins no other output of these rows alone has been emitted.

Not guaranteed: padded rows, windows that have fired, timers and the watermark. A new job has no watermark before it has
read these rows, and then that of the newest of them, which may be lower than the one in `state.json`.
"""
