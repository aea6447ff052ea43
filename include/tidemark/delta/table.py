"""Create Delta tables and commit to them with delta-rs, without a JVM.

delta-rs does not survive `fork`, so a table is never opened in a process that forks later.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from math import ceil

import pandas as pd
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions
from pyspark.sql import types as T

from tidemark.delta.schemas import lacks_fields, to_delta_schema
from tidemark.delta.snapshot import APP_ID, MAINTENANCE_KEY, TXN_VERSION_KEY, DeltaSnapshot

FILE_REMOVAL_APP_ID = "tidemark.files"
"""Application id of the transactions in commits with remove actions; their version is the new table version. Of two
concurrent commits, one fails. Otherwise, delta-rs would let a commit remove files that a concurrent commit has removed
without a change of data."""
_INDEX_ALL_COLUMNS = {"delta.dataSkippingNumIndexedCols": "-1"}
"""By default, delta-rs reads the statistics of the first 32 columns only, and `staging.PRUNING_COLUMNS` are last."""
_REMOVED_FILE_RETENTION = "delta.deletedFileRetentionDuration"
TABLE_PROPERTIES = _INDEX_ALL_COLUMNS | {
    # Earlier results stay readable as earlier versions.
    "delta.logRetentionDuration": "interval 3650 days",
    _REMOVED_FILE_RETENTION: "interval 365 days",
}
_POST_COMMIT_HOOKS = PostCommitHookProperties(cleanup_expired_logs=False)
"""Only vacuum truncates logs. A check after each commit would take longer as the log grows."""


class CommitConflictError(Exception):
    """Another process has committed to the table since it was opened."""


@dataclass(frozen=True)
class DataFile:
    """A Parquet file in a table's folder, whether it is committed or not."""

    path: str
    """Path relative to the table's folder."""
    size: int
    """Size in bytes."""
    rows: int
    """Number of rows."""
    modification_time: int
    """Modification time in ms since 1970 UTC."""
    stats: str
    """Statistics of the add action, as JSON."""


_TRUNCATED_LOG_MESSAGE = "Invalid table version"
"""Part of delta-rs's error for a commit after a version that the log no longer has, because it was truncated."""
OpenTables = dict[str, "DeltaTableHandle"]
"""Open tables by path, at the version of this process's last commit. A later commit of another process causes a
`CommitConflictError` at the next commit."""


