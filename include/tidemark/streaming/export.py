"""What a live query needs to go on where a backfill ended: the buffered rows, the watermarks, and the query itself.

docs/decisions/0017-state-as-tables.md says why a query that reads these rows first emits no pair twice and loses none.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tidemark.checkpoints.checkpoint_ref import SavedState
from tidemark.checkpoints.copy import buffered_rows
from tidemark.config.sides import SIDES
from tidemark.errors import UserError
from tidemark.joins import join_of, lane_of
from tidemark.joins.spark_stream_stream import MicroBatchJoin
from tidemark.sources.stored_input import schemas_of, stored_inputs
from tidemark.streaming import export_readme, resume_query
from tidemark.streaming.export_markers import bearer, handed_over, marked
from tidemark.streaming.spark_query import query_text
from tidemark.watermarks.buckets import END_OF_INPUT, NO_WATERMARK
from tidemark.watermarks.micro_batches import QueryLane

FORMAT = 1
"""Version of `state.json`."""


@dataclass(frozen=True)
class Exported:
    """A state, handed on."""

    pipeline: str
    at: str
    folder: str
    left: int
    right: int
    """Rows of it."""
    watermarks_ms: dict[str, int | None]
    query: str | None
    """The module that goes on with the join; None for Flink's dialects."""

    def describe(self) -> dict[str, Any]:
        """Give it to scripts: JSON-ready."""
        return asdict(self)


def export(state: SavedState, to: str) -> Exported:
    """Write a state to a new folder: Delta tables `left` and `right` (`handover.marked`), `state.json`, and a README.

    In dialect spark also `continued.py`, the query that goes on from it, and with each side's rows one that brings its
    watermark.

    Raises:
        UserError: the folder is not empty, or not on this machine; or no query can go on from the state.
        CheckFailedError, SliceOrderError, InputError: the checkpoint has expired and cannot be rebuilt.
    """
    folder, pipeline, marks = _new_folder(to), state.pipeline, state.entry.watermarks
    _refuse_unsettled(state)
    inputs = stored_inputs(state.spark, pipeline, state.lake)
    join = join_of(pipeline, state.spark, schemas_of(inputs))
    rows, _ = buffered_rows(state)
    query = None
    for source in inputs:
        table = marked(state, source, rows, join)
        if isinstance(join, MicroBatchJoin) and (brings := bearer(state, inputs, source.side.name, join)) is not None:
            table = table.unionByName(brings)
        # One file, so that the first micro-batch reads all of it.
        table.coalesce(1).write.format("delta").save(f"{folder}/{source.side.name}")
    if isinstance(join, MicroBatchJoin):
        query = asdict(handed_over(query_text(pipeline, inputs), join, max(0, marks.combined)))
        shutil.copy(str(resume_query.__file__), folder / "continued.py")
    exported = Exported(
        pipeline.name,
        state.label,
        str(folder),
        *state.entry.carried,
        {name: _known(getattr(marks, name)) for name in (*SIDES, "combined")},
        str(folder / "continued.py") if query else None,
    )
    text = {
        "format": FORMAT,
        **exported.describe(),
        "dialect": pipeline.dialect,
        "inputs": {
            side: {"table": getattr(pipeline, side).table, "version": version, "where": getattr(pipeline, side).where}
            for side, version in zip(SIDES, state.entry.versions, strict=True)
        },
        "query": query,
    }
    (folder / "state.json").write_text(json.dumps(text, indent=1), encoding="utf-8")
    (folder / "README.md").write_text(
        (export_readme.SPARK if query else export_readme.FLINK).format(**asdict(exported)), encoding="utf-8"
    )
    return exported


def _new_folder(to: str) -> Path:
    if "://" in to:
        raise UserError(f"--to {to} is not a folder on this machine; export to one, and copy it")
    folder = Path(to).resolve()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"--to {to} is not empty; name a new folder")
    return folder


def _refuse_unsettled(state: SavedState) -> None:
    """See that a query that has just read the state stands where the pipeline does.

    Raises:
        UserError: it would not.
    """
    pipeline, marks = state.pipeline, state.entry.watermarks
    if pipeline.join.window_inequality:
        raise UserError(
            f"{pipeline.name} compares windows, and a row may be in the state for some of its windows only, which a "
            "query that reads it anew would not know; start the query from the input tables"
        )
    if pipeline.trace:
        raise UserError(
            f"{pipeline.name} replays a query, which goes on from its own checkpoint {pipeline.trace.trace}; there is "
            "nothing to export"
        )
    if state.entry.drained:
        raise UserError(f"the input was drained at {state.label}: no row can follow, so there is nothing to export")
    lane = lane_of(pipeline, marks)
    if isinstance(lane, QueryLane) and lane.next_watermark(marks) != (marks.batch or 0):
        raise UserError(
            f"at {state.label} a batch without data is still to run, whose watermark a new query would have already; "
            "run the last slice with --drain, or export where the watermark has not just advanced"
        )


def _known(watermark: int) -> int | None:
    return None if watermark in {NO_WATERMARK, END_OF_INPUT} else watermark
