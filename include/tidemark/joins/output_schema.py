"""The columns of emissions as users read them, and checks of the users' expressions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    DataType,
    DayTimeIntervalType,
    LongType,
    NullType,
    StringType,
    StructField,
    StructType,
    YearMonthIntervalType,
)

from tidemark.config import Pipeline
from tidemark.config.allowed_functions import ColumnCheck, InputColumns
from tidemark.config.output_stream import EMISSION_ORDER
from tidemark.config.sides import SIDES
from tidemark.errors import PipelineFileError
from tidemark.formatting import quote_identifier
from tidemark.joins.join_type import SEMI_ANTI_TYPES
from tidemark.joins.keys import find_type, key_path
from tidemark.joins.window_output import flatten_columns
from tidemark.spark.dataframe_utils import contains_type, is_orderable, with_columns
from tidemark.spark.engine import get_engine
from tidemark.spark.expression_errors import format_expression_error
from tidemark.spark.expression_sandbox import parse_user_expression
from tidemark.timegrid.slices import Grid

_INTERVAL_TYPES = (CalendarIntervalType, DayTimeIntervalType, YearMonthIntervalType)
COMMON_PROVENANCE = ("_slice", "_emission", "_pane", "_result_time")
"""Columns of emissions that every join has, before those of its windows."""


def select_emissions(joined: DataFrame, pipeline: Pipeline, grid: Grid) -> DataFrame:
    """Select the output rows of a replay: the configured columns, then the provenance columns."""
    return select_output(flatten_emissions(joined, pipeline, grid), pipeline)


def flatten_emissions(
    joined: DataFrame, pipeline: Pipeline, grid: Grid, further: Mapping[str, Column] | None = None
) -> DataFrame:
    """Flatten emissions into the inputs' columns and the provenance `_slice`, `_emission`, `_pane`, `_result_time`.

    Input columns are `left_NAME` and `right_NAME`, without those of `list_hidden_columns`. A coGroup has the arrays
    `left` and `right`, semi and anti joins have only the left columns. Window joins also have `_window_start` and
    `_window_end`, and if the right row has its own window `_right_window_start` and `_right_window_end`. If emissions
    have their `lane`, there is `_lane`. In flink-datastream the condition is a filter after the join; elsewhere the
    join applies it.

    Args:
        joined: Emissions of a replay.
        pipeline: The pipeline.
        grid: Grid of the slices.
        further: Columns to add, by name. Their names begin with `_`.
    """
    join = pipeline.join
    if join.api == "cogroup":
        columns = [F.col(side) for side in SIDES]
    else:
        hidden = list_hidden_columns(pipeline)
        columns = [column for side in _list_emitted_sides(pipeline) for column in flatten_columns(joined, side, hidden)]
    converted = {
        "_slice": grid.timestamp_column(F.col("slice")),
        "_pane": F.col("pane").cast("int"),
        "_result_time": F.timestamp_millis("result_time"),
    }
    provenance = {
        name: converted.get(name, F.col(name[1:])) if name in COMMON_PROVENANCE else window_bound(pipeline, name[1:])
        for name in list_provenance_columns(pipeline)
    }
    provenance |= further or {}
    if "lane" in joined.columns:
        provenance["_lane"] = F.col("lane")
    wide = joined.select(*columns, *(column.alias(name) for name, column in provenance.items()))
    if join.condition and pipeline.dialect == "flink-datastream":
        wide = wide.where(parse_user_expression(wide.sparkSession, join.condition).column)
    return wide


def list_emission_columns(pipeline: Pipeline, left: StructType, right: StructType) -> list[str] | None:
    """List the columns of emissions, in order; None with `explode`, whose columns only Spark knows.

    Args:
        pipeline: The pipeline.
        left: Schema of the left input.
        right: Schema of the right input.
    """
    if pipeline.explode is not None:
        return None
    schemas = {"left": left, "right": right}
    if pipeline.select is not None:
        names = list(pipeline.select)
    elif pipeline.join.api == "cogroup":
        names = list(SIDES)
    else:
        names = [f"{side}_{name}" for side in _list_emitted_sides(pipeline) for name in schemas[side].names]
        names = [name for name in names if name not in list_hidden_columns(pipeline)]
    return [*names, *list_provenance_columns(pipeline)]


def list_hidden_columns(pipeline: Pipeline) -> list[str]:
    """List the columns of inputs that no output has: the order of rows that one event emits, for the join itself."""
    return [f"{side}_{EMISSION_ORDER}" for side in pipeline.upstreams]


def list_provenance_columns(pipeline: Pipeline) -> list[str]:
    """List the columns that say where an emission comes from, in order."""
    join = pipeline.join
    bounds = ["_window_start", "_window_end"] if join.window or join.window_inequality else []
    if join.window and join.window.session and pipeline.dialect == "flink-sql":
        bounds.append("_right_window_start")
    elif join.window_inequality and join.type not in SEMI_ANTI_TYPES:
        bounds += ["_right_window_start", "_right_window_end"]
    return [*COMMON_PROVENANCE, *bounds]


def _list_emitted_sides(pipeline: Pipeline) -> tuple[str, ...]:
    return ("left",) if pipeline.join.type in SEMI_ANTI_TYPES else SIDES


def window_bound(pipeline: Pipeline, name: str) -> Column:
    """Return a window bound: an instant, or in a time zone the local time, which is Flink's type TIMESTAMP."""
    bound = F.timestamp_millis(name)
    return bound.cast("timestamp_ntz") if pipeline.window_time_zone else bound


