"""Rows that several outputs are made of, computed once."""

from __future__ import annotations

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

SERIALIZED_STORAGE = StorageLevel.MEMORY_AND_DISK
"""In memory as bytes (in Python's names): as objects, Spark's default, millions of rows are what the JVM then collects
garbage among, a fifth of all tasks' time."""


def materialize(rows: DataFrame, *, eager: bool = False) -> DataFrame:
    """These rows, which Spark keeps from their first use on, in memory or on its disks, until nobody refers to them.

    `now` computes them at once, for those that count what they pass by. Their plan ends here. That of `persist` would
    go into every output, and be analysed anew at each step of it: in a small job that takes longer than all of its
    tasks.
    """
    return rows.localCheckpoint(eager=eager, storageLevel=SERIALIZED_STORAGE)


def materialize_and_count(rows: DataFrame) -> tuple[DataFrame, int]:
    """These rows, computed at once, and how many there are."""
    seen = Observation()
    kept = materialize(rows.observe(seen, F.count("*").alias("rows")), eager=True)
    return kept, int(seen.get.get("rows", 0))
