"""Check the columns that expectations and comparisons of a pipeline file name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pyspark.sql.types import StructType

from tidemark.config import Expectation, Pipeline
from tidemark.config.allowed_expectations import list_conditions, uses_dots_for_fields
from tidemark.config.expressions import list_columns
from tidemark.config.sides import SIDES
from tidemark.errors import PipelineFileError, suggest_name
from tidemark.joins.late_table import LATE_COLUMNS

_SCHEMA_EXPECTATIONS = ("expect_column_to_exist", "expect_table_columns_to_match_ordered_list")
"""Expectations that name columns to find out whether they exist."""


def check_named_columns(
    pipeline: Pipeline, emission_columns: Sequence[str] | None, schemas: Mapping[str, StructType]
) -> None:
    """Check that the columns named under `quality` and `compare` exist.

    Args:
        pipeline: The pipeline.
        emission_columns: Columns of its emissions; None if they are unknown, which are then not checked.
        schemas: Columns of the inputs, by side.

    Raises:
        PipelineFileError: A column does not exist. The message begins with its field: entries count from 0.
    """
    tables: dict[str, Sequence[str] | None] = {
        **dict.fromkeys(("emissions", "pairs"), emission_columns),
        **{side: ["_slice", *schemas[side].names] for side in SIDES},
        "late": LATE_COLUMNS,
    }
    for number, expectation in enumerate(pipeline.quality):
        if (columns := tables.get(expectation.on)) is not None:
            rows = f"input {getattr(pipeline, expectation.on).table}" if expectation.on in SIDES else expectation.on
            location = f"quality.{number}: {expectation.type}"
            for name in _list_named_columns(expectation):
                _check_column(location, name, rows, columns)
                if uses_dots_for_fields(expectation.type, name):
                    raise PipelineFileError(
                        f"{location}: Great Expectations does not find {name}, because of the dot or backtick in it. "
                        "Write {type: rows, that: CONDITION}, or give the column another name in select."
                    )
            for argument, condition in list_conditions(expectation.kwargs).items():
                for name in list_columns(condition):
                    _check_column(f"{location}: {argument}", name, rows, columns, ignores_case=True)
    if pipeline.compare and emission_columns is not None:
        for setting in ("key_columns", "ignore_columns"):
            for number, name in enumerate(getattr(pipeline.compare, setting)):
                _check_column(f"compare.{setting}.{number}", name, "emissions", emission_columns)


def _list_named_columns(expectation: Expectation) -> Iterator[str]:
    """Yield the columns whose values an expectation validates."""
    if expectation.type in _SCHEMA_EXPECTATIONS:
        return
    for argument, value in expectation.kwargs.items():
        if argument in ("column", "column_A", "column_B"):
            yield str(value)
        elif argument == "column_list":
            yield from map(str, value if isinstance(value, list) else [value])


def _check_column(location: str, name: str, rows: str, columns: Sequence[str], *, ignores_case: bool = False) -> None:
    """Check that rows have a column; Great Expectations distinguishes case, and SQL does not."""
    if name not in columns and not (ignores_case and name.lower() in {column.lower() for column in columns}):
        raise PipelineFileError(f"{location}: {rows} has no column {name}. {suggest_name(name, columns)}")
