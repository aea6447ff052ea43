"""Find and delete files that no table needs: uncommitted files, replaced files, old log files."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import takewhile
from urllib.parse import unquote

import pyarrow.fs as pafs

from tidemark.config import Pipeline
from tidemark.config.maintenance import Retention
from tidemark.delta.filesystem import open_filesystem
from tidemark.delta.log_files import LogFiles, RemovedFiles, truncate_log
from tidemark.delta.table import DeltaTableHandle
from tidemark.ledger.ledger import Ledger
from tidemark.tables.run_files import parse_run
from tidemark.tables.table_changes import LEDGER_MANAGED_TABLES


@dataclass(frozen=True)
class UnusedFiles:
    """Files of a pipeline's tables that retention lets go, except those of the ledger."""

    tables: tuple[TablePlan, ...]

    @property
    def uncommitted_files(self) -> RemovedFiles:
        """Data files that no version of a table has."""
        return _list_files((plan.table, filter(_is_data, plan.uncommitted_files)) for plan in self.tables)

    @property
    def replaced_files(self) -> RemovedFiles:
        """Files that a table once had."""
        return _list_files((plan.table, plan.replaced_files) for plan in self.tables)

    @property
    def log_files(self) -> RemovedFiles:
        """Commits and checkpoints in the tables' logs."""
        return _list_files((plan.table, plan.log_files) for plan in self.tables)

    @property
    def readable_from(self) -> dict[str, int]:
        """The oldest version of each table that can be read after the deletion, starting with 0."""
        return {plan.table.name: plan.readable_from for plan in self.tables if plan.readable_from is not None}

    @property
    def recent_files(self) -> int:
        """Number of uncommitted data files whose run may still be active."""
        return sum(
            sum(map(_is_data, plan.table.uncommitted)) - sum(map(_is_data, plan.uncommitted_files))
            for plan in self.tables
        )


def find_unused_files(pipeline: Pipeline, lake: str, older_than: timedelta | None = None) -> UnusedFiles:
    """Find the files that the pipeline's `retention` lets go.

    A run counts as active, and its uncommitted files stay, if any of these is younger than the limit. Files of the
    current version, and of versions within `retention.replaced_files`, always stay.

    Args:
        older_than: Replaces `retention.uncommitted_files`.
    """
    now = datetime.now(UTC)
    retention = pipeline.retention
    pipeline_tables = Ledger.from_pipeline(pipeline, lake).tables
    tables = [_TableFiles.read(name, getattr(pipeline_tables, name)) for name in LEDGER_MANAGED_TABLES]
    before = now - (retention.uncommitted_files if older_than is None else older_than)
    active_runs = {parse_run(info.path) for table in tables for info in table.uncommitted if info.mtime >= before}
    return UnusedFiles(tuple(_plan_table(table, retention, now, active_runs) for table in tables))


def delete_unused_files(pipeline: Pipeline, lake: str, unused: UnusedFiles) -> None:
    """Delete unused files.

    Raises:
        FaultError: A log could not be truncated.
    """
    Ledger.from_pipeline(pipeline, lake)  # brings tables up to commits made in the meantime
    for plan in unused.tables:
        _delete_planned(plan, pipeline.retention.replaced_files)


