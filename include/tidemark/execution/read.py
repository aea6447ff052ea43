"""Read a job's input rows, and the buffered rows that it continues with."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemark.delta.table import CommitConflictError
from tidemark.execution.job_spec import JobSpec
from tidemark.ledger.checkpoint_files import read_buffered_rows, to_replay_rows
from tidemark.ledger.entry import Entry
from tidemark.ledger.staleness import compute_consumed_versions, list_read_ranges
from tidemark.sources.late_arrivals import require_unchanged
from tidemark.sources.stored_input import read_input_slices
from tidemark.tables.run_files import filter_slices


@dataclass(frozen=True)
class JobInput:
    """Rows for a replay. The column `lane` is 0."""

    rows: DataFrame
    """Rows of both inputs that arrive in the job's slices (`sources.normalization.Side.normalize`)."""
    carried: DataFrame | None
    """Rows in the buffers when the first slice starts; None for empty buffers."""


def read_job_input(spark: SparkSession, spec: JobSpec) -> JobInput:
    """Read the inputs at the plan's versions, and the rows carried by the previous slice.

    Raises:
        InputError: Rows were deleted or changed that earlier slices have read, or that rerun slices need again.
        SliceOrderError: Another process has rerun the previous slice since the ledger was read.
    """
    spec.plan.grid.check_time_zone(spark, spec.slices)
    rows = read_input_rows(spec).withColumn("lane", F.lit(0))
    if spec.predecessor is None:
        return JobInput(rows, None)
    return JobInput(rows, _read_carried_rows(spark, spec, spec.predecessor).withColumn("lane", F.lit(0)))


def read_input_rows(spec: JobSpec) -> DataFrame:
    """Read the rows of both inputs that a job replays (`StoredInput.read_slices`), at the plan's versions.

    Raises:
        InputError: Rows were deleted or changed that earlier slices have read, or that rerun slices need again.
    """
    plan, first = spec.plan, spec.slices[0]
    earlier_entries = [entry for entry in spec.ledger.entries.values() if entry.number < first]
    consumed_by_side = [compute_consumed_versions(earlier_entries, side) for side in range(len(plan.inputs))]
    if spec.late_arrival_policy != "append":  # Do not read late-arriving rows of earlier slices.
        consumed_by_side = [replace(consumed, by_slice=()) for consumed in consumed_by_side]
    rerun_entries = [entry for number in spec.slices if (entry := spec.ledger.entry(number))]
    if plan.pipeline.on_input_delete == "ignore":
        for side, source in enumerate(plan.inputs):
            source.changes.require_rereadable(plan.grid, list_read_ranges(rerun_entries, side))
    else:
        changed = [
            source.changes.find_changed_rows(plan.grid, first, consumed)
            for source, consumed in zip(plan.inputs, consumed_by_side, strict=True)
        ]
        require_unchanged(changed, plan.grid, plan.reprocess_command)
    return read_input_slices(plan.inputs, plan.grid, spec.slices, consumed_by_side)


def _read_carried_rows(spark: SparkSession, spec: JobSpec, predecessor: Entry) -> DataFrame:
    """Read the rows carried by a slice, from the staged files of an uncommitted run or from the table `checkpoint`."""
    plan, number = spec.plan, predecessor.number
    if (staged := spec.uncommitted_runs.get(predecessor.run)) is None:
        try:
            return read_buffered_rows(spark, plan.tables, number, plan.grid, predecessor)
        except CommitConflictError:
            raise spec.ledger.create_conflict_error(spec.slices[0]) from None
    rows = filter_slices(staged.tables["checkpoint"].read(spark), "checkpoint", plan.grid, number, number + 1)
    return to_replay_rows(rows, plan.grid)
