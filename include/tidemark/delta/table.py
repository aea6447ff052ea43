"""Read and commit to Delta tables with delta-rs, without a JVM.

delta-rs does not survive `fork`, so a table is never opened in a process that forks later.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from math import ceil
from typing import Any
from urllib.parse import unquote

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions
from pyspark.sql import types as T

from tidemark.config.types import from_micros
from tidemark.delta.filesystem import open_filesystem

APP_ID = "tidemark"
"""Application id of the transactions in the commits of the ledger and of the tables that follow it."""
FILE_REMOVAL_APP_ID = "tidemark.files"
"""Application id of the transactions in commits with remove actions; their version is the new table version. Of two
concurrent commits, one fails. Otherwise, delta-rs would let a commit remove files that a concurrent commit has removed
without a change of data."""
TXN_VERSION_KEY = "tidemark.commit"
"""Key in `commitInfo` of the ledger's commit that a table's commit applies."""
MAINTENANCE_KEY = "tidemark.upkeep"
"""Key in `commitInfo` of Tidemark's commits that apply no commit of the ledger. Commits of others have neither key."""
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
    modified: int
    """Modification time in ms since 1970 UTC."""
    stats: str
    """Statistics of the add action, as JSON."""


@dataclass(frozen=True)
class ExternalCommit:
    """A commit that Tidemark did not make."""

    version: int
    operation: str
    """Operation as named by the writer, such as DELETE, OPTIMIZE or RESTORE."""
    committed_at: datetime


_SCHEMA_OPERATIONS = re.compile(r"CREATE TABLE|ADD COLUMN|SET TBLPROPERTIES")
"""Operations of Tidemark without its keys in `commitInfo`. They change no row."""
_UNMARKED_WRITE_OPERATIONS = {"WRITE", "Manual Update", "UPDATE"}
"""Operations of Tidemark's commits without its keys: commits by Spark, and commits by reference of early versions."""
_OUTSIDE_TABLE = re.compile(r"^/|^[a-zA-Z0-9]+:|(^|/)\.\.(/|$)")
"""Pattern in the path of a file that is not under the table's folder."""
_MAINTENANCE_OPERATIONS = re.compile(
    r"OPTIMIZE|VACUUM|REORG|FSCK|SET |UNSET |ADD |CHANGE |RENAME |DROP |CREATE TABLE$|ANALYZE|UPGRADE"
)
"""Operations that write no new rows, as named by Delta's writers."""
_TRUNCATED_LOG_MESSAGE = "Invalid table version"
"""Part of delta-rs's error for a commit after a version that the log no longer has, because it was truncated."""
_RECENT_COMMITS = 100
"""Number of recent commits that are searched for one that writes rows."""
OpenTables = dict[str, "DeltaTableHandle"]
"""Open tables by path, at the version of this process's last commit. A later commit of another process causes a
`CommitConflictError` at the next commit."""


