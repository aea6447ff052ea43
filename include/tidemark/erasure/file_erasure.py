"""Delete the bytes of erased rows: replaced files, and their values in logs and the ledger.

First the log is truncated, then files are deleted, then the ledger is scrubbed. After a crash, a rerun completes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, SparkSession

from tidemark.config import Pipeline
from tidemark.config.sides import SideName
from tidemark.delta.filesystem import delete_file, list_file_sizes, open_filesystem
from tidemark.delta.log_files import LogFiles, RemovedFiles, truncate_log
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.retry import retry_on_conflict
from tidemark.delta.staging import read_files
from tidemark.delta.table import DeltaTableHandle
from tidemark.erasure.erased_tables import ERASED_LEDGER_TABLES, ROW_KINDS
from tidemark.erasure.plan import create_path_lookup
from tidemark.erasure.predicates import list_predicate_columns, match_rows
from tidemark.erasure.row_erasure import strip_value_statistics
from tidemark.ledger.erasure_records import ErasureRecord
from tidemark.spark.dataframe_utils import get_file_metadata


@dataclass(frozen=True)
class LeftoverFiles:
    """Files in a table's folder, but not in the table, that have rows to erase or are unreadable."""

    table: str
    path: str
    """Path of the table's folder."""
    log: DeltaTableHandle | None = field(repr=False)
    """The table; None if it does not exist."""
    files: tuple[pafs.FileInfo, ...]


def find_leftover_files(
    spark: SparkSession, pipeline: Pipeline, tables: PipelineTables, where: Mapping[SideName, str], before: datetime
) -> list[LeftoverFiles]:
    """Find replaced and uncommitted files with matching rows, and all earlier files of tables that do not exist.

    Args:
        where: Predicate by side, SQL over the input's own columns.
        before: Instant of the erasure. Unreadable files written later may belong to a run without these rows.

    Raises:
        UserError: A table lacks a column that a predicate needs.
    """
    leftovers = []
    for name in ROW_KINDS:
        path = getattr(tables, name)
        log = DeltaTableHandle.open(path)
        if log is None:  # A run that was killed before the table's first commit may have written files.
            files = tuple(info for info in _list_table_files(path) if info.mtime < before)
            leftovers.append(LeftoverFiles(name, path, None, files))
            continue
        current = set(map(unquote, log.files["path"]))
        unreferenced = [info for info in _list_table_files(path) if info.path not in current]
        data = [info for info in unreferenced if not info.base_name.startswith(".")]
        columns = list_predicate_columns(pipeline, where, log, name)
        readable = [info for info in data if _is_readable(log, info, columns)]
        readable_paths = {info.path for info in readable}
        matching = {info.path for info in data if info.path not in readable_paths and info.mtime < before}
        matching |= _find_matching_files(
            spark, log, [info.path for info in readable], match_rows(spark, pipeline, where, log, name)
        )
        # Hadoop writes a checksum file for each file.
        checksums = {f"{folder}/.{base}.crc" for folder, _, base in (path.rpartition("/") for path in matching)}
        files = tuple(info for info in unreferenced if info.path in matching | checksums)
        leftovers.append(LeftoverFiles(name, path, log, files))
    return leftovers


def delete_files(tables: PipelineTables, leftovers: Iterable[LeftoverFiles], record: ErasureRecord) -> RemovedFiles:
    """Delete these files, and the values of erased rows in logs and the ledger.

    Raises:
        FaultError: A log could not be truncated.
    """
    sizes: dict[str, int] = {}
    for leftover in leftovers:
        log = leftover.log
        # Earlier commits can have the values of erased rows, even if their files were vacuumed.
        if log and (leftover.files or _has_commits_before(log, record.at)):
            _truncate_log(log)
        for info in leftover.files:
            delete_file(leftover.path, info.path)
            sizes[f"{leftover.table}/{info.path}"] = info.size
    _scrub_ledger(tables)
    return RemovedFiles.from_sizes(sizes)


def list_files(leftovers: Iterable[LeftoverFiles]) -> RemovedFiles:
    """List the files that `delete_files` would delete."""
    return RemovedFiles.from_sizes(
        {f"{leftover.table}/{info.path}": info.size for leftover in leftovers for info in leftover.files}
    )


