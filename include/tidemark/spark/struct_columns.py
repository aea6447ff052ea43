"""Flatten a struct column before a join, and rebuild it after.

Spark builds a struct below a join for every row, even if only its fields are used. Flat columns also shuffle and hash
faster.
"""

from __future__ import annotations

import re

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.formatting import quote_identifier

_FLAT_NAME = re.compile(r"`(left|right)\.((?:[^`]|``)+)`")


def name_flat_columns(rows: DataFrame, name: str) -> dict[str, str]:
    """Return the name of the flat column, `NAME.FIELD`, of each field of a struct."""
    dtype = rows.schema[name].dataType
    assert isinstance(dtype, T.StructType)
    return {field: f"{name}.{field}" for field in dtype.names}


def restore_pair_columns(sql: str) -> str:
    """Return SQL over flat columns of `left` and `right` as users write it, over `left_*` and `right_*`.

    >>> restore_pair_columns("`left.n` / `right.a b`.n")
    'left_n / `right_a b`.n'
    """

    def restore(match: re.Match[str]) -> str:
        name = f"{match[1]}_{match[2]}"
        return name if name.isidentifier() else f"`{name}`"

    return _FLAT_NAME.sub(restore, sql)


def flatten_struct(rows: DataFrame, name: str) -> tuple[list[Column], Column]:
    """Return the flat columns of a struct's fields (`name_flat_columns`), and a column that rebuilds the struct."""
    flat = name_flat_columns(rows, name)
    fields = [F.col(f"{name}.{quote_identifier(field)}").alias(column) for field, column in flat.items()]
    struct = F.struct(*(F.col(quote_identifier(column)).alias(field) for field, column in flat.items()))
    return fields, struct.alias(name)
