"""How much of an input a plan would read, by the statistics that Delta keeps of each file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.inputs import StoredInput
from tidemark.slices import Grid


@dataclass(frozen=True)
class Reading:
    """Files that may hold rows of the slices: whole files, so an upper bound."""

    files: int
    bytes: int
    rows: int | None
    """None where a file has no statistics."""


def to_read(source: StoredInput, grid: Grid, slices: Sequence[range]) -> Reading:
    """What an input holds for these slices."""
    if not slices:
        return Reading(0, 0, 0)
    files = _files(source)
    # Statistics of times are cut to whole milliseconds.
    parts = (
        (F.col("_high") >= grid.start_of(part[0]) - 1000) & (F.col("_low") < grid.start_of(part[-1] + 1))
        for part in slices
    )
    wanted = F.coalesce(reduce(Column.__or__, parts), F.lit(True))
    rows = F.get_json_object("_stats", "$.numRecords").cast("long")
    found = (
        files.where(wanted)
        .agg(
            F.count("*").alias("files"),
            F.coalesce(F.sum("_size"), F.lit(0)).alias("bytes"),
            F.when(F.count(rows) == F.count("*"), F.coalesce(F.sum(rows), F.lit(0))).alias("rows"),
        )
        .first()
    )
    assert found is not None, "an aggregate has one row"
    return Reading(found["files"], found["bytes"], found["rows"])


def _files(source: StoredInput) -> DataFrame:
    """The table's files with their least and greatest clocks, microseconds; null where there are no statistics."""
    spark, clock = source.table.spark, source.side.clock
    jvm = spark.sparkContext._jvm  # noqa: SLF001
    assert jvm is not None, "a classic session has a JVM"
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, source.table.path)  # noqa: SLF001
    files = DataFrame(log.unsafeVolatileSnapshot().allFiles().toDF(), spark)
    files = files.select(F.col("size").alias("_size"), F.col("stats").alias("_stats"))
    if clock.name not in source.side.schema.names:  # a trace's clock is beside the table
        return files.withColumns(dict.fromkeys(("_low", "_high"), F.lit(None).cast("long")))
    kind = source.side.schema[clock.name].dataType
    for name, bound in (("_low", "minValues"), ("_high", "maxValues")):
        told = F.get_json_object("_stats", f"$.{bound}['{clock.name}']").try_cast(kind)
        files = files.withColumn(clock.name, told).withColumn(name, clock.micros)
    return files
