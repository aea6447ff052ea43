"""The fourth step of a job: how many of its slices may be published, by the quality gate."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import functions as F

from tidemark.commits.prepare import set_aside
from tidemark.errors import CheckFailedError
from tidemark.execution.subjects import job_rows
from tidemark.execution.tally import Tally
from tidemark.execution.task import Task
from tidemark.execution.write import Written
from tidemark.quality import gate, project
from tidemark.quality.findings import Verdict
from tidemark.quality.notice import Notice


@dataclass(frozen=True)
class Judgement:
    """What the gate says of a job."""

    fit: int
    """How many of its slices, the first ones, may be published."""
    verdict: Verdict
    """The verdict on those."""
    refusal: str | None
    """Why the slices behind them may not; None where all may."""


def judge(task: Task, written: Written, tallied: Tally) -> Judgement:
    """Judge what a job has written. The output of slices that are refused is kept aside.

    Raises:
        CheckFailedError: no slice may be published.
    """
    plan, tables, first = task.plan, task.plan.tables, task.slices[0]
    verdict = gate.judge(tallied.facts, job_rows(task, written), plan.pipeline, tables, task.run)
    notice = Notice.of(plan.pipeline.name, plan.grid, task.slices, task.run, verdict)
    project.tell(notice, plan.pipeline.notify, tables, verdict)
    if not verdict.critical:
        return Judgement(len(task.slices), verdict, None)

    project.write_docs(tables, verdict.results)
    sound = verdict.fit
    fit = 0 if plan.atomic else sound
    since = plan.grid.datetime_of(first + fit)
    refused_rows = written.output.where(F.col("_slice") >= F.lit(since)).withColumn("_run", F.lit(task.run))
    set_aside(refused_rows, tables.rejected_output, task.run)
    refusal = _refusal(task, verdict.of(sound, sound + 1), sound)
    if not fit:
        raise CheckFailedError(refusal)
    return Judgement(fit, verdict.of(0, fit), refusal)


def _refusal(task: Task, verdict: Verdict, sound: int) -> str:
    """What is wrong after so many slices that are fit to be published, and what is published."""
    plan, slices = task.plan, task.slices
    worst, *more = verdict.critical
    others = f" (and {len(more)} more)" if more else ""
    first, failed, end = map(plan.grid.name, (slices[0], slices[0] + sound, slices[-1] + 1))
    where = f" in slice {failed}" if sound else ""
    if plan.atomic:
        published = "nothing was published, as --atomic asks"
    elif sound:
        published = f"slices {first} to {failed} were published, {failed} to {end} were not"
    else:
        published = f"nothing of slices {first} to {end} was published"
    return (
        f"quality gate: {worst.expectation} {worst.detail}{others}{where}; {published}. "
        f"Look at {verdict.docs} and the rows in {plan.tables.rejected_output} where _run = '{task.run}'"
    )
