"""How states look on a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from rich import filesize
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tidemark.state.expire import Expired
from tidemark.state.restore import Restored
from tidemark.state.show import Buffer, Shown
from tidemark.state.verify import Verified
from tidemark.streaming.export import Exported


def shown_view(told: Shown) -> RenderableType:
    """Watermarks and buffers, and a sample of rows."""
    table = _facts(f"State of {told.pipeline} at {told.at}")
    table.add_row("run", f"{told.run} (attempt {told.attempt}, commit {told.commit})")
    table.add_row("digest", told.digest or "none")
    table.add_row("checkpoint", "kept" if told.kept else "expired")
    for name, mark in told.watermarks.items():
        table.add_row(f"{name} watermark", mark or "none yet")
    for side, buffer in (("left", told.left), ("right", told.right)):
        table.add_row(f"{side} rows", _buffer(buffer))
    return Group(table, *_rows(told.sample)) if told.sample else table


def verified_view(told: Verified) -> RenderableType:
    """Whether a checkpoint is right, and which rows are not."""
    table = _facts(f"State of {told.pipeline} at {told.at}")
    table.add_row("replayed", f"{told.slices:,} slices from {told.since}, in {told.jobs:,} jobs")
    table.add_row("digest", f"{told.digest or 'none'}\n{told.rebuilt_digest} as rebuilt")
    if told.first_different:
        table.add_row("first slice that differs", told.first_different)
    if told.kept:
        table.add_row("rows too many", f"{told.only_stored:,}")
        table.add_row("rows missing", f"{told.only_rebuilt:,}")
    verdict = Text("the same", "green") if told.same else Text("the checkpoint is not what the inputs come to", "red")
    more = "" if told.kept else " (its checkpoint has expired: only digests were compared)"
    return Group(table, verdict.append(more), *_rows(told.rows))


def restored_view(told: Restored) -> str:
    """What was copied, and where to."""
    where = "rebuilt from the inputs" if told.rebuilt else "from its checkpoint"
    return (
        f"State of {told.pipeline} at {told.at}, {where}: {told.left:,} left rows, {told.right:,} right\n{told.table}"
    )


def expired_view(told: Expired) -> str:
    """What was given up, and how its files are freed."""
    done = "would be removed" if told.dry_run else "removed"
    lines = [*told.removed, f"{len(told.removed):,} checkpoints {done}, {len(told.kept):,} kept"]
    if told.removed and not told.dry_run:
        lines.append(f"The files go with: VACUUM delta.`{told.table}`")
    return "\n".join(lines)


def exported_view(told: Exported) -> str:
    """What was exported, and what to read next."""
    line = f"State of {told.pipeline} at {told.at}: {told.left:,} left rows, {told.right:,} right"
    return f"{line}\n{told.folder}/README.md says how to go on from it"


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
