"""Write Parquet files into a table's folder before a commit adds them to the table.

Readers do not see staged files. `DeltaTableHandle.commit` adds them to the table by add actions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from tidemark.delta.filesystem import open_filesystem
from tidemark.delta.schemas import to_spark_schema
from tidemark.delta.table import DataFile

INDEXED_COLUMN_COUNT = 32
"""Number of leading columns with statistics, as in Delta."""
PRUNING_COLUMNS = ("_slice", "carried_from", "carried_until", "_emitted_at")
"""Columns that always have statistics, because files are selected by them."""
MAX_STRING_LENGTH = 32
"""Maximum length of strings in statistics. Longer bounds are omitted."""
_EXACT_JSON_TYPES = (T.IntegralType, T.StringType, T.DateType, T.TimestampType, T.TimestampNTZType)
"""Types whose minimum and maximum JSON represents exactly."""

_GLOB_CHARACTER = re.compile(r"[][{}*?\\]")
"""Characters that Spark interprets as glob patterns in a path."""
_HIGH_CARDINALITY_TYPES = (T.LongType, T.DoubleType, T.TimestampType, T.TimestampNTZType)
"""Types whose values rarely repeat."""


@dataclass(frozen=True)
class StagedFiles:
    """Staged files of one table."""

    table: str
    """Folder of the table."""
    schema: T.StructType
    files: tuple[DataFile, ...]

    def read(self, spark: SparkSession) -> DataFrame:
        """Read the rows of the files."""
        return read_files(spark, self.table, self.schema, (file.path for file in self.files))


def stage_rows(rows: DataFrame, table: str, folder: str, partition_column: str | None = None) -> StagedFiles:
    """Write rows to a new folder in a table's folder.

    Args:
        rows: Rows to write.
        table: Folder of the table.
        folder: New folder, relative to `table`.
        partition_column: Column to split files by, into subfolders. It is not in the files.
    """
    writer = rows.write.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
    for column in _list_high_cardinality_columns(rows.schema):
        writer = writer.option(f"parquet.enable.dictionary#{column}", "false")
    (writer.partitionBy(partition_column) if partition_column else writer).parquet(f"{table}/{folder}")
    schema = T.StructType([field for field in rows.schema if field.name != partition_column])
    return StagedFiles(table, schema, tuple(_list_written_files(table, folder, schema)))


def stage_arrow_table(rows: pa.Table, table: str, folder: str) -> StagedFiles:
    """Write rows to one file in a new folder of a table, without Spark. Arguments are those of `stage_rows`."""
    filesystem, path = open_filesystem(table), f"{folder}/part-0.parquet"
    filesystem.create_dir(folder)
    with filesystem.open_output_stream(path) as file:
        pq.write_table(rows, file, write_page_checksum=True)
    schema = to_spark_schema(rows.schema)
    return StagedFiles(table, schema, tuple(_list_written_files(table, folder, schema)))


def read_files(spark: SparkSession, table: str, schema: T.StructType, paths: Iterable[str]) -> DataFrame:
    """Read files of a table with a schema, without the table's log."""
    escaped_paths = [_GLOB_CHARACTER.sub(r"\\\g<0>", f"{table}/{path}") for path in paths]
    if not escaped_paths:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*escaped_paths)


def _list_high_cardinality_columns(schema: T.StructType, prefix: str = "") -> Iterator[str]:
    """Yield the Parquet columns to write without a dictionary, by path.

    A dictionary of values that rarely repeat takes a third of the writing time and makes files larger.
    """
    for field in schema:
        if isinstance(field.dataType, T.StructType):
            yield from _list_high_cardinality_columns(field.dataType, f"{prefix}{field.name}.")
        elif isinstance(field.dataType, _HIGH_CARDINALITY_TYPES) and field.name not in PRUNING_COLUMNS:
            yield f"{prefix}{field.name}"


