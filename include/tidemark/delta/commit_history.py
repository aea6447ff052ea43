"""Read the commits in a Delta table's log, with their times and files, without a JVM."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow.fs as pafs

from tidemark.delta.filesystem import open_filesystem
from tidemark.errors import InputError

_VERSION = re.compile(r"(\d{20})\.json")
_OUTSIDE_TABLE = re.compile(r"^/|^[a-zA-Z0-9]+:|(^|/)\.\.(/|$)")
"""Pattern in the path of a file that is not under the table's folder."""
_MAX_PARALLEL_READS = 16
"""Log files read in parallel, because an object store answers each request after some milliseconds."""
_US_PER_MS = 1000
_ROW_TRACKING_PRESERVED = "delta.rowTracking.preserved"
"""Tag of a commit that preserves the row commit versions of copied rows."""
_COPIED_ROW_METRICS = ("numCopiedRows", "numTargetRowsCopied", "num_copied_rows", "num_target_rows_copied")
"""Operation metrics with the number of unchanged rows that a commit copied to other files, by writer and operation."""
_WRITE_OPERATIONS = re.compile(r"WRITE|STREAMING UPDATE|(CREATE |REPLACE |CREATE OR REPLACE )TABLE")
"""Operations that replace whole files and copy no rows, unless they have a predicate."""


@dataclass(frozen=True)
class LoggedFile:
    """A file in an add or remove action of a commit."""

    path: str
    """Decoded path, relative to the table's folder or absolute."""
    changes_data: bool
    """The action's `dataChange`."""
    partition_values: str | None
    """Values of the partition columns as JSON; None if the action lacks them."""
    deletion_vector: str | None
    """Identity of the file's deletion vector as JSON; None without one."""
    row_commit_version: int | None
    """Default row commit version: that of rows without a version of their own. None without row tracking."""


@dataclass(frozen=True)
class Commit:
    """A commit in a table's log."""

    version: int
    committed_us: int
    """Commit time in microseconds since 1970 UTC, increasing from commit to commit."""
    operation: str
    """Operation as named by the writer, such as WRITE or OPTIMIZE."""
    preserves_row_commit_versions: bool
    """True if copied rows keep their row commit versions."""
    enables_row_tracking: bool | None
    """True or False if the commit turns row tracking on or off; None if it does not set table properties."""
    may_copy_rows: bool
    """True if added files may contain rows copied from removed files."""
    added: tuple[LoggedFile, ...]
    removed: tuple[LoggedFile, ...]

    @property
    def label(self) -> str:
        """Version and operation, as in the table's history."""
        return f"version {self.version} ({self.operation})"


def list_commits(path: str, version: int) -> tuple[Commit, ...]:
    """List the commits up to a version, as far back as the log has them without a gap.

    Returns:
        Commits in ascending order; empty if the log lacks the commit of `version`.

    Raises:
        InputError: A commit that adds files has no commit time.
    """
    filesystem = open_filesystem(path)
    entries = filesystem.get_file_info(pafs.FileSelector("_delta_log", allow_not_found=True))
    versions = {int(match[1]) for entry in entries if (match := _VERSION.fullmatch(entry.base_name))}
    first_version = version + 1
    while first_version - 1 in versions:
        first_version -= 1
    with ThreadPoolExecutor(_MAX_PARALLEL_READS) as pool:
        actions = pool.map(lambda number: read_log_actions(path, number, filesystem), range(first_version, version + 1))
        return tuple(_parse_commits(zip(range(first_version, version + 1), actions, strict=True)))


def is_outside_table(path: str) -> bool:
    """Return True if the decoded path of a file is outside the table's folder."""
    return _OUTSIDE_TABLE.search(path) is not None


def read_log_actions(path: str, version: int, filesystem: pafs.FileSystem | None = None) -> list[dict[str, Any]]:
    """Read the actions of the commit that made a version.

    Args:
        path: Path of the table.
        version: The version.
        filesystem: File system of the table's folder. Default: a new one.

    Raises:
        FileNotFoundError: The log no longer has the commit.
    """
    content = (filesystem or open_filesystem(path)).open_input_file(f"_delta_log/{version:020d}.json").read()
    return [json.loads(line) for line in bytes(content).splitlines() if line.strip()]


