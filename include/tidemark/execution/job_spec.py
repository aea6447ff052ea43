"""Define a Spark job before it reads anything: slices, state to continue, waivers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tidemark.joins.factory import create_lane
from tidemark.ledger.adoption import list_adopted_slices
from tidemark.ledger.entry import Entry, LateArrivalPolicy
from tidemark.ledger.ledger import Ledger
from tidemark.planning.plan import Plan
from tidemark.quality.results import SliceFailures
from tidemark.quality.waivers import Waivers, read_waivers
from tidemark.tables.run_files import StagedRun, create_run_name
from tidemark.watermarks.lanes import Lane
from tidemark.watermarks.values import Watermarks

MAX_TINY_JOB_ROWS = 20_000
"""Maximum number of rows, read and carried in, of a job that is faster under `tuned_for_tiny_queries`."""


def repeat_drains(lane: Lane, entries: Iterable[Entry]) -> Lane:
    """Return a lane in which a Spark query ends after the slices after which it has ended before."""
    return lane.with_earlier_drains(entry.number for entry in entries if entry.drained)


@dataclass(frozen=True)
class JobSpec:
    """Definition of a job: a range of slices that continues the ledger. All steps of the job share it."""

    plan: Plan
    ledger: Ledger
    """Ledger when the job starts, with the entries of earlier jobs that are not committed yet."""
    slices: range
    run: str
    """Unique name of this attempt."""
    commit: int
    """Number of the ledger's commit that will publish the job."""
    predecessor: Entry | None
    """Previous slice, whose state the job continues; None for empty state."""
    attempts: Mapping[int, int]
    """Number of runs of each slice, including this one."""
    late_arrival_policy: LateArrivalPolicy
    """Policy for late-arriving rows of earlier slices."""
    lane: Lane
    """Stream of the pipeline, with its watermarks when the first slice starts."""
    uncommitted_runs: Mapping[str, StagedRun]
    """Runs of earlier jobs whose files may not be in the tables yet, by name."""
    waivers: Waivers
    """Expectations that do not keep a slice from being published."""
    adopted_from: Mapping[int, str]
    """Adopted slices, whose output is not published, with `Entry.adopted_from`."""
    rejected: SliceFailures
    """Failures of the slices after the job's, which were rejected before the join."""
    is_cascade: bool
    """True if the job runs slices because they are, or may become, stale. If one of them fails, the job ends before it:
    it may turn out that the slice need not run. Otherwise it is the first slice of the next job, which rejects it."""

    @classmethod
    def create(
        cls,
        plan: Plan,
        ledger: Ledger,
        slices: range,
        uncommitted_runs: Mapping[str, StagedRun],
        rejected: SliceFailures = (),
        *,
        is_cascade: bool = False,
    ) -> JobSpec:
        """Define the job that runs these slices of a plan. Reads the waivers."""
        first, commit = slices[0], plan.next_commit_number(ledger)
        predecessor = ledger.entry(first - 1)
        attempts = {number: entry.attempt + 1 if (entry := ledger.entry(number)) else 1 for number in slices}
        lane = create_lane(
            plan.pipeline, predecessor.watermarks if predecessor else Watermarks(), plan.drain_after, plan.trace
        )
        return cls(
            plan,
            ledger,
            slices,
            run=create_run_name(plan.grid, first, attempts[first], commit),
            commit=commit,
            predecessor=predecessor,
            attempts=attempts,
            late_arrival_policy=plan.pipeline.on_late_arriving_rows if predecessor else "exclude",
            lane=repeat_drains(lane, filter(None, map(ledger.entry, slices))),
            uncommitted_runs=uncommitted_runs,
            waivers=read_waivers(plan.tables, plan.grid, attempts),
            adopted_from=list_adopted_slices(ledger.entries, slices),
            rejected=rejected,
            is_cascade=is_cascade,
        )

    @property
    def is_expected_tiny(self) -> bool:
        """True if slices as large as the previous one make a tiny job; False for the first slice."""
        predecessor = self.predecessor
        return predecessor is not None and is_tiny_job(sum(predecessor.read) * len(self.slices), predecessor)


def is_tiny_job(rows_read: int, predecessor: Entry | None) -> bool:
    """Return True if the rows read and carried in are at most `MAX_TINY_JOB_ROWS`."""
    return rows_read + sum(predecessor.carried if predecessor else ()) <= MAX_TINY_JOB_ROWS
