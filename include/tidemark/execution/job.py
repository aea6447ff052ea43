"""Run one Spark job: read, replay, write, validate. `execution.run` commits its result."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession

from tidemark.config.sides import SIDES
from tidemark.delta.staging import stage_arrow_table
from tidemark.delta.table import DeltaTableHandle
from tidemark.errors import FaultError
from tidemark.execution.adopted_slices import withhold_adopted_output
from tidemark.execution.input_quality_gate import reject_failed_slices, validate_job_inputs
from tidemark.execution.job_spec import JobSpec, is_tiny_job
from tidemark.execution.quality_gate import apply_quality_gate
from tidemark.execution.quarantine import quarantine_failing_rows
from tidemark.execution.read import JobInput, read_job_input
from tidemark.execution.replay import ReplayResult, replay
from tidemark.execution.row_accounting import RowAccounting, account_for_rows
from tidemark.execution.rows_ahead import describe_rows_ahead
from tidemark.execution.write import write_output
from tidemark.json_logging import log_context
from tidemark.ledger.emission_diff import EmissionChange, compare_emissions
from tidemark.ledger.entry import Entry
from tidemark.ledger.ledger import Ledger
from tidemark.planning.plan import Plan
from tidemark.quality.results import SliceFailures, ValidationResult
from tidemark.quality.results_table import create_result_rows
from tidemark.spark.engine import get_engine
from tidemark.spark.temporary_settings import tuned_for_tiny_queries
from tidemark.tables.run_files import FOLDER, StagedRun, filter_slices, read_slices
from tidemark.tables.schema_evolution import require_wider_types
from tidemark.watermarks.buckets import Buckets

Progress = Callable[[str], None]
"""Function that is called with the name of each step when it starts."""


@dataclass(frozen=True)
class JobResult:
    """Slices that a job has run and that may be committed. Readers see them once their ledger rows are committed."""

    slices: range
    staged: StagedRun
    """Staged files, which may also have later slices."""
    entries: tuple[Entry, ...]
    rows: tuple[dict[str, Any], ...]
    """Ledger rows, one per entry."""
    validation_result: ValidationResult
    seconds: float
    changes: Mapping[int, EmissionChange]
    """Changes of emissions by slice, for slices that have run before."""
    rejection: str | None = None
    """Message about later slices of the job that the quality gate rejected; None if it rejected none."""

    def truncate(self, count: int) -> JobResult:
        """Return the result with only its first `count` slices, to commit them without the others."""
        slices = self.slices[:count]
        return replace(
            self,
            slices=slices,
            entries=self.entries[:count],
            rows=self.rows[:count],
            changes={number: change for number, change in self.changes.items() if number in slices},
            rejection=self.rejection if count >= len(self.slices) else None,
        )


def run_job(
    spark: SparkSession,
    plan: Plan,
    ledger: Ledger,
    slices: range,
    uncommitted_runs: Mapping[str, StagedRun],
    progress: Progress,
    rejected: SliceFailures = (),
    *,
    is_cascade: bool = False,
) -> JobResult:
    """Run a range of slices as one Spark job that continues the ledger. If the gate rejects a slice, stop before it.

    Args:
        ledger: Committed slices, and slices of earlier jobs that are not committed yet.
        uncommitted_runs: Runs of earlier jobs whose files may not be in the tables yet, by name.
        rejected: Failures of the slices after these, which were rejected before the join.
        is_cascade: As in `JobSpec`.

    Raises:
        CheckFailedError: No slice may be published.
        InputError: Rows that earlier slices have read were deleted or changed.
    """
    start_time = time.monotonic()
    spec = JobSpec.create(plan, ledger, slices, uncommitted_runs, rejected, is_cascade=is_cascade)
    progress("reading")
    with ExitStack() as resources:
        first_slice = plan.grid.label(slices[0])
        resources.enter_context(log_context(pipeline=plan.pipeline.name, slice=first_slice, run=spec.run))
        tuning = resources.enter_context(ExitStack())
        tuning.enter_context(_tune(spark, is_tiny=spec.is_expected_tiny))
        job_input = read_job_input(spark, spec)
        input_result = validate_job_inputs(spec, job_input.rows)
        if is_cascade and 0 < (count := input_result.publishable_count) < len(slices):
            return run_job(spark, plan, ledger, slices[:count], uncommitted_runs, progress, is_cascade=True)
        if rejection := reject_failed_slices(spec, input_result):
            count = input_result.publishable_count
            rejected = (*input_result.failures_by_slice[count:], *rejected)
            result = run_job(spark, plan, ledger, slices[:count], uncommitted_runs, progress, rejected)
            return replace(result, rejection=result.rejection or rejection)
        replayed = _replay_slices(spec, job_input)
        _require_complete_read(spec, replayed)
        _require_all_emissions(spec, replayed)
        is_tiny = is_tiny_job(replayed.rows_read, spec.predecessor)
        if is_tiny != spec.is_expected_tiny:
            tuning.close()
            tuning.enter_context(_tune(spark, is_tiny=is_tiny))
        progress("joining")
        written = write_output(spark, spec, replayed, file_count=1 if is_tiny else get_engine(spark).count_cores())
        _require_wider_types(spec, written.staged)
        accounting = account_for_rows(spec, replayed, written)
        progress("checking")
        metric_details = describe_rows_ahead(spec, job_input.rows, replayed)
        decision = apply_quality_gate(spec, written, accounting, input_result, metric_details)
        validation_result = decision.validation_result
        publishable = quarantine_failing_rows(spec, written, validation_result)
        publishable = withhold_adopted_output(spec, publishable)
        staged = _stage_measurements(spec, publishable.staged, validation_result)
        changes = _compare_with_previous_attempt(spec, publishable.emissions)
    seconds = time.monotonic() - start_time
    rows = []
    for index, entry in enumerate(accounting.entries):
        slice_result = validation_result.select_slices(index, index + 1)
        quarantined = publishable.quarantined_counts.get(entry.number, 0)
        rows.append(_create_ledger_row(spec, accounting, entry, slice_result, quarantined, seconds))
    result = JobResult(slices, staged, accounting.entries, tuple(rows), validation_result, seconds, changes)
    return replace(result.truncate(decision.publishable_count), rejection=decision.rejection)


def _replay_slices(spec: JobSpec, job_input: JobInput) -> ReplayResult:
    join = spec.plan.join
    buckets = Buckets.create(spec.plan.grid, spec.slices, join.buckets_per_slice)
    return replay(job_input.rows, job_input.carried, [spec.lane], join, buckets, spec.plan.replay_limits)


def _require_complete_read(spec: JobSpec, replayed: ReplayResult) -> None:
    """Check the number of rows read against the statistics in the inputs' logs.

    Raises:
        FaultError: Fewer rows were read than files of these slices have.
    """
    grid, slices = spec.plan.grid, spec.slices
    for source in spec.plan.inputs:
        side = source.side.name
        expected, count = source.count_expected_rows(grid, slices), replayed.count_read(side)
        if count < expected:
            raise FaultError(
                f"input {source.side.settings.table}: Spark read {count:,} rows of {grid.label(slices[0])} up to "
                f"{grid.label(slices[-1] + 1)}, but the statistics in its Delta log promise at least {expected:,}. "
                "Nothing was published. Compare the table with its log, and report this if the table is sound."
            )


def _require_all_emissions(spec: JobSpec, replayed: ReplayResult) -> None:
    """Check that the job has read each row that the previous joins of a chain have emitted, in each slice.

    Slices that have run again meanwhile are left out: the next run reads them again. Jobs with late-arriving rows are
    left out, and inputs that are filtered, because the filter can be at the source.

    Raises:
        FaultError: The number of rows differs.
    """
    grid, counts = spec.plan.grid, replayed.row_counts
    has_late_arrivals = bool(counts["late_arriving_rows"].sum())
    for upstream in () if has_late_arrivals else spec.plan.upstreams:
        source = spec.plan.inputs[SIDES.index(upstream.side)].side.settings
        emitted = {} if source.where else upstream.count_emissions(spec.slices)
        for number, expected in emitted.items():
            if (count := int(counts[f"{upstream.side}_rows"][number])) != expected:
                raise FaultError(
                    f"input {source.table}: slice {grid.label(number)} has {count:,} rows, but {upstream.pipeline} has "
                    f"emitted {expected:,}. Nothing was published. Run tidemark reprocess {upstream.cli_arguments} "
                    f"--from {grid.label(number)} --to {grid.label(number + 1)} first."
                )


def _stage_measurements(spec: JobSpec, staged: StagedRun, result: ValidationResult) -> StagedRun:
    """Stage the measurements of publishable slices for the table `quality`, and add them to the run."""
    plan = spec.plan
    rows = create_result_rows(plan.pipeline, plan.grid, spec.slices[0], spec.run, result)
    if not len(rows):
        return staged
    staged_measurements = stage_arrow_table(rows, plan.tables.quality, f"{FOLDER}{spec.run}/{uuid4().hex[:8]}")
    return replace(staged, tables={**staged.tables, "quality": staged_measurements})


def _tune(spark: SparkSession, *, is_tiny: bool) -> AbstractContextManager[object]:
    return tuned_for_tiny_queries(spark) if is_tiny else nullcontext()


def _require_wider_types(spec: JobSpec, staged: StagedRun) -> None:
    """Check that the staged rows and those of the tables have a common type, if the job reads them together.

    Raises:
        UserError: The new type of a column cannot represent all values in the table.
    """
    reruns_slices = any(map(spec.ledger.entry, spec.slices))
    if not (reruns_slices or any(expectation.per == "day" for expectation in spec.plan.pipeline.quality)):
        return
    for files in staged.tables.values():
        if log := DeltaTableHandle.open(files.table):
            require_wider_types(log.path, log.schema, files.schema)


def _compare_with_previous_attempt(spec: JobSpec, emissions: DataFrame) -> Mapping[int, EmissionChange]:
    """Compare the emissions of slices that have run before with their committed emissions."""
    rerun_slices = [number for number in spec.slices if spec.ledger.entry(number)]
    if not rerun_slices:
        return {}
    grid, span = spec.plan.grid, range(rerun_slices[0], rerun_slices[-1] + 1)
    old = read_slices(emissions.sparkSession, spec.plan.tables, "emissions", grid, span)
    new = filter_slices(emissions, "emissions", grid, span.start, span.stop)
    return compare_emissions(new.limit(0) if old is None else old, new, rerun_slices, grid)


def _create_ledger_row(
    spec: JobSpec, accounting: RowAccounting, entry: Entry, result: ValidationResult, quarantined: int, seconds: float
) -> dict[str, Any]:
    left, right = accounting.counts[entry.number]
    waivers = spec.waivers.get(spec.plan.grid.start_of(entry.number), {})
    waived = [waivers[failure.expectation].to_dict() for failure in result.failures if failure.on_failure == "waived"]
    incomplete_inputs = spec.plan.list_incomplete_inputs(entry.number)
    return {
        **entry.to_row(spec.plan.grid),
        "pipeline": spec.plan.pipeline.name,
        "selected_columns": json.dumps(spec.plan.pipeline.select),
        "committed_at": datetime.now(UTC),
        "emissions": 0 if entry.emissions is None else entry.emissions - quarantined,
        "floored_event_times": accounting.floored_counts[entry.number],
        "left": asdict(left),
        "right": asdict(right),
        "quality": result.outcome,
        "quality_results": json.dumps([asdict(failure) for failure in result.failures]),
        "incomplete_inputs": json.dumps(incomplete_inputs) if incomplete_inputs else None,
        **({"quarantined": quarantined} if quarantined else {}),
        "applied_waivers": json.dumps(waived) if waived else None,
        "job_slices": len(spec.slices),
        "job_seconds": seconds,
    }
