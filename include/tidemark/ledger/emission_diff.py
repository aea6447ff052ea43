"""Compare the emissions of two attempts of a slice as multisets."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.config.sides import SIDES
from tidemark.ledger.row_content import content_hash
from tidemark.timegrid.slices import Grid


@dataclass(frozen=True)
class EmissionChange:
    """Numbers of emissions of a slice that differ from its previous attempt."""

    added: int
    removed: int
    same: int


def compare_emissions(
    old: DataFrame, new: DataFrame, numbers: Collection[int], grid: Grid
) -> Mapping[int, EmissionChange]:
    """Compare the committed emissions of some slices with a job's new ones, in one aggregation."""
    both = old.withColumn("_sign", F.lit(-1)).unionByName(new.withColumn("_sign", F.lit(1)), allowMissingColumns=True)
    names = [name for name in both.columns if name not in {"_sign", "_slice"}]
    unordered = [name for name, dtype in both.dtypes if name in SIDES and dtype.startswith("array<")]
    number = grid.number_column(F.unix_micros("_slice")).alias("_number")
    hashed = both.select(number, "_sign", content_hash(both, names, unordered).alias("_hash"))
    counts = hashed.groupBy("_number", "_hash").agg(
        F.count_if(F.col("_sign") > 0).alias("new"), F.count_if(F.col("_sign") < 0).alias("old")
    )
    counts_by_slice = counts.groupBy("_number").agg(
        F.sum(F.greatest(F.lit(0), F.col("new") - F.col("old"))).alias("added"),
        F.sum(F.greatest(F.lit(0), F.col("old") - F.col("new"))).alias("removed"),
        F.sum(F.least("new", "old")).alias("same"),
    )
    by_slice = {
        row["_number"]: EmissionChange(row["added"], row["removed"], row["same"]) for row in counts_by_slice.collect()
    }
    return {number: by_slice.get(number, EmissionChange(0, 0, 0)) for number in numbers}
