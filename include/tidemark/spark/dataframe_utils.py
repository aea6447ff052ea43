"""Work with DataFrame columns in ways that both classic Spark and Spark Connect support."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T


def with_columns(rows: DataFrame, columns: Mapping[str, Column]) -> DataFrame:
    """Add columns, for `DataFrame.transform`. The mapping may be empty, which Spark Connect does not accept."""
    return rows.withColumns(dict(columns)) if columns else rows


def choose_by_side(left: Column, right: Column, *, side: Column | str = "side") -> Column:
    """Return `left` for rows of the left input, and `right` for others.

    Args:
        left: Value for the left input.
        right: Value for the right input.
        side: Column with the row's side, `left` or `right`.
    """
    return F.when((F.col(side) if isinstance(side, str) else side) == "left", left).otherwise(right)


def cast_columns(rows: DataFrame, schema: T.StructType) -> DataFrame:
    """Cast the columns of a schema to its types, and add the struct fields that they lack, as nulls."""
    dtypes = {field.name: field.dataType for field in schema}
    fields = [T.StructField(field.name, dtypes.get(field.name, field.dataType)) for field in rows.schema]
    return rows.to(T.StructType(fields))


def contains_type(dtype: T.DataType, *types: type[T.DataType]) -> bool:
    """Return True if a type is one of some types, or has a part that is.

    >>> contains_type(T.ArrayType(T.NullType()), T.NullType), contains_type(T.StringType(), T.NullType)
    (True, False)
    """
    return any(isinstance(part, types) for part in iterate_types(dtype))


def iterate_types(dtype: T.DataType) -> Iterator[T.DataType]:
    """Yield a type, and the types of its fields, elements, keys and values, at any depth."""
    yield dtype
    parts: list[T.DataType] = []
    match dtype:
        case T.StructType():
            parts = [field.dataType for field in dtype]
        case T.ArrayType():
            parts = [dtype.elementType]
        case T.MapType():
            parts = [dtype.keyType, dtype.valueType]
    for part in parts:
        yield from iterate_types(part)


def is_orderable(dtype: T.DataType) -> bool:
    """Return True if Spark can sort values of a type: it contains no maps, variants or calendar intervals."""
    return not contains_type(dtype, T.MapType, T.VariantType, T.CalendarIntervalType)


def get_file_metadata(rows: DataFrame, field: str) -> Column:
    """Return a field of Spark's file metadata of each row, even if the table has a column called `_metadata`."""
    return rows.metadataColumn("_metadata")[field]
