"""Two tables of emissions as multisets: which rows one has more often than the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidemark.formatting import quoted
from tidemark.ledger.state_fingerprint import content_hash
from tidemark.spark.materialization import computed_once

BATCH, STREAM = "batch", "stream"


@dataclass(frozen=True)
class Aligned:
    """How often rows occur on both sides.

    `differing` has a row for each content that one side has more often: the columns of the tables (`_slice` is null for
    rows that only the stream has), `_missing_in` (`batch` or `stream`), `_copies` (how many more the other side has),
    `_batch` and `_stream` (how many each has).
    """

    differing: DataFrame
    alike: bool
    """Whether there are none."""


def align(batch: DataFrame, stream: DataFrame, names: Sequence[str], within: dict[str, float]) -> Aligned:
    """Compare tables by the columns `names`, which both have in the same types; other columns are carried along.

    Columns in `within` may differ by so much. Rows that are equal in all others are then paired in the order of these
    columns. Rows are told apart by 64-bit hashes, and only rows whose hashes differ in number are read as a whole.
    """
    exact = [name for name in names if name not in within]
    sides = {side: _marked(rows, side, exact, within) for side, rows in ((BATCH, batch), (STREAM, stream))}
    keys = ["_hash", *(["_place"] if within else [])]
    counted = _counted(sides, keys, within)
    unequal = computed_once(counted.where(F.greatest(BATCH, STREAM) > F.col("_same")), now=True)
    found = [
        _more(rows, unequal, keys, side, other)
        for (side, rows), other in zip(sides.items(), (STREAM, BATCH), strict=True)
    ]
    differing = reduce(lambda one, more: one.unionByName(more, allowMissingColumns=True), found)
    return Aligned(differing.drop(*keys), unequal.isEmpty())


def _marked(rows: DataFrame, side: str, exact: Sequence[str], within: dict[str, float]) -> DataFrame:
    rows = rows.withColumn("_hash", content_hash(rows, exact)).withColumn("_side", F.lit(side))
    if within:
        place = Window.partitionBy("_hash").orderBy(*(quoted(name) for name in within))
        rows = rows.withColumn("_place", F.row_number().over(place))
    return rows


def _counted(sides: dict[str, DataFrame], keys: Sequence[str], within: dict[str, float]) -> DataFrame:
    """How often each side has a key, and how many of those are the same."""
    both = reduce(
        DataFrame.unionByName,
        (rows.select(*keys, "_side", *map(quoted, within)) for rows in sides.values()),
    )
    counts = [F.count_if(F.col("_side") == side).alias(side) for side in sides]
    values = [F.max(F.when(F.col("_side") == side, F.col(quoted(name)))) for name in within for side in sides]
    grouped = both.groupBy(*keys).agg(*counts, *(value.alias(f"_value_{n}") for n, value in enumerate(values)))
    close = F.lit(True)
    for number, allowed in enumerate(within.values()):
        one, other = F.col(f"_value_{2 * number}"), F.col(f"_value_{2 * number + 1}")
        close = close & (one.eqNullSafe(other) | F.coalesce(F.abs(one - other) <= allowed, F.lit(False)))
    return grouped.select(*keys, *sides, F.when(close, F.least(*sides)).otherwise(F.lit(0)).alias("_same"))


def _more(rows: DataFrame, unequal: DataFrame, keys: Sequence[str], side: str, other: str) -> DataFrame:
    """The contents that a side has more often, one row for each."""
    more: Column = F.col(side) - F.col("_same")
    wanted = unequal.where(more > 0).select(
        *keys, more.alias("_copies"), *(F.col(s).alias(f"_{s}") for s in (BATCH, STREAM))
    )
    found = rows.drop("_side").join(wanted, list(keys))
    content = [name for name in rows.columns if name not in {*keys, "_side"}]
    one = found.groupBy(*keys, "_copies", "_batch", "_stream").agg(
        F.first(F.struct(*map(quoted, content))).alias("_row")
    )
    return one.select("_row.*", *keys, "_copies", "_batch", "_stream", F.lit(other).alias("_missing_in"))
