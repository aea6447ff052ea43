"""Between reading and joining: how many of a job's slices may run, by what is expected of its inputs."""

from __future__ import annotations

from pyspark.sql import DataFrame

from tidemark.config.sides import SIDES
from tidemark.errors import CheckFailedError
from tidemark.execution.job_spec import Task
from tidemark.execution.quality_gate import first_refused, published, ways_on
from tidemark.execution.validation_inputs import input_rows
from tidemark.quality import gate
from tidemark.quality.gx.data_docs import get_docs_index, write_docs
from tidemark.quality.notification import Notification, send_notification
from tidemark.quality.results import ValidationResult


def judge_inputs(task: Task, rows: DataFrame) -> ValidationResult:
    """The verdict on the rows that a job has read; nothing is asked of them where no expectation is on an input."""
    plan, count = task.plan, len(task.slices)
    if not any(asked.on in SIDES for asked in plan.pipeline.quality):
        return ValidationResult(((),) * count, 0.0, get_docs_index(plan.tables), measurements_by_slice=((),) * count)
    return gate.validate_inputs(input_rows(task, rows), plan.pipeline, plan.tables, task.run, task.waivers)


def refused(task: Task, verdict: ValidationResult) -> str | None:
    """Why not all slices of a job may run; None where all may.

    Raises:
        CheckFailedError: none may.
    """
    plan, slices, sound = task.plan, task.slices, verdict.publishable_count
    if sound == len(slices):
        return None
    send_notification(
        Notification.from_result(plan.pipeline.name, plan.grid, slices, task.run, verdict),
        plan.pipeline.notify,
        plan.tables,
        verdict,
    )
    write_docs(plan.tables, verdict.gx_result_ids)
    worst, *more = first_refused(task, verdict).blocking_failures
    others = f" (and {len(more)} more)" if more else ""
    failed = plan.grid.name(slices[0] + sound)
    refusal = (
        f"quality gate: {worst.expectation} {worst.detail}{others} in slice {failed}, before the join; "
        f"{published(task, sound, 'were not run')}. Look at {verdict.docs_index}{ways_on(plan.pipeline, worst, failed)}"
    )
    if plan.atomic or not sound:
        raise CheckFailedError(refusal)
    return refusal
