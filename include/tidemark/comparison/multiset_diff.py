"""Compare two tables of emissions as multisets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidemark.formatting import quote_identifier
from tidemark.ledger.state_fingerprint import content_hash
from tidemark.spark.materialization import materialize

BATCH, STREAM = "batch", "stream"
INEXACT = "_inexact"
"""Optional column of a table: True if a row had a value that the type of its column cannot hold. It equals no row."""


@dataclass(frozen=True)
class MultisetDiff:
    """Rows that one table contains more often than the other."""

    differing: DataFrame
    """One row per content: the columns of the tables (`_slice` is null for rows of the stream only), `_missing_in`
    (`batch` or `stream`), `_copies` (surplus of the other table), `_batch` and `_stream` (copies in each)."""
    is_empty: bool
    """True if the tables are equal."""


def diff_multisets(
    batch: DataFrame, stream: DataFrame, names: Sequence[str], tolerances: dict[str, float]
) -> MultisetDiff:
    """Compute the multiset difference of two tables.

    Rows are compared by 64-bit hashes; full rows are read only where the counts of a hash differ. Rows that are equal
    in all columns without tolerance are paired in the order of the columns with one.

    Args:
        names: columns to compare, of equal types in both tables. Others are passed through.
        tolerances: columns that may differ, with the largest accepted difference.
    """
    exact = [name for name in names if name not in tolerances]
    tables = {side: _add_hash(rows, side, exact, tolerances) for side, rows in ((BATCH, batch), (STREAM, stream))}
    keys = ["_hash", *(["_position"] if tolerances else [])]
    counts = _count_copies(tables, keys, tolerances)
    unequal = materialize(counts.where(F.greatest(BATCH, STREAM) > F.col("_same")), eager=True)
    surpluses = [
        _select_surplus(rows, unequal, keys, side, other)
        for (side, rows), other in zip(tables.items(), (STREAM, BATCH), strict=True)
    ]
    differing = reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), surpluses)
    return MultisetDiff(differing.drop(*keys), unequal.isEmpty())


def _add_hash(rows: DataFrame, side: str, exact: Sequence[str], tolerances: dict[str, float]) -> DataFrame:
    """Add `_hash`, `_side`, and with tolerances the `_position` among rows of equal hash."""
    content = content_hash(rows, exact)
    if INEXACT in rows.columns:
        content = F.when(F.col(INEXACT), F.xxhash64(content, F.lit(INEXACT))).otherwise(content)
    rows = rows.withColumn("_hash", content).withColumn("_side", F.lit(side)).drop(INEXACT)
    if tolerances:
        order = Window.partitionBy("_hash").orderBy(*(quote_identifier(name) for name in tolerances))
        rows = rows.withColumn("_position", F.row_number().over(order))
    return rows


def _count_copies(tables: dict[str, DataFrame], keys: Sequence[str], tolerances: dict[str, float]) -> DataFrame:
    """Count the copies of each key in both tables (`batch`, `stream`), and those that agree (`_same`)."""
    both = reduce(
        DataFrame.unionByName,
        (rows.select(*keys, "_side", *map(quote_identifier, tolerances)) for rows in tables.values()),
    )
    counts = [F.count_if(F.col("_side") == side).alias(side) for side in tables]
    values = [
        F.max(F.when(F.col("_side") == side, F.col(quote_identifier(name)))) for name in tolerances for side in tables
    ]
    grouped = both.groupBy(*keys).agg(*counts, *(value.alias(f"_value_{n}") for n, value in enumerate(values)))
    is_close = F.lit(True)
    for number, tolerance in enumerate(tolerances.values()):
        left, right = F.col(f"_value_{2 * number}"), F.col(f"_value_{2 * number + 1}")
        is_close &= left.eqNullSafe(right) | F.coalesce(F.abs(left - right) <= tolerance, F.lit(False))
    return grouped.select(*keys, *tables, F.when(is_close, F.least(*tables)).otherwise(F.lit(0)).alias("_same"))


def _select_surplus(rows: DataFrame, unequal: DataFrame, keys: Sequence[str], side: str, other: str) -> DataFrame:
    """Select the contents that one table has more often, one row for each."""
    surplus: Column = F.col(side) - F.col("_same")
    counts = unequal.where(surplus > 0).select(
        *keys, surplus.alias("_copies"), *(F.col(name).alias(f"_{name}") for name in (BATCH, STREAM))
    )
    content = [name for name in rows.columns if name not in {*keys, "_side"}]
    grouped = (
        rows.drop("_side")
        .join(counts, list(keys))
        .groupBy(*keys, "_copies", "_batch", "_stream")
        .agg(F.first(F.struct(*map(quote_identifier, content))).alias("_row"))
    )
    return grouped.select("_row.*", *keys, "_copies", "_batch", "_stream", F.lit(other).alias("_missing_in"))
