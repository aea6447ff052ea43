"""Files that no commit refers to: what runs left behind that failed, were killed, or lost a race."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote

import pyarrow.fs as pafs

from tidemark.commits.ledger import Ledger
from tidemark.commits.references import FOLLOWING
from tidemark.delta.log import DeltaLog, log_actions
from tidemark.settings import Pipeline


@dataclass(frozen=True)
class Vacuumed:
    """What was removed, or would be."""

    pipeline: str
    files: tuple[str, ...]
    """Paths under the pipeline's folder."""
    bytes: int
    recent: int
    """How many files that no commit has were written too lately to be taken for left behind."""
    dry_run: bool

    def describe(self) -> dict[str, Any]:
        """Give it to scripts: JSON-ready."""
        return asdict(self)


def remove_garbage(pipeline: Pipeline, lake: str, older_than: timedelta, *, dry_run: bool = False) -> Vacuumed:
    """Remove files that no version of a table has, and that were written longer ago than this."""
    before, tables = datetime.now(UTC) - older_than, Ledger.of(pipeline, lake).tables
    gone: list[str] = []
    size = recent = 0
    for name in FOLLOWING:
        log = DeltaLog.open(getattr(tables, name))
        if log is None:
            continue
        for info in _unknown(log):
            is_data = not info.base_name.startswith(".")
            if info.mtime >= before:
                recent += is_data
                continue
            if is_data:
                gone.append(f"{name}/{info.path}")
                size += info.size
            if not dry_run:
                log.folder.delete_file(info.path)
    return Vacuumed(pipeline.name, tuple(sorted(gone)), size, recent, dry_run)


def _unknown(log: DeltaLog) -> Iterator[pafs.FileInfo]:
    """Files in the table's folder that no version of it has; also the checksums that Hadoop sets beside such files."""
    listed = log.folder.get_file_info(pafs.FileSelector("", recursive=True))
    known = set(log.files["path"]) | set(_told(log))
    for info in listed:
        folder, _, name = info.path.rpartition("/")
        of = f"{folder}/{name.removeprefix('.').removesuffix('.crc')}" if name.endswith(".crc") else info.path
        if info.is_file and not info.path.startswith(("_", ".")) and of not in known:
            yield info


def _told(log: DeltaLog) -> Iterator[str]:
    """The files that came or went in any version that the log still has."""
    for version in range(log.version, -1, -1):
        try:
            actions = log_actions(log.path, version)
        except FileNotFoundError:
            return
        for action in actions:
            yield from (unquote(action[kind]["path"]) for kind in ("add", "remove") if kind in action)
