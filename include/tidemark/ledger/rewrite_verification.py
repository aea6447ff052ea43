"""Verify that rewritten files have the rows of their source."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.delta.staging import StagedFiles
from tidemark.errors import FaultError
from tidemark.ledger.row_content import content_hash

_LOW = (1 << 32) - 1


def verify_same_rows(source: DataFrame, staged: StagedFiles, first: str) -> None:
    """Verify, slice by slice, that staged files have the same number of rows and contents as their source.

    Args:
        first: Column with the slice of a row.

    Raises:
        FaultError: They differ.
    """
    written = staged.read(source.sparkSession)
    parts = _sum_hashes(source, first, "source").unionByName(_sum_hashes(written, first, "written")).collect()
    source_sums, written_sums = (
        {tuple(row)[1:] for row in parts if row["origin"] == origin} for origin in ("source", "written")
    )
    if source_sums != written_sums:
        raise FaultError(
            f"{staged.table}: the rewritten files {', '.join(file.path for file in staged.files)} do not have the "
            "rows of their source. They were not committed, and tidemark tables vacuum deletes them. "
            "Run the command again."
        )


def _sum_hashes(rows: DataFrame, first: str, origin: str) -> DataFrame:
    """Count the rows of each slice and sum both halves of their hashes, independent of order."""
    hashed = rows.select(F.col(first).alias("slice"), content_hash(rows, rows.columns).alias("hash"))
    halves: list[Column] = [F.shiftrightunsigned("hash", 32), F.col("hash").bitwiseAND(F.lit(_LOW))]
    sums = (F.sum(half).alias(name) for name, half in zip(("high", "low"), halves, strict=True))
    grouped = hashed.groupBy("slice").agg(F.count("*").alias("rows"), *sums)
    return grouped.select(F.lit(origin).alias("origin"), "slice", "rows", "high", "low")
