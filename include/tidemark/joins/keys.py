"""The join keys of labelled rows: the columns `key_0`, `key_1` and so on, in the type that both sides share."""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

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
