"""The files of a Delta table's log: how far back it reaches, and those that can go behind a checkpoint. No JVM."""

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

from tidemark.delta.filesystem import is_uri
from tidemark.delta.table import DeltaTableHandle, is_outside_table
from tidemark.errors import FaultError

LOG_FOLDER = "_delta_log"
_LOG_FILE = re.compile(r"\.?(\d{20})\.(json|crc|checkpoint\.|\d{20}\.compacted\.json).*")
_PARALLEL_READS = 16
"""So many files are read side by side from a store, which answers each after some milliseconds."""


@dataclass(frozen=True)
class LogFiles:
    """What there is of a table's log."""

    table: DeltaTableHandle
    files: tuple[pafs.FileInfo, ...]

    @classmethod
    def from_table(cls, table: DeltaTableHandle) -> LogFiles:
        """List it."""
        infos = table.filesystem.get_file_info(pafs.FileSelector(LOG_FOLDER, allow_not_found=True))
        return cls(table, tuple(info for info in infos if info.is_file and _LOG_FILE.fullmatch(info.base_name)))

    @cached_property
    def commit_versions(self) -> range:
        """The versions that have a commit of their own there, from the first without a gap up to the table's."""
        versions = {
            _parse_version(info) for info in self.files if info.base_name == f"{_parse_version(info):020d}.json"
        }
        first = self.table.version + 1
        while first - 1 in versions:
            first -= 1
        return range(first, self.table.version + 1)

    @cached_property
    def checkpoint_versions(self) -> frozenset[int]:
        """The versions with a checkpoint of one file."""
        name = "{:020d}.checkpoint.parquet".format
        return frozenset(_parse_version(one) for one in self.files if one.base_name == name(_parse_version(one)))

    @property
    def oldest_version(self) -> int:
        """The oldest version that the log can tell, whether its files are there or not."""
        first = self.commit_versions.start
        return (
            0
            if first == 0
            else min((one for one in self.checkpoint_versions if one >= first - 1), default=self.table.version)
        )

    def read_actions(self, *action_types: str, from_version: int = 0) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """What each commit from a version on says of these kinds, the newest first."""
        markers = [f'"{kind}"'.encode() for kind in action_types]

        def read(version: int) -> list[dict[str, Any]]:
            text = self.table.filesystem.open_input_file(f"{LOG_FOLDER}/{version:020d}.json").read()
            lines = (line for line in bytes(text).splitlines() if any(one in line for one in markers))
            return [action for action in map(json.loads, lines) if any(kind in action for kind in action_types)]

        versions = self.commit_versions[max(0, from_version - self.commit_versions.start) :][::-1]
        if not is_uri(self.table.path):
            yield from ((version, read(version)) for version in versions)
            return
        with ThreadPoolExecutor(_PARALLEL_READS) as pool:
            yield from zip(versions, pool.map(read, versions), strict=True)

    def list_before(self, version: int) -> list[pafs.FileInfo]:
        """The files that no version from this one on needs where this one has a checkpoint, the oldest first."""
        return sorted(
            (one for one in self.files if _parse_version(one) < version),
            key=lambda one: (_parse_version(one), one.path),
        )


def find_oldest_readable_version(table: DeltaTableHandle, from_version: int = 0) -> int:
    """The oldest version, or one from `since` on, from which on each can be read: its files are there."""
    files = LogFiles.from_table(table)
    last_versions: dict[str, int] = {}
    for version, actions in files.read_actions("remove", from_version=from_version + 1):
        for path in (unquote(action["remove"]["path"]) for action in actions):
            if not is_outside_table(path):
                last_versions.setdefault(path, version)
    oldest_version = max(from_version, files.oldest_version)
    if not last_versions:
        return oldest_version
    infos = table.filesystem.get_file_info(pafs.FileSelector("", recursive=True))
    present = {info.path for info in infos if info.is_file}.union(map(unquote, table.files["path"]))
    return max((version for path, version in last_versions.items() if path not in present), default=oldest_version)


def truncate_log(table: DeltaTableHandle, version: int) -> None:
    """Let a log begin with a checkpoint of a version: what only earlier ones need goes, the oldest first.

    Another process may do so at the same time.

    Raises:
        FaultError: the checkpoint, read back, is not of that version; nothing has gone.
    """
    files = LogFiles.from_table(table)
    if not write_checkpoint(files, version):
        raise FaultError(
            f"the checkpoint of version {version} of {table.path} has other files than that version, so that its log "
            "is left as it is; run the command again"
        )
    for info in files.list_before(version):
        with suppress(FileNotFoundError):
            table.filesystem.delete_file(info.path)


def write_checkpoint(files: LogFiles, version: int) -> bool:
    """See that a version can be told by a checkpoint alone: whether it can, as it was read back."""
    table = files.table
    snapshot = DeltaTableHandle.open(table.path, version)
    if snapshot is None:
        return False
    if version not in files.checkpoint_versions:
        snapshot.table.create_checkpoint()
    with table.filesystem.open_input_file(f"{LOG_FOLDER}/{version:020d}.checkpoint.parquet") as file:
        added_files = pq.ParquetFile(file).read(["add.path"])["add"].to_pylist()
    return {unquote(one["path"]) for one in added_files if one and one["path"]} == set(
        map(unquote, snapshot.files["path"])
    )


def _parse_version(info: pafs.FileInfo) -> int:
    match = _LOG_FILE.fullmatch(info.base_name)
    assert match, "other files were left out"
    return int(match[1])


@dataclass(frozen=True)
class RemovedFiles:
    """Files of a kind that were removed, or would be."""

    files: tuple[str, ...] = ()
    """Their paths under the pipeline's folder, in order."""
    bytes: int = 0

    @classmethod
    def from_sizes(cls, sizes: Mapping[str, int]) -> RemovedFiles:
        """Files by their sizes."""
        return cls(tuple(sorted(sizes)), sum(sizes.values()))
