"""Files that no table needs: what failed, killed and beaten runs left behind, what was superseded, old logs."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import takewhile
from urllib.parse import unquote

import pyarrow.fs as pafs

from tidemark.config import Pipeline
from tidemark.delta.log_files import LogFiles, Removed, shorten
from tidemark.delta.table import DeltaLog
from tidemark.ledger.ledger import Ledger
from tidemark.tables.run_files import run_of
from tidemark.tables.table_changes import FOLLOWING


@dataclass(frozen=True)
class Vacuumed:
    """What was removed of the tables that follow the ledger, or would be."""

    garbage: Removed
    """What no version of a table has."""
    superseded: Removed
    """What a table had once."""
    logs: Removed
    """Commits of their logs, and checkpoints."""
    readable_from: dict[str, int]
    """The oldest version of each table that can then be read, 0 the first."""
    recent: int
    """How many files that no commit has are of runs that have written too lately to be taken for left behind."""


def vacuum_tables(
    pipeline: Pipeline, lake: str, older_than: timedelta | None = None, *, dry_run: bool = False
) -> Vacuumed:
    """Remove what the pipeline's `retention` says; `older_than` comes before its `garbage`.

    Garbage is files that no version of a table has, of runs none of whose files is younger. What a table has now is
    never among what goes, nor what a version within `superseded` had.
    """
    now, kept, following = datetime.now(UTC), pipeline.retention, Ledger.of(pipeline, lake).tables
    tables = [table for name in FOLLOWING if (table := _Table.of(name, getattr(following, name)))]
    before = now - (kept.garbage if older_than is None else older_than)
    at_work = {run_of(info.path) for table in tables for info in table.unknown if info.mtime >= before}
    unneeded = [_unneeded(table, pipeline, now, at_work) for table in tables]
    if not dry_run:
        Ledger.of(pipeline, lake)  # brings tables up to what was committed meanwhile
        for one in unneeded:
            _remove(one, kept.superseded)
    data = [sum(map(_is_data, one.table.unknown)) - sum(map(_is_data, one.garbage)) for one in unneeded]
    return Vacuumed(
        _removed((one.table, filter(_is_data, one.garbage)) for one in unneeded),
        _removed((one.table, one.superseded) for one in unneeded),
        _removed((one.table, one.behind) for one in unneeded),
        {one.table.name: one.readable_from for one in unneeded},
        sum(data),
    )


@dataclass(frozen=True)
class _Table:
    """A table, its files, and those that it has had in some version."""

    name: str
    log: DeltaLog
    log_files: LogFiles
    listed: dict[str, pafs.FileInfo]
    """All files in its folder, by their paths."""
    told: frozenset[str]
    """Those of all versions, as far as the log still has them, and of today."""
    removed: dict[str, tuple[int, int]]
    """Those that it has no longer: the version without each, and when that was, in ms since 1970 UTC."""
    times: dict[int, int]
    """When the versions were committed, in ms since 1970 UTC."""

    @classmethod
    def of(cls, name: str, path: str) -> _Table | None:
        log = DeltaLog.open(path)
        if log is None:
            return None
        everything = log.folder.get_file_info(pafs.FileSelector("", recursive=True))
        log_files = LogFiles.of(log)
        now = set(map(unquote, log.files["path"]))
        told = now.union(log.files["path"])
        removed, times = dict[str, tuple[int, int]](), dict[int, int]()
        for version, actions in log_files.actions("add", "remove", "commitInfo"):
            for action in actions:
                told |= {unquote(action[kind]["path"]) for kind in ("add", "remove") if kind in action}
                if gone := action.get("remove"):
                    removed.setdefault(unquote(gone["path"]), (version, int(gone["deletionTimestamp"])))
                if info := action.get("commitInfo"):
                    times[version] = int(info["timestamp"])
        files = {info.path: info for info in everything if info.is_file}
        gone = {file: since for file, since in removed.items() if file not in now}
        return cls(name, log, log_files, files, frozenset(told), gone, times)

    @cached_property
    def unknown(self) -> list[pafs.FileInfo]:
        """Files in the folder that no version has; also the checksums that Hadoop sets beside such files."""
        return list(_unknown(self.told, self.listed.values()))

    def former(self, before: datetime) -> list[pafs.FileInfo]:
        """Files that are still there and that the table has not had since `before` (exclusive)."""
        limit = before.timestamp() * 1000
        gone = (path for path, (_, since) in self.removed.items() if since < limit)
        return [self.listed[path] for path in gone if path in self.listed]

    def first_kept(self, before: datetime) -> int:
        """The version that the table had at an instant, or the oldest that there is."""
        limit = before.timestamp() * 1000
        versions = takewhile(lambda version: self.times.get(version, limit) < limit, self.log_files.commits)
        return max([self.log_files.oldest, *versions])

    def readable_without(self, gone: Container[str]) -> int:
        """The oldest version that can be read where these are gone, too."""
        missing = (one for path, (one, _) in self.removed.items() if path in gone or path not in self.listed)
        return max(missing, default=self.log_files.oldest)


@dataclass(frozen=True)
class _Unneeded:
    """What goes of a table."""

    table: _Table
    garbage: list[pafs.FileInfo]
    superseded: list[pafs.FileInfo]
    first: int
    """The oldest version that the log tells afterwards."""
    behind: list[pafs.FileInfo]
    """What goes of the log."""

    @property
    def readable_from(self) -> int:
        """The oldest version that can be read afterwards."""
        return max(self.first, self.table.readable_without({info.path for info in self.superseded}))


def _unneeded(table: _Table, pipeline: Pipeline, now: datetime, at_work: Container[str]) -> _Unneeded:
    kept, oldest = pipeline.retention, table.log_files.oldest
    garbage = [info for info in table.unknown if run_of(info.path) not in at_work]
    superseded = [] if kept.superseded is None else table.former(now - kept.superseded)
    first = oldest if kept.logs is None else table.first_kept(now - kept.logs)
    return _Unneeded(table, garbage, superseded, first, table.log_files.behind(first) if first > oldest else [])


def _remove(what: _Unneeded, superseded: timedelta | None) -> None:
    """Remove files, but for those that the table has by now once more, and then what told of them.

    Where superseded files go, checkpoints tell of them no longer than they are there.

    Raises:
        FaultError: the log cannot do without what would go.
    """
    log, table = what.table.log, what.table
    now = DeltaLog.open(log.path)
    again = set(map(unquote, now.files["path"])) if now else set[str]()
    paths = [info.path for info in (*what.garbage, *what.superseded) if info.path not in again]
    _delete(log, [*paths, *{_checksum(path) for path in paths}.intersection(table.listed)])
    if what.behind:
        shorten(log, what.first)
    if now and superseded is not None:
        now.keep_removed(superseded)


def _delete(log: DeltaLog, paths: Iterable[str]) -> None:
    """Remove files in order; another process may do so at the same time."""
    for path in dict.fromkeys(paths):
        with suppress(FileNotFoundError):
            log.folder.delete_file(path)


def _removed(parts: Iterable[tuple[_Table, Iterable[pafs.FileInfo]]]) -> Removed:
    return Removed.of({f"{table.name}/{info.path}": info.size for table, files in parts for info in files})


def _unknown(told: Container[str], listed: Iterable[pafs.FileInfo]) -> Iterator[pafs.FileInfo]:
    for info in listed:
        folder, _, name = info.path.rpartition("/")
        of = f"{folder}/{name.removeprefix('.').removesuffix('.crc')}" if name.endswith(".crc") else info.path
        if not info.path.startswith(("_", ".")) and of not in told:
            yield info


def _checksum(path: str) -> str:
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}.crc"


def _is_data(info: pafs.FileInfo) -> bool:
    return not info.base_name.startswith(".")
