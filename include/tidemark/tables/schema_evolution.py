"""Evolve a table's schema: add missing columns and widen types before a commit.

Files with a narrower type are rewritten, for readers without support for Delta's type widening:
docs/decisions/0003-ledger-and-file-references.md.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

from delta.exceptions import DeltaConcurrentModificationException
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.delta.staging import StagedFiles, read_files, stage_rows
from tidemark.delta.table import FILE_REMOVAL_APP_ID, CommitConflictError, DeltaTableHandle, create_table
from tidemark.errors import UserError
from tidemark.formatting import quote_identifier
from tidemark.spark.engine import get_engine
from tidemark.spark.engine_protocol import ReplaceableSnapshot
from tidemark.tables.run_files import FOLDER

_DIGITS = {"tinyint": 10, "smallint": 10, "int": 10, "bigint": 20}
"""Integer types, narrowest first, with the integer digits that Delta requires of a decimal to widen them to."""


def evolve_schema(
    spark: SparkSession, log: DeltaTableHandle | None, path: str, schema: T.StructType, *, change_feed: bool
) -> DeltaTableHandle:
    """Add a schema's columns to a table, and widen its types to the schema's. Create the table if needed.

    Args:
        spark: A session.
        log: The table; None if it does not exist.
        path: Path of the table.
        schema: Schema of the rows to be committed.
        change_feed: Create the table with a change data feed.

    Raises:
        UserError: The new type of a column cannot represent all values in the table, or a name has another case.
        CommitConflictError: Another process has committed meanwhile.
    """
    if log is None:
        log = create_table(path, schema, change_feed=change_feed)
    require_same_case(log.path, log.schema, schema)
    type_changes = require_wider_types(path, log.schema, schema)
    # An earlier version of Tidemark wrote columns of type VOID, which few readers can read and none can give a type.
    if type_changes or log.schema != log.declared_schema:
        log = _rewrite_with_types(spark, log, schema)
    return log.add_missing_columns(schema)


def require_wider_types(path: str, was: T.StructType, now: T.StructType) -> list[tuple[str, T.DataType, T.DataType]]:
    """Check that a table's types can be widened to new ones, and return its columns that have to be.

    Returns:
        Name, old and new type of each column or field, at any depth, whose type changes.

    Raises:
        UserError: The new type of a column cannot represent all values in the table.
    """
    type_changes = list(_find_type_changes(was, now))
    for name, old, new in type_changes:
        if not _is_widening(old, new):
            raise UserError(
                f"{path} has its column {name} as {old.simpleString()}, and now it would be {new.simpleString()}: an "
                "input, `select` or `explode` has changed. Give it its old type, or give the pipeline a new `output`."
            )
    return type_changes


def require_same_case(path: str, was: T.StructType, now: T.StructType) -> None:
    """Check that no column or field, at any depth, differs from one of a table by the case of its name only.

    Delta does not distinguish such names.

    Raises:
        UserError: One does.
    """
    for old, new in _find_case_changes(was, now):
        raise UserError(
            f"{path} has its column {old}, and now it would be {new}: Delta tables do not distinguish case. Restore "
            "the old name in the input or in `select`, or give the pipeline a new `output`."
        )


def _find_case_changes(was: T.DataType, now: T.DataType, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield old and new name of fields of which only the case changes."""
    match was, now:
        case T.StructType(), T.StructType():
            present = {field.name: field for field in was}
            by_lower_case = {field.name.lower(): field for field in was}
            for field in now:
                before = present.get(field.name) or by_lower_case.get(field.name.lower())
                if before is None:
                    continue
                if before.name != field.name:
                    yield f"{name}{before.name}", f"{name}{field.name}"
                yield from _find_case_changes(before.dataType, field.dataType, f"{name}{field.name}.")
        case T.ArrayType(), T.ArrayType():
            yield from _find_case_changes(was.elementType, now.elementType, name)
        case T.MapType(), T.MapType():
            yield from _find_case_changes(was.keyType, now.keyType, name)
            yield from _find_case_changes(was.valueType, now.valueType, name)


def can_widen(was: T.DataType, now: T.DataType) -> bool:
    """Return True if a table can hold values of both types once its type is widened to the new one."""
    return all(_is_widening(*dtypes) for _, *dtypes in _find_type_changes(was, now))


def _find_type_changes(
    was: T.DataType, now: T.DataType, name: str = ""
) -> Iterator[tuple[str, T.DataType, T.DataType]]:
    """Yield name, old and new type of fields whose type changes, at any depth. Fields in one of both are ignored."""
    match was, now:
        case T.StructType(), T.StructType():
            present = {field.name: field.dataType for field in was}
            for field in now:
                if field.name in present:
                    within = f"{name}.{field.name}" if name else field.name
                    yield from _find_type_changes(present[field.name], field.dataType, within)
        case T.ArrayType(), T.ArrayType():
            yield from _find_type_changes(was.elementType, now.elementType, name)
        case T.MapType(), T.MapType():
            yield from _find_type_changes(was.keyType, now.keyType, name)
            yield from _find_type_changes(was.valueType, now.valueType, name)
        case T.StringType(), T.StringType():
            return
        case _ if was.simpleString() != now.simpleString():
            yield name, was, now


