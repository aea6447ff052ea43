"""A Delta table as its log tells it: version, columns, files with their statistics, small columns. No JVM takes part.

delta-rs does not survive `fork`: a table is opened where the work happens, and never in a process that forks later.
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
"""The application whose transaction id each commit of the ledger, and of the tables that follow it, carries."""
FILE_REMOVAL_APP_ID = "tidemark.files"
"""The application whose transaction id, the version that is made, each commit carries by which files go. So of two at
the same time one is refused: delta-rs lets a commit remove what another that changes no data has removed already."""
TXN_VERSION_KEY = "tidemark.commit"
"""Where the info of a table's commit names the ledger's commit that it follows."""
MAINTENANCE_KEY = "tidemark.upkeep"
"""Stands in the info of Tidemark's own commits that follow none of the ledger's; others' commits have neither."""
_INDEX_ALL_COLUMNS = {"delta.dataSkippingNumIndexedCols": "-1"}
"""By default delta-rs reads the statistics of the first 32 columns alone, and those by which files go come last."""
_REMOVED_FILE_RETENTION = "delta.deletedFileRetentionDuration"
TABLE_PROPERTIES = _INDEX_ALL_COLUMNS | {
    # Old answers are the table's earlier versions.
    "delta.logRetentionDuration": "interval 3650 days",
    _REMOVED_FILE_RETENTION: "interval 365 days",
}


_POST_COMMIT_HOOKS = PostCommitHookProperties(cleanup_expired_logs=False)
"""Logs are shortened by vacuum alone; to look after each commit whether they may be takes longer with each."""


class CommitConflictError(Exception):
    """Another process has committed to the table since it was opened."""


@dataclass(frozen=True)
class DataFile:
    """A Parquet file in the folder of a table, whether its log knows it or not."""

    path: str
    """Relative to the table."""
    size: int
    """Bytes."""
    rows: int
    modified: int
    """Ms since 1970 UTC."""
    stats: str
    """What the log says of its rows: JSON."""


@dataclass(frozen=True)
class ExternalCommit:
    """A commit of somebody else's."""

    version: int
    operation: str
    """As its writer calls it: DELETE, OPTIMIZE, RESTORE."""
    at: datetime


_SCHEMA_OPERATIONS = re.compile(r"CREATE TABLE|ADD COLUMN|SET TBLPROPERTIES")
"""Operations of Tidemark's own that carry no mark; they change no row."""
_UNMARKED_WRITE_OPERATIONS = {"WRITE", "Manual Update", "UPDATE"}
"""Those of its commits by reference before these had one, and through Spark."""
_OUTSIDE_TABLE = re.compile(r"^/|^[a-zA-Z0-9]+:|(^|/)\.\.(/|$)")
"""In the path of a file that is not under the table's folder."""
_MAINTENANCE_OPERATIONS = re.compile(
    r"OPTIMIZE|VACUUM|REORG|FSCK|SET |UNSET |ADD |CHANGE |RENAME |DROP |CREATE TABLE$|ANALYZE|UPGRADE"
)
"""Operations that Delta's writers name of commits that write no rows."""
_TRUNCATED_LOG_MESSAGE = "Invalid table version"
"""How delta-rs refuses a commit on top of a version behind which the log has been shortened meanwhile."""
_RECENT_COMMITS = 100
"""So many commits are looked through for one that writes rows."""
OpenTables = dict[str, "DeltaTableHandle"]
"""Open tables by path, each as of this process's last commit. Commits of other processes since then cause a
`CommitConflictError` at the next commit."""


