"""Rows that several outputs are made of, computed once."""

from __future__ import annotations

from pyspark.sql import DataFrame


def computed_once(rows: DataFrame) -> DataFrame:
    """These rows, which Spark keeps from their first use on, in memory or on its disks, until nobody refers to them.

    Their plan ends here. That of `persist` would go into every output, and be analysed anew at each step of it: in a
    small job that takes longer than all of its tasks.
    """
    return rows.localCheckpoint(eager=False)
