"""Render checkpoints for a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from rich import filesize
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tidemark.checkpoints.copy import CheckpointCopy
from tidemark.checkpoints.expiry import ExpiryResult
from tidemark.checkpoints.summary import BufferSummary, CheckpointSummary
from tidemark.checkpoints.verification import CheckpointVerification
from tidemark.cli.rich_table import create_table
from tidemark.formatting import format_count, quote_identifier
from tidemark.streaming.export import ExportResult

_MAX_SLICES = 10
"""Number of slices that are listed at most."""


def render_summary(state: CheckpointSummary) -> RenderableType:
    """Show watermarks, buffers and a sample of rows."""
    table = _create_table(f"State of {state.pipeline} at {state.end}")
    table.add_row("run", f"{state.run} (attempt {state.attempt}, commit {state.commit})")
    table.add_row("fingerprint", state.fingerprint or "none")
    table.add_row("checkpoint", "kept" if state.has_checkpoint else "expired")
    for name, watermark in state.watermarks.items():
        table.add_row(f"{name} watermark", watermark or "none yet")
    for side, buffer in (("left", state.left), ("right", state.right)):
        table.add_row(f"{side} rows", _describe_buffer(buffer))
    return Group(table, *_render_rows(state.sample_rows)) if state.sample_rows else table


def render_verification(verified: CheckpointVerification) -> RenderableType:
    """Show if a checkpoint is right, and the rows that differ."""
    table = _create_table(f"State of {verified.pipeline} at {verified.end}")
    slices, jobs = format_count(verified.slices, "slice"), format_count(verified.jobs, "job")
    table.add_row("replayed", f"{slices} from {verified.replayed_from}, in {jobs}")
    table.add_row("fingerprint", f"{verified.fingerprint or 'none'}\n{verified.rebuilt_fingerprint} as rebuilt")
    if verified.differing_slices:
        table.add_row("slices whose state differs", _list_slices(verified.differing_slices))
    if verified.has_checkpoint:
        table.add_row("extra rows", f"{verified.rows_only_stored:,}")
        table.add_row("missing rows", f"{verified.rows_only_rebuilt:,}")
    if verified.is_equal:
        conclusion = Text("the same", "green")
    elif verified.is_checkpoint_equal:
        earlier = format_count(len(verified.differing_slices), "earlier slice")
        conclusion = Text(f"the checkpoint is the same, but the state after {earlier} differs", "red")
    else:
        conclusion = Text("the checkpoint differs from the rebuilt state", "red")
    more = "" if verified.has_checkpoint else " (its checkpoint has expired: only fingerprints were compared)"
    return Group(table, conclusion.append(more), *_render_rows(verified.differing_rows))


def _list_slices(starts: Sequence[str]) -> str:
    hidden = len(starts) - _MAX_SLICES
    return "\n".join([*starts[:_MAX_SLICES], *([f"and {hidden:,} more"] if hidden > 0 else [])])


def render_copy(restored: CheckpointCopy) -> str:
    """Show how many rows were copied, and the new table."""
    where = "rebuilt from the inputs" if restored.is_rebuilt else "from its checkpoint"
    rows = f"{restored.left_rows:,} left rows, {restored.right_rows:,} right"
    return f"State of {restored.pipeline} at {restored.end}, {where}: {rows}\n{restored.table}"


def render_expiry(expired: ExpiryResult) -> str:
    """Show the removed checkpoints, and how to free their files."""
    action = "would be removed" if expired.dry_run else "removed"
    lines = [
        *expired.expired_runs,
        f"{format_count(len(expired.expired_runs), 'checkpoint')} {action}, {len(expired.remaining_runs):,} kept",
    ]
    if expired.expired_runs and not expired.dry_run:
        files = f"{format_count(len(expired.files), 'file')} ({filesize.decimal(expired.bytes)})"
        lines.append(
            f"tidemark tables vacuum removes {files} by `retention`. To remove them now: "
            f"VACUUM delta.{quote_identifier(expired.table)}"
        )
    return "\n".join(lines)


def render_export(exported: ExportResult) -> str:
    """Show how many rows were exported, and the README to read next."""
    line = f"State of {exported.pipeline} at {exported.at}: {exported.left:,} left rows, {exported.right:,} right"
    return f"{line}\n{exported.folder}/README.md explains how a live query continues from it"


def _create_table(title: str) -> Table:
    table = create_table(("", ""), title=title, show_header=False)
    table.columns[0].style = "bold"
    return table


def _describe_buffer(buffer: BufferSummary) -> str:
    if buffer.bytes is None:
        return f"{buffer.rows:,}"
    times = (
        f", event times {buffer.oldest_event_time} to {buffer.newest_event_time}" if buffer.oldest_event_time else ""
    )
    return f"{buffer.rows:,}, {filesize.decimal(buffer.bytes)}{times}"


def _render_rows(rows: Iterable[dict[str, Any]]) -> list[Text]:
    return [
        Text(" ".join([*([row["only"]] if "only" in row else []), row["side"], json.dumps(row["row"])])) for row in rows
    ]
