"""The fourth step of a job: how many of its slices may be published, by the quality gate."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from tidemark.config import Expectation, Pipeline
from tidemark.config.allowed_expectations import ROW_EXPECTATIONS
from tidemark.errors import CheckFailedError
from tidemark.execution.job_spec import Task
from tidemark.execution.row_accounting import Tally
from tidemark.execution.validation_inputs import job_rows
from tidemark.execution.write import Written
from tidemark.formatting import quote_identifier
from tidemark.ledger.prepare_commit import append_rejected_rows
from tidemark.quality import gate
from tidemark.quality.gx.data_docs import write_docs
from tidemark.quality.gx.expectations import build_expectation, get_expectation_name
from tidemark.quality.notification import Notification, send_notification
from tidemark.quality.results import ExpectationResult, ValidationResult
from tidemark.quality.results_table import append_rejection_results, create_result_rows

SAMPLE = 3
"""So many rows that break an expectation a refusal names, by their keys."""


@dataclass(frozen=True)
class Judgement:
    """What the gate says of a job."""

    fit: int
    """How many of its slices, the first ones, may be published."""
    verdict: ValidationResult
    """The verdict on those."""
    refusal: str | None
    """Why the slices behind them may not; None where all may."""


def judge(task: Task, written: Written, tallied: Tally, seen: ValidationResult) -> Judgement:
    """Judge what a job has written, beside what was seen of its inputs; slices that are refused are kept aside.

    Raises:
        CheckFailedError: no slice may be published.
    """
    plan, tables, first = task.plan, task.plan.tables, task.slices[0]
    rows = job_rows(task, written, tallied)
    verdict = seen.merge(gate.validate_output(tallied.facts, rows, plan.pipeline, tables, task.run, task.waivers))
    notice = Notification.from_result(plan.pipeline.name, plan.grid, task.slices, task.run, verdict)
    send_notification(notice, plan.pipeline.notify, tables, verdict)
    if not verdict.blocking_failures:
        return Judgement(len(task.slices), verdict, None)

    write_docs(tables, verdict.gx_result_ids)
    sound = verdict.publishable_count
    fit = 0 if plan.atomic else sound
    since = plan.grid.datetime_of(first + fit)
    refused_rows = written.output.where(F.col("_slice") >= F.lit(since)).withColumn("_run", F.lit(task.run))
    append_rejected_rows(refused_rows, tables.rejected_output, task.run)
    refusal = _refusal(task, written, first_refused(task, verdict), sound)
    if not fit:
        raise CheckFailedError(refusal)
    return Judgement(fit, verdict.select_slices(0, fit), refusal)


def first_refused(task: Task, verdict: ValidationResult) -> ValidationResult:
    """The verdict on the first slice that is refused, once what it is refused for is kept."""
    plan, sound = task.plan, verdict.publishable_count
    found = verdict.select_slices(sound, sound + 1)
    append_rejection_results(
        plan.tables, create_result_rows(plan.pipeline, plan.grid, task.slices[sound], task.run, found)
    )
    return found


def _refusal(task: Task, written: Written, verdict: ValidationResult, sound: int) -> str:
    """What is wrong after so many slices that are fit to be published, what is published, and what to do."""
    plan, slices = task.plan, task.slices
    worst, *more = verdict.blocking_failures
    others = f" (and {len(more)} more)" if more else ""
    failed = plan.grid.name(slices[0] + sound)
    where = f" in slice {failed}" if sound else ""
    return (
        f"quality gate: {worst.expectation} {worst.detail}{others}{_such_as(task, written, worst, sound)}{where}; "
        f"{published(task, sound, 'were not')}. Look at {verdict.docs_index} and the rows in "
        f"{plan.tables.rejected_output} where _run = '{task.run}'{ways_on(plan.pipeline, worst, failed)}"
    )


def published(task: Task, sound: int, rest: str) -> str:
    """What is published of a job after so many slices that are fit to be, and what became of the `rest`."""
    first, failed, end = map(task.plan.grid.name, (task.slices[0], task.slices[0] + sound, task.slices[-1] + 1))
    if task.plan.atomic:
        return "nothing was published, as --atomic asks"
    if sound:
        return f"slices {first} to {failed} were published, {failed} to {end} {rest}"
    return f"nothing of slices {first} to {end} was published"


def _such_as(task: Task, written: Written, worst: ExpectationResult, sound: int) -> str:
    """The keys of some rows that break an expectation, where the pipeline file lets them be shown."""
    pipeline, output = task.plan.pipeline, written.output
    told = _of_file(pipeline, worst)
    names = [name for name in dict.fromkeys(pipeline.join.key_output_columns) if name in output.columns]
    if not (pipeline.expose_row_values and names and told and _may_be_quarantined(told)):
        return ""
    from tidemark.quality.gx.failing_rows import select_failing_rows  # noqa: PLC0415 - imports Great Expectations

    begin, end = (F.lit(task.plan.grid.datetime_of(task.slices[0] + sound + more)) for more in (0, 1))
    rows = output.where((F.col("_slice") >= begin) & (F.col("_slice") < end))
    try:
        found = (
            select_failing_rows(rows, build_expectation(told))
            .select(*map(quote_identifier, names))
            .limit(SAMPLE)
            .collect()
        )
    except PySparkException:  # on what it says of the column the gate has told already
        return ""
    shown = "; ".join(", ".join(f"{name} {value}" for name, value in row.asDict().items()) for row in found)
    return f", at {shown}" if shown else ""


def ways_on(pipeline: Pipeline, worst: ExpectationResult, failed: str) -> str:
    """What there is to do about an expectation of the pipeline file."""
    told = _of_file(pipeline, worst)
    if told is None:
        return ""
    ways = ["mend the rows, or the expectation, and run the same command again"]
    if _may_be_quarantined(told):
        ways.append("on_failure: quarantine publishes the slice without such rows")
    if told.per == "slice":
        ways.append(
            f"tidemark waive {pipeline.name} --slice {failed} --expectation {shlex.quote(worst.expectation)} "
            "--reason TEXT lets this one slice through"
        )
    return f". Ways on: {'; '.join(ways)}"


def _may_be_quarantined(told: Expectation) -> bool:
    return told.type in ROW_EXPECTATIONS and not told.scope


def _of_file(pipeline: Pipeline, finding: ExpectationResult) -> Expectation | None:
    """The expectation of the pipeline file that a finding is about; None where it follows from the join."""
    return next((one for one in pipeline.quality if get_expectation_name(one) == finding.expectation), None)
