"""Columns of DataFrames, in ways that every kind of session has."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import types as T


def with_columns(rows: DataFrame, columns: Mapping[str, Column]) -> DataFrame:
    """Rows with more columns, or with none: Spark Connect takes no empty mapping. For `DataFrame.transform`."""
    return rows.withColumns(dict(columns)) if columns else rows


def is_orderable(kind: T.DataType) -> bool:
    """Whether Spark compares and sorts values of a type: neither maps, variants nor intervals, wherever inside."""
    match kind:
        case T.StructType():
            return all(is_orderable(field.dataType) for field in kind)
        case T.ArrayType():
            return is_orderable(kind.elementType)
    return not isinstance(kind, T.MapType | T.VariantType | T.CalendarIntervalType)


def get_file_metadata(rows: DataFrame, field: str) -> Column:
    """What Spark knows of the file of each row that it scans, whatever the table's own columns are called."""
    return rows.metadataColumn("_metadata")[field]
