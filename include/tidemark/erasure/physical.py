"""The bytes of rows that were forgotten: files that no table has, what logs and the ledger tell of their values.

The log goes first, then the files, then what the ledger tells of them: killed in between, the same again goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, SparkSession

from tidemark.config import Pipeline
from tidemark.config.sides import SideName
from tidemark.delta.filesystem import file_system, files_under, remove
from tidemark.delta.log_files import LogFiles, Removed, shorten
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.staging import read_files, stage
from tidemark.delta.table import DeltaLog, OvertakenError
from tidemark.erasure.logical import TABLES, bare, columns_told, meets, places_of
from tidemark.errors import FaultError
from tidemark.ledger.erasure_records import Forgotten
from tidemark.spark.dataframe_utils import of_file
from tidemark.tables.run_files import FOLDER
from tidemark.tables.table_changes import TRIES

REJECTED = "rejected_output"
_HOLDERS = (*TABLES, REJECTED)
"""The tables whose files hold rows of the inputs."""


@dataclass(frozen=True)
class Leftover:
    """Files of a table's folder that the table has not, and that hold rows to forget, or cannot be read."""

    table: str
    log: DeltaLog = field(repr=False)
    files: tuple[pafs.FileInfo, ...]


def leftovers(
    spark: SparkSession, pipeline: Pipeline, tables: PipelineTables, where: Mapping[SideName, str], before: datetime
) -> list[Leftover]:
    """What is left on disk of rows that meet predicates: what was superseded, or staged and never committed.

    Of what cannot be read, that which was written `before` they were forgotten: the rest may be of a run that goes on
    without them.

    Raises:
        UserError: a table has not the columns that tell which rows these are.
    """
    found = []
    for name in _HOLDERS:
        log = DeltaLog.open(getattr(tables, name))
        if log is None:
            continue
        now = set(map(unquote, log.files["path"]))
        others = [info for info in _listed(log) if info.path not in now]
        data = [info for info in others if not info.base_name.startswith(".")]
        needed = columns_told(pipeline, where, log, name)
        whole = [info for info in data if _has(log, info, needed)]
        held = {info.path for info in whole}
        holding = {info.path for info in data if info.path not in held and info.mtime < before}
        holding |= _holding(spark, log, [info.path for info in whole], meets(spark, pipeline, where, log, name))
        # Hadoop sets a checksum beside each file that it writes.
        beside = {f"{folder}/.{base}.crc" for folder, _, base in (path.rpartition("/") for path in holding)}
        found.append(Leftover(name, log, tuple(one for one in others if one.path in holding | beside)))
    return found


def rows_aside(
    spark: SparkSession, pipeline: Pipeline, tables: PipelineTables, where: Mapping[SideName, str]
) -> dict[str, int]:
    """The files of output that was refused which have rows to forget, with how many."""
    log = DeltaLog.open(tables.rejected_output)
    if log is None or log.files.empty:
        return {}
    rows = read_files(spark, log.path, log.schema, log.files["path"])
    met = rows.where(meets(spark, pipeline, where, log, REJECTED))
    place = places_of(log.files["path"])
    return {place(row[0]): row[1] for row in met.groupBy(of_file(met, "file_path")).count().collect()}


def forget_aside(
    spark: SparkSession, pipeline: Pipeline, tables: PipelineTables, where: Mapping[SideName, str]
) -> None:
    """Take the rows out of output that was refused, which no ledger tells of."""
    for _ in range(TRIES):
        log, found = DeltaLog.open(tables.rejected_output), rows_aside(spark, pipeline, tables, where)
        if log is None or not found:
            return
        rows = read_files(spark, log.path, log.schema, found)
        stays = rows.where(~meets(spark, pipeline, where, log, REJECTED)).coalesce(1)
        with suppress(OvertakenError):
            log.commit(stage(stays, log.path, f"{FOLDER}kept/{uuid4().hex[:8]}").files, found)
            return
    raise FaultError(f"other processes keep writing to {tables.rejected_output}; run the command again")


