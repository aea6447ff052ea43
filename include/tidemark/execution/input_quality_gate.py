"""Validate a job's input rows before the join, and reject slices that fail."""

from __future__ import annotations

from pyspark.sql import DataFrame

from tidemark.config.sides import SIDES
from tidemark.errors import CheckFailedError
from tidemark.execution.job_spec import JobSpec
from tidemark.execution.quality_gate import (
    describe_published_slices,
    format_failed_slices,
    format_remedies,
    notify_receivers,
    record_first_rejection,
)
from tidemark.execution.validation_inputs import collect_input_rows
from tidemark.quality.gx.data_docs import get_docs_index, write_docs
from tidemark.quality.results import ValidationResult
from tidemark.quality.validation import validate_inputs


def validate_job_inputs(spec: JobSpec, rows: DataFrame) -> ValidationResult:
    """Validate the rows that a job has read. Rows are not evaluated if no expectation is on an input."""
    plan = spec.plan
    if not any(expectation.on in SIDES for expectation in plan.pipeline.quality):
        empty = ((),) * len(spec.slices)
        return ValidationResult(empty, 0.0, get_docs_index(plan.tables), measurements_by_slice=empty)
    return validate_inputs(collect_input_rows(spec, rows), plan.pipeline, plan.tables, spec.run, spec.waivers)


def reject_failed_slices(spec: JobSpec, result: ValidationResult) -> str | None:
    """Reject the first slice whose inputs failed and all later slices, and store the failures.

    If no slice may run, notify receivers. Otherwise the job of the earlier slices does so (`JobSpec.rejected`).

    Returns:
        A message about the rejected slices, which must not run; None if all slices may run.

    Raises:
        CheckFailedError: No slice may run.
    """
    plan, slices, passed_count = spec.plan, spec.slices, result.publishable_count
    if passed_count == len(slices):
        return None
    can_run = passed_count and not plan.atomic
    if not can_run:
        notify_receivers(spec, result)
    write_docs(plan.tables, result.gx_result_ids)
    failure, *other_failures = record_first_rejection(spec, result).blocking_failures
    more = f" (and {len(other_failures)} more)" if other_failures else ""
    failed_slice = plan.grid.label(slices[0] + passed_count)
    where = format_failed_slices(plan.grid, slices, result)
    rejection = (
        f"quality gate: {failure.expectation} {failure.detail}{more} before the join in {where}; "
        f"{describe_published_slices(spec, passed_count, 'were not run')}. Look at {result.docs_index}"
        f"{format_remedies(plan.pipeline, failure, failed_slice)}"
    )
    if not can_run:
        raise CheckFailedError(rejection)
    return rejection
