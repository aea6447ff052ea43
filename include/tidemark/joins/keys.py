"""The join keys of labelled rows: the columns `key_0`, `key_1` and so on, in the type that both sides share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.config.expressions import over_pair
from tidemark.formatting import quoted

_PREFIX = "key_"


def key_name(number: int) -> str:
    """The column of a key, by its place in `join.keys`.

    >>> key_name(0)
    'key_0'
    """
    return f"{_PREFIX}{number}"


def key_columns(rows: DataFrame) -> list[str]:
    """The names of the key columns, in order."""
    return [name for name in rows.columns if name.startswith(_PREFIX)]


def has_null_key(rows: DataFrame) -> Column:
    """Whether one of a row's keys is null."""
    return reduce(Column.__or__, (F.col(name).isNull() for name in key_columns(rows)))


def key_path(schema: T.StructType, name: str) -> list[str]:
    """Where a key is: the column of that name, or the one whose field the dots in it lead to.

    >>> key_path(T.StructType([T.StructField("s", T.StringType())]), "s.k")
    ['s', 'k']
    >>> key_path(T.StructType([T.StructField("s.k", T.StringType())]), "s.k")
    ['s.k']
    """
    return [name] if name in schema.names else name.split(".")


def key_column(schema: T.StructType, name: str) -> Column:
    """A key of an input's row: a column or a field, or else what an expression makes of them.

    An expression has to have passed `spark.expression_sandbox`.
    """
    path = key_path(schema, name)
    return F.col(".".join(map(quoted, path))) if type_at(schema, path) else F.expr(name)


def key_over_pair(schema: T.StructType, side: str, name: str) -> str:
    """The SQL of an input's key over the columns of a pair.

    >>> schema = T.StructType([T.StructField("k", T.StringType())])
    >>> key_over_pair(schema, "left", "k"), key_over_pair(schema, "left", "lower(k)")
    ('`left_k`', 'lower(`left_k`)')
    """
    column, *fields = path = key_path(schema, name)
    if type_at(schema, path) is None:
        return over_pair(name, side)
    return ".".join(map(quoted, (f"{side}_{column}", *fields)))


def type_at(kind: T.DataType, path: Sequence[str]) -> T.DataType | None:
    """The type of a column, or of a field of one; None where there is none."""
    for part in path:
        if not isinstance(kind, T.StructType) or part not in kind.names:
            return None
        kind = kind[part].dataType
    return kind
