"""Read a Delta table at one version with delta-rs, without a JVM.

delta-rs does not survive `fork`, so a table is never opened in a process that forks later.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import unquote

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyspark.sql import types as T

from tidemark.delta.commit_history import is_data_change, is_outside_table
from tidemark.delta.filesystem import open_filesystem
from tidemark.delta.schemas import parse_spark_schema
from tidemark.spark.void_types import drop_void_fields

APP_ID = "tidemark"
"""Application id of Tidemark's transactions (`txn` actions)."""
TXN_VERSION_KEY = "tidemark.commit"
"""Key in `commitInfo` with the version of the commit's transaction."""
MAINTENANCE_KEY = "tidemark.maintenance"
"""Key in `commitInfo` of Tidemark's commits without a transaction. Commits by others have neither key."""
_MAINTENANCE_OPERATIONS = re.compile(
    r"OPTIMIZE|VACUUM|REORG|FSCK|SET |UNSET |ADD |CHANGE |RENAME |DROP |CREATE TABLE$|ANALYZE|UPGRADE"
)
"""Operations that leave the rows as they are, as named by Delta's writers."""
_REMOVALS_AND_CHANGES = re.compile(r"DELETE|UPDATE|TRUNCATE|RESTORE")
"""Operations that remove or change rows and add none, as named by Delta's writers."""
_INSERTED_ROW_METRICS = ("numTargetRowsInserted", "num_target_rows_inserted")
"""Metrics of MERGE with the number of added rows, by writer."""
_RECENT_COMMITS = 100
"""Number of recent commits that are searched for a change of rows."""


@dataclass(frozen=True)
class DeltaSnapshot:
    """A Delta table at one version."""

    path: str
    table: DeltaTable

    @classmethod
    def open(cls, path: str, version: int | None = None) -> Self | None:
        """Open a table, by default at its latest version; None if it does not exist.

        Raises:
            DeltaError: Delta-rs cannot read the table, or it has no such version. The message begins with the path.
        """
        try:
            return cls(path, DeltaTable(path, version=version))
        except TableNotFoundError:
            return None
        except DeltaError as error:
            if Path(path).is_file():
                return None
            raise DeltaError(f"{path}: {error}") from error

    @property
    def version(self) -> int:
        """Version at which the table is open."""
        return int(self.table.version())

    @cached_property
    def schema(self) -> T.StructType:
        """Schema in Spark's types, without fields of type VOID."""
        return drop_void_fields(self.declared_schema)

    @cached_property
    def declared_schema(self) -> T.StructType:
        """Schema in Spark's types as the log has it."""
        return parse_spark_schema(self.table.schema())

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
        return self.has_plain_data_files and not self.partition_columns and not has_encoded_paths

    @property
    def has_plain_data_files(self) -> bool:
        """True if columns that are not partitions can be read from the files, which all lie in the table's folder."""
        return self.has_exact_statistics and not self.external_files

    @cached_property
    def external_files(self) -> list[str]:
        """Decoded paths of files outside the table's folder, such as those of a shallow clone."""
        return [path for path in map(unquote, self.files["path"]) if is_outside_table(path)]

    @property
    def txn_version(self) -> int:
        """Version of the last transaction that the table has applied; 0 before the first."""
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
    def last_insert_ms(self) -> int | None:
        """Time of the last commit that added rows, in ms since 1970 UTC; None if no recent commit did."""
        return next((int(commit["timestamp"]) for commit in self._recent_writes if _may_add_rows(commit)), None)

    @property
    def last_write_version(self) -> int | None:
        """Version of the last commit that added, changed or removed rows; None if no recent commit did."""
        return next((int(commit["version"]) for commit in self._recent_writes), None)

    @property
    def _recent_writes(self) -> Iterator[dict[str, Any]]:
        commits = self.table.history(_RECENT_COMMITS)
        return (commit for commit in commits if not self._is_maintenance(commit))

    def _is_maintenance(self, commit: dict[str, Any]) -> bool:
        if _MAINTENANCE_OPERATIONS.match(str(commit.get("operation"))):
            return True
        return MAINTENANCE_KEY in commit and not is_data_change(self.path, int(commit["version"]))

    def open_before_txn(self, txn_version: int) -> Self | None:
        """Open the version before the table applied a transaction; None if it never applied it.

        Raises:
            FileNotFoundError: The log lacks the commit and also early versions, in which it may have been applied.
        """
        commits = self.table.history()
        for commit in commits:
            if commit.get(TXN_VERSION_KEY) == str(txn_version):
                version_before = int(commit["version"]) - 1
                try:
                    return self.open(self.path, version_before)
                except DeltaError:
                    raise FileNotFoundError(f"its log lacks version {version_before}") from None
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

    def get_statistics_by_physical_path(
        self, statistic: Literal["null_count", "max"], path: Sequence[str]
    ) -> list[Any]:
        """Return a statistic of each file, in the order of `files`; None without statistics.

        They may include rows that deletion vectors delete.

        Args:
            statistic: Number of nulls, or maximum.
            path: Physical names of a column and its nested fields. They are the names without column mapping.
        """
        actions = self._add_actions
        column: Any = actions[statistic] if statistic in actions.schema.names else None
        for name in path:
            if column is None or not pa.types.is_struct(column.type) or column.type.get_field_index(name) < 0:
                return [None] * len(actions)
            column = column.field(name)
        values: list[Any] = column.to_pylist()
        return values

    def _get_statistic(self, statistic: str, column: str) -> list[Any]:
        actions = self._add_actions
        if not self.has_exact_statistics:
            return [None] * len(actions)
        if column in self.partition_columns:
            return self._get_partition_statistic(statistic, column)
        if statistic not in actions.schema.names:
            return [None] * len(actions)
        statistic_by_column = actions[statistic]
        if statistic_by_column.type.get_field_index(column) < 0:
            return [None] * len(actions)
        values: list[Any] = statistic_by_column.field(column).to_pylist()
        return values

    def _get_partition_statistic(self, statistic: str, column: str) -> list[Any]:
        """Return a statistic of a partition column, whose value all rows of a file share."""
        values: list[Any] = self._add_actions["partition"].field(column).to_pylist()
        if statistic != "null_count":
            return values
        counts = [0 if value is not None else count for value, count in zip(values, self.files["rows"], strict=True)]
        return [None if math.isnan(count) else int(count) for count in counts]

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
            paths: Files to read, with paths as in `files`. Default: all.
        """
        delta_schema = json.loads(self.table.schema().to_json())
        delta_schema["fields"] = [field for field in delta_schema["fields"] if field["name"] in columns]
        schema = pa.schema(Schema.from_json(json.dumps(delta_schema)).to_arrow())
        selected_paths = [unquote(str(path)) for path in (self.files["path"] if paths is None else paths)]
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


def _may_add_rows(commit: Mapping[str, Any]) -> bool:
    """Return True if a commit may have added rows, by its operation and metrics."""
    if commit.get("operation") == "MERGE":
        metrics = commit.get("operationMetrics") or {}
        inserted_rows = [int(metrics[name]) for name in _INSERTED_ROW_METRICS if name in metrics]
        return not inserted_rows or sum(inserted_rows) > 0
    return not _REMOVALS_AND_CHANGES.match(str(commit.get("operation")))