@dataclass(frozen=True)
class DeltaTableHandle(DeltaSnapshot):
    """A Delta table at one version, on top of which this process commits."""

    def add_missing_columns(self, schema: T.StructType) -> DeltaTableHandle:
        """Add a schema's columns and struct fields that the table lacks, in a separate commit that changes no row.

        A table of an earlier version of Tidemark is also set to index all columns.

        Returns:
            The table after the commit; the same object if it lacks nothing.

        Raises:
            CommitConflictError: Another process has committed in between.
        """
        if not _INDEX_ALL_COLUMNS.items() <= self.table.metadata().configuration.items():
            return self._index_all_columns().add_missing_columns(schema)
        present = {field.name: field for field in self.schema}
        missing = [
            field
            for field in schema
            if field.name not in present or lacks_fields(present[field.name].dataType, field.dataType)
        ]
        if not missing:
            return self
        try:
            self.table.alter.add_columns(to_delta_schema(T.StructType(missing)).fields)
        except CommitFailedError as error:
            raise CommitConflictError from error
        return DeltaTableHandle(self.path, DeltaTable(self.path))

    def _index_all_columns(self) -> DeltaTableHandle:
        try:
            self.table.alter.set_table_properties(dict(_INDEX_ALL_COLUMNS))
        except CommitFailedError as error:
            raise CommitConflictError from error
        return DeltaTableHandle(self.path, DeltaTable(self.path))

    def commit(
        self,
        added: Iterable[DataFile],
        removed: Iterable[str] = (),
        txn_version: int | None = None,
        *,
        changes_data: bool = True,
        requires_no_removal: bool = False,
    ) -> DeltaTableHandle:
        """Add and remove files in one commit on top of this version.

        Args:
            added: Files in the table's folder.
            removed: Paths of files of this version.
            txn_version: Version of the transaction that the commit applies; None for maintenance.
            changes_data: False if the table's rows stay the same (`dataChange` of the actions).
            requires_no_removal: True to conflict with commits that have removed files since this version, also if this
                one removes none.

        Returns:
            The table after the commit. This object must not be used any more.

        Raises:
            CommitConflictError: Another process has made a conflicting commit.
        """
        removed_paths = set(removed)
        sizes = dict(zip(self.files["path"], self.files["size"], strict=True)) if removed_paths else {}
        now_ms = int(pd.Timestamp.now("UTC").timestamp() * 1000)
        actions: list[AddAction | RemoveAction] = [
            AddAction(file.path, file.size, {}, file.modification_time, changes_data, file.stats) for file in added
        ]
        actions += [RemoveAction(path, changes_data, now_ms, int(sizes[path]), {}) for path in sorted(removed_paths)]
        schema = self.table.schema()
        try:
            removal_version = self.version + 1 if removed_paths or requires_no_removal else None
            commit_properties = _create_commit_properties(txn_version, removal_version)
            self.table.create_write_transaction(
                actions,
                "append",
                schema,
                commit_properties=commit_properties,
                post_commithook_properties=_POST_COMMIT_HOOKS,
            )
        except DeltaError as error:
            if isinstance(error, CommitFailedError) or _TRUNCATED_LOG_MESSAGE in str(error):
                raise CommitConflictError from error
            raise
        self.table.update_incremental()
        return DeltaTableHandle(self.path, self.table)

    def append(self, rows: pa.Table, txn_version: int | None = None) -> DeltaTableHandle:
        """Append rows on top of this version, and add their columns that the table lacks.

        Args:
            rows: Rows to append.
            txn_version: Version of the transaction that the commit applies; None for maintenance.

        Returns:
            The table after the commit.

        Raises:
            CommitConflictError: Another process has made a conflicting commit.
        """
        try:
            write_deltalake(
                self.table,
                rows,
                mode="append",
                schema_mode="merge",
                commit_properties=_create_commit_properties(txn_version),
                post_commithook_properties=_POST_COMMIT_HOOKS,
            )
        except CommitFailedError as error:
            raise CommitConflictError from error
        return DeltaTableHandle(self.path, self.table)

    def overwrite(self, rows: pa.Table) -> None:
        """Replace all rows of this version, and its schema by that of the new rows.

        Raises:
            CommitConflictError: Another process has committed in between.
        """
        try:
            write_deltalake(
                self.table,
                rows,
                mode="overwrite",
                schema_mode="overwrite",
                # A retry would not remove the files of a compaction in between, and each row would be there twice.
                commit_properties=_create_commit_properties(None, max_commit_retries=0),
            )
        except CommitFailedError as error:
            raise CommitConflictError from error

    def set_removed_file_retention(self, retention: timedelta) -> None:
        """Set `deletedFileRetentionDuration`, which bounds checkpoints and protects removed files from VACUUM.

        Checkpoints have remove actions for that time, and each commit reads them. No row changes. Without effect if
        another process commits at the same time.
        """
        properties = {_REMOVED_FILE_RETENTION: f"interval {ceil(retention / timedelta(seconds=1))} seconds"}
        if not properties.items() <= self.table.metadata().configuration.items():
            with suppress(CommitFailedError):
                self.table.alter.set_table_properties(properties)

    def compact(self) -> None:
        """Compact small files (OPTIMIZE). Without effect if another process commits at the same time."""
        with suppress(CommitFailedError):
            self.table.optimize.compact(commit_properties=_create_commit_properties(None))


def create_table(path: str, schema: T.StructType, *, change_feed: bool) -> DeltaTableHandle:
    """Create an empty table, or open it if another process has created it meanwhile.

    Args:
        path: Path of the table.
        schema: Columns of the table.
        change_feed: Enable the change data feed.
    """
    feed_property = {"delta.enableChangeDataFeed": "true"} if change_feed else {}
    return _create_table(path, to_delta_schema(schema), TABLE_PROPERTIES | feed_property)


def create_internal_table(path: str, schema: pa.Schema) -> DeltaTableHandle:
    """Create a table that only Tidemark reads, at its latest version; so removed files are retained for 30 days only.

    Opens the table if another process has created it meanwhile.
    """
    return _create_table(
        path, Schema.from_arrow(schema), TABLE_PROPERTIES | {_REMOVED_FILE_RETENTION: "interval 30 days"}
    )


def _create_table(path: str, schema: Schema, configuration: dict[str, str]) -> DeltaTableHandle:
    try:
        create_table_with_add_actions(path, schema, [], configuration=configuration)
    except DeltaError:
        if (table := DeltaTableHandle.open(path)) is None:
            raise
        return table
    return DeltaTableHandle(path, DeltaTable(path))


def _create_commit_properties(
    txn_version: int | None, removal_version: int | None = None, max_commit_retries: int | None = None
) -> CommitProperties:
    version_by_app = {APP_ID: txn_version, FILE_REMOVAL_APP_ID: removal_version}
    transactions = [Transaction(app_id, version) for app_id, version in version_by_app.items() if version is not None]
    metadata = {MAINTENANCE_KEY: "true"} if txn_version is None else {TXN_VERSION_KEY: str(txn_version)}
    return CommitProperties(metadata, max_commit_retries, transactions)
