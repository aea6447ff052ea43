"""One Spark job, step by step: read, replay, write, judge. The last step, the commit, is `run`'s.

Each step is a function of what the steps before it gave; `task.Task` says what the job is to do.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from pyspark.sql import SparkSession

from tidemark.delta.staging import stage_arrow_table
from tidemark.execution.input_quality_gate import judge_inputs, refused
from tidemark.execution.job_spec import Task, is_tiny
from tidemark.execution.quality_gate import judge
from tidemark.execution.quarantine import Published, publishable
from tidemark.execution.read import JobInput, read
from tidemark.execution.replay import ReplayResult, replay
from tidemark.execution.row_accounting import Tally, tally
from tidemark.execution.write import write
from tidemark.json_logging import log_context
from tidemark.ledger.emission_diff import EmissionChange, compare_emissions
from tidemark.ledger.ledger import Entry, Ledger
from tidemark.planning.plan import Plan
from tidemark.quality.results import ValidationResult
from tidemark.quality.results_table import create_result_rows
from tidemark.spark.engine import get_engine
from tidemark.spark.temporary_settings import tuned_for_tiny_queries
from tidemark.tables.run_files import FOLDER, StagedRun, read_slices, within
from tidemark.watermarks.buckets import Buckets

Progress = Callable[[str], None]
"""Is told the name of each step as it begins."""


@dataclass(frozen=True)
class JobResult:
    """What one job has written of its slices: nothing counts before its ledger rows are committed."""

    slices: range
    staged: StagedRun
    """The files, of more slices perhaps than are fit to be committed."""
    entries: tuple[Entry, ...]
    rows: tuple[dict[str, Any], ...]
    """The ledger's rows, one for each entry."""
    verdict: ValidationResult
    seconds: float
    changes: Mapping[int, EmissionChange]
    """What became of emissions, for slices that have run before."""
    refusal: str | None = None
    """Why the slices behind these were refused; None where none was."""

    def upto(self, count: int) -> JobResult:
        """The first slices of it, to be committed without the others."""
        slices = self.slices[:count]
        changes = {number: change for number, change in self.changes.items() if number in slices}
        refusal = self.refusal if count >= len(self.slices) else None
        return replace(
            self,
            slices=slices,
            entries=self.entries[:count],
            rows=self.rows[:count],
            changes=changes,
            refusal=refusal,
        )


def run_job(
    spark: SparkSession,
    plan: Plan,
    ledger: Ledger,
    slices: range,
    uncommitted: Mapping[str, StagedRun],
    progress: Progress,
) -> JobResult:
    """Run a range of slices as one Spark job, continuing the ledger as it stands, and what is not in the tables yet.

    Where the gate refuses a slice, the result is of those before it, with the reason.

    Raises:
        CheckFailedError: no slice may be published; nothing is left of the job.
        InputError: rows that earlier slices have read were deleted or changed.
    """
    began, task = time.monotonic(), Task.create(plan, ledger, slices, uncommitted)
    progress("reading")
    with ExitStack() as resources:
        resources.enter_context(log_context(pipeline=plan.pipeline.name, slice=plan.grid.name(slices[0]), run=task.run))
        tuning = resources.enter_context(ExitStack())
        tuning.enter_context(_tuned(spark, tiny=task.is_expected_tiny))
        job_input = read(spark, task)
        input_result = judge_inputs(task, job_input.rows)
        if refusal := refused(task, input_result):
            before = run_job(spark, plan, ledger, slices[: input_result.publishable_count], uncommitted, progress)
            return replace(before, refusal=before.refusal or refusal)
        replayed = _replayed(task, job_input)
        tiny = is_tiny(replayed.rows_read, task.predecessor)
        if tiny != task.is_expected_tiny:
            tuning.close()
            tuning.enter_context(_tuned(spark, tiny=tiny))
        progress("joining")
        written = write(spark, task, replayed, files=1 if tiny else get_engine(spark).count_cores())
        tallied = tally(task, replayed, written)
        progress("checking")
        judgement = judge(task, written, tallied, input_result)
        published = publishable(task, written, judgement.verdict)
        staged = _with_measures(task, published.staged, judgement.verdict)
        changes = _changes(spark, task, published)
    seconds = time.monotonic() - began
    verdicts = (judgement.verdict.select_slices(number, number + 1) for number in range(len(tallied.entries)))
    rows = tuple(
        _ledger_row(task, tallied, entry, verdict, published.quarantined.get(entry.number, 0), seconds)
        for entry, verdict in zip(tallied.entries, verdicts, strict=True)
    )
    result = JobResult(slices, staged, tallied.entries, rows, judgement.verdict, seconds, changes)
    return replace(result.upto(judgement.fit), refusal=judgement.refusal)


def _replayed(task: Task, found: JobInput) -> ReplayResult:
    join = task.plan.join
    buckets = Buckets.create(task.plan.grid, task.slices, join.buckets_per_slice)
    return replay(found.rows, found.carried, [task.lane], join, buckets)


def _with_measures(task: Task, staged: StagedRun, verdict: ValidationResult) -> StagedRun:
    """The run with what expectations came to in those of its slices that are judged fit."""
    plan = task.plan
    rows = create_result_rows(plan.pipeline, plan.grid, task.slices[0], task.run, verdict)
    if not len(rows):
        return staged
    written = stage_arrow_table(rows, plan.tables.quality, f"{FOLDER}{task.run}/{uuid4().hex[:8]}")
    return replace(staged, tables={**staged.tables, "quality": written})


def _tuned(spark: SparkSession, *, tiny: bool) -> AbstractContextManager[object]:
    return tuned_for_tiny_queries(spark) if tiny else nullcontext()


def _changes(spark: SparkSession, task: Task, published: Published) -> Mapping[int, EmissionChange]:
    """What becomes of the emissions of slices that have run before."""
    rerun_slices = [number for number in task.slices if task.ledger.entry(number)]
    if not rerun_slices:
        return {}
    grid, span = task.plan.grid, range(rerun_slices[0], rerun_slices[-1] + 1)
    old = read_slices(spark, task.plan.tables, "emissions", grid, span)
    new = within(published.output, "emissions", grid, span.start, span.stop)
    return compare_emissions(new.limit(0) if old is None else old, new, rerun_slices, grid)


def _ledger_row(
    task: Task, tallied: Tally, entry: Entry, verdict: ValidationResult, quarantined: int, seconds: float
) -> dict[str, Any]:
    left, right = tallied.counts[entry.number]
    waivers = task.waivers.get(task.plan.grid.start_of(entry.number), {})
    waived = [waivers[one.expectation].to_dict() for one in verdict.failures if one.on_failure == "waived"]
    ledger_values = task.ledger.row(entry)
    return {
        **ledger_values,
        "pipeline": task.plan.pipeline.name,
        "committed_at": datetime.now(UTC),
        "emissions": int(tallied.facts["emissions"][entry.number]) - quarantined,
        "floored": tallied.floored[entry.number],
        "left": asdict(left),
        "right": asdict(right),
        "quality": verdict.outcome,
        "findings": json.dumps([asdict(finding) for finding in verdict.failures]),
        "incomplete": json.dumps(missing) if (missing := task.plan.incomplete_inputs(entry.number)) else None,
        **({"quarantined": quarantined} if quarantined else {}),
        "waived": json.dumps(waived) if waived else None,
        "job_slices": len(task.slices),
        "job_seconds": seconds,
    }