def _list_table_files(path: str) -> Iterator[pafs.FileInfo]:
    for info in open_filesystem(path).get_file_info(pafs.FileSelector("", recursive=True, allow_not_found=True)):
        if info.is_file and not info.path.startswith(("_", ".")):
            yield info


def _is_readable(log: DeltaTableHandle, info: pafs.FileInfo, columns: Iterable[tuple[str, ...]]) -> bool:
    """Return True if Spark can read a file and it has some columns or fields, which would read as null otherwise."""
    if any(part.startswith(("_", ".")) for part in info.path.split("/")):
        return False
    try:
        with log.filesystem.open_input_file(info.path) as file:
            stored = set(_list_columns(pq.read_schema(file)))
            return {tuple(map(str.lower, column)) for column in columns} <= stored
    except (OSError, pa.ArrowException):
        return False


def _list_columns(schema: pa.Schema) -> Iterator[tuple[str, ...]]:
    """Yield the columns of a file and the fields of its structs, in lower case."""
    for column in schema:
        yield (column.name.lower(),)
        if pa.types.is_struct(column.type):
            yield from ((column.name.lower(), field.name.lower()) for field in column.type)


def _find_matching_files(
    spark: SparkSession, log: DeltaTableHandle, paths: Sequence[str], is_match: Column
) -> set[str]:
    if not paths:
        return set()
    find_path = create_path_lookup(paths)
    try:
        rows = read_files(spark, log.path, log.schema, paths).where(is_match)
        return {find_path(row[0]) for row in rows.select(get_file_metadata(rows, "file_path")).distinct().collect()}
    except (PySparkException, Py4JJavaError):  # a column of another type, or a damaged page
        if len(paths) == 1:
            return set(paths)
        return set().union(*(_find_matching_files(spark, log, [path], is_match) for path in paths))


def _has_commits_before(log: DeltaTableHandle, at: str) -> bool:
    """Return True if a log has commits before an instant."""
    limit = datetime.fromisoformat(at).timestamp() * 1000
    first = LogFiles.from_table(log).commit_versions.start
    commits = (
        action.get("commitInfo", {})
        for _, actions in LogFiles.from_table(log).read_actions("commitInfo")
        for action in actions
    )
    return first == 0 or any(int(info.get("timestamp", 0)) < limit for info in commits)


def _truncate_log(log: DeltaTableHandle) -> None:
    """Truncate a log to the current version: earlier commits contain minima and maxima of files."""
    current = DeltaTableHandle.open(log.path)
    assert current is not None, "the table exists"
    truncate_log(current, current.version)


def _scrub_ledger(tables: PipelineTables) -> None:
    """Remove the statistics of deleted files from the ledger, and the ledger's own replaced files.

    Raises:
        FaultError: Other processes kept writing to the ledger.
    """
    existing = {name: set(list_file_sizes(open_filesystem(getattr(tables, name)))) for name in ERASED_LEDGER_TABLES}

    def attempt() -> None:
        log = DeltaTableHandle.open(tables.ledger)
        assert log is not None, "something is committed"
        rows = log.read(log.schema.names)
        files_of_slices = rows["added_files"].to_pylist()
        scrubbed = [files and [_scrub_file(file, existing) for file in files] for files in files_of_slices]
        if scrubbed != files_of_slices:
            index = rows.column_names.index("added_files")
            log.overwrite(rows.set_column(index, "added_files", pa.array(scrubbed, rows["added_files"].type)))

    retry_on_conflict(attempt, tables.ledger)
    _delete_replaced_files(tables.ledger)


def _scrub_file(file: dict[str, Any], existing: Mapping[str, set[str]]) -> dict[str, Any]:
    paths = existing.get(file["table"])
    return file if paths is None or file["path"] in paths else {**file, "stats": strip_value_statistics(file["stats"])}


def _delete_replaced_files(path: str) -> None:
    """Delete the files that a table no longer references."""
    log = DeltaTableHandle.open(path)
    assert log is not None, "the table exists"
    current = set(map(unquote, log.files["path"]))
    for _, actions in LogFiles.from_table(log).read_actions("remove"):
        for file in {unquote(action["remove"]["path"]) for action in actions} - current:
            delete_file(path, file)
