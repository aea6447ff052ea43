"""What a rerun of committed slices changed: the emissions of both attempts, compared as multisets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemark.clock.slices import Grid
from tidemark.commits.digest import content_hash
from tidemark.commits.ledger import Entry
from tidemark.commits.runs import RUN
from tidemark.delta.lake import read_now


@dataclass(frozen=True)
class Change:
    """The emissions of one slice against those of the attempt before."""

    added: int
    removed: int
    same: int


def emission_changes(
    spark: SparkSession, path: str, pairs: Iterable[tuple[Entry | None, Entry]], grid: Grid
) -> Mapping[int, Change]:
    """Compare old and new attempts of slices, in one aggregation; every slice without an old one has all rows added."""
    attempts = [
        (grid.datetime_of(entry.number), entry.run, sign, entry.number)
        for old, new in pairs
        for entry, sign in ((old, -1), (new, 1))
        if entry is not None
    ]
    if not attempts:
        return {}
    wanted = spark.createDataFrame(attempts, f"_slice timestamp, {RUN} string, _sign int, _number long")
    runs = sorted({run for _, run, _, _ in attempts})
    rows = _in_fixed_order(read_now(spark, path).where(F.col(RUN).isin(runs)))
    names = [name for name in rows.columns if name not in {RUN, "_slice"}]
    hashed = rows.select("_slice", RUN, content_hash(rows, names).alias("_hash")).join(
        F.broadcast(wanted), ["_slice", RUN]
    )
    counts = hashed.groupBy("_number", "_hash").agg(
        F.count_if(F.col("_sign") > 0).alias("new"), F.count_if(F.col("_sign") < 0).alias("old")
    )
    found = counts.groupBy("_number").agg(
        F.sum(F.greatest(F.lit(0), F.col("new") - F.col("old"))).alias("added"),
        F.sum(F.greatest(F.lit(0), F.col("old") - F.col("new"))).alias("removed"),
        F.sum(F.least("new", "old")).alias("same"),
    )
    by_slice = {row["_number"]: Change(row["added"], row["removed"], row["same"]) for row in found.collect()}
    return {number: by_slice.get(number, Change(0, 0, 0)) for _, _, sign, number in attempts if sign > 0}


def _in_fixed_order(emissions: DataFrame) -> DataFrame:
    """The emissions with the arrays of a coGroup sorted: their order means nothing."""
    arrays = [name for name, kind in emissions.dtypes if name in {"left", "right"} and kind.startswith("array<")]
    return emissions.withColumns({name: F.sort_array(name) for name in arrays})
