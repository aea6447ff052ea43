"""Executing a plan: its jobs in order, each continuing the ledger as it stands, and what turns stale on the way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from tidemark.delta.store_capabilities import probe_conditional_put
from tidemark.delta.table import OpenTables
from tidemark.errors import CheckFailedError, FaultError, StoppedError
from tidemark.execution.job import JobResult, run_job
from tidemark.ledger.ledger import Ledger
from tidemark.ledger.prepare_commit import prepare_commit
from tidemark.ledger.staleness import repaired_until, restorable, stale
from tidemark.planning.plan import Plan
from tidemark.quality.gx.data_docs import write_docs
from tidemark.quality.gx.expectations import check_arguments
from tidemark.spark.lazy_session import resolve_session
from tidemark.tables.run_files import StagedRun
from tidemark.tables.table_changes import apply_to_tables

STEPS = ("reading", "joining", "checking", "committing")
DOCUMENT_EVERY = 30.0
"""Seconds after which Data Docs are brought up between jobs; each time costs half a second."""
Progress = Callable[[range, str], None]
"""Is told the slices of a job and the step that begins."""


def execute(
    spark: SparkSession, plan: Plan, progress: Progress, stop: Callable[[], bool] = lambda: False
) -> Iterator[JobResult]:
    """Run a plan's jobs one after another, yielding each as it is committed; `stop` is asked before each.

    What was committed before an error stays committed; an atomic plan commits all of its jobs at the end, or nothing.
    Running it again after a crash, at whatever point, gives the same tables.

    Raises:
        CheckFailedError: quality or conservation; of the job the slices before the first that fails are committed.
        StoppedError: asked to stop, with jobs still ahead.
        SliceOrderError: another process committed meanwhile; the job published nothing.
        FaultError: the disk is full.
        ForbiddenPathError: The store cannot prevent conflicting commits of two processes.
    """
    if plan.jobs:
        check_arguments(plan.pipeline)
        if plan.ledger.rows.empty:
            probe_conditional_put(resolve_session(spark), plan.ledger.tables.root)
    work = _Work(spark, plan, plan.ledger, list(plan.jobs), set(stale(plan.ledger)), progress)
    with work.told_of_full_disk(), work.documented():
        while slices := work.next_job():
            resolve_session(spark)
            if stop():
                raise StoppedError(work.told_stopped(slices))
            result = work.run(slices)
            if not plan.atomic:
                work.commit([result])
                yield result
            if result.refusal:
                raise CheckFailedError(result.refusal)
        if plan.atomic and work.uncommitted:
            done = list(work.uncommitted)
            work.commit(done)
            yield from done


@dataclass
class _Work:
    """How far a plan has come."""

    spark: SparkSession
    plan: Plan
    ledger: Ledger
    ahead: list[range]
    """Jobs of the plan that have not run."""
    stale: set[int]
    """Committed slices that do not hold any more."""
    progress: Progress
    uncommitted: list[JobResult] = field(default_factory=list)
    undocumented: list[Any] = field(default_factory=list)
    """Results of the gate that Data Docs do not show yet."""
    documented_at: float = field(default_factory=time.monotonic)
    opened: OpenTables = field(default_factory=dict)
    last: StagedRun | None = None
    """The files of the job before, which the next one continues without opening the table."""
    ripple: int = 1
    """Size of the next job that repairs stale slices; it doubles as long as the slices behind it are stale too."""

    def next_job(self) -> range | None:
        """The next slices to run, in order; None when all holds."""
        planned = self.ahead[0] if self.ahead else None
        if not self.stale or (planned and planned[0] <= min(self.stale)):
            self.ripple = 1
            return self.ahead.pop(0) if self.ahead else None
        first = min(self.stale)
        old = self.plan.ledger.runs
        available_runs = self.ledger.runs - old | (self.plan.available_checkpoints & old)
        start, stop = restorable(self.ledger, first, available_runs), planned[0] if planned else None
        last = first
        while last + 1 - first < self.ripple and last + 1 in self.ledger.entries and last + 1 != stop:
            last += 1
        self.ripple *= 2
        return range(start, last + 1)

    def run(self, slices: range) -> JobResult:
        """Run a job; one that repairs stale slices gives up those that turn out to be right."""
        repairs = self.stale.intersection(slices)
        staged_runs = [result.staged for result in self.uncommitted] + ([self.last] if self.last else [])
        staged = {one.run: one for one in staged_runs}
        result = run_job(self.spark, self.plan, self.ledger, slices, staged, partial(self.progress, slices))
        self.uncommitted.append(result)
        self.last = result.staged
        if repairs and slices not in self.plan.jobs:
            result = self.uncommitted[-1] = result.upto(repaired_until(self.ledger, result.entries))
        self.ledger = self.ledger.with_entries(result.entries)
        done = result.slices
        later_stale = stale(self.ledger, after=done[-1])
        self.stale = {number for number in self.stale if number < done[0]} | set(later_stale)
        return result

    def commit(self, results: Iterable[JobResult]) -> None:
        """Commit jobs, all or none, and let the tables follow."""
        done = list(results)
        self.progress(done[-1].slices, "committing")
        runs = [result.staged.only(self.spark, self.plan.grid, result.slices) for result in done]
        rerun_slices = [entry.number for result in done for entry in result.entries if entry.attempt > 1]
        prepared = prepare_commit(self.spark, self.plan.tables, self.plan.grid, runs, rerun_slices, self.opened)
        rows = [row for result in done for row in result.rows]
        number = rows[0]["commit"]
        self.ledger.commit(rows, number, prepared.references, prepared.before, self.opened)
        apply_to_tables(self.plan.tables, self.plan.grid, number, prepared.references, self.opened)
        self.uncommitted.clear()
        self.undocumented += [result for one in done for result in one.verdict.gx_result_ids]
        if time.monotonic() - self.documented_at > DOCUMENT_EVERY:
            self._document()

    @contextmanager
    def documented(self) -> Iterator[None]:
        """Bring Data Docs up at the end, whatever it is."""
        try:
            yield
        finally:
            self._document()

    def _document(self) -> None:
        write_docs(self.plan.tables, self.undocumented)
        self.undocumented.clear()
        self.documented_at = time.monotonic()

    @contextmanager
    def told_of_full_disk(self) -> Iterator[None]:
        """Say in one line that there is no room."""
        try:
            yield
        except Exception as error:
            if "No space left on device" not in str(error):
                raise
            raise FaultError(self._told_full()) from None

    def told_stopped(self, slices: range) -> str:
        """Where a run stops that would have gone on with these slices."""
        done = "all slices before it are committed; run the same command again to go on from there"
        if self.plan.atomic:
            done = "nothing is committed, as --atomic asks; run the same command again to start over"
        return f"stopped before slice {self.plan.grid.name(slices[0])}; {done}"

    def _told_full(self) -> str:
        done = self.ledger.number - self.plan.ledger.number
        return (
            f"the disk is full: {self.plan.tables.root} (or Spark's local directory) has no more room; "
            f"{'jobs committed before are kept, and ' if done else ''}nothing of this job was published. "
            "Free space and run the same command again; tidemark vacuum removes what was written in vain"
        )