@dataclass(frozen=True)
class DeltaTableHandle:
    """A table at one version."""

    path: str
    table: DeltaTable

    @classmethod
    def open(cls, path: str, version: int | None = None) -> DeltaTableHandle | None:
        """Open a table, by default as it stands now; None where there is none.

        Raises:
            DeltaError: delta-rs cannot read such a table, or it has no such version.
        """
        try:
            return cls(path, DeltaTable(path, version=version))
        except TableNotFoundError:
            return None

    @property
    def version(self) -> int:
        """The version that this is."""
        return int(self.table.version())

    @cached_property
    def schema(self) -> T.StructType:
        """Its columns."""
        return _parse_spark_schema(self.table.schema())

    @property
    def partition_columns(self) -> list[str]:
        """Its partition columns."""
        return list(self.table.metadata().partition_columns)

    @property
    def has_exact_statistics(self) -> bool:
        """Whether statistics are by the names of columns, and count just the rows that are there."""
        features = self.table.protocol().reader_features or []
        mapped = self.table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none"
        return not mapped and "deletionVectors" not in features

    @property
    def has_row_tracking(self) -> bool:
        """Whether rows tell the version that they were committed in."""
        return str(self.table.metadata().configuration.get("delta.enableRowTracking")).lower() == "true"

    @cached_property
    def is_plain_parquet(self) -> bool:
        """Whether its rows are just what is in its files, and these lie in its folder."""
        encoded = any("%" in path for path in self.files["path"])
        return self.has_exact_statistics and not self.partition_columns and not encoded and not self.external_files

    @cached_property
    def external_files(self) -> list[str]:
        """The paths of its files that are not under its folder, as a shallow clone has them."""
        return [path for path in map(unquote, self.files["path"]) if is_outside_table(path)]

    @property
    def txn_version(self) -> int:
        """The ledger's commit that the table has come to; 0 before the first."""
        return int(self.table.transaction_version(APP_ID) or 0)

    @cached_property
    def files(self) -> pd.DataFrame:
        """One row per file: `path`, `size` in bytes, `rows` (NaN where the log does not say)."""
        actions = self._add_actions
        found = pd.DataFrame(
            {
                "path": actions["path"].to_pylist(),
                "size": actions["size_bytes"].to_pylist(),
                "rows": actions["num_records"].to_pylist() if "num_records" in actions.schema.names else float("nan"),
            }
        )
        return found.astype({"rows": "float64"})

    @property
    def written_at(self) -> int | None:
        """When rows were last written to it, in ms since 1970 UTC; None where its last commits are upkeep alone."""
        commits = self.table.history(_RECENT_COMMITS)
        return next((int(one["timestamp"]) for one in commits if not self._is_upkeep(one)), None)

    def _is_upkeep(self, commit: dict[str, Any]) -> bool:
        if _MAINTENANCE_OPERATIONS.match(str(commit.get("operation"))):
            return True
        return MAINTENANCE_KEY in commit and not is_data_change(self.path, int(commit["version"]))

    def foreign(self) -> list[ExternalCommit]:
        """The commits that the log still has and Tidemark has not made, the oldest first."""
        found = []
        for one in reversed(self.table.history()):
            operation = str(one.get("operation"))
            if TXN_VERSION_KEY in one or MAINTENANCE_KEY in one or _SCHEMA_OPERATIONS.match(operation):
                continue
            version = int(one["version"])
            if operation in _UNMARKED_WRITE_OPERATIONS and not is_data_change(self.path, version):
                continue
            found.append(ExternalCommit(version, operation, from_micros(int(one["timestamp"]) * 1000)))
        return found

    def open_before_txn(self, txn_version: int) -> DeltaTableHandle | None:
        """The table as it was until it followed a commit of the ledger; None where it has never followed that.

        Raises:
            FileNotFoundError: the log no longer has its early versions, and does not tell.
        """
        commits = self.table.history()
        if (found := next((one for one in commits if one.get(TXN_VERSION_KEY) == str(txn_version)), None)) is not None:
            return DeltaTableHandle.open(self.path, int(found["version"]) - 1)
        if (oldest := int(commits[-1]["version"])) > 0:
            raise FileNotFoundError(f"its log begins with version {oldest}")
        return None

    def get_min_values(self, column: str) -> list[Any]:
        """The least value of a column in each file, in the order of `files`; None where the log is silent.

        Times may be cut to whole milliseconds.
        """
        return self._get_statistic("min", column)

    def get_max_values(self, column: str) -> list[Any]:
        """The greatest value, as `least`."""
        return self._get_statistic("max", column)

    def get_null_counts(self, column: str) -> list[int | None]:
        """How many nulls a column has in each file, None where the log is silent."""
        return self._get_statistic("null_count", column)

    def _get_statistic(self, bound: str, column: str) -> list[Any]:
        actions = self._add_actions
        if bound not in actions.schema.names or not self.has_exact_statistics:
            return [None] * len(actions)
        of_columns = actions[bound]
        if of_columns.type.get_field_index(column) < 0:
            return [None] * len(actions)
        values: list[Any] = of_columns.field(column).to_pylist()
        return values

    @cached_property
    def _add_actions(self) -> pa.RecordBatch:
        actions = pa.table(self.table.get_add_actions(flatten=False))
        batches = actions.combine_chunks().to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=actions.schema)

    @cached_property
    def filesystem(self) -> pafs.FileSystem:
        """The table's folder, as a file system."""
        return open_filesystem(self.path)

    def read(
        self,
        columns: Collection[str],
        where: ds.Expression | None = None,
        path_column: str | None = None,
        paths: Collection[str] | None = None,
    ) -> pa.Table:
        """A few columns of the rows, without those that the table does not have; `file` names one for the file's path.

        A filter is over these columns; `paths` are the files to read, by default all.
        """
        wanted = json.loads(self.table.schema().to_json())
        wanted["fields"] = [one for one in wanted["fields"] if one["name"] in columns]
        known = pa.schema(Schema.from_json(json.dumps(wanted)).to_arrow())
        chosen = [str(path) for path in (self.files["path"] if paths is None else paths)]
        rows = ds.dataset(chosen, schema=known, filesystem=self.filesystem, format=ds.ParquetFileFormat())
        if path_column is None:
            return rows.to_table(filter=where)
        parts = [(one.path, one.to_table(schema=known, filter=where)) for one in rows.get_fragments()]
        named = [part.append_column(path_column, pa.array([path] * len(part), pa.string())) for path, part in parts]
        return (
            pa.concat_tables(named) if named else rows.to_table().append_column(path_column, pa.array([], pa.string()))
        )

    def add_missing_columns(self, schema: T.StructType) -> DeltaTableHandle:
        """The table with the columns that it lacks of a schema, in a commit of its own; its rows stay as they are.

        One of an earlier version is told to have its statistics read of all columns, too.

        Raises:
            CommitConflictError: Another process has committed in between.
        """
        if not _INDEX_ALL_COLUMNS.items() <= self.table.metadata().configuration.items():
            return self._index_all_columns().add_missing_columns(schema)
        present = {field.name: field for field in self.schema}
        missing = [
            one for one in schema if one.name not in present or _lacks_fields(present[one.name].dataType, one.dataType)
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
        """Make files part of the table, and others none of it, in one commit on top of this version.

        Gives the table as it is then; this is not to be used any more. `number` is the ledger's commit that this
        follows. Without `changes_data` the rows are the same as before.

        Raises:
            CommitConflictError: Another process has made a conflicting commit.
        """
        gone = set(removed)
        sizes = dict(zip(self.files["path"], self.files["size"], strict=True)) if gone else {}
        now = int(pd.Timestamp.now("UTC").timestamp() * 1000)
        actions: list[AddAction | RemoveAction] = [
            AddAction(one.path, one.size, {}, one.modified, changes_data, one.stats) for one in added
        ]
        actions += [RemoveAction(path, changes_data, now, int(sizes[path]), {}) for path in sorted(gone)]
        schema = self.table.schema()
        try:
            follows = _create_commit_properties(txn_version, self.version + 1 if gone else None)
            self.table.create_write_transaction(
                actions, "append", schema, commit_properties=follows, post_commithook_properties=_POST_COMMIT_HOOKS
            )
        except DeltaError as error:
            if isinstance(error, CommitFailedError) or _TRUNCATED_LOG_MESSAGE in str(error):
                raise CommitConflictError from error
            raise
        self.table.update_incremental()
        return DeltaTableHandle(self.path, self.table)

    def append(self, rows: pa.Table, txn_version: int | None = None) -> DeltaTableHandle:
        """Write a few rows on top of this version, columns that the table lacks too; else as `commit`.

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
        """Write rows in place of all that this version has, with their columns.

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

    def set_removed_file_retention(self, span: timedelta) -> None:
        """Let checkpoints tell for so long of files that went, and `VACUUM` of others leave them; no row changes.

        Each commit reads what the last checkpoint tells. Where another process writes at the same time, it is left.
        """
        kept = {_REMOVED_FILE_RETENTION: f"interval {ceil(span / timedelta(seconds=1))} seconds"}
        if not kept.items() <= self.table.metadata().configuration.items():
            with suppress(CommitFailedError):
                self.table.alter.set_table_properties(kept)

    def compact(self) -> None:
        """Make one file of many small ones; where another process writes at the same time, leave it."""
        with suppress(CommitFailedError):
            self.table.optimize.compact(commit_properties=_create_commit_properties(None))


def create_table(path: str, schema: T.StructType, *, change_feed: bool) -> DeltaTableHandle:
    """An empty table with these columns, made now or by another process meanwhile."""
    feed = {"delta.enableChangeDataFeed": "true"} if change_feed else {}
    return _create_table(path, _to_delta_schema(schema), TABLE_PROPERTIES | feed)


def create_arrow_table(path: str, schema: pa.Schema) -> DeltaTableHandle:
    """The same with Arrow's columns, for a table that only Tidemark reads: by its newest version."""
    return _create_table(
        path, Schema.from_arrow(schema), TABLE_PROPERTIES | {_REMOVED_FILE_RETENTION: "interval 30 days"}
    )


def to_spark_schema(schema: pa.Schema) -> T.StructType:
    """Arrow's columns as Spark has them."""
    return _parse_spark_schema(Schema.from_arrow(schema))


def is_outside_table(path: str) -> bool:
    """Whether the path of a file, decoded, leads out of the table's folder."""
    return _OUTSIDE_TABLE.search(path) is not None


def get_file_name(path: str) -> str:
    """The name of a file, by its path as a log has it."""
    return unquote(path).rsplit("/", 1)[-1]


def read_log_actions(path: str, version: int, folder: pafs.FileSystem | None = None) -> list[dict[str, Any]]:
    """What one version of a table says, as its file of the log has it; `folder` is the table's, if it is at hand.

    Raises:
        FileNotFoundError: the log no longer reaches back to it.
    """
    text = (folder or open_filesystem(path)).open_input_file(f"_delta_log/{version:020d}.json").read()
    return [json.loads(line) for line in bytes(text).splitlines() if line.strip()]


def is_data_change(path: str, version: int) -> bool:
    """Whether rows came or went with a version of a table.

    Raises:
        FileNotFoundError: the log no longer reaches back to it.
    """
    files = (action.get("add") or action.get("remove") for action in read_log_actions(path, version))
    return any(file["dataChange"] for file in files if file)


def _create_table(path: str, schema: Schema, configuration: dict[str, str]) -> DeltaTableHandle:
    try:
        create_table_with_add_actions(path, schema, [], configuration=configuration)
    except DeltaError:
        if (made := DeltaTableHandle.open(path)) is None:
            raise
        return made
    return DeltaTableHandle(path, DeltaTable(path))


def _create_commit_properties(txn_version: int | None, removal_version: int | None = None) -> CommitProperties:
    told = {APP_ID: txn_version, FILE_REMOVAL_APP_ID: removal_version}
    transactions = [Transaction(name, one) for name, one in told.items() if one is not None]
    mark = {MAINTENANCE_KEY: "true"} if txn_version is None else {TXN_VERSION_KEY: str(txn_version)}
    return CommitProperties(custom_metadata=mark, app_transactions=transactions)


def _parse_spark_schema(schema: Schema) -> T.StructType:
    return T.StructType.fromJson(json.loads(schema.to_json()))


def _to_delta_schema(schema: T.StructType) -> Schema:
    return Schema.from_json(json.dumps(_make_nullable(schema.jsonValue())))


def _make_nullable(kind: Any) -> Any:
    """A type as Delta writes it, with nulls allowed everywhere."""
    if not isinstance(kind, dict):
        return kind
    open_ = {"nullable": True, "containsNull": True, "valueContainsNull": True}
    found = {key: open_.get(key, _make_nullable(value)) for key, value in kind.items()}
    if "fields" in kind:
        found["fields"] = [_make_nullable(field) for field in kind["fields"]]
    return found


def _lacks_fields(present: T.DataType, wanted: T.DataType) -> bool:
    """Whether a struct, at whatever depth, lacks fields that the same struct has elsewhere."""
    match present, wanted:
        case T.StructType(), T.StructType():
            fields = {field.name: field.dataType for field in present}
            return any(one.name not in fields or _lacks_fields(fields[one.name], one.dataType) for one in wanted)
        case T.ArrayType(), T.ArrayType():
            return _lacks_fields(present.elementType, wanted.elementType)
    return False
