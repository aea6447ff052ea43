"""Compute a DataFrame once if several outputs use it."""

from __future__ import annotations

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

SERIALIZED_STORAGE = StorageLevel.MEMORY_AND_DISK
"""Serialized, unlike Scala's level of this name. With millions of rows as JVM objects, Spark's default, garbage
collection takes a fifth of the task time."""


def materialize(rows: DataFrame, *, eager: bool = False) -> DataFrame:
    """Return the rows with their plan cut off. Spark stores them at first use, in memory or on disk.

    They are stored as long as a DataFrame refers to them. With `persist`, their plan would be part of the plan of every
    output and would be analyzed again at each step, which in a small job takes longer than all tasks.

    Args:
        eager: True to compute the rows immediately, for example to get the value of an `Observation`.
    """
    return rows.localCheckpoint(eager=eager, storageLevel=SERIALIZED_STORAGE)


def materialize_and_count(rows: DataFrame) -> tuple[DataFrame, int]:
    """Compute the rows immediately, and return them with their number."""
    observation = Observation()
    materialized = materialize(rows.observe(observation, F.count("*").alias("rows")), eager=True)
    return materialized, int(observation.get.get("rows", 0))
