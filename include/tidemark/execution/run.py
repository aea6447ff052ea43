"""Run the jobs of a plan in order, and rerun slices that become stale."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from tidemark.config.candidate_version import format_cli_arguments, get_candidate_name, to_live
from tidemark.delta.store_capabilities import probe_conditional_put
from tidemark.delta.table import OpenTables
from tidemark.errors import CheckFailedError, FaultError, LedgerConflictError, StoppedError
from tidemark.execution.job import JobResult, run_job
from tidemark.ledger.erasure_records import find_excluded_predicates, predicates_to_json
from tidemark.ledger.ledger import Ledger
from tidemark.ledger.staleness import count_slices_until_valid, find_restorable_start, find_stale_slices
from tidemark.ledger.transaction import LedgerTransaction
from tidemark.planning.plan import Plan
from tidemark.quality.gx.data_docs import write_docs
from tidemark.quality.gx.expectations import check_arguments
from tidemark.sources.upstream import find_readable_end
from tidemark.spark.lazy_session import resolve_session
from tidemark.tables.run_files import StagedRun

STEPS = ("reading", "joining", "checking", "committing")
"""Steps of a job, in order, for `Progress`."""
DOCS_INTERVAL_SECONDS = 30.0
"""Minimum time between updates of Data Docs while jobs run. An update takes half a second."""
Progress = Callable[[range, str], None]
"""Function that is called with the slices of a job and each step when it starts."""


def execute(
    spark: SparkSession, plan: Plan, progress: Progress, should_stop: Callable[[], bool] = lambda: False
) -> Iterator[JobResult]:
    """Run a plan's jobs one after another, and yield each result once it is committed.

    Earlier jobs stay committed after an error. An atomic plan commits all of its jobs at the end, or none. Running the
    plan again after a crash, at any point, gives the same tables.

    Args:
        should_stop: Called before each job. If it returns True, this job and later ones do not run.

    Raises:
        CheckFailedError: Quality or conservation failed. The job's slices before the first failing one are committed.
        StoppedError: `should_stop` returned True before a job.
        SliceOrderError: Another process committed meanwhile. The job published nothing.
        FaultError: The disk is full.
        ForbiddenPathError: The tables cannot be written, or the store cannot prevent conflicting commits of two
            processes.
    """
    if plan.jobs:
        plan.tables.require_permission()
        check_arguments(plan.pipeline)
        if plan.ledger.rows.empty:
            probe_conditional_put(resolve_session(spark), plan.ledger.tables.root)
    stale_slices = _find_readable_stale(plan, plan.ledger)
    execution = _PlanExecution(spark, plan, plan.ledger, list(plan.jobs), stale_slices, progress)
    with execution.translate_disk_full(), execution.write_docs_at_end():
        while slices := execution.pop_next_job():
            resolve_session(spark)
            if should_stop():
                raise StoppedError(execution.format_stop_message(slices))
            result = execution.run(slices)
            if not plan.atomic:
                execution.commit([result])
                yield result
            if result.rejection:
                raise CheckFailedError(result.rejection)
        if plan.atomic and execution.uncommitted:
            results = list(execution.uncommitted)  # a copy, because the commit clears the list
            execution.commit(results)
            yield from results


def _find_readable_stale(plan: Plan, ledger: Ledger, after: int = -1) -> set[int]:
    """Find the stale slices after slice `after` (exclusive) whose inputs may be read."""
    end = find_readable_end(plan.upstreams)
    return {number for number in find_stale_slices(ledger, after) if end is None or number < end}


def _require_no_new_erasure(plan: Plan) -> None:
    """Require that no rows were erased from another version of the pipeline since the plan.

    An erasure from the tables of the plan itself is a commit of its ledger, so the commit conflicts with it. The live
    version records each erasure once it has slices.
    """
    if get_candidate_name(plan.pipeline) is None and plan.ledger.last:
        return
    excluded = find_excluded_predicates(plan.pipeline, plan.lake)
    if predicates_to_json(excluded) != plan.excluded_predicates_json:
        raise LedgerConflictError(
            f"rows were erased from {plan.pipeline.name} since this run began, and it may have read them. This job "
            "published nothing. Run the same command again."
        )


@dataclass
class _PlanExecution:
    """State of a plan that is being run."""

    spark: SparkSession
    plan: Plan
    ledger: Ledger
    pending_jobs: list[range]
    """Slices of each job of the plan that has not run."""
    stale_slices: set[int]
    """Committed slices that do not follow from their predecessors any more."""
    progress: Progress
    uncommitted: list[JobResult] = field(default_factory=list)
    undocumented_results: list[Any] = field(default_factory=list)
    """Identifiers of validation results that Data Docs do not show yet."""
    docs_written_at: float = field(default_factory=time.monotonic)
    open_tables: OpenTables = field(default_factory=dict)
    last_run: StagedRun | None = None
    """Run of the previous job. The next job reads its checkpoint from the staged files, without opening the table."""
    cascade_size: int = 1
    """Number of stale slices that the next job reruns. It doubles as long as the slices after them are stale too."""

    def pop_next_job(self) -> range | None:
        """Return the next slices to run: stale ones or a pending job, whichever is earlier; None if neither is left."""
        pending = self.pending_jobs[0] if self.pending_jobs else None
        if not self.stale_slices or (pending and pending[0] <= min(self.stale_slices)):
            self.cascade_size = 1
            return self.pending_jobs.pop(0) if self.pending_jobs else None
        first = min(self.stale_slices)
        earlier_runs = self.plan.ledger.runs  # Their checkpoints may have expired.
        available_runs = self.ledger.runs - earlier_runs | (self.plan.available_checkpoints & earlier_runs)
        start, stop = find_restorable_start(self.ledger, first, available_runs), pending[0] if pending else None
        last, end = first, find_readable_end(self.plan.upstreams)
        while last + 1 - first < self.cascade_size and last + 1 in self.ledger.entries and last + 1 not in (stop, end):
            last += 1
        self.cascade_size *= 2
        return range(start, last + 1)

    def run(self, slices: range) -> JobResult:
        """Run a job without committing it. A job of stale slices ends where the next committed slice is valid again."""
        stale_slices = set() if slices in self.plan.jobs else self.stale_slices.intersection(slices)
        staged_runs = [result.staged for result in self.uncommitted] + ([self.last_run] if self.last_run else [])
        runs_by_name = {staged.run: staged for staged in staged_runs}
        result = run_job(
            self.spark,
            self.plan,
            self.ledger,
            slices,
            runs_by_name,
            partial(self.progress, slices),
            is_cascade=bool(stale_slices),
        )
        self.last_run = result.staged
        if stale_slices:
            result = result.truncate(count_slices_until_valid(self.ledger, result.entries, min(stale_slices)))
        self.uncommitted.append(result)
        self.ledger = self.ledger.with_entries(result.entries)
        later_stale = _find_readable_stale(self.plan, self.ledger, after=result.slices[-1])
        self.stale_slices = {number for number in self.stale_slices if number < result.slices[0]} | later_stale
        return result

    def commit(self, results: Sequence[JobResult]) -> None:
        """Commit jobs, all or none, and apply the commit to the tables.

        Raises:
            LedgerConflictError: Another process has committed in the meantime, or has erased rows that a job has read.
        """
        self.progress(results[-1].slices, "committing")
        runs = [result.staged.restage_slices(self.spark, self.plan.grid, result.slices) for result in results]
        rerun_slices = [entry.number for result in results for entry in result.entries if entry.attempt > 1]
        rows = [row for result in results for row in result.rows]
        transaction = LedgerTransaction.prepare(
            self.spark, self.ledger, rows[0]["commit"], runs, rerun_slices, open_tables=self.open_tables
        )
        _require_no_new_erasure(self.plan)
        transaction.commit(rows)
        self.uncommitted.clear()
        self.undocumented_results += [key for result in results for key in result.validation_result.gx_result_ids]
        if time.monotonic() - self.docs_written_at > DOCS_INTERVAL_SECONDS:
            self._write_docs()

    @contextmanager
    def write_docs_at_end(self) -> Iterator[None]:
        """Update Data Docs when the context is left, also by an exception."""
        try:
            yield
        finally:
            self._write_docs()

    def _write_docs(self) -> None:
        write_docs(self.plan.tables, self.undocumented_results)
        self.undocumented_results.clear()
        self.docs_written_at = time.monotonic()

    @contextmanager
    def translate_disk_full(self) -> Iterator[None]:
        """Convert errors of a full disk to a `FaultError` with a one-line message."""
        try:
            yield
        except Exception as error:
            if "No space left on device" not in str(error):
                raise
            raise FaultError(self._format_disk_full_message()) from None

    def format_stop_message(self, slices: range) -> str:
        """Format the message of a run that stops before these slices."""
        consequence = "all slices before it are committed; run the same command again to go on from there"
        if self.plan.atomic:
            consequence = "nothing is committed because of --atomic; run the same command again to start over"
        return f"stopped before slice {self.plan.grid.label(slices[0])}; {consequence}"

    def _format_disk_full_message(self) -> str:
        new_commits = self.ledger.last_commit - self.plan.ledger.last_commit
        vacuum = f"tidemark tables vacuum {format_cli_arguments(to_live(self.plan.pipeline))} --older-than '1 hour'"
        return (
            f"the disk is full: {self.plan.tables.root} (or Spark's local directory) has no more room; "
            f"{'jobs committed before are kept, and ' if new_commits else ''}this job published nothing. "
            f"Free space and run the same command again. {vacuum} removes files of "
            "failed jobs that wrote nothing for an hour; a job that takes longer must not run meanwhile"
        )