def select_output(wide: DataFrame, pipeline: Pipeline) -> DataFrame:
    """Select the configured columns of flattened emissions, or explode the configured array, and keep provenance.

    Raises:
        PipelineFileError: Two column names differ only in case, or `explode` is no array of structs.
    """
    if pipeline.explode is not None:
        return _explode(wide, pipeline.explode)
    provenance = _provenance_columns(wide)
    _check_distinct_names([*(pipeline.select or ()), *provenance])
    match pipeline.select:
        case None:
            return wide
        case list(names):
            return wide.select(*map(quote_identifier, names), *provenance)
        case dict(expressions):
            columns = (
                parse_user_expression(wide.sparkSession, sql).column.alias(name) for name, sql in expressions.items()
            )
            return wide.select(*columns, *provenance)


def _explode(wide: DataFrame, expression: str) -> DataFrame:
    """Return a row for each struct of an array, as Spark's `inline` does; a null struct is a row of nulls."""
    provenance = _provenance_columns(wide)
    ordered = _sort_lists(wide)
    structs = parse_user_expression(wide.sparkSession, expression).column
    dtype = ordered.select(structs).schema[0].dataType
    if not isinstance(dtype, ArrayType) or not isinstance(dtype.elementType, StructType) or not dtype.elementType.names:
        raise PipelineFileError(
            f"the expression has type {dtype.simpleString()}, but an array of structs is needed. Write "
            "array(named_struct('name', value, ...)), or transform(list, x -> named_struct('name', x, ...))."
        )
    if reserved := [name for name in dtype.elementType.names if name.startswith("_")]:
        raise PipelineFileError(f"{reserved[0]}: names that begin with _ are Tidemark's. Use another one.")
    _check_distinct_names([*dtype.elementType.names, *provenance])
    return ordered.select(F.inline(structs), *provenance)


def _sort_lists(wide: DataFrame) -> DataFrame:
    """Sort the arrays of a coGroup by their rows' columns, since the order of collection differs between runs.

    Raises:
        PipelineFileError: A column of the rows has a type without an order.
    """
    lists = {
        field.name: field.dataType
        for field in wide.schema
        if field.name in SIDES and isinstance(field.dataType, ArrayType)
    }
    for side, dtype in lists.items():
        assert isinstance(dtype.elementType, StructType), "an input's row"
        if unordered := [field.name for field in dtype.elementType if not is_orderable(field.dataType)]:
            raise PipelineFileError(
                f"the list {side} cannot be sorted, because column {unordered[0]} has type "
                f"{dtype.elementType[unordered[0]].dataType.simpleString()}. Extract the values that you need into "
                "columns of other types, and leave this column out of the input."
            )
    return wide.transform(with_columns, {side: F.sort_array(side) for side in lists})


def _provenance_columns(wide: DataFrame) -> list[str]:
    return [name for name in wide.columns if name.startswith("_")]


def _check_distinct_names(names: Sequence[str]) -> None:
    counts = Counter(name.lower() for name in names)
    if duplicates := sorted(name for name in names if counts[name.lower()] > 1):
        raise PipelineFileError(f"{' and '.join(duplicates)} are the same name to Spark. Rename one of them.")


