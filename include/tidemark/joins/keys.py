"""The join key columns `key_0`, `key_1`, ... in the type that both sides share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.config.expressions import qualify_for_pair
from tidemark.formatting import quote_identifier

_PREFIX = "key_"


def key_name(number: int) -> str:
    """Return the column name of a key by its index in `join.keys`.

    >>> key_name(0)
    'key_0'
    """
    return f"{_PREFIX}{number}"


def key_columns(rows: DataFrame) -> list[str]:
    """Return the names of the key columns, in order."""
    return [name for name in rows.columns if name.startswith(_PREFIX)]


def has_equal_columns(names: Iterable[str], prefix: str = "_") -> Column:
    """Return True if columns are equal to those with the same names after a prefix. Nulls are equal."""
    return reduce(Column.__and__, (F.col(name).eqNullSafe(F.col(f"{prefix}{name}")) for name in names))


def has_null_key(rows: DataFrame) -> Column:
    """Return True if one of a row's keys is null."""
    return reduce(Column.__or__, (F.col(name).isNull() for name in key_columns(rows)))


def key_path(schema: T.StructType, name: str) -> list[str]:
    """Return the path of a key: a column of that name, or else a column and its fields, separated by dots.

    >>> key_path(T.StructType([T.StructField("s", T.StringType())]), "s.k")
    ['s', 'k']
    >>> key_path(T.StructType([T.StructField("s.k", T.StringType())]), "s.k")
    ['s.k']
    """
    return [name] if name in schema.names else name.split(".")


def key_column(schema: T.StructType, name: str) -> Column:
    """Return a key of an input's row: a column, a field, or an expression.

    Expressions must have passed `spark.expression_sandbox`.
    """
    path = key_path(schema, name)
    return F.col(".".join(map(quote_identifier, path))) if find_type(schema, path) else F.expr(name)


def key_sql_over_pair(schema: T.StructType, side: str, name: str) -> str:
    """Return the SQL of an input's key over the `left_NAME` and `right_NAME` columns of a pair.

    >>> schema = T.StructType([T.StructField("k", T.StringType())])
    >>> key_sql_over_pair(schema, "left", "k"), key_sql_over_pair(schema, "left", "lower(k)")
    ('`left_k`', 'lower(`left_k`)')
    """
    column, *fields = path = key_path(schema, name)
    if find_type(schema, path) is None:
        return qualify_for_pair(name, side)
    return ".".join(map(quote_identifier, (f"{side}_{column}", *fields)))


def find_type(dtype: T.DataType, path: Sequence[str]) -> T.DataType | None:
    """Return the type of the column or field at a path, None if it does not exist."""
    for part in path:
        if not isinstance(dtype, T.StructType) or part not in dtype.names:
            return None
        dtype = dtype[part].dataType
    return dtype
