"""Open the input tables of a pipeline and check that their columns fit its settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.config import CheckpointArrival, CommitArrival, Input, Pipeline, TimeColumn
from tidemark.config.allowed_functions import InputColumns
from tidemark.config.expressions import check_expression, is_column_path
from tidemark.delta.paths import resolve_path
from tidemark.delta.table_reader import DeltaInput
from tidemark.errors import InputError, PipelineFileError, prefix_errors, suggest_name
from tidemark.joins.keys import find_type, key_path
from tidemark.ledger.erasure_records import ExcludedPredicates, find_excluded_predicates
from tidemark.sources.char_keys import find_common_char_type
from tidemark.sources.commit_time_source import create_commit_time_input
from tidemark.sources.normalization import Side, create_side
from tidemark.sources.stored_input import StoredInput
from tidemark.sources.streaming_checkpoint_source import create_query_input
from tidemark.spark.dataframe_utils import contains_type, is_orderable
from tidemark.spark.engine import get_engine
from tidemark.spark.expression_errors import format_expression_error
from tidemark.spark.expression_sandbox import parse_user_expression
from tidemark.spark.lazy_session import resolve_session
from tidemark.watermarks.query_trace import QueryTrace


class InputTable(Protocol):
    """Name and columns of an input."""

    @property
    def spark(self) -> SparkSession:
        """Session that analyses expressions over the columns."""

    @property
    def name(self) -> str:
        """Name for messages."""

    @property
    def schema(self) -> T.StructType:
        """Columns that have a type."""

    @property
    def void_paths(self) -> tuple[str, ...]:
        """Paths of columns and fields without a type (VOID)."""


def open_inputs(
    spark: SparkSession,
    pipeline: Pipeline,
    lake: str,
    versions: tuple[int | None, int | None] = (None, None),
    excluded: ExcludedPredicates | None = None,
) -> tuple[StoredInput, StoredInput]:
    """Open both inputs of a pipeline and check tables, columns and types.

    Args:
        versions: Versions of left and right input. Default: the newest.
        excluded: Predicates of rows that are not read. Default: those of the pipeline's erasures.

    Raises:
        InputError: A table or column is missing, or a type is unsupported.
    """
    file = pipeline.command_argument
    with prefix_errors(f"{file}: left.table"):
        left = DeltaInput.find(spark, lake, pipeline.left.table, versions[0])
    with prefix_errors(f"{file}: right.table"):
        right = DeltaInput.find(spark, lake, pipeline.right.table, versions[1])
    if isinstance(pipeline.left.arrival, CheckpointArrival) and isinstance(pipeline.right.arrival, CheckpointArrival):
        trace = QueryTrace.read(spark, resolve_path(lake, pipeline.left.arrival.streaming_checkpoint), pipeline)
        left = create_query_input(left, trace, "left", pipeline.left.arrival)
        right = create_query_input(right, trace, "right", pipeline.right.arrival)
    if isinstance(pipeline.left.arrival, CommitArrival):
        left = create_commit_time_input(left, pipeline.left.arrival)
    if isinstance(pipeline.right.arrival, CommitArrival):
        right = create_commit_time_input(right, pipeline.right.arrival)
    predicates = find_excluded_predicates(pipeline, lake) if excluded is None else excluded
    with prefix_errors(file):
        left_side, right_side = create_sides(pipeline, left, right)
        return (
            StoredInput(_exclude_erased_rows(left_side, predicates), left),
            StoredInput(_exclude_erased_rows(right_side, predicates), right),
        )


def create_sides(pipeline: Pipeline, left: InputTable, right: InputTable) -> tuple[Side, Side]:
    """Create both sides of a pipeline, and check that the columns of its inputs fit its settings.

    Raises:
        InputError: A column is missing, or a type is unsupported.
    """
    _require_columns(left, pipeline.left)
    _require_columns(right, pipeline.right)
    key_types = [_common_key_type(left, pair.left, right, pair.right) for pair in pipeline.join.keys]
    return (
        create_side(pipeline, "left", left.schema, key_types),
        create_side(pipeline, "right", right.schema, key_types),
    )


def _exclude_erased_rows(side: Side, excluded: ExcludedPredicates) -> Side:
    """Let a side leave out erased rows.

    Raises:
        InputError: The input no longer has the predicates' columns.
    """
    predicates = excluded.get(side.name, ())
    for predicate in predicates:
        try:
            check_expression(predicate, InputColumns(tuple(side.schema.names)))
        except ValueError as error:
            raise InputError(
                f"input {side.settings.table}: the predicate {predicate} of an erasure is not valid any more: {error}"
            ) from None
    return replace(side, excluded_predicates=tuple(predicates))


def apply_config(inputs: tuple[StoredInput, StoredInput], pipeline: Pipeline) -> tuple[StoredInput, StoredInput]:
    """Return the same tables as a pipeline with other settings reads them: ticks, time bounds, rejected rows."""
    left, right = (
        StoredInput(
            replace(
                create_side(pipeline, source.side.name, source.side.schema, [dtype for _, dtype in source.side.keys]),
                excluded_predicates=source.side.excluded_predicates,
            ),
            source.table,
        )
        for source in inputs
    )
    return left, right


def _require_columns(table: InputTable, settings: Input) -> None:
    columns_by_role = {"event_time": settings.event_time.column, "tiebreak": settings.tiebreak}
    columns_by_role["partition"] = settings.partition
    columns_by_role["recorded_watermark"] = settings.recorded_watermark.column if settings.recorded_watermark else None
    columns_by_role["arrival"] = settings.arrival.column if isinstance(settings.arrival, TimeColumn) else None
    for role, column in columns_by_role.items():
        if column is not None and column not in table.schema.names:
            _require_not_void(table, role, [column])
            hint = suggest_name(column, table.schema.names)
            raise InputError(f"input {table.name} has no column {column} (named as {role}). {hint}")
    if settings.where is not None:
        try:
            check_expression(settings.where, InputColumns(tuple(table.schema.names)))
        except ValueError as error:
            raise InputError(f"input {table.name}: where: {error}") from None
    if settings.tiebreak and not isinstance(table.schema[settings.tiebreak].dataType, T.IntegralType):
        dtype = table.schema[settings.tiebreak].dataType.simpleString()
        raise InputError(f"input {table.name}: tiebreak {settings.tiebreak} is {dtype}. Name an integer column.")


def _require_not_void(table: InputTable, role: str, path: Sequence[str]) -> None:
    """Require that a column or field that `DeltaInput.schema` lacks is not one of type VOID.

    Raises:
        InputError: The table has the column, but without a type.
    """
    name = ".".join(path)
    if any(f"{void_path}.".startswith(f"{name}.") for void_path in table.void_paths):
        raise InputError(
            f"input {table.name}: {role} {name} is void: the table has no values of it yet. Give the column a type "
            "(ALTER TABLE ... ALTER COLUMN ... TYPE), or name another one."
        )


def _key_type(table: InputTable, name: str) -> T.DataType:
    path = key_path(table.schema, name)
    if (dtype := find_type(table.schema, path)) is not None:
        return dtype
    if not is_column_path(name):
        return _expression_type(table, name)
    _require_not_void(table, "key", path)
    parent = find_type(table.schema, path[:-1]) if len(path) > 1 else None
    siblings = parent.names if isinstance(parent, T.StructType) else table.schema.names
    missing = next(part for number, part in enumerate(path) if find_type(table.schema, path[: number + 1]) is None)
    hint = suggest_name(missing, siblings)
    raise InputError(f"input {table.name} has no column {name} (named as key). {hint}")


def _expression_type(table: InputTable, expression: str) -> T.DataType:
    """Let Spark derive the type of a key that is an expression.

    Raises:
        InputError: It is not an expression over the input's columns.
    """
    try:
        key = parse_user_expression(table.spark, expression, InputColumns(tuple(table.schema.names))).column
        return (
            get_engine(table.spark).create_empty_dataframe(table.schema).select(key.alias("key")).schema["key"].dataType
        )
    except PipelineFileError as error:
        reason = str(error)
    except PySparkException as error:
        reason = format_expression_error(error)
    raise InputError(
        f"input {table.name} has no column {expression} (named as key), and it is not a valid expression: {reason}"
    )


def _find_char_type(left: InputTable, left_key: str, right: InputTable, right_key: str) -> T.DataType | None:
    """Return the CHAR type to whose lengths both keys are padded in dialect spark, or None."""
    if left_key not in left.schema.names or right_key not in right.schema.names:
        return None
    return find_common_char_type(left.spark, left.schema[left_key], right.schema[right_key])


def _common_key_type(left: InputTable, left_key: str, right: InputTable, right_key: str) -> T.DataType:
    dtypes = _key_type(left, left_key), _key_type(right, right_key)
    for table, column, dtype in zip((left, right), (left_key, right_key), dtypes, strict=True):
        if contains_type(dtype, T.NullType):
            raise InputError(
                f"input {table.name}: key {column} is {dtype.simpleString()}, a null without a type. Cast it, as in "
                "CAST(NULL AS STRING)."
            )
        if not is_orderable(dtype):
            raise InputError(
                f"input {table.name}: key {column} is {dtype.simpleString()}, which cannot be compared. "
                "Name a column, struct field or expression of another type."
            )
    if dtypes[0].simpleString() == dtypes[1].simpleString():
        return _find_char_type(left, left_key, right, right_key) or dtypes[0]
    if not all(isinstance(dtype, T.NumericType) for dtype in dtypes):
        raise InputError(
            f"keys {left.name}.{left_key} ({dtypes[0].simpleString()}) and {right.name}.{right_key} "
            f"({dtypes[1].simpleString()}) have different types. Cast one where the table is written."
        )
    spark = resolve_session(left.spark)
    nulls = (F.lit(None).cast(dtype) for dtype in dtypes)
    return spark.range(0).select(F.coalesce(*nulls).alias("key")).schema["key"].dataType
