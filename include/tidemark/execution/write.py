"""The third step of a job: its outputs written as files of its run, which nobody sees yet, and read back as figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pandas as pd
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from tidemark.delta.staging import StagedFiles
from tidemark.execution.job_spec import Task
from tidemark.execution.late_row_matches import with_would_match
from tidemark.execution.late_table import select_late_table
from tidemark.execution.replay import LATE_BUT_BUFFERED_REASONS, ReplayResult
from tidemark.joins.output_schema import flatten_emissions, select_output
from tidemark.ledger.checkpoint_files import to_table_rows, with_slice_numbers
from tidemark.ledger.state_fingerprint import state_parts
from tidemark.quality.invariants import aggregate_output
from tidemark.spark.materialization import materialize
from tidemark.tables.run_files import StagedRun, stage_run


@dataclass(frozen=True)
class Written:
    """What a job has written. The figures are of what was read back, but for three."""

    staged: StagedRun
    output: DataFrame
    """The emissions."""
    emissions: pd.DataFrame
    """One row per slice that has any, by its number: `slice_facts`."""
    emitted: int
    """How many emissions the replay gave."""
    pairs: Mapping[int, int] | None
    """Of how many pairs `explode` made them, by the number of the slice; None without it."""
    late: pd.DataFrame
    """Rows in the side output that take no part: `side`, `number` of the slice, how many `late` and `rejected`."""
    carried: pd.DataFrame
    """What the checkpoint holds: `digest.state_parts`."""
    evicted: Mapping[str, int]
    """How many rows of each side the replay has evicted."""


def write(spark: SparkSession, task: Task, replayed: ReplayResult, files: int) -> Written:
    """Write emissions, late rows and checkpoint; the last two in so many files."""
    # Side by side, because planning a write takes seconds and keeps one core busy.
    with ThreadPoolExecutor(max_workers=3) as pool:
        first = pool.submit(_write_output, spark, task, replayed)
        second = pool.submit(_write_carried, spark, task, replayed, files)
        third = pool.submit(_write_late, spark, task, replayed, files)
        output, facts, emitted, joined = first.result()
        checkpoint, parts, evicted = second.result()
        late, aside = third.result()
    tables = {"emissions": output, "checkpoint": checkpoint} | ({"late": late} if late else {})
    staged = StagedRun(task.run, task.slices, tables)
    return Written(staged, output.read(spark), facts, emitted, joined, aside, parts, evicted)


def _write_output(
    spark: SparkSession, task: Task, replayed: ReplayResult
) -> tuple[StagedFiles, pd.DataFrame, int, Mapping[int, int] | None]:
    plan, observed, joined = task.plan, Observation(), Observation()
    wide = flatten_emissions(replayed.joined, plan.pipeline, plan.grid)
    if plan.pipeline.explode is not None:
        wide = wide.observe(joined, _by_slice(task))
    counted = select_output(wide, plan.pipeline).observe(observed, F.count("*").alias("rows"))
    staged = stage_run(counted, plan.tables.emissions, task.run)
    facts = aggregate_output(staged.read(spark), plan.pipeline)
    by_number = facts.set_index(plan.grid.numbers_at(facts["slice_start"].to_numpy(dtype="int64")))
    pair_counts = None if plan.pipeline.explode is None else _pairs_of_slices(task, joined)
    return staged, by_number, int(observed.get.get("rows", 0)), pair_counts


_PAIRS = "pairs"


def _by_slice(task: Task) -> Column:
    """How many pairs each slice has: a histogram with a bin for each is exact, and observed while they are written."""
    place = task.plan.grid.number_column(F.unix_micros("_slice")) - F.lit(task.slices.start)
    return F.histogram_numeric(place, F.lit(max(2, len(task.slices)))).alias(_PAIRS)


def _pairs_of_slices(task: Task, joined: Observation) -> Mapping[int, int]:
    pair_counts = Counter[int]()
    for place, rows in joined.get.get(_PAIRS) or ():
        pair_counts[task.slices.start + round(place)] += round(rows)
    return pair_counts


def _write_carried(
    spark: SparkSession, task: Task, replayed: ReplayResult, files: int
) -> tuple[StagedFiles, pd.DataFrame, Mapping[str, int]]:
    plan = task.plan
    rows = to_table_rows(replayed.carried, task.slices, plan.grid, plan.join)
    if not replayed.may_carry_many_rows:  # else each task writes a file, and no row has to be moved
        # Not `coalesce`: one task would run what the rows come from, and hold the hash tables of all its joins at once.
        rows = rows.repartition(files)
    staged = stage_run(rows, plan.tables.checkpoint, task.run)
    parts = state_parts(with_slice_numbers(staged.read(spark), plan.grid), plan.join)
    return staged, parts.toPandas(), replayed.count_evicted()


def _write_late(
    spark: SparkSession, task: Task, replayed: ReplayResult, files: int
) -> tuple[StagedFiles | None, pd.DataFrame]:
    plan, last = task.plan, task.slices[-1]
    nothing = pd.DataFrame(columns=["side", "number", "late", "rejected"])
    if not replayed.may_have_late_rows and task.ledger.entries:  # with the first slice the table was made
        return None, nothing
    late = materialize(replayed.late.withColumn("row", F.monotonically_increasing_id()))
    matched_late = with_would_match(late, plan.join, plan.pipeline, plan.inputs, plan.grid, last)
    staged = stage_run(
        select_late_table(matched_late, plan.pipeline, plan.grid).repartition(files), plan.tables.late, task.run
    )
    if not staged.files:
        return staged, nothing
    number = plan.grid.number_column(F.unix_micros("_slice")).alias("number")
    rejected = ~F.col("reason").isin("late", *LATE_BUT_BUFFERED_REASONS)
    counted = F.count_if(F.col("reason") == "late").alias("late"), F.count_if(rejected).alias("rejected")
    return staged, staged.read(spark).groupBy("side", number).agg(*counted).toPandas()
