"""Rows written into the folder of a table as Parquet that its log does not know: nobody who reads the table sees them.

A reference in the log makes such a file part of the table (`log.DeltaLog.commit`).
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

from tidemark.delta.filesystem import file_system
from tidemark.delta.table import DataFile, arrow_columns

DESCRIBED = 32
"""How many columns, the first ones, a file's statistics tell of; as Delta itself has it."""
PRUNED_BY = ("_slice", "carried_from", "carried_until")
"""Columns that statistics tell of wherever they stand: files are chosen by them."""
LONGEST = 32
"""Longer texts are not in statistics."""
_TOLD = (T.IntegralType, T.StringType, T.DateType, T.TimestampType, T.TimestampNTZType)
"""Types whose least and greatest value JSON has exactly."""

_PATTERN = re.compile(r"[][{}*?\\]")
"""Characters that make a pattern of a path, for Spark."""
_LONG = (T.LongType, T.DoubleType, T.TimestampType, T.TimestampNTZType)
"""Types of values that hardly repeat."""


@dataclass(frozen=True)
class Staged:
    """Files that hold the rows of one table."""

    table: str
    """The table's folder."""
    schema: T.StructType
    files: tuple[DataFile, ...]

    def rows(self, spark: SparkSession) -> DataFrame:
        """What they hold."""
        return read_files(spark, self.table, self.schema, (one.path for one in self.files))


def stage(rows: DataFrame, table: str, folder: str, by: str | None = None) -> Staged:
    """Write rows into a new folder of a table, unknown to its log; a column to go `by` makes folders in that."""
    writer = rows.write.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
    for column in _hardly_repeated(rows.schema):
        writer = writer.option(f"parquet.enable.dictionary#{column}", "false")
    (writer.partitionBy(by) if by else writer).parquet(f"{table}/{folder}")
    schema = T.StructType([field for field in rows.schema if field.name != by])
    return Staged(table, schema, tuple(_written(table, folder, schema)))


def stage_table(rows: pa.Table, table: str, folder: str) -> Staged:
    """As `stage`, of a few rows at hand: one file, without Spark."""
    system, path = file_system(table), f"{folder}/part-0.parquet"
    system.create_dir(folder)
    with system.open_output_stream(path) as file:
        pq.write_table(rows, file, write_page_checksum=True)
    schema = arrow_columns(rows.schema)
    return Staged(table, schema, tuple(_written(table, folder, schema)))


def read_files(spark: SparkSession, table: str, schema: T.StructType, paths: Iterable[str]) -> DataFrame:
    """The rows of some files of a table, with these columns."""
    found = [_PATTERN.sub(r"\\\g<0>", f"{table}/{path}") for path in paths]
    if not found:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*found)


def _hardly_repeated(kind: T.StructType, within: str = "") -> Iterator[str]:
    """The Parquet columns to write without a dictionary, those of times and long numbers.

    One of values that hardly repeat takes a third of the time to write, and makes larger files.
    """
    for field in kind:
        if isinstance(field.dataType, T.StructType):
            yield from _hardly_repeated(field.dataType, f"{within}{field.name}.")
        elif isinstance(field.dataType, _LONG) and field.name not in PRUNED_BY:
            yield f"{within}{field.name}"


def described(table: str, schema: T.StructType, paths: Iterable[str]) -> list[DataFile]:
    """Files of a table as a log would tell of them, by their footers, in order.

    Raises:
        FileNotFoundError: one is not there any more.
    """
    system = file_system(table)
    return _described(system, system.get_file_info(sorted(paths)), schema)


def _written(table: str, folder: str, schema: T.StructType) -> list[DataFile]:
    system = file_system(table)
    listed = system.get_file_info(pafs.FileSelector(folder, recursive=True))
    files = [info for info in listed if info.is_file and info.path.endswith(".parquet")]
    found = _described(system, files, schema)
    for one in found:
        if not one.rows:  # Spark writes one where there is nothing to write
            system.delete_file(one.path)
    return sorted((one for one in found if one.rows), key=lambda one: one.path)


def _described(system: pafs.FileSystem, infos: Iterable[pafs.FileInfo], schema: T.StructType) -> list[DataFile]:
    names = schema.names[:DESCRIBED]
    told = [
        one.name
        for one in schema
        # A dot would stand for a field of a struct.
        if isinstance(one.dataType, _TOLD) and one.name in {*names, *PRUNED_BY} and "." not in one.name
    ]
    found = []
    for info in infos:
        with system.open_input_file(info.path) as file:
            footer = pq.read_metadata(file)
        stats = json.dumps(_stats(footer, told))
        found.append(DataFile(info.path, info.size, footer.num_rows, info.mtime_ns // 1_000_000, stats))
    return found


def _stats(footer: pq.FileMetaData, names: Sequence[str]) -> dict[str, Any]:
    """What Delta's log tells of a file: `numRecords`, `minValues`, `maxValues`, `nullCount`."""
    place = {footer.schema.column(number).path: number for number in range(footer.num_columns)}
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name in names:
        if name not in place:  # a column that the table has gained since
            continue
        groups = [footer.row_group(group).column(place[name]) for group in range(footer.num_row_groups)]
        known = [group.statistics for group in groups if group.is_stats_set]
        if len(known) < len(groups) or not all(one.has_null_count for one in known):
            continue
        nulls[name] = sum(one.null_count for one in known)
        filled = [one for one, group in zip(known, groups, strict=True) if one.null_count < group.num_values]
        if bounds := _bounds(filled):
            least[name], greatest[name] = bounds
    return {"numRecords": footer.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls}


def _bounds(groups: Sequence[pq.Statistics]) -> tuple[Any, Any] | None:
    """The least and the greatest value as JSON; None where they are not known, long, or no date of Python's."""
    if not groups or not all(one.has_min_max for one in groups):
        return None
    try:
        low, high = min(one.min for one in groups), max(one.max for one in groups)
    except (OverflowError, ValueError):
        return None
    if any(isinstance(bound, str) and len(bound) > LONGEST for bound in (low, high)):
        return None
    return _as_json(low), _as_json(high)


def _as_json(value: Any) -> Any:
    match value:
        case datetime():
            utc = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
            return utc.isoformat(timespec="microseconds") + ("Z" if value.tzinfo else "")
        case date():
            return value.isoformat()
    return value
