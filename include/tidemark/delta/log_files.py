"""List a Delta table's log files, and truncate the log at a checkpoint, without a JVM."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import pyarrow.fs as pafs
import pyarrow.parquet as pq

from tidemark.delta.commit_history import is_outside_table
from tidemark.delta.filesystem import is_uri
from tidemark.delta.table import DeltaTableHandle
from tidemark.errors import FaultError

LOG_FOLDER = "_delta_log"
_LOG_FILE = re.compile(r"\.?(\d{20})\.(json|crc|checkpoint\.|\d{20}\.compacted\.json).*")
_MAX_PARALLEL_READS = 16
"""Files read in parallel from an object store, which answers each request after some milliseconds."""


@dataclass(frozen=True)
class LogFiles:
    """Commits, checkpoints, checksums and compacted commits in a table's `_delta_log` folder."""

    table: DeltaTableHandle
    files: tuple[pafs.FileInfo, ...]

    @classmethod
    def from_table(cls, table: DeltaTableHandle) -> LogFiles:
        """List a table's log files."""
        infos = table.filesystem.get_file_info(pafs.FileSelector(LOG_FOLDER, allow_not_found=True))
        return cls(table, tuple(info for info in infos if info.is_file and _LOG_FILE.fullmatch(info.base_name)))

    @cached_property
    def commit_versions(self) -> range:
        """Versions with a commit file, without a gap up to the table's version."""
        versions = {
            _parse_version(info) for info in self.files if info.base_name == f"{_parse_version(info):020d}.json"
        }
        first_version = self.table.version + 1
        while first_version - 1 in versions:
            first_version -= 1
        return range(first_version, self.table.version + 1)

    @cached_property
    def checkpoint_versions(self) -> frozenset[int]:
        """Versions with a checkpoint in a single file."""
        names = {info.base_name for info in self.files}
        versions = map(_parse_version, self.files)
        return frozenset(version for version in versions if f"{version:020d}.checkpoint.parquet" in names)

    @property
    def oldest_version(self) -> int:
        """Oldest version that the log can reconstruct. Its data files may be deleted."""
        first_version = self.commit_versions.start
        if first_version == 0:
            return 0
        checkpoints = (version for version in self.checkpoint_versions if version >= first_version - 1)
        return min(checkpoints, default=self.table.version)

    def read_actions(self, *action_types: str, from_version: int = 0) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """Yield each commit from a version on with its actions of some types, newest commit first.

        Args:
            action_types: Types such as `add` and `remove`.
            from_version: First version, inclusive.
        """
        markers = [f'"{action_type}"'.encode() for action_type in action_types]

        def read_commit(version: int) -> list[dict[str, Any]]:
            content = self.table.filesystem.open_input_file(f"{LOG_FOLDER}/{version:020d}.json").read()
            lines = (line for line in bytes(content).splitlines() if any(marker in line for marker in markers))
            return [action for action in map(json.loads, lines) if not action.keys().isdisjoint(action_types)]

        versions = self.commit_versions[max(0, from_version - self.commit_versions.start) :][::-1]
        if not is_uri(self.table.path):
            yield from ((version, read_commit(version)) for version in versions)
            return
        with ThreadPoolExecutor(_MAX_PARALLEL_READS) as pool:
            yield from zip(versions, pool.map(read_commit, versions), strict=True)

    def list_files_before(self, version: int) -> list[pafs.FileInfo]:
        """List the files of older versions, oldest first. If this version has a checkpoint, later ones need none."""
        return sorted(
            (info for info in self.files if _parse_version(info) < version),
            key=lambda info: (_parse_version(info), info.path),
        )


def find_oldest_readable_version(table: DeltaTableHandle, from_version: int = 0) -> int:
    """Find the oldest version since which every version is readable, because all of its data files exist.

    Args:
        table: The table.
        from_version: Oldest version to examine.
    """
    log_files = LogFiles.from_table(table)
    removal_version_by_path: dict[str, int] = {}
    for version, actions in log_files.read_actions("remove", from_version=from_version + 1):
        for path in (unquote(action["remove"]["path"]) for action in actions):
            if not is_outside_table(path):
                removal_version_by_path.setdefault(path, version)
    oldest_version = max(from_version, log_files.oldest_version)
    if not removal_version_by_path:
        return oldest_version
    infos = table.filesystem.get_file_info(pafs.FileSelector("", recursive=True))
    present = {info.path for info in infos if info.is_file}.union(map(unquote, table.files["path"]))
    missing = (version for path, version in removal_version_by_path.items() if path not in present)
    return max(missing, default=oldest_version)


def truncate_log(table: DeltaTableHandle, version: int) -> None:
    """Delete the log files that only versions before this one need, oldest first. Write a checkpoint if needed.

    Another process may truncate the log at the same time.

    Raises:
        FaultError: The checkpoint does not have the files of the version. Nothing was deleted.
    """
    log_files = LogFiles.from_table(table)
    if not ensure_checkpoint(log_files, version):
        raise FaultError(
            f"the checkpoint of version {version} of {table.path} has other files than that version, so the log was "
            "not truncated. Run the command again."
        )
    for info in log_files.list_files_before(version):
        with suppress(FileNotFoundError):
            table.filesystem.delete_file(info.path)


def ensure_checkpoint(log_files: LogFiles, version: int) -> bool:
    """Write a checkpoint of a version unless there is one, and read it back.

    Returns:
        True if the checkpoint has exactly the version's files. False also if the table does not exist.
    """
    table = log_files.table
    snapshot = DeltaTableHandle.open(table.path, version)
    if snapshot is None:
        return False
    if version not in log_files.checkpoint_versions:
        snapshot.table.create_checkpoint()
    with table.filesystem.open_input_file(f"{LOG_FOLDER}/{version:020d}.checkpoint.parquet") as file:
        added_files = pq.ParquetFile(file).read(["add.path"])["add"].to_pylist()
    paths = {unquote(file["path"]) for file in added_files if file and file["path"]}
    return paths == set(map(unquote, snapshot.files["path"]))


def _parse_version(info: pafs.FileInfo) -> int:
    match = _LOG_FILE.fullmatch(info.base_name)
    assert match, "from_table excludes other files"
    return int(match[1])


@dataclass(frozen=True)
class RemovedFiles:
    """Files that a maintenance job deleted, or would delete in a dry run."""

    files: tuple[str, ...] = ()
    """Paths relative to the pipeline's folder, sorted."""
    bytes: int = 0
    """Total size."""

    @classmethod
    def from_sizes(cls, sizes: Mapping[str, int]) -> RemovedFiles:
        """Create the result from sizes in bytes by path."""
        return cls(tuple(sorted(sizes)), sum(sizes.values()))
