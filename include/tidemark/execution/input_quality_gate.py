"""Between reading and joining: how many of a job's slices may run, by what is expected of its inputs."""

from __future__ import annotations

from pyspark.sql import DataFrame

from tidemark.config.sides import SIDES
from tidemark.errors import CheckFailedError
from tidemark.execution.job_spec import Task
from tidemark.execution.quality_gate import first_refused, published, ways_on
from tidemark.execution.validation_inputs import input_rows
from tidemark.quality import gate
from tidemark.quality.gx import project
from tidemark.quality.notification import Notice
from tidemark.quality.results import Verdict


def judge_inputs(task: Task, rows: DataFrame) -> Verdict:
    """The verdict on the rows that a job has read; nothing is asked of them where no expectation is on an input."""
    plan, count = task.plan, len(task.slices)
    if not any(asked.on in SIDES for asked in plan.pipeline.quality):
        return Verdict(((),) * count, 0.0, project.docs_page(plan.tables), measures=((),) * count)
    return gate.judge_inputs(input_rows(task, rows), plan.pipeline, plan.tables, task.run, task.waivers)


def refused(task: Task, verdict: Verdict) -> str | None:
    """Why not all slices of a job may run; None where all may.

    Raises:
        CheckFailedError: none may.
    """
    plan, slices, sound = task.plan, task.slices, verdict.fit
    if sound == len(slices):
        return None
    project.tell(
        Notice.of(plan.pipeline.name, plan.grid, slices, task.run, verdict), plan.pipeline.notify, plan.tables, verdict
    )
    project.write_docs(plan.tables, verdict.results)
    worst, *more = first_refused(task, verdict).stopping
    others = f" (and {len(more)} more)" if more else ""
    failed = plan.grid.name(slices[0] + sound)
    refusal = (
        f"quality gate: {worst.expectation} {worst.detail}{others} in slice {failed}, before the join; "
        f"{published(task, sound, 'were not run')}. Look at {verdict.docs}{ways_on(plan.pipeline, worst, failed)}"
    )
    if plan.atomic or not sound:
        raise CheckFailedError(refusal)
    return refusal