@dataclass(frozen=True)
class DeltaTableHandle:
    """A Delta table at one version."""

    path: str
    table: DeltaTable

    @classmethod
    def open(cls, path: str, version: int | None = None) -> DeltaTableHandle | None:
        """Open a table, by default at its latest version; None if it does not exist.

        Raises:
            DeltaError: delta-rs cannot read the table, or it has no such version.
        """
        try:
            return cls(path, DeltaTable(path, version=version))
        except TableNotFoundError:
            return None

    @property
    def version(self) -> int:
        """Version at which the table is open."""
        return int(self.table.version())

    @cached_property
    def schema(self) -> T.StructType:
        """Schema in Spark's types."""
        return _parse_spark_schema(self.table.schema())

    @property
    def partition_columns(self) -> list[str]:
        """Names of the partition columns."""
        return list(self.table.metadata().partition_columns)

    @property
    def has_exact_statistics(self) -> bool:
        """True if statistics use column names and exclude no deleted rows: no column mapping, no deletion vectors."""
        features = self.table.protocol().reader_features or []
        mapped = self.table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none"
        return not mapped and "deletionVectors" not in features

    @property
    def has_row_tracking(self) -> bool:
        """True if the table has row tracking, and so a row commit version for each row."""
        return str(self.table.metadata().configuration.get("delta.enableRowTracking")).lower() == "true"

    @cached_property
    def is_plain_parquet(self) -> bool:
        """True if the table's rows can be read from its Parquet files alone, and all lie in its folder."""
        has_encoded_paths = any("%" in path for path in self.files["path"])
        return (
            self.has_exact_statistics
            and not self.partition_columns
            and not has_encoded_paths
            and not self.external_files
        )

    @cached_property
    def external_files(self) -> list[str]:
        """Decoded paths of files outside the table's folder, such as those of a shallow clone."""
        return [path for path in map(unquote, self.files["path"]) if is_outside_table(path)]

    @property
    def txn_version(self) -> int:
        """Number of the last commit of the ledger that the table has applied; 0 before the first."""
        return int(self.table.transaction_version(APP_ID) or 0)

    @cached_property
    def files(self) -> pd.DataFrame:
        """Files of this version: `path` (as in the log), `size` in bytes and `rows` (NaN without statistics)."""
        actions = self._add_actions
        files = pd.DataFrame(
            {
                "path": actions["path"].to_pylist(),
                "size": actions["size_bytes"].to_pylist(),
                "rows": actions["num_records"].to_pylist() if "num_records" in actions.schema.names else float("nan"),
            }
        )
        return files.astype({"rows": "float64"})

    @property
    def last_write_ms(self) -> int | None:
        """Time of the last commit with rows, in ms since 1970 UTC; None if recent commits are only maintenance."""
        commits = self.table.history(_RECENT_COMMITS)
        return next((int(commit["timestamp"]) for commit in commits if not self._is_maintenance(commit)), None)

    def _is_maintenance(self, commit: dict[str, Any]) -> bool:
        if _MAINTENANCE_OPERATIONS.match(str(commit.get("operation"))):
            return True
        return MAINTENANCE_KEY in commit and not is_data_change(self.path, int(commit["version"]))

    def list_external_commits(self) -> list[ExternalCommit]:
        """List the commits in the log that Tidemark did not make, oldest first."""
        external_commits = []
        for commit in reversed(self.table.history()):
            operation = str(commit.get("operation"))
            if TXN_VERSION_KEY in commit or MAINTENANCE_KEY in commit or _SCHEMA_OPERATIONS.match(operation):
                continue
            version = int(commit["version"])
            if operation in _UNMARKED_WRITE_OPERATIONS and not is_data_change(self.path, version):
                continue
            external_commits.append(ExternalCommit(version, operation, from_micros(int(commit["timestamp"]) * 1000)))
        return external_commits

    def open_before_txn(self, txn_version: int) -> DeltaTableHandle | None:
        """Open the version before the table applied a commit of the ledger; None if it never applied it.

        Raises:
            FileNotFoundError: The log lacks the commit and also early versions, in which it may have been applied.
        """
        commits = self.table.history()
        for commit in commits:
            if commit.get(TXN_VERSION_KEY) == str(txn_version):
                return DeltaTableHandle.open(self.path, int(commit["version"]) - 1)
        if (oldest_version := int(commits[-1]["version"])) > 0:
            raise FileNotFoundError(f"its log begins with version {oldest_version}")
        return None

    def get_min_values(self, column: str) -> list[Any]:
        """Return a column's minimum in each file, in the order of `files`; None without statistics.

        Timestamps may be truncated to milliseconds.
        """
        return self._get_statistic("min", column)

    def get_max_values(self, column: str) -> list[Any]:
        """Return a column's maximum in each file, in the order of `files`; None without statistics.

        Timestamps may be truncated to milliseconds.
        """
        return self._get_statistic("max", column)

    def get_null_counts(self, column: str) -> list[int | None]:
        """Return a column's number of nulls in each file, in the order of `files`; None without statistics."""
        return self._get_statistic("null_count", column)

    def _get_statistic(self, statistic: str, column: str) -> list[Any]:
        actions = self._add_actions
        if statistic not in actions.schema.names or not self.has_exact_statistics:
            return [None] * len(actions)
        statistic_by_column = actions[statistic]
        if statistic_by_column.type.get_field_index(column) < 0:
            return [None] * len(actions)
        values: list[Any] = statistic_by_column.field(column).to_pylist()
        return values

    @cached_property
    def _add_actions(self) -> pa.RecordBatch:
        actions = pa.table(self.table.get_add_actions(flatten=False))
        batches = actions.combine_chunks().to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=actions.schema)

    @cached_property
    def filesystem(self) -> pafs.FileSystem:
        """File system whose root is the table's folder."""
        return open_filesystem(self.path)

    def read(
        self,
        columns: Collection[str],
        condition: ds.Expression | None = None,
        path_column: str | None = None,
        paths: Collection[str] | None = None,
    ) -> pa.Table:
        """Read columns of the rows into memory.

        Args:
            columns: Names of the columns. Names that the table lacks are ignored.
            condition: Filter over these columns.
            path_column: Name of an additional column with the path of each row's file.
            paths: Files to read. Default: all.
        """
        delta_schema = json.loads(self.table.schema().to_json())
        delta_schema["fields"] = [field for field in delta_schema["fields"] if field["name"] in columns]
        schema = pa.schema(Schema.from_json(json.dumps(delta_schema)).to_arrow())
        selected_paths = [str(path) for path in (self.files["path"] if paths is None else paths)]
        dataset = ds.dataset(selected_paths, schema=schema, filesystem=self.filesystem, format=ds.ParquetFileFormat())
        if path_column is None:
            return dataset.to_table(filter=condition)
        tables = []
        for fragment in dataset.get_fragments():
            rows = fragment.to_table(schema=schema, filter=condition)
            tables.append(rows.append_column(path_column, pa.array([fragment.path] * len(rows), pa.string())))
        if not tables:
            return dataset.to_table().append_column(path_column, pa.array([], pa.string()))
        return pa.concat_tables(tables)

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
            if field.name not in present or _lacks_fields(present[field.name].dataType, field.dataType)
        ]
        if not missing:
            return self
        try:
            self.table.alter.add_columns(_to_delta_schema(T.StructType(missing)).fields)
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
    ) -> DeltaTableHandle:
        """Add and remove files in one commit on top of this version.

        Args:
            added: Files in the table's folder.
            removed: Paths of files of this version.
            txn_version: Number of the ledger's commit that is applied; None for a maintenance commit.
            changes_data: False if the table's rows stay the same (`dataChange` of the actions).

        Returns:
            The table after the commit. This object must not be used any more.

        Raises:
            CommitConflictError: Another process has made a conflicting commit.
        """
        removed_paths = set(removed)
        sizes = dict(zip(self.files["path"], self.files["size"], strict=True)) if removed_paths else {}
        now_ms = int(pd.Timestamp.now("UTC").timestamp() * 1000)
        actions: list[AddAction | RemoveAction] = [
            AddAction(file.path, file.size, {}, file.modified, changes_data, file.stats) for file in added
        ]
        actions += [RemoveAction(path, changes_data, now_ms, int(sizes[path]), {}) for path in sorted(removed_paths)]
        schema = self.table.schema()
        try:
            commit_properties = _create_commit_properties(txn_version, self.version + 1 if removed_paths else None)
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
            txn_version: Number of the ledger's commit that is applied; None for a maintenance commit.

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
                commit_properties=_create_commit_properties(None),
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
    return _create_table(path, _to_delta_schema(schema), TABLE_PROPERTIES | feed_property)


