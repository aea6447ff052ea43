"""Find columns of an input that changed since slices read it, and files whose rows lost values by it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from pyspark.sql import types as T

from tidemark.delta.column_changes import ColumnChange, find_column_changes, get_physical_name
from tidemark.delta.commit_history import list_appended_files, read_log_range
from tidemark.delta.table_reader import DeltaInput
from tidemark.sources.file_time_ranges import STATISTICS_TRUNCATION
from tidemark.timegrid.time_columns import ResolvedTimeColumn

Actions = Mapping[int, list[dict[str, Any]]]
"""Actions in a log by version."""


@dataclass(frozen=True)
class InputColumnChange:
    """A column that changed after slices read version `after_version`."""

    column: ColumnChange
    after_version: int
    """Last of the compared versions that had the earlier column."""
    since: int | None
    """Version that changed the column; None if the log no longer has it."""
    files_without_values: frozenset[str]
    """Decoded paths of files with rows that may have lost their values: another column has the name, and these rows
    were written before it was added."""

    @property
    def since_label(self) -> str:
        """The version that changed the column, as text."""
        return f"version {self.since}" if self.since is not None else f"a version after {self.after_version}"


def find_input_column_changes(table: DeltaInput, versions: Iterable[int]) -> list[InputColumnChange]:
    """Find the columns that changed between earlier versions of an input and the version that is read.

    Replaced columns are left out if no row has lost its values.
    """
    changes: dict[tuple[str, ...], InputColumnChange] = {}
    actions: Actions | None = None
    for version in sorted(versions):
        earlier = table.get_schema_at(version)
        columns = find_column_changes(earlier, table.schema) if earlier else ()
        later = range(version + 1, table.version + 1)
        if earlier is None or not columns:
            continue
        if actions is None:
            actions = read_log_range(table.path, later)
        for column in columns:
            since = _find_version(actions, later, earlier, column)
            files = frozenset(_list_files_without_values(table, since, column, actions))
            changes[column.path] = InputColumnChange(column, version, since, files)
    return [change for change in changes.values() if change.files_without_values or change.column.kind != "replaced"]


def has_lost_values_from(table: DeltaInput, change: InputColumnChange, clock: ResolvedTimeColumn, start: int) -> bool:
    """Return True if rows without values are certainly unread, or have a clock of `start` (microseconds) or later."""
    earlier = table.open_at_version(change.after_version)
    if earlier is None:
        return False
    field = next((field for field in earlier.schema if field.name == clock.name), None)
    if field is None:  # commit times, which are not later than the commit
        return False
    paths = [unquote(path) for path in earlier.files["path"]]
    if not change.files_without_values <= set(paths):
        return True
    newest = earlier.get_statistics_by_physical_path("max", [get_physical_name(field)])
    clocks = {path: clock.convert_value(value) for path, value in zip(paths, newest, strict=True)}
    latest = (clocks[path] for path in change.files_without_values)
    return any(time is not None and time + STATISTICS_TRUNCATION > start for time in latest)


def _find_version(actions: Actions, versions: range, earlier: T.StructType, column: ColumnChange) -> int | None:
    """Find the version from which on the column has changed; None if the log no longer has it."""
    since: int | None = None
    for version in versions:
        if version not in actions:
            since = None
            continue
        for metadata in (action["metaData"] for action in actions[version] if action.get("metaData")):
            schema = T.StructType.fromJson(json.loads(metadata["schemaString"]))
            is_changed = any(column.is_same_change(other) for other in find_column_changes(earlier, schema))
            since = (version if since is None else since) if is_changed else None
    return since


def _list_files_without_values(
    table: DeltaInput, since: int | None, column: ColumnChange, actions: Actions
) -> Iterator[str]:
    """Yield files with nulls in a replaced column, except those that were written after it was added."""
    log = table.table
    if column.kind != "replaced" or log is None:
        return
    later = range(table.version if since is None else since, table.version + 1)
    is_log_complete = since is not None and all(version in actions for version in later)
    written = list_appended_files(actions[version] for version in later) if is_log_complete else set()
    nulls = log.get_statistics_by_physical_path("null_count", column.physical_path)
    for path, count in zip(map(unquote, log.files["path"]), nulls, strict=True):
        if count != 0 and path not in written:
            yield path
