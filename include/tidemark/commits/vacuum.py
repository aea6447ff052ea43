"""Files that no table has: what runs left behind that failed, were killed, or lost a race, and what was superseded."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote

import pyarrow.fs as pafs

from tidemark.commits.ledger import Ledger
from tidemark.commits.references import FOLLOWING
from tidemark.delta.log import DeltaLog, log_actions
from tidemark.settings import Pipeline

LEFT_BEHIND = timedelta(days=7)
"""A file that no commit has, and that is older, is taken for left behind: no run takes so long."""


@dataclass(frozen=True)
class Vacuumed:
    """What was removed, or would be."""

    pipeline: str
    files: tuple[str, ...]
    """Paths under the pipeline's folder."""
    bytes: int
    superseded: tuple[str, ...]
    """Those that a table had once."""
    superseded_bytes: int
    readable_from: dict[str, int]
    """The oldest version of each table that can then be read, 0 the first."""
    recent: int
    """How many files that no commit has were written too lately to be taken for left behind."""
    dry_run: bool

    def describe(self) -> dict[str, Any]:
        """Give it to scripts: JSON-ready."""
        return asdict(self)


def remove_garbage(pipeline: Pipeline, lake: str, older_than: timedelta, *, dry_run: bool = False) -> Vacuumed:
    """Remove files that no version of a table has, and that were written longer ago than this.

    And those that a table had, and has not had for as long as `retention.superseded` says.
    """
    now, tables = datetime.now(UTC), Ledger.of(pipeline, lake).tables
    before, kept_for = now - older_than, pipeline.retention.superseded
    garbage: dict[str, int] = {}
    superseded: dict[str, int] = {}
    readable_from: dict[str, int] = {}
    recent = 0
    for name in FOLLOWING:
        log = DeltaLog.open(getattr(tables, name))
        if log is None:
            continue
        listed = [one for one in log.folder.get_file_info(pafs.FileSelector("", recursive=True)) if one.is_file]
        former = _Former.of(log, listed)
        unknown = list(_unknown(former, listed))
        left = [info for info in unknown if info.mtime < before]
        old = former.since(now - kept_for) if kept_for is not None else {}
        garbage |= {f"{name}/{info.path}": info.size for info in left if _is_data(info)}
        recent += sum(_is_data(info) for info in unknown if info.mtime >= before)
        superseded |= {f"{name}/{path}": size for path, size in old.items()}
        readable_from[name] = former.readable_without(old)
        if not dry_run:
            checksums = {_checksum(path) for path in old}.intersection(info.path for info in listed)
            _remove(log, [*(info.path for info in left), *old, *checksums])
    return Vacuumed(
        pipeline.name,
        tuple(sorted(garbage)),
        sum(garbage.values()),
        tuple(sorted(superseded)),
        sum(superseded.values()),
        readable_from,
        recent,
        dry_run,
    )


@dataclass(frozen=True)
class _Former:
    """The files that a table has had in some version, and those of them that it has no longer."""

    told: frozenset[str]
    """All of them, as far as the log still has its versions, and those of today."""
    removed: dict[str, tuple[int, int]]
    """The version without each, and when that was, in ms since 1970 UTC."""
    present: dict[str, int]
    """The bytes of those that are still there."""
    oldest: int
    """The oldest version that the log tells of."""

    @classmethod
    def of(cls, log: DeltaLog, listed: Iterable[pafs.FileInfo]) -> _Former:
        now = set(map(unquote, log.files["path"]))
        told, oldest = now.union(log.files["path"]), log.version
        removed: dict[str, tuple[int, int]] = {}
        for version, actions in _versions(log):
            oldest = version
            for action in actions:
                told |= {unquote(action[kind]["path"]) for kind in ("add", "remove") if kind in action}
                if gone := action.get("remove"):
                    removed.setdefault(unquote(gone["path"]), (version, int(gone["deletionTimestamp"])))
        for path in now:
            removed.pop(path, None)
        return cls(frozenset(told), removed, {info.path: info.size for info in listed if info.path in removed}, oldest)

    def since(self, before: datetime) -> dict[str, int]:
        """Those, with their bytes, that the table has not had since `before` (exclusive)."""
        limit = before.timestamp() * 1000
        return {path: size for path, size in self.present.items() if self.removed[path][1] < limit}

    def readable_without(self, gone: Container[str]) -> int:
        """The oldest version that can be read where these are gone, too."""
        missing = (one for path, (one, _) in self.removed.items() if path in gone or path not in self.present)
        return max(missing, default=self.oldest)


def _remove(log: DeltaLog, paths: Iterable[str]) -> None:
    """Remove files, but for those that the table has by now once more."""
    now = DeltaLog.open(log.path)
    again = set(map(unquote, now.files["path"])) if now else set()
    for path in paths:
        if path not in again:
            log.folder.delete_file(path)


def _unknown(former: _Former, listed: Iterable[pafs.FileInfo]) -> Iterator[pafs.FileInfo]:
    """Files in the table's folder that no version of it has; also the checksums that Hadoop sets beside such files."""
    for info in listed:
        folder, _, name = info.path.rpartition("/")
        of = f"{folder}/{name.removeprefix('.').removesuffix('.crc')}" if name.endswith(".crc") else info.path
        if not info.path.startswith(("_", ".")) and of not in former.told:
            yield info


def _checksum(path: str) -> str:
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}.crc"


def _is_data(info: pafs.FileInfo) -> bool:
    return not info.base_name.startswith(".")


def _versions(log: DeltaLog) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """What each version says that the log still has, the newest first."""
    for version in range(log.version, -1, -1):
        try:
            yield version, log_actions(log.path, version)
        except FileNotFoundError:
            return
