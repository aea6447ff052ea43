"""Compute a DataFrame once if several outputs use it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from tidemark.spark.engine import get_engine

SERIALIZED_STORAGE = StorageLevel.MEMORY_AND_DISK
"""Serialized, unlike Scala's level of this name. With millions of rows as JVM objects, Spark's default, garbage
collection takes a fifth of the task time."""


def materialize(rows: DataFrame, *, eager: bool = False) -> DataFrame:
    """Return the rows with their plan cut off. Spark stores them at first use, in memory or on disk.

    They are stored as long as a DataFrame refers to them. With `persist`, their plan would be part of the plan of every
    output and would be analyzed again at each step, which in a small job takes longer than all tasks.

    Args:
        eager: True to compute the rows immediately.
    """
    return rows.localCheckpoint(eager=eager, storageLevel=SERIALIZED_STORAGE)


def materialize_and_count(rows: DataFrame) -> tuple[DataFrame, int]:
    """Compute the rows immediately, and return them with their number."""
    materialized, counts = materialize_and_aggregate(rows, {"rows": F.count("*")})
    return materialized, counts["rows"]


def materialize_and_aggregate(
    rows: DataFrame, aggregates: Mapping[str, Column], select: Callable[[DataFrame], DataFrame] = lambda rows: rows
) -> tuple[DataFrame, dict[str, int]]:
    """Compute rows immediately, and return them with aggregates.

    Args:
        rows: The rows.
        aggregates: Sums or counts over the rows by name; 0 without rows.
        select: Selects the rows and columns to return.
    """
    columns = [column.alias(name) for name, column in aggregates.items()]
    if get_engine(rows.sparkSession).observes_checkpoints:
        observation = Observation()
        materialized = materialize(select(rows.observe(observation, *columns)), eager=True)
        values = observation.get
    else:
        materialized = materialize(rows, eager=True)
        [row] = materialized.agg(*columns).collect()
        materialized, values = select(materialized), row.asDict()
    return materialized, {name: int(values.get(name) or 0) for name in aggregates}