def read_data_files(table: str, schema: T.StructType, paths: Iterable[str]) -> list[DataFile]:
    """Read sizes and statistics of files from their footers, sorted by path.

    Args:
        table: Folder of the table.
        schema: Schema of the files.
        paths: Paths relative to the folder.

    Raises:
        FileNotFoundError: A file does not exist.
    """
    filesystem = open_filesystem(table)
    return _read_data_files(filesystem, filesystem.get_file_info(sorted(paths)), schema)


def _list_written_files(table: str, folder: str, schema: T.StructType) -> list[DataFile]:
    filesystem = open_filesystem(table)
    infos = filesystem.get_file_info(pafs.FileSelector(folder, recursive=True))
    files = [info for info in infos if info.is_file and info.path.endswith(".parquet")]
    data_files = _read_data_files(filesystem, files, schema)
    for file in data_files:
        if not file.rows:  # Spark writes an empty file if there are no rows
            filesystem.delete_file(file.path)
    return sorted((file for file in data_files if file.rows), key=lambda file: file.path)


def _read_data_files(
    filesystem: pafs.FileSystem, infos: Iterable[pafs.FileInfo], schema: T.StructType
) -> list[DataFile]:
    first_names = schema.names[:INDEXED_COLUMN_COUNT]
    indexed_names = [
        field.name
        for field in schema
        # A name with a dot would be ambiguous with a field of a struct.
        if isinstance(field.dataType, _EXACT_JSON_TYPES)
        and field.name in {*first_names, *PRUNING_COLUMNS}
        and "." not in field.name
    ]
    data_files = []
    for info in infos:
        with filesystem.open_input_file(info.path) as file:
            footer = pq.read_metadata(file)
        stats = json.dumps(_collect_statistics(footer, indexed_names))
        data_files.append(DataFile(info.path, info.size, footer.num_rows, info.mtime_ns // 1_000_000, stats))
    return data_files


def _collect_statistics(footer: pq.FileMetaData, names: Sequence[str]) -> dict[str, Any]:
    """Merge the row groups' statistics to a file's: `numRecords`, `minValues`, `maxValues` and `nullCount`."""
    column_numbers = {footer.schema.column(number).path: number for number in range(footer.num_columns)}
    min_values: dict[str, Any] = {}
    max_values: dict[str, Any] = {}
    null_counts: dict[str, int] = {}
    for name in names:
        if name not in column_numbers:  # the column was added to the table later
            continue
        column_chunks = [footer.row_group(group).column(column_numbers[name]) for group in range(footer.num_row_groups)]
        statistics = [chunk.statistics for chunk in column_chunks if chunk.is_stats_set]
        if len(statistics) < len(column_chunks) or not all(chunk.has_null_count for chunk in statistics):
            continue
        null_counts[name] = sum(chunk.null_count for chunk in statistics)
        non_null = [
            chunk_statistics
            for chunk_statistics, chunk in zip(statistics, column_chunks, strict=True)
            if chunk_statistics.null_count < chunk.num_values
        ]
        if bounds := _merge_bounds(non_null):
            min_values[name], max_values[name] = bounds
    return {"numRecords": footer.num_rows, "minValues": min_values, "maxValues": max_values, "nullCount": null_counts}


def _merge_bounds(statistics: Sequence[pq.Statistics]) -> tuple[Any, Any] | None:
    """Return minimum and maximum for JSON; None if unknown, too long, or dates that Python cannot represent."""
    if not statistics or not all(chunk.has_min_max for chunk in statistics):
        return None
    try:
        minimum, maximum = min(chunk.min for chunk in statistics), max(chunk.max for chunk in statistics)
    except (OverflowError, ValueError):
        return None
    if any(isinstance(bound, str) and len(bound) > MAX_STRING_LENGTH for bound in (minimum, maximum)):
        return None
    return _to_json_value(minimum), _to_json_value(maximum)


def _to_json_value(value: Any) -> Any:
    match value:
        case datetime():
            utc = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
            return utc.isoformat(timespec="microseconds") + ("Z" if value.tzinfo else "")
        case date():
            return value.isoformat()
    return value
