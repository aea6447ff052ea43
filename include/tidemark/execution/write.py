"""The third step of a job: its outputs written under its run, where nothing counts yet, and read back as figures."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pandas as pd
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from tidemark.clock.times import quoted
from tidemark.commits.checkpoint import read_carried, stored
from tidemark.commits.digest import state_parts
from tidemark.commits.outputs import emissions, late_table
from tidemark.commits.runs import read_runs, write_run
from tidemark.execution import quality
from tidemark.execution.replay import STILL_IN, Replay
from tidemark.execution.task import Task
from tidemark.execution.would_match import with_would_match


@dataclass(frozen=True)
class Written:
    """What stands in the tables under the run of a job. The figures are of what was read back, but for two."""

    output: DataFrame
    """The emissions, with the columns that the pipeline gives them now."""
    emissions: pd.DataFrame
    """One row per slice that has any, by its number: `quality.slice_facts`."""
    emitted: int
    """How many emissions the replay gave."""
    late: pd.DataFrame
    """Rows in the side output that take no part: `side`, `number` of the slice, how many `late` and `rejected`."""
    carried: pd.DataFrame
    """What the checkpoint holds: `digest.state_parts`."""
    evicted: Mapping[str, int]
    """How many rows of each side the replay has evicted."""


def write(spark: SparkSession, task: Task, replayed: Replay, files: int) -> Written:
    """Write emissions, late rows and checkpoint; the last two in so many files."""
    # Side by side, because planning a write takes seconds and keeps one core busy.
    with ThreadPoolExecutor(max_workers=3) as pool:
        output = pool.submit(_write_output, spark, task, replayed)
        carried = pool.submit(_write_carried, spark, task, replayed, files)
        late = pool.submit(_write_late, spark, task, replayed, files)
        rows, facts, emitted = output.result()
        parts, evicted = carried.result()
        return Written(rows, facts, emitted, late.result(), parts, evicted)


def _write_output(spark: SparkSession, task: Task, replayed: Replay) -> tuple[DataFrame, pd.DataFrame, int]:
    plan, observed = task.plan, Observation()
    output = emissions(replayed.joined, plan.pipeline, plan.grid)
    write_run(output.observe(observed, F.count("*").alias("pairs")), plan.tables.emissions, task.run)
    # Another `select` may have left other columns in the table.
    rows = read_runs(spark, plan.tables.emissions, task.run).select(*map(quoted, output.columns))
    facts = quality.slice_facts(rows, plan.pipeline)
    by_number = facts.set_index((facts["slice_start"] - plan.grid.start) // plan.grid.every)
    return rows, by_number, int(observed.get.get("pairs", 0))


def _write_carried(
    spark: SparkSession, task: Task, replayed: Replay, files: int
) -> tuple[pd.DataFrame, Mapping[str, int]]:
    plan = task.plan
    write_run(stored(replayed.carried, plan.grid, plan.join).coalesce(files), plan.tables.checkpoint, task.run)
    parts = state_parts(read_carried(spark, plan.tables, plan.grid, task.run), plan.join)
    return parts.toPandas(), replayed.evicted.get


def _write_late(spark: SparkSession, task: Task, replayed: Replay, files: int) -> pd.DataFrame:
    plan, last = task.plan, task.slices[-1]
    if replayed.suspected or not DeltaTable.isDeltaTable(spark, plan.tables.late):
        late = replayed.late.withColumn("row", F.monotonically_increasing_id()).persist()
        known = with_would_match(late, plan.join, plan.pipeline, plan.inputs, plan.grid, last)
        write_run(late_table(known, plan.pipeline, plan.grid).coalesce(files), plan.tables.late, task.run)
        late.unpersist()
    if not replayed.suspected:
        return pd.DataFrame(columns=["side", "number", "late", "rejected"])
    rows = read_runs(spark, plan.tables.late, task.run)
    number = plan.grid.number_column(F.unix_micros("_slice")).alias("number")
    rejected = ~F.col("reason").isin("late", *STILL_IN)
    counted = F.count_if(F.col("reason") == "late").alias("late"), F.count_if(rejected).alias("rejected")
    return rows.groupBy("side", number).agg(*counted).toPandas()
