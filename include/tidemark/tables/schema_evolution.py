"""Tables that take what is staged for them: columns that they lack, and wider types where those of an input are wider.

Files written with the narrower type are written again, for readers that know nothing of Delta's type widening:
docs/decisions/0022-tables-by-reference.md.
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
from tidemark.spark.engine import engine_of
from tidemark.spark.engine_protocol import ChangeableSnapshot
from tidemark.tables.run_files import FOLDER

_DIGITS = {"tinyint": 10, "smallint": 10, "int": 10, "bigint": 20}
"""Whole numbers, the narrowest first, and how many digits before the point Delta asks of a decimal that holds them."""


def evolve_schema(
    spark: SparkSession, log: DeltaTableHandle | None, path: str, schema: T.StructType, *, change_feed: bool
) -> DeltaTableHandle:
    """The table at a path with all columns of a schema, in types no narrower; made where there is none.

    Raises:
        UserError: a column has a type in which the table's values cannot all be.
        OvertakenError: another process has committed meanwhile.
    """
    if log is None:
        log = create_table(path, schema, change_feed=change_feed)
    others = list(_other_types(log.schema, schema))
    for name, was, now in others:
        if not _widens(was, now):
            raise UserError(
                f"{path} has its column {name} as {was.simpleString()}, and now it would be {now.simpleString()}: an "
                "input, `select` or `explode` has changed; let it have its old type, or give the pipeline a new "
                "`output`"
            )
    return (_rewritten(spark, log, schema) if others else log).add_missing_columns(schema)


def _other_types(was: T.DataType, now: T.DataType, name: str = "") -> Iterator[tuple[str, T.DataType, T.DataType]]:
    """What has another type in each, at whatever depth; a field that only one of them has is none of it."""
    match was, now:
        case T.StructType(), T.StructType():
            present = {field.name: field.dataType for field in was}
            for field in now:
                if field.name in present:
                    within = f"{name}.{field.name}" if name else field.name
                    yield from _other_types(present[field.name], field.dataType, within)
        case T.ArrayType(), T.ArrayType():
            yield from _other_types(was.elementType, now.elementType, name)
        case T.MapType(), T.MapType():
            yield from _other_types(was.keyType, now.keyType, name)
            yield from _other_types(was.valueType, now.valueType, name)
        case T.StringType(), T.StringType():
            return
        case _ if was.simpleString() != now.simpleString():
            yield name, was, now


def _widens(was: T.DataType, now: T.DataType) -> bool:
    """Whether Delta lets a column go from one type to the other: no value changes by it."""
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


def _wider(was: T.DataType, now: T.DataType) -> T.DataType:
    """A type with the wider ones of another inside; fields that it lacks stay out."""
    match was, now:
        case T.StructType(), T.StructType():
            wanted = {field.name: field.dataType for field in now}
            return T.StructType(
                [T.StructField(one.name, _wider(one.dataType, wanted.get(one.name, one.dataType))) for one in was]
            )
        case T.ArrayType(), T.ArrayType():
            return T.ArrayType(_wider(was.elementType, now.elementType))
        case T.MapType(), T.MapType():
            return T.MapType(_wider(was.keyType, now.keyType), _wider(was.valueType, now.valueType))
    return now


def _rewritten(spark: SparkSession, log: DeltaTableHandle, schema: T.StructType) -> DeltaTableHandle:
    """The table in the wider types of a schema: the same rows of the same runs, in a commit that changes no data."""
    snapshot = engine_of(spark).changeable(log.path)
    kinds = _wider(log.schema, schema)
    assert isinstance(kinds, T.StructType), "as what it comes from"
    by, taken = FOLDER.removesuffix("="), {name.lower() for name in kinds.names}
    while by in taken:
        by = f"_{by}"
    rows = read_files(spark, log.path, log.schema, log.files["path"]).to(kinds)
    run = F.regexp_extract(F.input_file_name(), f".*{FOLDER}([^/]+)", 1)
    staged = stage_rows(
        rows.withColumn(by, run).repartition(by), log.path, f"wider={uuid4().hex[:8]}", partition_column=by
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
            "Spark changes no table (blanks, commas, brackets, =); give the pipeline a new `output`"
        ) from None
    found = DeltaTableHandle.open(log.path)
    assert found is not None, "it is there"
    return found


def _replace(spark: SparkSession, log: DeltaTableHandle, snapshot: ChangeableSnapshot, staged: StagedFiles) -> None:
    """Let a table have these columns and files in place of its own; by Spark, as delta-rs changes no column's type."""
    if snapshot.version != log.version:
        raise CommitConflictError
    if "timestamp_ntz" in staged.schema.simpleString():
        # A commit of its own, and Spark's: that of delta-rs leaves out the features that the table has already.
        supported = "'delta.feature.timestampNtz' = 'supported'"
        spark.sql(f"ALTER TABLE delta.{quote_identifier(log.path)} SET TBLPROPERTIES ({supported})")
        snapshot = engine_of(spark).changeable(log.path)
    snapshot.replace([json.dumps(action) for action in _actions(log, snapshot, staged)])


def _actions(log: DeltaTableHandle, snapshot: ChangeableSnapshot, staged: StagedFiles) -> Iterator[dict[str, Any]]:
    now = int(time.time() * 1000)
    yield {"metaData": {**snapshot.metadata, "schemaString": staged.schema.json()}}
    yield {"txn": {"appId": FILE_REMOVAL_APP_ID, "version": log.version + 1, "lastUpdated": now}}
    for path, size in zip(log.files["path"], log.files["size"], strict=True):
        yield {"remove": {"path": path, "deletionTimestamp": now, "dataChange": False, "size": int(size)}}
    for one in staged.files:
        added = {"path": one.path, "partitionValues": {}, "size": one.size, "modificationTime": one.modified}
        yield {"add": {**added, "dataChange": False, "stats": one.stats}}