def erase(tables: PipelineTables, left: Iterable[Leftover], told: Forgotten) -> Removed:
    """Remove these files, and what logs and the ledger tell of the values in them.

    Raises:
        FaultError: a log cannot do without what would go.
    """
    gone: dict[str, int] = {}
    for one in left:
        if one.files or (told.all.get(one.table) and _tells_of_before(one.log, told.at)):
            _shorten(one.log)
        for info in one.files:
            remove(one.log.path, info.path)
            gone[f"{one.table}/{info.path}"] = info.size
    _strip(tables)
    return Removed.of(gone)


def removable(left: Iterable[Leftover]) -> Removed:
    """What `erase` would remove."""
    return Removed.of({f"{one.table}/{info.path}": info.size for one in left for info in one.files})


def _listed(log: DeltaLog) -> Iterator[pafs.FileInfo]:
    for info in log.folder.get_file_info(pafs.FileSelector("", recursive=True)):
        if info.is_file and not info.path.startswith(("_", ".")):
            yield info


def _has(log: DeltaLog, info: pafs.FileInfo, needed: Iterable[str]) -> bool:
    """Whether a file is whole, where Spark reads it, and has the columns that tell."""
    if any(part.startswith(("_", ".")) for part in info.path.split("/")):
        return False
    try:
        with log.folder.open_input_file(info.path) as file:
            return set(needed) <= set(pq.read_schema(file).names)
    except (OSError, pa.ArrowException):
        return False


def _holding(spark: SparkSession, log: DeltaLog, paths: Sequence[str], met: Column) -> set[str]:
    if not paths:
        return set()
    place = places_of(paths)
    try:
        rows = read_files(spark, log.path, log.schema, paths).where(met)
        return {place(row[0]) for row in rows.select(of_file(rows, "file_path")).distinct().collect()}
    except (PySparkException, Py4JJavaError):  # of another type, or with a page that is no good
        if len(paths) == 1:
            return set(paths)
        return set().union(*(_holding(spark, log, [one], met) for one in paths))


def _tells_of_before(log: DeltaLog, at: str) -> bool:
    """Whether a log still has commits of before an instant."""
    limit = datetime.fromisoformat(at).timestamp() * 1000
    first = LogFiles.of(log).commits.start
    told = (action.get("commitInfo", {}) for _, actions in LogFiles.of(log).actions("commitInfo") for action in actions)
    return first == 0 or any(int(info.get("timestamp", 0)) < limit for info in told)


def _shorten(log: DeltaLog) -> None:
    """Let a log begin with the table as it stands: commits before it have the least and greatest values of files."""
    now = DeltaLog.open(log.path)
    assert now is not None, "it was there"
    shorten(now, now.version)


def _strip(tables: PipelineTables) -> None:
    """Let the ledger tell no values of files that are gone, and have no file of its own from before.

    Raises:
        FaultError: other processes never let go of it.
    """
    there = {name: set(files_under(file_system(getattr(tables, name)))) for name in TABLES}
    for _ in range(TRIES):
        log = DeltaLog.open(tables.ledger)
        assert log is not None, "something is committed"
        rows = log.read(log.schema.names)
        told = rows["files"].to_pylist()
        new = [files and [_told(one, there) for one in files] for files in told]
        if new == told:
            break
        place = rows.column_names.index("files")
        with suppress(OvertakenError):
            log.overwrite(rows.set_column(place, "files", pa.array(new, rows["files"].type)))
            break
    else:
        raise FaultError(f"other processes keep writing to {tables.ledger}; run the command again")
    _remove_former(tables.ledger)


def _told(file: dict[str, Any], there: Mapping[str, set[str]]) -> dict[str, Any]:
    known = there.get(file["table"])
    return file if known is None or file["path"] in known else {**file, "stats": bare(file["stats"])}


def _remove_former(path: str) -> None:
    """Remove the files that a table has had and has no more."""
    log = DeltaLog.open(path)
    assert log is not None, "it was there"
    now = set(map(unquote, log.files["path"]))
    for _, actions in LogFiles.of(log).actions("remove"):
        for file in {unquote(action["remove"]["path"]) for action in actions} - now:
            remove(path, file)
