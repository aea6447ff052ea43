"""Writing a job's outputs so that they become visible all at once, with the ledger row.

Every table is partitioned by run: what one try of one job wrote. Writing only ever appends, and no two tries share a
run, so a killed or a second process can leave rows behind but never change those of another.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from uuid import uuid4

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemark.clock.slices import Grid
from tidemark.delta.lake import PipelineTables, delete, read_now
from tidemark.spark.jvm import partition_values

RUN = "_run"
"""The column, and partition, of the run that wrote a row."""


def new_run(grid: Grid, first: int, attempt: int, commit: int) -> str:
    """Name of a run: the ledger's commit that it would be, its first slice and attempt, a token no other try has."""
    start = f"{grid.datetime_of(first):%Y%m%dT%H%M%S.%f}Z".replace(".000000Z", "Z")
    return f"{commit:08d}.{start}.{attempt}.{uuid4().hex[:8]}"


def commit_of(run: str) -> int:
    """The ledger's commit that a run would be; 0 for runs of format 1.

    >>> commit_of("00000012.20240101T010000Z.1.0a1b2c3d")
    12
    """
    number = run.split(".", 1)[0]
    return int(number) if number.isdigit() else 0


def write_run(rows: DataFrame, path: str, run: str) -> None:
    """Append one run's rows."""
    rows = rows.withColumn(RUN, F.lit(run))
    rows.write.format("delta").mode("append").partitionBy(RUN).option("mergeSchema", "true").save(path)


def read_runs(spark: SparkSession, path: str, *runs: str) -> DataFrame:
    """The rows of some runs."""
    return read_now(spark, path).where(F.col(RUN).isin(*runs))


def withdraw(spark: SparkSession, tables: PipelineTables, run: str, since: datetime | None = None) -> None:
    """Take back an uncommitted run from emissions, late and checkpoint: all of it, or its slices from `since` on.

    What earlier slices have carried stays in the checkpoint, whatever later ones would have done with it.
    """
    for path, column in {tables.emissions: "_slice", tables.late: "_slice", tables.checkpoint: "carried_from"}.items():
        if DeltaTable.isDeltaTable(spark, path):
            behind = F.lit(True) if since is None else F.col(column) >= F.lit(since)
            delete(spark, path, (F.col(RUN) == run) & behind)


def sweep(spark: SparkSession, tables: PipelineTables, committed: Collection[str], number: int) -> None:
    """Take back what can no longer be committed: runs for commits up to `number` that are not `committed`."""
    for path in (tables.emissions, tables.late, tables.checkpoint):
        dead = [run for run in partition_values(spark, path, RUN) if run not in committed and commit_of(run) <= number]
        if dead:
            delete(spark, path, F.col(RUN).isin(sorted(dead)))
