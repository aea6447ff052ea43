"""The first step of a job: what its slices read of both inputs, and what the slice before has carried."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemark.delta.table import CommitConflictError
from tidemark.execution.job_spec import Task
from tidemark.ledger.checkpoint_files import read_buffered_rows, to_replay_rows
from tidemark.ledger.ledger import Entry
from tidemark.ledger.staleness import consumed_versions, reads
from tidemark.sources.stored_input import read_input_slices
from tidemark.tables.run_files import within


@dataclass(frozen=True)
class JobInput:
    """What a replay takes, both with the number of their lane, 0."""

    rows: DataFrame
    """The rows of both inputs that arrive in the job's slices (`sources.normalization.Side.normalize`)."""
    carried: DataFrame | None
    """The rows in the buffers when the first slice starts; None for empty buffers."""


def read(spark: SparkSession, task: Task) -> JobInput:
    """Read the inputs at the plan's versions, and the state that the job continues.

    Raises:
        InputError: rows that earlier slices have read were deleted or changed, or those of slices that run again.
        SliceOrderError: another process has run the slice before again since the ledger was read.
    """
    plan, first = task.plan, task.slices[0]
    plan.grid.check_time_zone(spark, task.slices)
    earlier = [entry for entry in task.ledger.entries.values() if entry.number < first]
    consumed = [consumed_versions(earlier, side) for side in range(len(plan.inputs))]
    if task.late_arrival_policy != "append":
        consumed = [replace(one, by_slice=()) for one in consumed]
    again = [entry for number in task.slices if (entry := task.ledger.entry(number))]
    for side, (source, known) in enumerate(zip(plan.inputs, consumed, strict=True)):
        if plan.pipeline.on_input_delete == "ignore":
            source.changes.require_rereadable(plan.grid, reads(again, side))
        else:
            source.changes.require_unchanged(plan.grid, first, known, plan.reprocess_command)
    rows = read_input_slices(plan.inputs, plan.grid, task.slices, consumed).withColumn("lane", F.lit(0))
    if task.predecessor is None:
        return JobInput(rows, None)
    return JobInput(rows, _carried(spark, task, task.predecessor).withColumn("lane", F.lit(0)))


def _carried(spark: SparkSession, task: Task, before: Entry) -> DataFrame:
    """The state after a slice: from the files of the job that came before this one, or from the table."""
    plan, number = task.plan, before.number
    if (staged := task.uncommitted_runs.get(before.run)) is None:
        try:
            return read_buffered_rows(spark, plan.tables, number, plan.grid, before.run)
        except CommitConflictError:
            raise task.ledger.create_conflict_error(task.slices[0]) from None
    rows = within(staged.tables["checkpoint"].read(spark), "checkpoint", plan.grid, number, number + 1)
    return to_replay_rows(rows, plan.grid)
