"""Validate a job's output, and decide which of its slices may be published."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace

from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from tidemark.config import Expectation, Pipeline
from tidemark.config.allowed_expectations import ROW_EXPECTATIONS
from tidemark.config.candidate_version import format_cli_arguments
from tidemark.errors import CheckFailedError
from tidemark.execution.job_spec import JobSpec
from tidemark.execution.row_accounting import RowAccounting
from tidemark.execution.validation_inputs import collect_output_rows
from tidemark.execution.write import WrittenOutput
from tidemark.formatting import format_values, quote_identifier
from tidemark.quality.baseline_checks import MetricDetails
from tidemark.quality.gx.data_docs import write_docs
from tidemark.quality.gx.expectations import build_expectation, get_expectation_name
from tidemark.quality.notification import Notification, send_notification
from tidemark.quality.quarantine import abbreviate_expectation_name
from tidemark.quality.results import ExpectationResult, ValidationResult
from tidemark.quality.results_table import append_rejection_results, create_result_rows
from tidemark.quality.validation import validate_output
from tidemark.tables.rejected_rows import append_rejected_rows
from tidemark.timegrid.slices import Grid
from tidemark.timegrid.time_columns import to_plain_row

MAX_EXAMPLE_ROWS = 3
"""Maximum number of failing rows whose keys are listed in the message about a rejected slice."""

MAX_LISTED_SLICES = 5
"""Maximum number of failing slices that the message names."""


@dataclass(frozen=True)
class GateDecision:
    """Decision of the quality gate on the slices of a job."""

    publishable_count: int
    """Number of slices, from the first, that may be published."""
    validation_result: ValidationResult
    """Result of these slices."""
    rejection: str | None
    """Message about the slices after them, which are rejected; None if all may be published."""


def apply_quality_gate(
    spec: JobSpec,
    written: WrittenOutput,
    accounting: RowAccounting,
    input_result: ValidationResult,
    metric_details: MetricDetails,
) -> GateDecision:
    """Validate a job's output, notify receivers, and store the rows of rejected slices in `rejected_output`.

    Args:
        spec: The job.
        written: Its output.
        accounting: Counts of its rows.
        input_result: Result of validating its inputs.
        metric_details: Details for the messages about failed metrics.

    Raises:
        CheckFailedError: No slice may be published.
    """
    plan, tables = spec.plan, spec.plan.tables
    rows = collect_output_rows(spec, written, accounting, metric_details)
    output_result = validate_output(accounting.invariants, rows, plan.pipeline, tables, spec.run, spec.waivers)
    result = input_result.merge(output_result)
    if spec.is_cascade and (count := result.publishable_count):
        result = result.select_slices(0, count)
        notify_receivers(spec, result)
        return GateDecision(count, result, None)
    notify_receivers(spec, result)
    if not result.blocking_failures:
        return GateDecision(len(spec.slices), result, None)

    write_docs(tables, result.gx_result_ids)
    publishable_count = 0 if plan.atomic else result.publishable_count
    rejected_start = F.lit(plan.grid.datetime_of(spec.slices[0] + publishable_count))
    rejected_rows = written.emissions.where(F.col("_slice") >= rejected_start).withColumn("_run", F.lit(spec.run))
    append_rejected_rows(rejected_rows, tables.rejected_output, spec.run)
    rejection = _format_rejection(spec, written, record_first_rejection(spec, result), result)
    if not publishable_count:
        raise CheckFailedError(rejection)
    return GateDecision(publishable_count, result.select_slices(0, publishable_count), rejection)


def notify_receivers(spec: JobSpec, result: ValidationResult) -> None:
    """Notify receivers of the result of a job's slices, and of the slices after them that were rejected before."""
    plan, first = spec.plan, spec.slices[0]
    complete = replace(result, failures_by_slice=(*result.failures_by_slice, *spec.rejected))
    slices = range(first, first + len(complete.failures_by_slice))
    notification = Notification.from_result(plan.pipeline.name, plan.grid, slices, spec.run, complete)
    send_notification(notification, plan.pipeline.notify, plan.tables, complete)


def record_first_rejection(spec: JobSpec, result: ValidationResult) -> ValidationResult:
    """Store the failures of the first rejected slice in `rejection_results`, and return the slice's result."""
    plan, passed_count = spec.plan, result.publishable_count
    rejected = result.select_slices(passed_count, passed_count + 1)
    rows = create_result_rows(plan.pipeline, plan.grid, spec.slices[passed_count], spec.run, rejected)
    append_rejection_results(plan.tables, rows)
    return rejected