def read_log_range(path: str, versions: range) -> dict[int, list[dict[str, Any]]]:
    """Read the actions of the commits that made some versions, without those that the log no longer has."""
    filesystem = open_filesystem(path)

    def read(version: int) -> list[dict[str, Any]] | None:
        try:
            return read_log_actions(path, version, filesystem)
        except FileNotFoundError:
            return None

    with ThreadPoolExecutor(_MAX_PARALLEL_READS) as pool:
        actions_by_version = zip(versions, pool.map(read, versions), strict=True)
        return {version: actions for version, actions in actions_by_version if actions is not None}


def list_appended_files(commits: Iterable[list[dict[str, Any]]]) -> set[str]:
    """List the decoded paths of files that commits, given by their actions, added without copying earlier rows."""
    paths = set[str]()
    for actions in commits:
        info: dict[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
        if not _may_copy_rows(info, str(info.get("operation"))):
            added = (action["add"] for action in actions if action.get("add"))
            paths |= {unquote(file["path"]) for file in added if file["dataChange"]}
    return paths


def is_data_change(path: str, version: int) -> bool:
    """Return True if the commit that made a version added or removed rows.

    Raises:
        FileNotFoundError: The log no longer has the commit.
    """
    files = (action.get("add") or action.get("remove") for action in read_log_actions(path, version))
    return any(file["dataChange"] for file in files if file)


def _parse_commits(actions_by_version: Iterable[tuple[int, list[dict[str, Any]]]]) -> Iterator[Commit]:
    """Yield commits whose times increase by at least 1 ms, as Delta itself adjusts them if a writer's clock is late."""
    last_ms = 0
    for version, actions in actions_by_version:
        info: dict[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
        timestamp_ms = info.get("inCommitTimestamp") or info.get("timestamp") or 0
        if not timestamp_ms and any("add" in action for action in actions):
            raise InputError(
                f"version {version} of the table has no commit time, so the arrival of its rows is unknown. Name an "
                "arrival column."
            )
        last_ms = max(int(timestamp_ms), last_ms + 1)
        yield _parse_commit(version, last_ms * _US_PER_MS, info, actions)


def _parse_commit(version: int, committed_us: int, info: Mapping[str, Any], actions: list[dict[str, Any]]) -> Commit:
    added, removed = (
        tuple(_parse_file(action[action_type]) for action in actions if action.get(action_type))
        for action_type in ("add", "remove")
    )
    operation = str(info.get("operation"))
    preserves_row_commit_versions = str((info.get("tags") or {}).get(_ROW_TRACKING_PRESERVED)).lower() == "true"
    configurations = [action["metaData"].get("configuration") or {} for action in actions if action.get("metaData")]
    enables_row_tracking = (
        str(configurations[-1].get("delta.enableRowTracking")).lower() == "true" if configurations else None
    )
    return Commit(
        version,
        committed_us,
        operation,
        preserves_row_commit_versions,
        enables_row_tracking,
        _may_copy_rows(info, operation),
        added,
        removed,
    )


def _may_copy_rows(info: Mapping[str, Any], operation: str) -> bool:
    metrics = info.get("operationMetrics") or {}
    copied_rows = [int(metrics[name]) for name in _COPIED_ROW_METRICS if name in metrics]
    if copied_rows:
        return sum(copied_rows) > 0
    predicate = (info.get("operationParameters") or {}).get("predicate")
    return not _WRITE_OPERATIONS.match(operation) or predicate not in {None, "", "[]"}


def _parse_file(action: Mapping[str, Any]) -> LoggedFile:
    deletion_vector = action.get("deletionVector")
    partition_values = action.get("partitionValues")
    vector_fields = ("storageType", "pathOrInlineDv", "offset")
    return LoggedFile(
        unquote(action["path"]),
        bool(action["dataChange"]),
        None if partition_values is None else json.dumps(partition_values, sort_keys=True),
        json.dumps([deletion_vector.get(name) for name in vector_fields]) if deletion_vector else None,
        action.get("defaultRowCommitVersion"),
    )
