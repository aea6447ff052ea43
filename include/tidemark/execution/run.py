"""Executing a plan: its jobs in order, each continuing the ledger as it stands, and what turns stale on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial

from pyspark.sql import SparkSession

from tidemark.commits.ledger import Ledger
from tidemark.commits.runs import sweep, withdraw
from tidemark.commits.staleness import repaired_until, restorable, stale
from tidemark.errors import CheckFailedError, FaultError, StoppedError, UserError
from tidemark.execution import quality
from tidemark.execution.job import JobResult, run_job
from tidemark.planning.plan import Plan
from tidemark.spark.tuning import short_logs

STEPS = ("reading", "joining", "checking", "committing")
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
    """
    quality.check_names(plan.pipeline)
    work = _Work(spark, plan, plan.ledger, list(plan.jobs), set(stale(plan.ledger)), progress, plan.ledger.number)
    with work.clean():
        while slices := work.next_job():
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
    number: int
    """The number of the last commit that is known."""
    first: int = 0
    """The first slice that is not committed yet."""
    uncommitted: list[JobResult] = field(default_factory=list)
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
        kept = self.ledger.runs - old | (self.plan.kept & old)
        start, stop = restorable(self.ledger, first, kept), planned[0] if planned else None
        last = first
        while last + 1 - first < self.ripple and last + 1 in self.ledger.entries and last + 1 != stop:
            last += 1
        self.ripple *= 2
        return range(start, last + 1)

    def run(self, slices: range) -> JobResult:
        """Run a job; one that repairs stale slices gives up those that turn out to be right."""
        if not self.uncommitted:
            self.first = slices[0]
        repairs = self.stale.intersection(slices)
        with self._writing():
            result = run_job(self.spark, self.plan, self.ledger, slices, partial(self.progress, slices))
        self.uncommitted.append(result)
        if repairs and slices not in self.plan.jobs:
            result = self.uncommitted[-1] = result.upto(repaired_until(self.ledger, result.entries))
        self.ledger = self.ledger.after(result.entries)
        done = result.slices
        behind = stale(self.ledger, after=done[-1])
        self.stale = {number for number in self.stale if number < done[0]} | set(behind)
        return result

    def commit(self, results: Iterable[JobResult]) -> None:
        """Commit jobs, all or none."""
        rows = [row for result in results for row in result.rows]
        self.progress(self.uncommitted[-1].slices, "committing")
        with self._writing():
            self.ledger.commit(rows, rows[0]["commit"])
        self.number = rows[0]["commit"]
        self.uncommitted.clear()

    def _writing(self) -> AbstractContextManager[object]:
        """How a job writes tables: only the last of the plan with what serves the process that opens them next."""
        return short_logs(self.spark) if self.ahead else nullcontext()

    @contextmanager
    def clean(self) -> Iterator[None]:
        """Take back what was not committed, here and in processes that can no longer commit."""
        try:
            yield
            if self.ledger.number > self.plan.ledger.number:
                sweep(self.spark, self.plan.tables, self.ledger.runs, self.ledger.number)
        except Exception as error:
            if "No space left on device" in str(error):
                raise FaultError(self._told_full()) from None
            if self._take_back() and not isinstance(error, UserError | StoppedError):
                raise self.ledger.overtaken(self.first) from None
            raise

    def _take_back(self) -> bool:
        """Take back what no commit names, and tell whether another process has committed meanwhile.

        Then it may have swept what this one was reading, and whatever went wrong is of no matter. A commit whose answer
        was lost may have been made all the same.
        """
        try:
            known = Ledger.read(self.spark, self.plan.tables, self.plan.grid)
        except Exception:  # noqa: BLE001 - the error at hand says more, and the next run sweeps
            return False
        lost = [result.run for result in self.uncommitted if result.run not in known.runs]
        for run in lost:
            withdraw(self.spark, self.plan.tables, run)
        return known.number > self.number and len(lost) == len(self.uncommitted)

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
            "Free space and run the same command again"
        )
