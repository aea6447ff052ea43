"""Writing a job's outputs so that they become visible all at once, with the ledger row.

Every table is partitioned by run: what one try of one job wrote. Writing only ever appends, and no two tries share a
run, so a killed or a second process can leave rows behind but never change those of another.
"""

from __future__ import annotations

import re
from uuid import uuid4

from delta.tables import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from tidemark.errors import PipelineFileError
from tidemark.lake import PipelineTables
from tidemark.slices import Grid
from tidemark.spec import Pipeline
from tidemark.times import quoted

RUN = "_run"


def job_id(grid: Grid, first: int, attempt: int) -> str:
    """Id of the job that begins with a slice, the same for each try: the slice's start and the attempt.

    >>> job_id(Grid(0, 3_600_000_000), 1, 1)
    '19700101T010000Z.1'
    """
    return f"{grid.datetime_of(first):%Y%m%dT%H%M%S.%f}Z.{attempt}".replace(".000000Z", "Z")


def new_run(job: str) -> str:
    """A run of a job: its id, and a token that no other try has."""
    return f"{job}.{uuid4().hex[:8]}"


def emissions(joined: DataFrame, pipeline: Pipeline, grid: Grid) -> DataFrame:
    """The output rows of a replay: the user's columns, then `_slice`, `_emission`, `_pane`, `_result_time`.

    Pairs that do not meet the join's condition are left out, as by a filter behind the stream's join.
    """
    flat = [
        F.col(f"{side}.{quoted(name)}").alias(f"{side}_{name}")
        for side in ("left", "right")
        for name in joined.schema[side].dataType.fieldNames()  # type: ignore[attr-defined]
    ]
    provenance = {
        "_slice": grid.timestamp_column(F.col("slice")),
        "_emission": F.lit("matched"),
        "_pane": F.lit(0),
        "_result_time": F.timestamp_millis(F.greatest("left_event_time", "right_event_time")),
    }
    wide = joined.select(*flat, *(column.alias(name) for name, column in provenance.items()))
    if pipeline.join.condition:
        wide = wide.where(F.expr(pipeline.join.condition))
    match pipeline.select:
        case None:
            return wide
        case list(names):
            return wide.select(*map(quoted, names), *provenance)
        case dict(expressions):
            chosen = (F.expr(text).alias(name) for name, text in expressions.items())
            return wide.select(*chosen, *provenance)


def check_expressions(spark: SparkSession, pipeline: Pipeline, grid: Grid, left: StructType, right: StructType) -> None:
    """See that the join's condition and the output columns make sense over rows of these inputs.

    Raises:
        PipelineFileError: names the field and what is wrong with it.
    """
    times = (StructField(name, LongType()) for name in ("slice", "left_event_time", "right_event_time"))
    joined = spark.createDataFrame([], StructType([*times, StructField("left", left), StructField("right", right)]))
    plain = pipeline.model_copy(update={"select": None})
    for field, tried in (("join.condition", plain), ("select", pipeline)):
        try:
            _ = emissions(joined, tried, grid).schema
        except AnalysisException as error:
            told = re.sub(r"^\[[A-Z0-9_.]+\] *", "", str(error).split("SQLSTATE")[0].split("== SQL")[0])
            raise PipelineFileError(f"{field}: {' '.join(told.split())}") from None


def late_table(late: DataFrame, grid: Grid) -> DataFrame:
    """Late and rejected rows as stored; `arrived_at` is the effective arrival."""
    return late.select(
        grid.timestamp_column(F.col("slice")).alias("_slice"),
        "side",
        "reason",
        F.timestamp_micros("clock").alias("arrived_at"),
        F.timestamp_millis("event_time").alias("event_time"),
        F.timestamp_millis("watermark").alias("watermark"),
        "behind_ms",
        "held_by",
        "left",
        "right",
    )


def write_run(rows: DataFrame, path: str, run: str) -> None:
    """Append one run's rows."""
    rows = rows.withColumn(RUN, F.lit(run))
    rows.write.format("delta").mode("append").partitionBy(RUN).option("mergeSchema", "true").save(path)


def read_run(spark: SparkSession, path: str, run: str) -> DataFrame:
    """The rows of one run."""
    return spark.read.format("delta").load(path).where(F.col(RUN) == run)


def withdraw(spark: SparkSession, tables: PipelineTables, run: str) -> None:
    """Take back an uncommitted run from emissions, late and checkpoint."""
    for path in (tables.emissions, tables.late, tables.checkpoint):
        if DeltaTable.isDeltaTable(spark, path):
            DeltaTable.forPath(spark, path).delete(F.col(RUN) == run)


def sweep(spark: SparkSession, tables: PipelineTables, job: str, committed_run: str) -> None:
    """Take back what other tries of a committed job left: none of them can be committed any more."""
    for path in (tables.emissions, tables.late, tables.checkpoint):
        others = set(_runs_of(spark, path, job)) - {committed_run}
        if others:
            DeltaTable.forPath(spark, path).delete(F.col(RUN).isin(sorted(others)))


def _runs_of(spark: SparkSession, path: str, job: str) -> list[str]:
    # A listing of folders: milliseconds, where a query over the table would cost as much as writing it.
    jvm = spark.sparkContext._jvm  # noqa: SLF001
    assert jvm is not None, "a classic session has a JVM"
    folders = jvm.org.apache.hadoop.fs.Path(f"{path}/{RUN}={job}.*")
    system = folders.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())  # noqa: SLF001
    return [found.getPath().getName().removeprefix(f"{RUN}=") for found in system.globStatus(folders) or []]
