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

from tidemark.delta.filesystem import file_system
from tidemark.delta.table import log_actions
from tidemark.errors import InputError

_VERSION = re.compile(r"(\d{20})\.json")
_AT_ONCE = 16
"""So many files of a log are read side by side: a store answers each after some milliseconds."""
_MICROS = 1000
_PRESERVED = "delta.rowTracking.preserved"
"""The tag of a commit whose writer has kept the row commit versions of the rows that it copied."""
_COPIED = ("numCopiedRows", "numTargetRowsCopied", "num_copied_rows", "num_target_rows_copied")
"""How writers count the rows that a change has copied from one file to another as they were."""
_WRITES = re.compile(r"WRITE|STREAMING UPDATE|(CREATE |REPLACE |CREATE OR REPLACE )TABLE")
"""Operations that replace whole files and copy no row, unless they have a predicate."""


@dataclass(frozen=True)
class LoggedFile:
    """A file that a commit adds or removes."""

    path: str
    """As it is in the table's folder, or absolute; decoded."""
    changes_data: bool
    partition: str | None
    """The values of its partition columns; None where the action does not say."""
    deleted: str | None
    """Identifies the deletion vector that it is read with; None without one."""
    row_commit: int | None
    """The version that its rows were committed in, where none of theirs says otherwise; None without row tracking."""


@dataclass(frozen=True)
class Commit:
    """A commit as a table's log has it."""

    version: int
    at: int
    """When it was made, in microseconds since 1970 UTC, after all commits before it that are known."""
    operation: str
    """As its writer calls it."""
    keeps_row_commits: bool
    """Whether rows that it copied keep their row commit versions."""
    tracks_rows: bool | None
    """Whether the table tracks rows from then on; None where the commit does not say."""
    copies: bool
    """Whether files that it adds may hold rows of files that it removes."""
    added: tuple[LoggedFile, ...]
    removed: tuple[LoggedFile, ...]

    @property
    def name(self) -> str:
        """How a user finds it in the table's history."""
        return f"version {self.version} ({self.operation})"


def commits_up_to(path: str, version: int) -> tuple[Commit, ...]:
    """The commits of a table from the first that its log has without a gap up to a version; empty without that one.

    Raises:
        InputError: a commit that adds files tells no time.
    """
    folder = file_system(path)
    files = folder.get_file_info(pafs.FileSelector("_delta_log", allow_not_found=True))
    there = {int(found[1]) for one in files if (found := _VERSION.fullmatch(one.base_name))}
    first = version + 1
    while first - 1 in there:
        first -= 1
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        logged = pool.map(lambda number: log_actions(path, number, folder), range(first, version + 1))
        return tuple(_in_order(zip(range(first, version + 1), logged, strict=True)))


def _in_order(logged: Iterable[tuple[int, list[dict[str, Any]]]]) -> Iterator[Commit]:
    """Commits whose times rise by 1 ms at least, as Delta itself has them rise where a writer's clock goes back."""
    last = 0
    for version, actions in logged:
        info: dict[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
        told = info.get("inCommitTimestamp") or info.get("timestamp") or 0
        if not told and any("add" in action for action in actions):
            raise InputError(
                f"version {version} of the table tells no time of its commit, so that its rows have no arrival by it; "
                "name an arrival column"
            )
        last = max(int(told), last + 1)
        yield _commit(version, last * _MICROS, info, actions)


def _commit(version: int, at: int, info: Mapping[str, Any], actions: list[dict[str, Any]]) -> Commit:
    added, removed = (
        tuple(_file(action[kind]) for action in actions if action.get(kind)) for kind in ("add", "remove")
    )
    operation = str(info.get("operation"))
    kept = str((info.get("tags") or {}).get(_PRESERVED)).lower() == "true"
    told = [action["metaData"].get("configuration") or {} for action in actions if action.get("metaData")]
    tracks = str(told[-1].get("delta.enableRowTracking")).lower() == "true" if told else None
    return Commit(version, at, operation, kept, tracks, _copies(info, operation), added, removed)


def _copies(info: Mapping[str, Any], operation: str) -> bool:
    metrics = info.get("operationMetrics") or {}
    told = [int(metrics[name]) for name in _COPIED if name in metrics]
    if told:
        return sum(told) > 0
    predicate = (info.get("operationParameters") or {}).get("predicate")
    return not _WRITES.match(operation) or predicate not in {None, "", "[]"}


def _file(action: Mapping[str, Any]) -> LoggedFile:
    vector = action.get("deletionVector")
    return LoggedFile(
        unquote(action["path"]),
        bool(action["dataChange"]),
        json.dumps(values, sort_keys=True) if (values := action.get("partitionValues")) is not None else None,
        json.dumps([vector.get(part) for part in ("storageType", "pathOrInlineDv", "offset")]) if vector else None,
        action.get("defaultRowCommitVersion"),
    )
