"""Rows written into the folder of a table as Parquet that its log does not know: nobody who reads the table sees them.

A reference in the log makes such a file part of the table (`table.DeltaTableHandle.commit`).
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
from tidemark.delta.table import DataFile, to_spark_schema

INDEXED_COLUMNS = 32
"""How many columns, the first ones, a file's statistics tell of; as Delta itself has it."""
PRUNING_COLUMNS = ("_slice", "carried_from", "carried_until")
"""Columns that statistics tell of wherever they stand: files are chosen by them."""
MAX_STRING_LENGTH = 32
"""Longer texts are not in statistics."""
_EXACT_JSON_TYPES = (T.IntegralType, T.StringType, T.DateType, T.TimestampType, T.TimestampNTZType)
"""Types whose least and greatest value JSON has exactly."""

_GLOB_CHARACTER = re.compile(r"[][{}*?\\]")
"""Characters that make a pattern of a path, for Spark."""
_HIGH_CARDINALITY_TYPES = (T.LongType, T.DoubleType, T.TimestampType, T.TimestampNTZType)
"""Types of values that hardly repeat."""


@dataclass(frozen=True)
class StagedFiles:
    """Files that hold the rows of one table."""

    table: str
    """The table's folder."""
    schema: T.StructType
    files: tuple[DataFile, ...]

    def read(self, spark: SparkSession) -> DataFrame:
        """What they hold."""
        return read_files(spark, self.table, self.schema, (one.path for one in self.files))


def stage_rows(rows: DataFrame, table: str, folder: str, partition_column: str | None = None) -> StagedFiles:
    """Write rows into a new folder of a table, unknown to its log; a column to go `by` makes folders in that."""
    writer = rows.write.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
    for column in _list_high_cardinality_columns(rows.schema):
        writer = writer.option(f"parquet.enable.dictionary#{column}", "false")
    (writer.partitionBy(partition_column) if partition_column else writer).parquet(f"{table}/{folder}")
    schema = T.StructType([field for field in rows.schema if field.name != partition_column])
    return StagedFiles(table, schema, tuple(_list_written_files(table, folder, schema)))


def stage_arrow_table(rows: pa.Table, table: str, folder: str) -> StagedFiles:
    """As `stage`, of a few rows at hand: one file, without Spark."""
    system, path = open_filesystem(table), f"{folder}/part-0.parquet"
    system.create_dir(folder)
    with system.open_output_stream(path) as file:
        pq.write_table(rows, file, write_page_checksum=True)
    schema = to_spark_schema(rows.schema)
    return StagedFiles(table, schema, tuple(_list_written_files(table, folder, schema)))


def read_files(spark: SparkSession, table: str, schema: T.StructType, paths: Iterable[str]) -> DataFrame:
    """The rows of some files of a table, with these columns."""
    escaped_paths = [_GLOB_CHARACTER.sub(r"\\\g<0>", f"{table}/{path}") for path in paths]
    if not escaped_paths:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*escaped_paths)


def _list_high_cardinality_columns(schema: T.StructType, prefix: str = "") -> Iterator[str]:
    """The Parquet columns to write without a dictionary, those of times and long numbers.

    One of values that hardly repeat takes a third of the time to write, and makes larger files.
    """
    for field in schema:
        if isinstance(field.dataType, T.StructType):
            yield from _list_high_cardinality_columns(field.dataType, f"{prefix}{field.name}.")
        elif isinstance(field.dataType, _HIGH_CARDINALITY_TYPES) and field.name not in PRUNING_COLUMNS:
            yield f"{prefix}{field.name}"


def read_data_files(table: str, schema: T.StructType, paths: Iterable[str]) -> list[DataFile]:
    """Files of a table as a log would tell of them, by their footers, in order.

    Raises:
        FileNotFoundError: one is not there any more.
    """
    system = open_filesystem(table)
    return _read_data_files(system, system.get_file_info(sorted(paths)), schema)


def _list_written_files(table: str, folder: str, schema: T.StructType) -> list[DataFile]:
    system = open_filesystem(table)
    infos = system.get_file_info(pafs.FileSelector(folder, recursive=True))
    files = [info for info in infos if info.is_file and info.path.endswith(".parquet")]
    data_files = _read_data_files(system, files, schema)
    for one in data_files:
        if not one.rows:  # Spark writes one where there is nothing to write
            system.delete_file(one.path)
    return sorted((one for one in data_files if one.rows), key=lambda one: one.path)


def _read_data_files(system: pafs.FileSystem, infos: Iterable[pafs.FileInfo], schema: T.StructType) -> list[DataFile]:
    names = schema.names[:INDEXED_COLUMNS]
    indexed = [
        one.name
        for one in schema
        # A dot would stand for a field of a struct.
        if isinstance(one.dataType, _EXACT_JSON_TYPES)
        and one.name in {*names, *PRUNING_COLUMNS}
        and "." not in one.name
    ]
    data_files = []
    for info in infos:
        with system.open_input_file(info.path) as file:
            footer = pq.read_metadata(file)
        stats = json.dumps(_collect_statistics(footer, indexed))
        data_files.append(DataFile(info.path, info.size, footer.num_rows, info.mtime_ns // 1_000_000, stats))
    return data_files


def _collect_statistics(footer: pq.FileMetaData, names: Sequence[str]) -> dict[str, Any]:
    """What Delta's log tells of a file: `numRecords`, `minValues`, `maxValues`, `nullCount`."""
    column_numbers = {footer.schema.column(number).path: number for number in range(footer.num_columns)}
    min_values: dict[str, Any] = {}
    max_values: dict[str, Any] = {}
    null_counts: dict[str, int] = {}
    for name in names:
        if name not in column_numbers:  # a column that the table has gained since
            continue
        groups = [footer.row_group(group).column(column_numbers[name]) for group in range(footer.num_row_groups)]
        statistics = [group.statistics for group in groups if group.is_stats_set]
        if len(statistics) < len(groups) or not all(one.has_null_count for one in statistics):
            continue
        null_counts[name] = sum(one.null_count for one in statistics)
        non_null = [one for one, group in zip(statistics, groups, strict=True) if one.null_count < group.num_values]
        if bounds := _get_bounds(non_null):
            min_values[name], max_values[name] = bounds
    return {"numRecords": footer.num_rows, "minValues": min_values, "maxValues": max_values, "nullCount": null_counts}


def _get_bounds(statistics: Sequence[pq.Statistics]) -> tuple[Any, Any] | None:
    """The least and the greatest value as JSON; None where they are not known, long, or no date of Python's."""
    if not statistics or not all(one.has_min_max for one in statistics):
        return None
    try:
        low, high = min(one.min for one in statistics), max(one.max for one in statistics)
    except (OverflowError, ValueError):
        return None
    if any(isinstance(bound, str) and len(bound) > MAX_STRING_LENGTH for bound in (low, high)):
        return None
    return _to_json_value(low), _to_json_value(high)


def _to_json_value(value: Any) -> Any:
    match value:
        case datetime():
            utc = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
            return utc.isoformat(timespec="microseconds") + ("Z" if value.tzinfo else "")
        case date():
            return value.isoformat()
    return value