def _is_widening(was: T.DataType, now: T.DataType) -> bool:
    """Return True if Delta can widen the old type to the new one without changing a value."""
    match was, now:
        case T.DecimalType(), T.DecimalType():
            return now.scale >= was.scale and now.precision - now.scale >= was.precision - was.scale
        case T.IntegralType(), T.DecimalType():
            return now.precision - now.scale >= _DIGITS[was.simpleString()]
        case T.IntegralType(), T.IntegralType():
            order = list(_DIGITS)
            return order.index(was.simpleString()) < order.index(now.simpleString())
        case T.IntegralType() | T.FloatType(), T.DoubleType():
            return not isinstance(was, T.LongType)
        case T.DateType(), T.TimestampNTZType():
            return True
    return False


def _widen(was: T.DataType, now: T.DataType) -> T.DataType:
    """Widen a type to the types of another, at any depth. Fields that it lacks are not added."""
    match was, now:
        case T.StructType(), T.StructType():
            new_types = {field.name: field.dataType for field in now}
            return T.StructType(
                [
                    T.StructField(field.name, _widen(field.dataType, new_types.get(field.name, field.dataType)))
                    for field in was
                ]
            )
        case T.ArrayType(), T.ArrayType():
            return T.ArrayType(_widen(was.elementType, now.elementType))
        case T.MapType(), T.MapType():
            return T.MapType(_widen(was.keyType, now.keyType), _widen(was.valueType, now.valueType))
    return now


def _rewrite_with_types(spark: SparkSession, log: DeltaTableHandle, schema: T.StructType) -> DeltaTableHandle:
    """Rewrite a table with a schema's wider types: same rows and runs, in a commit that changes no data."""
    snapshot = get_engine(spark).load_replaceable_snapshot(log.path)
    widened = _widen(log.schema, schema)
    assert isinstance(widened, T.StructType), "a widened struct is a struct"
    run_column = FOLDER.removesuffix("=")
    column_names = {name.lower() for name in widened.names}
    while run_column in column_names:
        run_column = f"_{run_column}"
    rows = read_files(spark, log.path, log.schema, log.files["path"]).to(widened)
    run = F.regexp_extract(F.input_file_name(), f".*{FOLDER}([^/]+)", 1)
    staged = stage_rows(
        rows.withColumn(run_column, run).repartition(run_column),
        log.path,
        f"wider={uuid4().hex[:8]}",
        partition_column=run_column,
    )
    try:
        _replace(spark, log, snapshot, staged)
    except DeltaConcurrentModificationException as error:
        raise CommitConflictError from error
    except AnalysisException as error:
        if error.getCondition() != "DELTA_INVALID_CHARACTERS_IN_COLUMN_NAMES":
            raise
        raise UserError(
            f"{log.path} cannot take the wider types of an input: names of its columns have characters with which "
            "Spark changes no table (blanks, commas, brackets, =). Give the pipeline a new `output`."
        ) from None
    rewritten = DeltaTableHandle.open(log.path)
    assert rewritten is not None, "the table exists"
    return rewritten


def _replace(spark: SparkSession, log: DeltaTableHandle, snapshot: ReplaceableSnapshot, staged: StagedFiles) -> None:
    """Replace a table's columns and files. Spark commits, because delta-rs cannot change a column's type."""
    if snapshot.version != log.version:
        raise CommitConflictError
    if "timestamp_ntz" in staged.schema.simpleString():
        # A separate commit by Spark, because delta-rs would omit features that the table already has.
        supported = "'delta.feature.timestampNtz' = 'supported'"
        spark.sql(f"ALTER TABLE delta.{quote_identifier(log.path)} SET TBLPROPERTIES ({supported})")
        snapshot = get_engine(spark).load_replaceable_snapshot(log.path)
    snapshot.commit_replacement([json.dumps(action) for action in _actions(log, snapshot, staged)])


def _actions(log: DeltaTableHandle, snapshot: ReplaceableSnapshot, staged: StagedFiles) -> Iterator[dict[str, Any]]:
    now = int(time.time() * 1000)
    yield {"metaData": {**snapshot.metadata, "schemaString": staged.schema.json()}}
    yield {"txn": {"appId": FILE_REMOVAL_APP_ID, "version": log.version + 1, "lastUpdated": now}}
    for path, size in zip(log.files["path"], log.files["size"], strict=True):
        yield {"remove": {"path": path, "deletionTimestamp": now, "dataChange": False, "size": int(size)}}
    for file in staged.files:
        added = {
            "path": file.path,
            "partitionValues": {},
            "size": file.size,
            "modificationTime": file.modification_time,
        }
        yield {"add": {**added, "dataChange": False, "stats": file.stats}}
