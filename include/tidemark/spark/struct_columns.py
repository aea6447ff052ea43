"""A struct of a row in columns of its own, and back.

Spark makes a struct below a join for every row, even where only its fields are asked for, and flat columns shuffle and
hash faster.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.formatting import quote_identifier


def flatten_struct(rows: DataFrame, name: str) -> tuple[list[Column], Column]:
    """The fields of a struct as columns `NAME_column_0` and so on, and the struct made of such columns again."""
    kind = rows.schema[name].dataType
    assert isinstance(kind, T.StructType)
    flat = {field: f"{name}_column_{number}" for number, field in enumerate(kind.names)}
    fields = [F.col(f"{name}.{quote_identifier(field)}").alias(column) for field, column in flat.items()]
    return fields, F.struct(*(F.col(column).alias(field) for field, column in flat.items())).alias(name)