def _format_rejection(
    spec: JobSpec, written: WrittenOutput, first_rejection: ValidationResult, result: ValidationResult
) -> str:
    """Format the message about rejected slices.

    Args:
        first_rejection: Result of the first rejected slice.
        result: Result of all slices of the job.
    """
    plan, passed_count = spec.plan, result.publishable_count
    number = spec.slices[0] + passed_count
    failure, *other_failures = first_rejection.blocking_failures
    more = f" (and {len(other_failures)} more)" if other_failures else ""
    examples, failed_slice = _format_example_keys(spec, written, failure, number), plan.grid.label(number)
    where = format_failed_slices(plan.grid, spec.slices, result)
    return (
        f"quality gate: {failure.expectation} {failure.detail}{more}{examples} in {where}; "
        f"{describe_published_slices(spec, passed_count, 'were not')}. Look at {result.docs_index} "
        f"and the rows in {plan.tables.rejected_output} where _run = '{spec.run}'"
        f"{format_remedies(plan.pipeline, failure, failed_slice)}"
    )


def format_failed_slices(grid: Grid, slices: range, result: ValidationResult) -> str:
    """Format the first slice that fails; of several slices also their number, range and starts."""
    failed = [
        grid.label(number)
        for number, failures in zip(slices, result.failures_by_slice, strict=True)
        if any(failure.on_failure == "stop" for failure in failures)
    ]
    if len(failed) == 1:
        return f"slice {failed[0]}"
    listed = ", ".join(failed[:MAX_LISTED_SLICES])
    more = f" and {len(failed) - MAX_LISTED_SLICES:,} more" if len(failed) > MAX_LISTED_SLICES else ""
    return f"slice {failed[0]}, the first of {len(failed):,} failing slices up to {failed[-1]}: {listed}{more}"


def describe_published_slices(spec: JobSpec, passed_count: int, rejected_outcome: str) -> str:
    """Describe which slices of a job are published. The first `passed_count` passed; others get `rejected_outcome`."""
    first, failed, end = map(spec.plan.grid.label, (spec.slices[0], spec.slices[0] + passed_count, spec.slices[-1] + 1))
    if spec.plan.atomic:
        return "nothing was published because of --atomic"
    if passed_count:
        return f"slices {first} to {failed} were published, {failed} to {end} {rejected_outcome}"
    return f"no slice from {first} to {end} was published"


def _format_example_keys(spec: JobSpec, written: WrittenOutput, failure: ExpectationResult, number: int) -> str:
    """Format keys of rows of a slice that fail an expectation; empty unless `expose_row_values` is set."""
    pipeline, grid, output = spec.plan.pipeline, spec.plan.grid, written.emissions
    expectation = _find_expectation(pipeline, failure)
    key_names = [name for name in dict.fromkeys(pipeline.join.key_output_columns) if name in output.columns]
    if not (pipeline.expose_row_values and key_names and expectation and _can_be_quarantined(expectation)):
        return ""
    from tidemark.quality.gx.failing_rows import select_failing_rows  # noqa: PLC0415 - imports Great Expectations

    start, end = F.lit(grid.datetime_of(number)), F.lit(grid.datetime_of(number + 1))
    rows = output.where((F.col("_slice") >= start) & (F.col("_slice") < end))
    try:
        failing_rows = select_failing_rows(rows, build_expectation(expectation))
        keys = failing_rows.select(*map(quote_identifier, key_names)).limit(MAX_EXAMPLE_ROWS)
        examples = [to_plain_row(row, keys.schema) for row in keys.collect()]
    except PySparkException:  # The failure's detail already has Spark's message about the expectation.
        return ""
    formatted = "; ".join(map(format_values, examples))
    return f", at {formatted}" if formatted else ""


def format_remedies(pipeline: Pipeline, failure: ExpectationResult, failed_slice: str) -> str:
    """Format how to continue after an expectation or an invariant failed."""
    expectation = _find_expectation(pipeline, failure)
    if expectation is None:
        command = f"tidemark tables verify {format_cli_arguments(pipeline)}"
        return f". Run {command}. If the tables are not damaged, report a bug of Tidemark with this line"
    remedies = ". Fix the rows or the expectation and run the same command again"
    if _can_be_quarantined(expectation) and not pipeline.output_stream:
        remedies += ". To publish the slice without such rows, set on_failure: quarantine"
    if expectation.per == "slice":
        names = {get_expectation_name(config) for config in pipeline.quality}
        name = shlex.quote(abbreviate_expectation_name(failure.expectation, names))
        arguments = f"{format_cli_arguments(pipeline)} --slice {failed_slice} --expectation {name} --reason TEXT"
        command = f"tidemark quality waive {arguments}"
        remedies += f". To publish the slice with them, run {command}"
    return remedies


def _can_be_quarantined(expectation: Expectation) -> bool:
    return expectation.type in ROW_EXPECTATIONS and not expectation.scope


def _find_expectation(pipeline: Pipeline, failure: ExpectationResult) -> Expectation | None:
    """Find the expectation of the pipeline file that failed; None for an invariant or a default check."""
    matching = (config for config in pipeline.quality if get_expectation_name(config) == failure.expectation)
    return next(matching, None)
