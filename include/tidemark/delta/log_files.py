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

from tidemark.delta.filesystem import is_address
from tidemark.delta.table import DeltaLog, is_elsewhere
from tidemark.errors import FaultError

LOG = "_delta_log"
_FILE = re.compile(r"\.?(\d{20})\.(json|crc|checkpoint\.|\d{20}\.compacted\.json).*")
_AT_ONCE = 16
"""So many files are read side by side from a store, which answers each after some milliseconds."""


@dataclass(frozen=True)
class LogFiles:
    """What there is of a table's log."""

    log: DeltaLog
    files: tuple[pafs.FileInfo, ...]

    @classmethod
    def of(cls, log: DeltaLog) -> LogFiles:
        """List it."""
        found = log.folder.get_file_info(pafs.FileSelector(LOG, allow_not_found=True))
        return cls(log, tuple(info for info in found if info.is_file and _FILE.fullmatch(info.base_name)))

    @cached_property
    def commits(self) -> range:
        """The versions that have a commit of their own there, from the first without a gap up to the table's."""
        there = {_version(info) for info in self.files if info.base_name == f"{_version(info):020d}.json"}
        first = self.log.version + 1
        while first - 1 in there:
            first -= 1
        return range(first, self.log.version + 1)

    @cached_property
    def checkpoints(self) -> frozenset[int]:
        """The versions with a checkpoint of one file."""
        name = "{:020d}.checkpoint.parquet".format
        return frozenset(_version(one) for one in self.files if one.base_name == name(_version(one)))

    @property
    def oldest(self) -> int:
        """The oldest version that the log can tell, whether its files are there or not."""
        first = self.commits.start
        return 0 if first == 0 else min((one for one in self.checkpoints if one >= first - 1), default=self.log.version)

    def actions(self, *kinds: str, since: int = 0) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """What each commit from a version on says of these kinds, the newest first."""
        wanted = [f'"{kind}"'.encode() for kind in kinds]

        def read(version: int) -> list[dict[str, Any]]:
            text = self.log.folder.open_input_file(f"{LOG}/{version:020d}.json").read()
            lines = (line for line in bytes(text).splitlines() if any(one in line for one in wanted))
            return [action for action in map(json.loads, lines) if any(kind in action for kind in kinds)]

        versions = self.commits[max(0, since - self.commits.start) :][::-1]
        if not is_address(self.log.path):
            yield from ((version, read(version)) for version in versions)
            return
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            yield from zip(versions, pool.map(read, versions), strict=True)

    def behind(self, version: int) -> list[pafs.FileInfo]:
        """The files that no version from this one on needs where this one has a checkpoint, the oldest first."""
        return sorted((one for one in self.files if _version(one) < version), key=lambda one: (_version(one), one.path))


def oldest_whole(log: DeltaLog, since: int = 0) -> int:
    """The oldest version, or one from `since` on, from which on each can be read: its files are there."""
    files = LogFiles.of(log)
    removed: dict[str, int] = {}
    for version, actions in files.actions("remove", since=since + 1):
        for path in (unquote(action["remove"]["path"]) for action in actions):
            if not is_elsewhere(path):
                removed.setdefault(path, version)
    least = max(since, files.oldest)
    if not removed:
        return least
    everything = log.folder.get_file_info(pafs.FileSelector("", recursive=True))
    there = {info.path for info in everything if info.is_file}.union(map(unquote, log.files["path"]))
    return max((version for path, version in removed.items() if path not in there), default=least)


def shorten(log: DeltaLog, version: int) -> None:
    """Let a log begin with a checkpoint of a version: what only earlier ones need goes, the oldest first.

    Another process may do so at the same time.

    Raises:
        FaultError: the checkpoint, read back, is not of that version; nothing has gone.
    """
    files = LogFiles.of(log)
    if not write_checkpoint(files, version):
        raise FaultError(
            f"the checkpoint of version {version} of {log.path} has other files than that version, so that its log "
            "is left as it is; run the command again"
        )
    for info in files.behind(version):
        with suppress(FileNotFoundError):
            log.folder.delete_file(info.path)


def write_checkpoint(files: LogFiles, version: int) -> bool:
    """See that a version can be told by a checkpoint alone: whether it can, as it was read back."""
    log = files.log
    then = DeltaLog.open(log.path, version)
    if then is None:
        return False
    if version not in files.checkpoints:
        then.table.create_checkpoint()
    with log.folder.open_input_file(f"{LOG}/{version:020d}.checkpoint.parquet") as file:
        added = pq.ParquetFile(file).read(["add.path"])["add"].to_pylist()
    return {unquote(one["path"]) for one in added if one and one["path"]} == set(map(unquote, then.files["path"]))


def _version(info: pafs.FileInfo) -> int:
    found = _FILE.fullmatch(info.base_name)
    assert found, "other files were left out"
    return int(found[1])


@dataclass(frozen=True)
class Removed:
    """Files of a kind that were removed, or would be."""

    files: tuple[str, ...] = ()
    """Their paths under the pipeline's folder, in order."""
    bytes: int = 0

    @classmethod
    def of(cls, sizes: Mapping[str, int]) -> Removed:
        """Files by their sizes."""
        return cls(tuple(sorted(sizes)), sum(sizes.values()))
