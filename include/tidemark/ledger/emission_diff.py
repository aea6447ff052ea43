"""What a rerun of committed slices changed: the emissions of both attempts, compared as multisets."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.ledger.state_fingerprint import content_hash
from tidemark.spark.dataframe_utils import with_columns
from tidemark.timegrid.slices import Grid


@dataclass(frozen=True)
class EmissionChange:
    """The emissions of one slice against those of the attempt before."""

    added: int
    removed: int
    same: int


def compare_emissions(
    old: DataFrame, new: DataFrame, numbers: Collection[int], grid: Grid
) -> Mapping[int, EmissionChange]:
    """Compare what is committed of some slices with what a job emits of them, in one aggregation."""
    both = old.withColumn("_sign", F.lit(-1)).unionByName(new.withColumn("_sign", F.lit(1)), allowMissingColumns=True)
    rows = _sort_arrays(both)
    names = [name for name in rows.columns if name not in {"_sign", "_slice"}]
    number = grid.number_column(F.unix_micros("_slice")).alias("_number")
    hashed = rows.select(number, "_sign", content_hash(rows, names).alias("_hash"))
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


def _sort_arrays(emissions: DataFrame) -> DataFrame:
    """The emissions with the arrays of a coGroup sorted: their order means nothing."""
    arrays = [name for name, kind in emissions.dtypes if name in {"left", "right"} and kind.startswith("array<")]
    return emissions.transform(with_columns, {name: F.sort_array(name) for name in arrays})
