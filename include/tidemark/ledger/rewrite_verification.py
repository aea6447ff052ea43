"""TODO: say in at most 15 words what this module solves."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.delta.staging import Staged
from tidemark.errors import FaultError
from tidemark.ledger.state_fingerprint import content_hash

_LOW = (1 << 32) - 1


def prove(source: DataFrame, staged: Staged, first: str) -> None:
    """See that files hold, slice by slice, as many rows as those that they stand for, of the same content.

    Raises:
        FaultError: they do not.
    """
    written = staged.rows(source.sparkSession)
    parts = _digests(source, first, "source").unionByName(_digests(written, first, "written")).collect()
    was, now = ({tuple(row)[1:] for row in parts if row["of"] == one} for one in ("source", "written"))
    if was != now:
        raise FaultError(
            f"{staged.table}: what was written anew, {', '.join(one.path for one in staged.files)}, has not the rows "
            "of those that it was written from; no table has it, and tidemark vacuum removes it: run the command again"
        )


def _digests(rows: DataFrame, first: str, of: str) -> DataFrame:
    """For each slice how many rows there are, and the sums of both halves of their hashes, whatever their order."""
    hashed = rows.select(F.col(first).alias("slice"), content_hash(rows, rows.columns).alias("hash"))
    halves: list[Column] = [F.shiftrightunsigned("hash", 32), F.col("hash").bitwiseAND(F.lit(_LOW))]
    sums = (F.sum(half).alias(name) for name, half in zip(("high", "low"), halves, strict=True))
    grouped = hashed.groupBy("slice").agg(F.count("*").alias("rows"), *sums)
    return grouped.select(F.lit(of).alias("of"), "slice", "rows", "high", "low")
