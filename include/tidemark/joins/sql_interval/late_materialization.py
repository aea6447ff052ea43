"""Compute labels on narrow rows and join them to full rows afterwards.

A label is joined on lane, side, key, position and event time. Cached rows that agree in all of these have the same
cleanup time and removing lookup.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.joins.keys import has_equal_columns, key_columns

IDENTITY = ("lane", "side", "clock", "tiebreak", "event_time")
MAX_BROADCAST_ROWS = 500_000
"""Most rows in a broadcast join: about 60 MB in each executor."""


def can_broadcast(count: int) -> bool:
    """Return True if this many rows are few enough for a broadcast join."""
    return count <= MAX_BROADCAST_ROWS


def broadcast_if_small(rows: DataFrame, count: int) -> DataFrame:
    """Broadcast rows in a join if they are few enough. Otherwise leave the strategy of the join to Spark."""
    return F.broadcast(rows) if can_broadcast(count) else rows


def select_annotations(rows: DataFrame, names: Sequence[str]) -> DataFrame:
    """Select the named columns as `annotation_*`, with the columns that identify the row, for `join_annotations`."""
    identity = _identity_columns(rows)
    annotations = rows.select(*(F.col(name).alias(f"annotation_{name}") for name in (*identity, *names)))
    return annotations.dropDuplicates([f"annotation_{name}" for name in identity])


def join_annotations(rows: DataFrame, annotations: DataFrame, names: Sequence[str]) -> DataFrame:
    """Set the named columns of rows from their annotations.

    A row without an annotation, or with a null one, keeps its own value. It is null if the rows lack the column.
    """
    is_same_row = has_equal_columns(_identity_columns(rows), prefix="annotation_")
    columns = {name: F.col(f"annotation_{name}") for name in names}
    columns = {name: F.coalesce(column, name) if name in rows.columns else column for name, column in columns.items()}
    unchanged = [name for name in rows.columns if name not in columns]
    return rows.join(annotations, is_same_row, "left").select(
        *unchanged, *(column.alias(name) for name, column in columns.items())
    )


def _identity_columns(rows: DataFrame) -> list[str]:
    return [*IDENTITY, *key_columns(rows)]