def create_internal_table(path: str, schema: pa.Schema) -> DeltaTableHandle:
    """Create a table that only Tidemark reads, at its latest version; so removed files are retained for 30 days only.

    Opens the table if another process has created it meanwhile.
    """
    return _create_table(
        path, Schema.from_arrow(schema), TABLE_PROPERTIES | {_REMOVED_FILE_RETENTION: "interval 30 days"}
    )


def to_spark_schema(schema: pa.Schema) -> T.StructType:
    """Convert an Arrow schema to Spark's types."""
    return _parse_spark_schema(Schema.from_arrow(schema))


def is_outside_table(path: str) -> bool:
    """True if the decoded path of a file is outside the table's folder."""
    return _OUTSIDE_TABLE.search(path) is not None


def get_file_name(path: str) -> str:
    """Return the decoded name of a file from its path in a log."""
    return unquote(path).rsplit("/", 1)[-1]


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


def is_data_change(path: str, version: int) -> bool:
    """True if the commit that made a version added or removed rows.

    Raises:
        FileNotFoundError: The log no longer has the commit.
    """
    files = (action.get("add") or action.get("remove") for action in read_log_actions(path, version))
    return any(file["dataChange"] for file in files if file)


def _create_table(path: str, schema: Schema, configuration: dict[str, str]) -> DeltaTableHandle:
    try:
        create_table_with_add_actions(path, schema, [], configuration=configuration)
    except DeltaError:
        if (table := DeltaTableHandle.open(path)) is None:
            raise
        return table
    return DeltaTableHandle(path, DeltaTable(path))


def _create_commit_properties(txn_version: int | None, removal_version: int | None = None) -> CommitProperties:
    version_by_app = {APP_ID: txn_version, FILE_REMOVAL_APP_ID: removal_version}
    transactions = [Transaction(app_id, version) for app_id, version in version_by_app.items() if version is not None]
    metadata = {MAINTENANCE_KEY: "true"} if txn_version is None else {TXN_VERSION_KEY: str(txn_version)}
    return CommitProperties(custom_metadata=metadata, app_transactions=transactions)


def _parse_spark_schema(schema: Schema) -> T.StructType:
    return T.StructType.fromJson(json.loads(schema.to_json()))


def _to_delta_schema(schema: T.StructType) -> Schema:
    return Schema.from_json(json.dumps(_make_nullable(schema.jsonValue())))


def _make_nullable(dtype: Any) -> Any:
    """Allow nulls everywhere in a type of Delta's JSON schema."""
    if not isinstance(dtype, dict):
        return dtype
    nullability = {"nullable": True, "containsNull": True, "valueContainsNull": True}
    nullable = {key: nullability.get(key, _make_nullable(value)) for key, value in dtype.items()}
    if "fields" in dtype:
        nullable["fields"] = [_make_nullable(field) for field in dtype["fields"]]
    return nullable


def _lacks_fields(present: T.DataType, required: T.DataType) -> bool:
    """True if a type lacks a struct field of the required type, at any depth."""
    match present, required:
        case T.StructType(), T.StructType():
            fields = {field.name: field.dataType for field in present}
            return any(
                field.name not in fields or _lacks_fields(fields[field.name], field.dataType) for field in required
            )
        case T.ArrayType(), T.ArrayType():
            return _lacks_fields(present.elementType, required.elementType)
    return False
