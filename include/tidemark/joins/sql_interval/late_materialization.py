"""What is found out about many rows without moving what they hold, and set beside them afterwards.

Rows are told by where in the stream they are, their key and their event time: those that agree in that have the same
watermark, timer and search.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.joins.keys import key_columns

NARROW_COLUMNS = ("lane", "side", "slice", "bucket_number", "clock", "tiebreak", "event_time", "watermark")
"""What is asked of new rows, beside their keys, to find out when they leave."""
_IDENTITY = ("lane", "side", "clock", "tiebreak", "event_time")
MAX_BROADCAST_ROWS = 500_000
"""So many rows at most go to all tasks: some 60 MB in each executor."""


def select_annotations(rows: DataFrame, names: Sequence[str]) -> DataFrame:
    """Such columns of some rows, for `beside`."""
    identity = _identity_columns(rows)
    annotations = rows.select(*(F.col(name).alias(f"met_{name}") for name in (*identity, *names)))
    return annotations.dropDuplicates([f"met_{name}" for name in identity])


def join_annotations(rows: DataFrame, annotations: DataFrame, names: Sequence[str]) -> DataFrame:
    """Rows with these columns as they are `told_of` some of them; the others keep theirs, or have null."""
    is_same_row: Column = reduce(
        Column.__and__, (F.col(name).eqNullSafe(F.col(f"met_{name}")) for name in _identity_columns(rows))
    )
    columns = {name: F.col(f"met_{name}") for name in names}
    columns = {name: F.coalesce(column, name) if name in rows.columns else column for name, column in columns.items()}
    unchanged = [name for name in rows.columns if name not in columns]
    return rows.join(annotations, is_same_row, "left").select(
        *unchanged, *(column.alias(name) for name, column in columns.items())
    )


def _identity_columns(rows: DataFrame) -> list[str]:
    return [*_IDENTITY, *key_columns(rows)]
