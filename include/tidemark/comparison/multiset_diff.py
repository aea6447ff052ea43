"""Compare two tables of emissions as multisets."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidemark.formatting import quote_identifier
from tidemark.ledger.row_content import content_hash
from tidemark.spark.materialization import materialize

BATCH, STREAM = "batch", "stream"
OTHER_TABLE = {BATCH: STREAM, STREAM: BATCH}
"""The table that lacks a row, by the table that has it."""
INEXACT = "_inexact"
"""Optional column of a table: True if a row had a value that the type of its column cannot hold. It equals no row."""


@dataclass(frozen=True)
class MultisetDiff:
    """Rows that one table contains more often than the other."""

    differing: DataFrame
    """One row per content and `_slice`, the newest slices of a surplus: the columns of the tables (`_slice` is null for
    rows of the stream only), `_only_in` (`batch` or `stream`), `_copies` (surplus of that table), `_batch` and
    `_stream` (copies in each that are equal in all columns without tolerance)."""
    is_empty: bool
    """True if the tables are equal."""


def diff_multisets(
    batch: DataFrame,
    stream: DataFrame,
    names: Sequence[str],
    tolerances: Mapping[str, float],
    unordered: Collection[str] = (),
) -> MultisetDiff:
    """Compute the multiset difference of two tables.

    Rows are compared by 64-bit hashes; full rows are read only where the counts of a hash differ. Rows that are equal
    in all columns without tolerance are paired in the order of the columns with one.

    Args:
        names: Columns to compare, of equal types in both tables. Others are passed through.
        tolerances: Columns that may differ, with the largest accepted difference.
        unordered: Columns whose arrays have no order.
    """
    exact = [name for name in names if name not in tolerances]
    tables = {
        side: _add_position(rows.withColumn("_hash", content_hash(rows, exact, unordered)), side, tolerances)
        for side, rows in ((BATCH, batch), (STREAM, stream))
    }
    keys = ["_hash", *(["_position"] if tolerances else [])]
    counts = _count_copies(tables, keys, tolerances)
    unequal = materialize(counts.where(F.greatest(BATCH, STREAM) > F.col("_same")), eager=True)
    surpluses = [_select_surplus(rows, unequal, keys, side) for side, rows in tables.items()]
    differing = reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), surpluses)
    return MultisetDiff(differing.drop(*keys), unequal.isEmpty())


def is_close(left: Column, right: Column, tolerance: float | None) -> Column:
    """Return True if two values are equal or both null, or numbers that differ by at most a tolerance."""
    is_equal = left.eqNullSafe(right)
    return is_equal if tolerance is None else is_equal | F.coalesce(F.abs(left - right) <= tolerance, F.lit(False))


def _add_position(rows: DataFrame, side: str, tolerances: Mapping[str, float]) -> DataFrame:
    """Add `_side`, and with tolerances the `_position` among rows of equal `_hash`."""
    if INEXACT in rows.columns:
        inexact_hash = F.xxhash64("_hash", F.lit(INEXACT))
        rows = rows.withColumn("_hash", F.when(F.col(INEXACT), inexact_hash).otherwise(F.col("_hash")))
    rows = rows.withColumn("_side", F.lit(side)).drop(INEXACT)
    if tolerances:
        order = Window.partitionBy("_hash").orderBy(*(quote_identifier(name) for name in tolerances))
        rows = rows.withColumn("_position", F.row_number().over(order))
    return rows


def _count_copies(tables: dict[str, DataFrame], keys: Sequence[str], tolerances: Mapping[str, float]) -> DataFrame:
    """Count the copies of each key in both tables (`batch`, `stream`), and those that agree (`_same`).

    `_batch` and `_stream` are the copies of each `_hash`.
    """
    both = reduce(
        DataFrame.unionByName,
        (rows.select(*keys, "_side", *map(quote_identifier, tolerances)) for rows in tables.values()),
    )
    counts = [F.count_if(F.col("_side") == side).alias(side) for side in tables]
    values = [
        F.max(F.when(F.col("_side") == side, F.col(quote_identifier(name)))) for name in tolerances for side in tables
    ]
    grouped = both.groupBy(*keys).agg(*counts, *(value.alias(f"_value_{n}") for n, value in enumerate(values)))
    are_close = F.lit(True)
    for number, tolerance in enumerate(tolerances.values()):
        are_close &= is_close(F.col(f"_value_{2 * number}"), F.col(f"_value_{2 * number + 1}"), tolerance)
    same = F.when(are_close, F.least(*tables)).otherwise(F.lit(0)).alias("_same")
    equal_hash = Window.partitionBy("_hash")
    totals = {side: F.sum(side).over(equal_hash) if tolerances else F.col(side) for side in tables}
    return grouped.select(*keys, *tables, same, *(total.alias(f"_{side}") for side, total in totals.items()))


def _select_surplus(rows: DataFrame, unequal: DataFrame, keys: Sequence[str], side: str) -> DataFrame:
    """Select the contents that one table has more often. Of equal rows those of the newest slices are the surplus."""
    surplus: Column = F.col(side) - F.col("_same")
    counts = unequal.where(surplus > 0).select(*keys, surplus.alias("_surplus"), "_batch", "_stream")
    content = [name for name in rows.columns if name not in {*keys, "_side"}]
    number = F.col("_slice") if "_slice" in content else F.lit(None).cast("timestamp")
    grouped = (
        rows.drop("_side")
        .join(counts, list(keys))
        .groupBy(*keys, "_surplus", "_batch", "_stream", number.alias("_start"))
        .agg(F.first(F.struct(*map(quote_identifier, content))).alias("_row"), F.count("*").alias("_rows"))
    )
    newest_first = Window.partitionBy(*keys).orderBy(F.desc("_start")).rowsBetween(Window.unboundedPreceding, -1)
    newer = F.coalesce(F.sum("_rows").over(newest_first), F.lit(0))
    copies = grouped.withColumn("_copies", F.least(F.col("_rows"), F.col("_surplus") - newer)).where("_copies > 0")
    return copies.select("_row.*", *keys, "_copies", "_batch", "_stream", F.lit(side).alias("_only_in"))
