"""Check the SQL conditions of expectations against the columns of the rows that they validate."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType, TimestampType

from tidemark.config import Expectation, Pipeline
from tidemark.config.allowed_expectations import list_conditions
from tidemark.config.allowed_functions import InputColumns
from tidemark.config.sides import SIDES
from tidemark.joins.output_schema import check_condition


def has_row_conditions(pipeline: Pipeline) -> bool:
    """Return True if an expectation of the pipeline file has an SQL condition."""
    return any(list_conditions(expectation.kwargs) for expectation in pipeline.quality)


def check_row_conditions(
    spark: SparkSession, pipeline: Pipeline, emissions: StructType, schemas: Mapping[str, StructType]
) -> None:
    """Check the conditions of a pipeline file before anything runs.

    Those on `late`, whose table has structs of both inputs, are checked when a job validates its rows.

    Args:
        spark: Session that parses and analyses.
        pipeline: The pipeline.
        emissions: Schema of its emissions.
        schemas: Schemas of the inputs, by side.

    Raises:
        PipelineFileError: A condition is invalid. The message begins with its field: entries count from 0.
    """
    tables = {"emissions": emissions, "pairs": emissions}
    for side in SIDES:
        fields = [field for field in schemas[side] if field.name.lower() != "_slice"]
        tables[side] = StructType(fields).add("_slice", TimestampType())
    for number, expectation in enumerate(pipeline.quality):
        if (schema := tables.get(expectation.on)) is not None:
            check_conditions_of(spark, expectation, schema, f"quality.{number}")


def check_conditions_of(spark: SparkSession, expectation: Expectation, schema: StructType, location: str) -> None:
    """Check the conditions of an expectation on rows with this schema.

    Raises:
        PipelineFileError: A condition is invalid. The message begins with the location.
    """
    for argument, condition in list_conditions(expectation.kwargs).items():
        field = f"{location}: {expectation.type}: {argument}"
        check_condition(spark, schema, condition, field, InputColumns(tuple(schema.names)))
