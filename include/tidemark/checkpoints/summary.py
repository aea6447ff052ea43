"""What is in the buffers at the end of a slice, and where the watermarks stand."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import functions as F

from tidemark.checkpoints.checkpoint_ref import SavedState
from tidemark.config.sides import SIDES
from tidemark.config.types import format_instant, from_micros
from tidemark.delta.table import DeltaLog
from tidemark.watermarks.buckets import END_OF_INPUT, NO_WATERMARK


@dataclass(frozen=True)
class Buffer:
    """One side's rows in the buffers; all but `rows` are None where the checkpoint has expired."""

    rows: int
    bytes: int | None
    """Their part of the checkpoint's files."""
    oldest: str | None
    newest: str | None
    """Event times, UTC; None without rows that have one."""


@dataclass(frozen=True)
class Shown:
    """A state in figures."""

    pipeline: str
    at: str
    run: str
    attempt: int
    commit: int
    digest: str | None
    kept: bool
    """Whether the checkpoint has not expired."""
    watermarks: dict[str, str | None]
    """The watermarks `left`, `right` and `combined`, UTC; None before an input's first row."""
    left: Buffer
    right: Buffer
    sample: list[dict[str, Any]]
    """Some of the rows: side, event time, and the input's row."""

    def describe(self) -> dict[str, Any]:
        """Give it to scripts: JSON-ready."""
        return asdict(self)


def show(state: SavedState, rows: int = 0) -> Shown:
    """What is known of a state, with a sample of so many rows."""
    entry, marks = state.entry, state.entry.watermarks
    kept = state.is_kept(entry)
    left, right = _buffers(state) if kept else (Buffer(count, None, None, None) for count in entry.carried)
    return Shown(
        state.pipeline.name,
        state.label,
        entry.run,
        entry.attempt,
        entry.commit,
        entry.digest,
        kept,
        {"left": _instant(marks.left), "right": _instant(marks.right), "combined": _instant(marks.combined)},
        left,
        right,
        sample_of(state, rows) if kept and rows else [],
    )


def sample_of(state: SavedState, count: int) -> list[dict[str, Any]]:
    """Some of the rows in the buffers: JSON-ready."""
    rows = state.rows(state.entry).orderBy("side", "event_time").limit(count)
    texts = rows.select("side", "event_time", F.coalesce(*(F.to_json(side) for side in SIDES)).alias("row"))
    return [
        {"side": row["side"], "event_time": time_of(state, row["event_time"]), "row": json.loads(row["row"])}
        for row in texts.collect()
    ]


def time_of(state: SavedState, event_time: float | None) -> str | None:
    """An event time in the dialect's ticks, as people write it."""
    if event_time is None or pd.isna(event_time):
        return None
    return format_instant(from_micros(int(event_time) * state.pipeline.tick))


def _buffers(state: SavedState) -> tuple[Buffer, Buffer]:
    log, end = DeltaLog.open(state.ledger.tables.checkpoint), pa.scalar(state.grid.datetime_of(state.entry.number))
    if log is None:
        return Buffer(0, 0, None, None), Buffer(0, 0, None, None)
    held = (ds.field("carried_from") <= end) & (ds.field("carried_until") > end)
    columns = ["side", "event_time", "carried_from", "carried_until"]
    rows = log.read(columns, held, file="path").to_pandas(integer_object_nulls=True)
    per_row = (log.files["size"] / log.files["rows"]).set_axis(log.files["path"])
    left, right = (
        Buffer(
            len(mine),
            round(float(per_row.reindex(mine["path"]).sum())),
            time_of(state, mine["event_time"].dropna().min()),
            time_of(state, mine["event_time"].dropna().max()),
        )
        for mine in (rows[rows["side"] == side] for side in SIDES)
    )
    return left, right


def _instant(watermark: int) -> str | None:
    if watermark == END_OF_INPUT:
        return "end of input"
    return None if watermark == NO_WATERMARK else format_instant(from_micros(watermark * 1000))