@dataclass(frozen=True)
class _TableFiles:
    """A table's folder, with the files on disk and those of the table's versions."""

    name: str
    path: str
    log_files: LogFiles | None
    """None if the table does not exist: a run that failed before its first commit has written to the folder."""
    disk_files: dict[str, pafs.FileInfo]
    """All files in the table's folder, by path."""
    committed_paths: frozenset[str] = frozenset()
    """Files of all versions in the log, and of the current one."""
    removals: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Files that the table no longer has: version and time of the removal, in ms since 1970 UTC."""
    commit_times: dict[int, int] = field(default_factory=dict)
    """Time of each commit in ms since 1970 UTC, by version."""

    @classmethod
    def read(cls, name: str, path: str) -> _TableFiles:
        log = DeltaTableHandle.open(path)
        everything = pafs.FileSelector("", recursive=True, allow_not_found=True)
        files = {info.path: info for info in open_filesystem(path).get_file_info(everything) if info.is_file}
        if log is None:
            return cls(name, path, None, files)
        log_files = LogFiles.from_table(log)
        current = set(map(unquote, log.files["path"]))
        committed_paths = current.union(log.files["path"])
        removals, commit_times = dict[str, tuple[int, int]](), dict[int, int]()
        for version, actions in log_files.read_actions("add", "remove", "commitInfo"):
            for action in actions:
                committed_paths |= {unquote(action[kind]["path"]) for kind in ("add", "remove") if kind in action}
                if removal := action.get("remove"):
                    removals.setdefault(unquote(removal["path"]), (version, int(removal["deletionTimestamp"])))
                if info := action.get("commitInfo"):
                    commit_times[version] = int(info["timestamp"])
        removals = {path: removal for path, removal in removals.items() if path not in current}
        return cls(name, path, log_files, files, frozenset(committed_paths), removals, commit_times)

    @cached_property
    def uncommitted(self) -> list[pafs.FileInfo]:
        """Files in the folder that no version has, with the checksum files that Hadoop writes for them."""
        return list(_select_uncommitted(self.committed_paths, self.disk_files.values()))

    def list_replaced(self, before: datetime) -> list[pafs.FileInfo]:
        """List existing files that were removed from the table before an instant (exclusive)."""
        limit = before.timestamp() * 1000
        replaced = (path for path, (_, since) in self.removals.items() if since < limit)
        return [self.disk_files[path] for path in replaced if path in self.disk_files]

    def find_version_at(self, before: datetime, log_files: LogFiles) -> int:
        """Return the version of the table at an instant, or the oldest in the log."""
        limit = before.timestamp() * 1000
        versions = takewhile(lambda version: self.commit_times.get(version, limit) < limit, log_files.commit_versions)
        return max([log_files.oldest_version, *versions])

    def find_oldest_readable(self, deleted: Container[str], first_version: int) -> int:
        """Return the oldest version, from one on, that can be read without deleted and missing files."""
        versions = (
            version for path, (version, _) in self.removals.items() if path in deleted or path not in self.disk_files
        )
        return max([first_version, *versions])


@dataclass(frozen=True)
class TablePlan:
    """Files to delete of a table."""

    table: _TableFiles
    uncommitted_files: list[pafs.FileInfo]
    replaced_files: list[pafs.FileInfo] = field(default_factory=list)
    first_log_version: int = 0
    """The first version that the log has after the deletion."""
    log_files: list[pafs.FileInfo] = field(default_factory=list)
    """Log files before it."""
    readable_from: int | None = None
    """The oldest version that can be read after the deletion; None if the table does not exist."""


def _plan_table(table: _TableFiles, retention: Retention, now: datetime, active_runs: Container[str]) -> TablePlan:
    uncommitted = [info for info in table.uncommitted if parse_run(info.path) not in active_runs]
    if (log_files := table.log_files) is None:
        return TablePlan(table, uncommitted)
    oldest = log_files.oldest_version
    replaced = [] if retention.replaced_files is None else table.list_replaced(now - retention.replaced_files)
    first = oldest if retention.log_files is None else table.find_version_at(now - retention.log_files, log_files)
    return TablePlan(
        table,
        uncommitted,
        replaced,
        first,
        log_files.list_files_before(first) if first > oldest else [],
        table.find_oldest_readable({info.path for info in replaced}, first),
    )


def _delete_planned(plan: TablePlan, replaced_retention: timedelta | None) -> None:
    """Delete the planned files, except those that the table has again, and truncate the log.

    If replaced files are deleted, Delta's own checkpoints also keep them only for `replaced_retention`.

    Raises:
        FaultError: The log could not be truncated.
    """
    table = plan.table
    current = DeltaTableHandle.open(table.path)
    current_files = set(map(unquote, current.files["path"])) if current else set[str]()
    paths = [info.path for info in (*plan.uncommitted_files, *plan.replaced_files) if info.path not in current_files]
    _delete(table.path, [*paths, *{_checksum_path(path) for path in paths}.intersection(table.disk_files)])
    if table.log_files and plan.log_files:
        truncate_log(table.log_files.table, plan.first_log_version)
    if current and replaced_retention is not None:
        current.set_removed_file_retention(replaced_retention)


def _delete(folder: str, paths: Iterable[str]) -> None:
    """Delete files in order. Another process may delete them at the same time."""
    filesystem = open_filesystem(folder)
    for path in dict.fromkeys(paths):
        with suppress(FileNotFoundError):
            filesystem.delete_file(path)


def _list_files(parts: Iterable[tuple[_TableFiles, Iterable[pafs.FileInfo]]]) -> RemovedFiles:
    return RemovedFiles.from_sizes({f"{table.name}/{info.path}": info.size for table, files in parts for info in files})


def _select_uncommitted(committed_paths: Container[str], files: Iterable[pafs.FileInfo]) -> Iterator[pafs.FileInfo]:
    for info in files:
        folder, _, name = info.path.rpartition("/")
        data_path = f"{folder}/{name.removeprefix('.').removesuffix('.crc')}" if name.endswith(".crc") else info.path
        if not info.path.startswith(("_", ".")) and data_path not in committed_paths:
            yield info


def _checksum_path(path: str) -> str:
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}.crc"


def _is_data(info: pafs.FileInfo) -> bool:
    return not info.base_name.startswith(".")
