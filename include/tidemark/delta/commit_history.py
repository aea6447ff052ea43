"""The commits of a Delta table that its log still has: when each was made, which files came and went. No JVM."""

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
from tidemark.delta.table import read_log_actions
from tidemark.errors import InputError

_VERSION = re.compile(r"(\d{20})\.json")
_PARALLEL_READS = 16
"""So many files of a log are read side by side: a store answers each after some milliseconds."""
_US_PER_MS = 1000
_ROW_TRACKING_PRESERVED = "delta.rowTracking.preserved"
"""The tag of a commit whose writer has kept the row commit versions of the rows that it copied."""
_COPIED_ROW_METRICS = ("numCopiedRows", "numTargetRowsCopied", "num_copied_rows", "num_target_rows_copied")
"""How writers count the rows that a change has copied from one file to another as they were."""
_WRITE_OPERATIONS = re.compile(r"WRITE|STREAMING UPDATE|(CREATE |REPLACE |CREATE OR REPLACE )TABLE")
"""Operations that replace whole files and copy no row, unless they have a predicate."""


@dataclass(frozen=True)
class LoggedFile:
    """A file that a commit adds or removes."""

    path: str
    """As it is in the table's folder, or absolute; decoded."""
    changes_data: bool
    partition_values: str | None
    """The values of its partition columns; None where the action does not say."""
    deletion_vector: str | None
    """Identifies the deletion vector that it is read with; None without one."""
    row_commit_version: int | None
    """The version that its rows were committed in, where none of theirs says otherwise; None without row tracking."""


@dataclass(frozen=True)
class Commit:
    """A commit as a table's log has it."""

    version: int
    committed_us: int
    """When it was made, in microseconds since 1970 UTC, after all commits before it that are known."""
    operation: str
    """As its writer calls it."""
    preserves_row_commit_versions: bool
    """Whether rows that it copied keep their row commit versions."""
    enables_row_tracking: bool | None
    """Whether the table tracks rows from then on; None where the commit does not say."""
    may_copy_rows: bool
    """Whether files that it adds may hold rows of files that it removes."""
    added: tuple[LoggedFile, ...]
    removed: tuple[LoggedFile, ...]

    @property
    def label(self) -> str:
        """How a user finds it in the table's history."""
        return f"version {self.version} ({self.operation})"


def list_commits(path: str, version: int) -> tuple[Commit, ...]:
    """The commits of a table from the first that its log has without a gap up to a version; empty without that one.

    Raises:
        InputError: a commit that adds files tells no time.
    """
    folder = open_filesystem(path)
    files = folder.get_file_info(pafs.FileSelector("_delta_log", allow_not_found=True))
    versions = {int(found[1]) for one in files if (found := _VERSION.fullmatch(one.base_name))}
    first = version + 1
    while first - 1 in versions:
        first -= 1
    with ThreadPoolExecutor(_PARALLEL_READS) as pool:
        actions_by_version = pool.map(lambda number: read_log_actions(path, number, folder), range(first, version + 1))
        return tuple(_parse_commits(zip(range(first, version + 1), actions_by_version, strict=True)))


def _parse_commits(actions_by_version: Iterable[tuple[int, list[dict[str, Any]]]]) -> Iterator[Commit]:
    """Commits whose times rise by 1 ms at least, as Delta itself has them rise where a writer's clock goes back."""
    last_ms = 0
    for version, actions in actions_by_version:
        info: dict[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
        timestamp_ms = info.get("inCommitTimestamp") or info.get("timestamp") or 0
        if not timestamp_ms and any("add" in action for action in actions):
            raise InputError(
                f"version {version} of the table tells no time of its commit, so that its rows have no arrival by it; "
                "name an arrival column"
            )
        last_ms = max(int(timestamp_ms), last_ms + 1)
        yield _parse_commit(version, last_ms * _US_PER_MS, info, actions)


def _parse_commit(version: int, committed_us: int, info: Mapping[str, Any], actions: list[dict[str, Any]]) -> Commit:
    added, removed = (
        tuple(_parse_file(action[kind]) for action in actions if action.get(kind)) for kind in ("add", "remove")
    )
    operation = str(info.get("operation"))
    preserves = str((info.get("tags") or {}).get(_ROW_TRACKING_PRESERVED)).lower() == "true"
    configurations = [action["metaData"].get("configuration") or {} for action in actions if action.get("metaData")]
    enables_row_tracking = (
        str(configurations[-1].get("delta.enableRowTracking")).lower() == "true" if configurations else None
    )
    return Commit(
        version,
        committed_us,
        operation,
        preserves,
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
    vector = action.get("deletionVector")
    return LoggedFile(
        unquote(action["path"]),
        bool(action["dataChange"]),
        json.dumps(values, sort_keys=True) if (values := action.get("partitionValues")) is not None else None,
        json.dumps([vector.get(part) for part in ("storageType", "pathOrInlineDv", "offset")]) if vector else None,
        action.get("defaultRowCommitVersion"),
    )
