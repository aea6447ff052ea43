"""How states look on a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from rich import filesize
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tidemark.checkpoints.copy import Restored
from tidemark.checkpoints.expiry import Expired
from tidemark.checkpoints.summary import Buffer, Shown
from tidemark.checkpoints.verification import Verified
from tidemark.formatting import counted, quoted
from tidemark.streaming.export import Exported


def shown_view(state: Shown) -> RenderableType:
    """Watermarks and buffers, and a sample of rows."""
    table = _facts(f"State of {state.pipeline} at {state.at}")
    table.add_row("run", f"{state.run} (attempt {state.attempt}, commit {state.commit})")
    table.add_row("digest", state.digest or "none")
    table.add_row("checkpoint", "kept" if state.kept else "expired")
    for name, mark in state.watermarks.items():
        table.add_row(f"{name} watermark", mark or "none yet")
    for side, buffer in (("left", state.left), ("right", state.right)):
        table.add_row(f"{side} rows", _buffer(buffer))
    return Group(table, *_rows(state.sample)) if state.sample else table


def verified_view(verified: Verified) -> RenderableType:
    """Whether a checkpoint is right, and which rows are not."""
    table = _facts(f"State of {verified.pipeline} at {verified.at}")
    table.add_row("replayed", f"{verified.slices:,} slices from {verified.since}, in {verified.jobs:,} jobs")
    table.add_row("digest", f"{verified.digest or 'none'}\n{verified.rebuilt_digest} as rebuilt")
    if verified.first_different:
        table.add_row("first slice that differs", verified.first_different)
    if verified.kept:
        table.add_row("rows too many", f"{verified.only_stored:,}")
        table.add_row("rows missing", f"{verified.only_rebuilt:,}")
    verdict = (
        Text("the same", "green") if verified.same else Text("the checkpoint is not what the inputs come to", "red")
    )
    more = "" if verified.kept else " (its checkpoint has expired: only digests were compared)"
    return Group(table, verdict.append(more), *_rows(verified.rows))


def restored_view(restored: Restored) -> str:
    """What was copied, and where to."""
    where = "rebuilt from the inputs" if restored.rebuilt else "from its checkpoint"
    rows = f"{restored.left:,} left rows, {restored.right:,} right"
    return f"State of {restored.pipeline} at {restored.at}, {where}: {rows}\n{restored.table}"


def expired_view(expired: Expired) -> str:
    """What was given up, and how its files are freed."""
    done = "would be removed" if expired.dry_run else "removed"
    lines = [*expired.removed, f"{len(expired.removed):,} checkpoints {done}, {len(expired.kept):,} kept"]
    if expired.removed and not expired.dry_run:
        files = f"{counted(len(expired.files), 'file')} ({filesize.decimal(expired.bytes)})"
        lines.append(f"{files} go by tidemark vacuum and `retention`, or with: VACUUM delta.{quoted(expired.table)}")
    return "\n".join(lines)


def exported_view(exported: Exported) -> str:
    """What was exported, and what to read next."""
    line = f"State of {exported.pipeline} at {exported.at}: {exported.left:,} left rows, {exported.right:,} right"
    return f"{line}\n{exported.folder}/README.md says how to go on from it"


def _facts(title: str) -> Table:
    table = Table(title=title, show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    return table


def _buffer(buffer: Buffer) -> str:
    if buffer.bytes is None:
        return f"{buffer.rows:,}"
    times = f", event times {buffer.oldest} to {buffer.newest}" if buffer.oldest else ""
    return f"{buffer.rows:,}, {filesize.decimal(buffer.bytes)}{times}"


def _rows(rows: Iterable[dict[str, Any]]) -> list[Text]:
    return [
        Text(" ".join([*([row["only"]] if "only" in row else []), row["side"], json.dumps(row["row"])])) for row in rows
    ]
