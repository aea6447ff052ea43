"""Write a job's outputs as staged files, and aggregate what they have for validation and ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pandas as pd
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from tidemark.config.output_stream import OUTPUT_STREAM
from tidemark.delta.staging import StagedFiles
from tidemark.execution.job_spec import JobSpec
from tidemark.execution.late_row_matches import add_would_match
from tidemark.execution.output_stream import create_output_stream, select_stream_emissions
from tidemark.execution.replay import LATE_BUT_BUFFERED_REASONS, LOSS_REASONS, ReplayResult
from tidemark.joins.late_table import select_late_table
from tidemark.joins.output_schema import flatten_emissions, select_output
from tidemark.ledger.checkpoint_files import to_table_rows, with_slice_numbers
from tidemark.ledger.state_fingerprint import state_parts
from tidemark.quality.invariants import aggregate_output
from tidemark.sources.normalization import is_emission
from tidemark.spark.materialization import materialize
from tidemark.tables.run_files import StagedRun, stage_run

_PAIRS = "pairs"


@dataclass(frozen=True)
class WrittenOutput:
    """Staged output of a job. All but three counts are from reading the written files."""

    staged: StagedRun
    emissions: DataFrame
    emission_statistics: pd.DataFrame
    """Result of `aggregate_output`: one row per slice with emissions, indexed by slice number."""
    emission_count: int
    """Number of emissions that the replay returned."""
    pair_counts: Mapping[int, int] | None
    """Number of rows of the join from which `explode` made the emissions, by slice, counted while writing; None without
    it."""
    late_counts: pd.DataFrame
    """Number of rows that took no part, by `side` and `number` of the slice, in columns `late` and `rejected`."""
    state_parts: pd.DataFrame
    """Aggregated rows of the checkpoint (`state_fingerprint.state_parts`)."""
    evicted_counts: Mapping[str, int]
    """Number of rows by side that the replay evicted."""


def write_output(spark: SparkSession, spec: JobSpec, replayed: ReplayResult, file_count: int) -> WrittenOutput:
    """Write emissions, late rows and checkpoint. Late rows and a small checkpoint get `file_count` files each."""
    # In parallel, because planning a write takes seconds and keeps one core busy.
    with ThreadPoolExecutor(max_workers=3) as pool:
        emissions_future = pool.submit(_write_emissions, spark, spec, replayed)
        checkpoint_future = pool.submit(_write_checkpoint, spark, spec, replayed, file_count)
        late_future = pool.submit(_write_late, spark, spec, replayed, file_count)
        tables, statistics, emission_count, pair_counts = emissions_future.result()
        checkpoint, parts, evicted_counts = checkpoint_future.result()
        late, late_counts = late_future.result()
    emissions = tables["emissions"].read(spark)
    tables |= {"checkpoint": checkpoint} | ({"late": late} if late else {})
    staged = StagedRun(spec.run, spec.slices, tables)
    return WrittenOutput(staged, emissions, statistics, emission_count, pair_counts, late_counts, parts, evicted_counts)


def _write_emissions(
    spark: SparkSession, spec: JobSpec, replayed: ReplayResult
) -> tuple[dict[str, StagedFiles], pd.DataFrame, int, Mapping[int, int] | None]:
    """Write the emissions, and the output stream if the pipeline has one.

    Spark computes the join once per write. So emissions are read back from the files of the output stream.
    """
    plan, emission_observation, pair_observation = spec.plan, Observation(), Observation()
    tables = {}
    if plan.pipeline.output_stream:
        stream = create_output_stream(replayed, plan.pipeline, plan.inputs, spec.lane, plan.grid)
        stream = stream.observe(emission_observation, F.count_if(is_emission()).alias("rows"))
        tables[OUTPUT_STREAM] = stage_run(stream, plan.tables.output_stream, spec.run)
        output = select_stream_emissions(tables[OUTPUT_STREAM].read(spark))
    else:
        emissions = flatten_emissions(replayed.joined, plan.pipeline, plan.grid)
        if plan.pipeline.explode is not None:
            emissions = emissions.observe(pair_observation, _build_pair_histogram(spec))
        output = select_output(emissions, plan.pipeline).observe(emission_observation, F.count("*").alias("rows"))
    tables["emissions"] = stage_run(output, plan.tables.emissions, spec.run)
    statistics = aggregate_output(tables["emissions"].read(spark), plan.pipeline)
    statistics_by_slice = statistics.set_index(plan.grid.numbers_at(statistics["slice_start"].to_numpy(dtype="int64")))
    pair_counts = None if plan.pipeline.explode is None else _read_pair_counts(spec, pair_observation)
    return tables, statistics_by_slice, int(emission_observation.get.get("rows", 0)), pair_counts


def _build_pair_histogram(spec: JobSpec) -> Column:
    """Return a histogram of pairs by slice, to be observed while they are written. It is exact: a bin has one slice."""
    slice_index = spec.plan.grid.number_column(F.unix_micros("_slice")) - F.lit(spec.slices.start)
    return F.histogram_numeric(slice_index, F.lit(max(2, len(spec.slices)))).alias(_PAIRS)


def _read_pair_counts(spec: JobSpec, observation: Observation) -> Mapping[int, int]:
    pair_counts = Counter[int]()
    for slice_index, rows in observation.get.get(_PAIRS) or ():
        pair_counts[spec.slices.start + round(slice_index)] += round(rows)
    return pair_counts


def _write_checkpoint(
    spark: SparkSession, spec: JobSpec, replayed: ReplayResult, file_count: int
) -> tuple[StagedFiles, pd.DataFrame, Mapping[str, int]]:
    plan = spec.plan
    rows = to_table_rows(replayed.carried, spec.slices, plan.grid, plan.join)
    if replayed.strategy.repartition_carried_rows:  # Otherwise each task writes a file, without a shuffle.
        # With `coalesce`, one task would run the whole stage, with the hash tables of all its joins in memory at once.
        rows = rows.repartition(file_count)
    staged = stage_run(rows, plan.tables.checkpoint, spec.run)
    parts = state_parts(with_slice_numbers(staged.read(spark), plan.grid), plan.join)
    return staged, parts.toPandas(), replayed.count_evicted()


def _write_late(
    spark: SparkSession, spec: JobSpec, replayed: ReplayResult, file_count: int
) -> tuple[StagedFiles | None, pd.DataFrame]:
    plan, last = spec.plan, spec.slices[-1]
    no_counts = pd.DataFrame(columns=["side", "number", "late", "rejected"])
    if not replayed.may_have_late_rows and spec.ledger.entries:  # The first job creates the table, even if it is empty.
        return None, no_counts
    late = materialize(replayed.late.withColumn("row", F.monotonically_increasing_id()))
    late = add_would_match(late, plan.join, plan.pipeline, plan.inputs, plan.grid, last)
    late_table = select_late_table(late, plan.pipeline, plan.grid).repartition(file_count)
    staged = stage_run(late_table, plan.tables.late, spec.run)
    if not staged.files:
        return staged, no_counts
    number = plan.grid.number_column(F.unix_micros("_slice")).alias("number")
    is_rejected = ~F.col("reason").isin("late", *LATE_BUT_BUFFERED_REASONS, *LOSS_REASONS)
    counts = F.count_if(F.col("reason") == "late").alias("late"), F.count_if(is_rejected).alias("rejected")
    return staged, staged.read(spark).groupBy("side", number).agg(*counts).toPandas()