def check_expressions(
    spark: SparkSession, pipeline: Pipeline, grid: Grid, left: StructType, right: StructType
) -> StructType:
    """Check filters, keys, condition and output columns against the schemas of the inputs.

    Args:
        spark: Session that parses and analyses.
        pipeline: The pipeline.
        grid: Grid of its slices.
        left: Schema of the left input.
        right: Schema of the right input.

    Returns:
        The schema of emissions.

    Raises:
        PipelineFileError: An expression is invalid. The message begins with its field.
    """
    rows: dict[str, DataType] = {"left": left, "right": right}
    pairs = get_engine(spark).create_empty_dataframe(
        StructType([StructField(side, dtype) for side, dtype in rows.items()])
    )
    if pipeline.join.api == "cogroup":
        rows = {side: ArrayType(dtype) for side, dtype in rows.items()}
    windows = ("window_start", "window_end", "right_window_start", "right_window_end")
    names = ("slice", "emission", "pane", "result_time", *windows)
    fields = [StructField(name, StringType() if name == "emission" else LongType()) for name in names]
    joined = get_engine(spark).create_empty_dataframe(
        StructType(fields + [StructField(side, dtype) for side, dtype in rows.items()])
    )
    bare = pipeline.model_copy(update={"join": pipeline.join.model_copy(update={"condition": None})})
    flat = pairs.select(*flatten_columns(pairs, "left"), *flatten_columns(pairs, "right"))
    for side, schema in (("left", left), ("right", right)):
        _check_side(spark, pipeline, side, schema)
    with _naming_field("join.condition"):
        _check_deterministic(flat.where(parse_user_expression(spark, pipeline.join.condition or "true").column))
    with _naming_field("select" if pipeline.explode is None else "explode"):
        emissions = select_emissions(joined, bare, grid)
        _check_types(emissions.schema)
        _check_deterministic(emissions)
    return emissions.schema


def check_condition(
    spark: SparkSession, schema: StructType, condition: str, field: str, column_check: ColumnCheck
) -> None:
    """Check that a user's condition on rows is allowed, is boolean, and is the same in each run.

    Args:
        spark: Session that parses and analyses.
        schema: Schema of the rows.
        condition: The SQL.
        field: Field of the condition, with which the message begins.
        column_check: Check of column names.

    Raises:
        PipelineFileError: The condition is invalid.
    """
    with _naming_field(field):
        rows = get_engine(spark).create_empty_dataframe(schema)
        _check_deterministic(rows.where(parse_user_expression(spark, condition, column_check).column))


def _check_side(spark: SparkSession, pipeline: Pipeline, side: str, schema: StructType) -> None:
    """Check the expressions over the columns of one input."""
    columns = InputColumns(tuple(schema.names))
    rows = get_engine(spark).create_empty_dataframe(schema)
    if (where := getattr(pipeline, side).where) is not None:
        check_condition(spark, schema, where, f"{side}.where", columns)
    for pair in pipeline.join.keys:
        name = getattr(pair, side)
        if find_type(schema, key_path(schema, name)) is None:
            with _naming_field(f"join.keys.{side}"):
                _check_deterministic(rows.select(parse_user_expression(spark, name, columns).column))


def _check_types(schema: StructType) -> None:
    """Require types that Delta can store and all its readers can read: neither VOID nor intervals.

    Raises:
        PipelineFileError: The type of a column contains another one.
    """
    for field in schema:
        if contains_type(field.dataType, NullType):
            raise PipelineFileError(
                f"column {field.name} has type {field.dataType.simpleString()}: a null or an empty array needs a type. "
                "Cast it, as in CAST(NULL AS STRING) or CAST(array() AS ARRAY<STRING>)."
            )
        if contains_type(field.dataType, *_INTERVAL_TYPES):
            raise PipelineFileError(
                f"column {field.name} has type {field.dataType.simpleString()}, which Delta cannot store. Convert it, "
                "as in CAST(... AS STRING)."
            )


def _check_deterministic(rows: DataFrame) -> None:
    if get_engine(rows.sparkSession).is_nondeterministic(rows):
        raise PipelineFileError(
            "a string such as 'now', used as a time, is the time of the run, but a replay must be the same in each "
            "run. Write the time itself, or use a column."
        )


@contextmanager
def _naming_field(field: str) -> Iterator[None]:
    try:
        yield
    except PipelineFileError as error:
        raise PipelineFileError(f"{field}: {error}") from None
    except AnalysisException as error:
        raise PipelineFileError(f"{field}: {format_expression_error(error)}") from None
