"""Hash and compare rows by content, where the order of map entries and of coGroup rows has no meaning."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.config import Pipeline
from tidemark.config.sides import SIDES
from tidemark.formatting import quote_identifier
from tidemark.spark.dataframe_utils import contains_type
from tidemark.timegrid.time_columns import as_json

_VALUE = "value"


def list_unordered_columns(pipeline: Pipeline) -> tuple[str, ...]:
    """List the columns of emissions whose arrays have no order: the rows that a coGroup collects."""
    return SIDES if pipeline.join.api == "cogroup" and pipeline.explode is None else ()


def content_hash(rows: DataFrame, names: Iterable[str], unordered: Collection[str] = ()) -> Column:
    """Hash columns of a row to a long. Nulls count: equal values in different columns or fields differ.

    Args:
        rows: The rows.
        names: The columns.
        unordered: Columns whose arrays have no order.
    """
    values = to_comparable_columns(rows, names, unordered)
    nulls = (F.col(quote_identifier(name)).isNull() for name in values)
    return F.xxhash64(F.lit(0), *values.values(), *nulls)


def to_comparable_columns(rows: DataFrame, names: Iterable[str], unordered: Collection[str]) -> dict[str, Column]:
    """Convert columns to values that Spark can hash and compare, and that are equal for equal values.

    Nested types and variants become JSON text, and arrays without an order become sorted JSON texts. Spark's hash skips
    nulls in nested types, and does not hash where an inner array ends.
    """
    dtypes = {field.name: field.dataType for field in rows.schema}
    return {name: _to_comparable(name, dtypes[name], is_unordered=name in unordered) for name in names}


def _to_comparable(name: str, dtype: T.DataType, *, is_unordered: bool) -> Column:
    column = F.col(quote_identifier(name))
    if is_unordered and isinstance(dtype, T.ArrayType):
        element = dtype.elementType
        return F.sort_array(F.transform(column, lambda row: _to_json(row, element)))
    if isinstance(dtype, T.StructType | T.ArrayType | T.MapType | T.VariantType):
        return F.when(column.isNotNull(), _to_json(column, dtype))
    return column


def _to_json(value: Column, dtype: T.DataType) -> Column:
    return as_json(
        F.struct(_sort_map_entries(value, dtype).alias(_VALUE)), T.StructType([T.StructField(_VALUE, dtype)])
    )


def _sort_map_entries(value: Column, dtype: T.DataType) -> Column:
    """Sort the entries of a map, or of the maps in a value, by their keys."""
    if not contains_type(dtype, T.MapType):
        return value
    match dtype:
        case T.StructType():
            fields = (_sort_map_entries(value[field.name], field.dataType).alias(field.name) for field in dtype)
            return F.when(value.isNotNull(), F.struct(*fields))
        case T.ArrayType():
            return F.transform(value, lambda element: _sort_map_entries(element, dtype.elementType))
        case T.MapType():
            keys = F.array_sort(F.map_keys(value))
            values = F.transform(keys, lambda key: _sort_map_entries(F.element_at(value, key), dtype.valueType))
            return F.map_from_arrays(keys, values)
    raise AssertionError(dtype)
