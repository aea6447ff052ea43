"""Match table rows that derive from input rows to erase."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import reduce
from urllib.parse import unquote

import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.config import Pipeline
from tidemark.config.allowed_functions import InputColumns
from tidemark.config.candidate_version import format_cli_arguments
from tidemark.config.expressions import find_copied_columns, list_columns, qualify_for_row, rename_columns
from tidemark.config.sides import SIDES, SideName
from tidemark.delta.table import DeltaTableHandle
from tidemark.erasure.erased_tables import REJECTED_OUTPUT, ROW_KINDS
from tidemark.errors import PipelineFileError, UserError
from tidemark.formatting import quote_identifier
from tidemark.joins.join_type import SEMI_ANTI_TYPES
from tidemark.ledger.erasure_records import ExcludedPredicates
from tidemark.ledger.ledger import Ledger
from tidemark.spark.engine import get_engine
from tidemark.spark.expression_errors import format_expression_error
from tidemark.spark.expression_sandbox import parse_user_expression

_EMISSION_WITHOUT: Mapping[SideName, str] = {"left": "padded_right", "right": "padded_left"}
"""Kind of emission without a row of this side."""


def drop_excluded_rows(carried: DataFrame, excluded: ExcludedPredicates) -> DataFrame:
    """Drop rows that match a predicate of their side. Columns: `side`, `left` and `right`."""
    for side, predicates in excluded.items():
        for predicate in predicates:
            carried = carried.where(~_match_input_rows(carried.sparkSession, side, predicate))
    return carried


def match_rows(
    spark: SparkSession, pipeline: Pipeline, where: Mapping[SideName, str], log: DeltaTableHandle, name: str
) -> Column:
    """Return a condition, never null: a table's row derives from an input row that matches a predicate.

    If rejected output has no column that a predicate needs, all of its rows match.

    Args:
        where: Predicate by side, SQL over the input's own columns.
        log: The table.
        name: Name of the table, of `ROW_KINDS`.

    Raises:
        UserError: The table lacks a column that a predicate needs.
    """
    conditions = [F.lit(False)]
    for side, predicate in where.items():
        if ROW_KINDS[name] == "input row":
            _require_fields(log, side, predicate)
            conditions.append(_match_input_rows(spark, side, predicate))
        elif _has_side_columns(pipeline, side):
            output_columns = _map_output_columns(pipeline, side, predicate, log, name)
            if not set(output_columns.values()) <= set(log.schema.names):
                return F.lit(True)
            names = {column: quote_identifier(output) for column, output in output_columns.items()}
            condition = parse_user_expression(
                spark, rename_columns(predicate, names.__getitem__), InputColumns(tuple(log.schema.names))
            )
            # Rows of an output stream that have a watermark have no emission.
            conditions.append(_is_true(condition.column & (F.col("_emission") != _EMISSION_WITHOUT[side])))
    return reduce(Column.__or__, conditions)


def list_predicate_columns(
    pipeline: Pipeline, where: Mapping[SideName, str], log: DeltaTableHandle, name: str
) -> set[tuple[str, ...]]:
    """List the columns of a table that `match_rows` needs, those of an input row as fields (`left`, column).

    Raises:
        UserError: The table lacks one of them.
    """
    if ROW_KINDS[name] == "input row":
        return {("side",), *((side, column) for side, predicate in where.items() for column in list_columns(predicate))}
    columns = (
        _map_output_columns(pipeline, side, predicate, log, name).values()
        for side, predicate in where.items()
        if _has_side_columns(pipeline, side)
    )
    return {(column,) for column in {"_emission"}.union(*columns)}


def list_unidentifiable_files(pipeline: Pipeline, where: Mapping[SideName, str], log: DeltaTableHandle) -> set[str]:
    """List the files of rejected output without a column that a predicate needs.

    They are erased as a whole: no command reads them, and their rows cannot be written again.
    """
    columns = list_predicate_columns(pipeline, where, log, REJECTED_OUTPUT)
    return {path for (column,) in columns for path in _list_files_without(log, column)}


def find_slice_with_other_columns(ledger: Ledger, pipeline: Pipeline, where: Mapping[SideName, str]) -> int | None:
    """Find the first slice that emitted a column of a predicate under another name, by its `select`; None without any.

    Slices that an earlier version of Tidemark ran count as equal, because their `select` is unknown.
    """
    if pipeline.explode is not None:  # It names the columns, and slices that ran under another one are refused before.
        return None
    columns = [
        f"{side}_{column}".lower()
        for side, predicate in where.items()
        if _has_side_columns(pipeline, side)
        for column in list_columns(predicate)
    ]
    names = [_map_selected_column(pipeline.select, column) for column in columns]
    stored = {select: json.loads(select) for select in set(ledger.rows["selected_columns"].dropna())}
    differing = {
        text for text, select in stored.items() if [_map_selected_column(select, column) for column in columns] != names
    }
    numbers = ledger.rows["number"][ledger.rows["selected_columns"].isin(differing)]
    return None if numbers.empty else int(numbers.min())


def _map_selected_column(select: list[str] | dict[str, str] | None, column: str) -> str | None:
    """Return the name in emissions of a column `left_...` or `right_...`, all in lower case; None if it has none."""
    if not isinstance(select, dict):
        return column
    names = {expression.strip().strip("`").lower(): name.lower() for name, expression in select.items()}
    return names.get(column)


def _has_side_columns(pipeline: Pipeline, side: SideName) -> bool:
    """Return True if emissions contain rows of a side."""
    return side == "left" or pipeline.join.type not in SEMI_ANTI_TYPES


def _match_input_rows(spark: SparkSession, side: SideName, predicate: str) -> Column:
    condition = parse_user_expression(spark, qualify_for_row(predicate, side), InputColumns(SIDES)).column
    return _is_true(condition) & (F.col("side") == side)


def _is_true(condition: Column) -> Column:
    return F.coalesce(condition, F.lit(False))


def _require_fields(log: DeltaTableHandle, side: SideName, predicate: str) -> None:
    dtype = log.schema[side].dataType if side in log.schema.names else T.StructType()
    fields = {field.lower() for field in dtype.names} if isinstance(dtype, T.StructType) else set()
    if missing := [column for column in list_columns(predicate) if column.lower() not in fields]:
        raise UserError(
            f"--{side} {predicate}: {log.path} was written before the input had a column {missing[0]}, so the rows to "
            "erase cannot be identified. Write the predicate with another column."
        )


def _map_output_columns(
    pipeline: Pipeline, side: SideName, predicate: str, log: DeltaTableHandle, name: str
) -> dict[str, str]:
    """Map the input columns of a predicate to the columns of emissions.

    Raises:
        UserError: The table, or one of its files, lacks such a column, and it is not rejected output.
    """
    if pipeline.explode is not None:
        output_columns = {column.lower(): output for output, column in find_copied_columns(pipeline.explode).items()}
    elif isinstance(pipeline.select, dict):
        output_columns = {
            expression.strip().strip("`").lower(): output for output, expression in pipeline.select.items()
        }
    else:
        output_columns = {output.lower(): output for output in log.schema.names}
    names: dict[str, str] = {}
    for column in list_columns(predicate):
        default = f"{side}_{column}"
        names[column] = output_columns.get(default.lower(), default)
        if name != REJECTED_OUTPUT and (
            default.lower() not in output_columns or _list_files_without(log, names[column])
        ):
            raise UserError(
                f"--{side} {predicate}: not all rows of {log.path} have the column {side}_{column}, so the rows to "
                "erase cannot be identified. Add it to the output and run "
                f"tidemark reprocess {format_cli_arguments(pipeline)} from the first slice, or write the "
                "predicate with another column."
            )
    return names


def _list_files_without(log: DeltaTableHandle, column: str) -> list[str]:
    """List the files of a table without a column. In files written before it was added, it reads as null."""
    if column not in log.schema.names:
        return list(log.files["path"])
    nulls_by_path = zip(log.files["path"], log.get_null_counts(column), strict=True)
    return [path for path, nulls in nulls_by_path if nulls is None and not _has_column(log, path, column)]


def _has_column(log: DeltaTableHandle, path: str, column: str) -> bool:
    with log.filesystem.open_input_file(unquote(path)) as file:
        return column in pq.read_schema(file).names


def require_valid_predicate(spark: SparkSession, side: SideName, predicate: str, schema: T.StructType) -> None:
    """Require that a predicate is valid SQL over an input's columns and deterministic.

    Raises:
        UserError: It is not.
    """
    rows = get_engine(spark).create_empty_dataframe(schema)
    try:
        filtered = rows.where(parse_user_expression(spark, predicate, InputColumns(tuple(schema.names))).column)
        is_volatile = get_engine(spark).is_nondeterministic(filtered)
    except PipelineFileError as error:
        raise UserError(f"--{side}: {error}") from None
    except PySparkException as error:
        raise UserError(f"--{side}: {format_expression_error(error)}") from None
    if is_volatile:
        raise UserError(f"--{side}: {predicate} depends on the time of the run. Write a literal value.")
