"""Flatten a struct column before a join, and rebuild it after.

Spark builds a struct below a join for every row, even if only its fields are used. Flat columns also shuffle and hash
faster.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.formatting import quote_identifier


def flatten_struct(rows: DataFrame, name: str) -> tuple[list[Column], Column]:
    """Return columns `NAME_column_0` and so on with the fields of a struct, and a column that rebuilds the struct."""
    dtype = rows.schema[name].dataType
    assert isinstance(dtype, T.StructType)
    flat = {field: f"{name}_column_{number}" for number, field in enumerate(dtype.names)}
    fields = [F.col(f"{name}.{quote_identifier(field)}").alias(column) for field, column in flat.items()]
    return fields, F.struct(*(F.col(column).alias(field) for field, column in flat.items())).alias(name)
