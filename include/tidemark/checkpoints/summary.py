"""Summarize a checkpoint: rows in the buffers and watermarks at the end of a slice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import functions as F

from tidemark.checkpoints.checkpoint_ref import CheckpointRef
from tidemark.config.sides import SIDES
from tidemark.config.types import format_micros
from tidemark.delta.table import DeltaTableHandle
from tidemark.formatting import ToDict
from tidemark.ledger.entry import format_watermark
from tidemark.timegrid.time_columns import as_example_json, parse_example_json


@dataclass(frozen=True)
class BufferSummary:
    """One side's rows in the buffers; all fields but `rows` are None if the checkpoint has expired."""

    rows: int
    bytes: int | None
    """Estimated share of the checkpoint's files."""
    oldest_event_time: str | None
    newest_event_time: str | None
    """Event times in UTC; None without rows that have one."""


@dataclass(frozen=True)
class CheckpointSummary(ToDict):
    """Figures and sample rows of a checkpoint."""

    pipeline: str
    end: str
    run: str
    attempt: int
    commit: int
    fingerprint: str | None
    has_checkpoint: bool
    """True if the checkpoint has not expired."""
    watermarks: dict[str, str | None]
    """The watermarks `left`, `right` and `combined`, UTC; None before an input's first row."""
    left: BufferSummary
    right: BufferSummary
    sample_rows: list[dict[str, Any]]
    """Some rows with side, event time and the input's row."""


def summarize_checkpoint(checkpoint: CheckpointRef, rows: int = 0) -> CheckpointSummary:
    """Summarize a checkpoint, with a sample of at most `rows` rows."""
    entry, watermarks = checkpoint.entry, checkpoint.entry.watermarks
    has_checkpoint = checkpoint.has_checkpoint(entry)
    left, right = (
        _summarize_buffers(checkpoint)
        if has_checkpoint
        else (BufferSummary(count, None, None, None) for count in entry.carried)
    )
    return CheckpointSummary(
        checkpoint.pipeline.name,
        checkpoint.end_label,
        entry.run,
        entry.attempt,
        entry.commit,
        entry.fingerprint,
        has_checkpoint,
        {
            "left": format_watermark(watermarks.left),
            "right": format_watermark(watermarks.right),
            "combined": format_watermark(watermarks.combined),
        },
        left,
        right,
        sample_buffered_rows(checkpoint, rows) if has_checkpoint and rows else [],
    )


def sample_buffered_rows(checkpoint: CheckpointRef, count: int) -> list[dict[str, Any]]:
    """Return some rows in the buffers as JSON-ready dictionaries."""
    rows = checkpoint.read_rows(checkpoint.entry).orderBy("side", "event_time").limit(count)
    row_json = rows.select(
        "side", "event_time", F.coalesce(*(as_example_json(F.col(side)) for side in SIDES)).alias("row")
    )
    return [
        {
            "side": row["side"],
            "event_time": format_event_time(checkpoint, row["event_time"]),
            "row": parse_example_json(row["row"], rows.schema[row["side"]].dataType),
        }
        for row in row_json.collect()
    ]


def format_event_time(checkpoint: CheckpointRef, event_time: float | None) -> str | None:
    """Format an event time in the dialect's ticks as an instant."""
    if event_time is None or pd.isna(event_time):
        return None
    return format_micros(int(event_time) * checkpoint.pipeline.tick_micros)


def _summarize_buffers(checkpoint: CheckpointRef) -> tuple[BufferSummary, BufferSummary]:
    log, end = (
        DeltaTableHandle.open(checkpoint.ledger.tables.checkpoint),
        pa.scalar(checkpoint.grid.datetime_of(checkpoint.entry.number)),
    )
    if log is None:
        return BufferSummary(0, 0, None, None), BufferSummary(0, 0, None, None)
    is_carried = (ds.field("carried_from") <= end) & (ds.field("carried_until") > end)
    columns = ["side", "event_time", "carried_from", "carried_until"]
    rows = log.read(columns, is_carried, path_column="path").to_pandas(integer_object_nulls=True)
    per_row = (log.files["size"] / log.files["rows"]).set_axis(log.files["path"])
    left, right = (
        BufferSummary(
            len(side_rows),
            round(float(per_row.reindex(side_rows["path"]).sum())),
            format_event_time(checkpoint, side_rows["event_time"].dropna().min()),
            format_event_time(checkpoint, side_rows["event_time"].dropna().max()),
        )
        for side_rows in (rows[rows["side"] == side] for side in SIDES)
    )
    return left, right
