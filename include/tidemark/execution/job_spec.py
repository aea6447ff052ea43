"""What one Spark job is to do, as data: settled before anything is read, and the same for all of its steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemark.joins.factory import create_lane
from tidemark.ledger.ledger import Entry, Landing, Ledger
from tidemark.planning.plan import Plan
from tidemark.quality.waivers import Waivers, read_waivers
from tidemark.tables.run_files import StagedRun, new_run
from tidemark.watermarks.lanes import Lane
from tidemark.watermarks.watermarks import Watermarks

TINY_ROWS = 20_000
"""A job of at most so many rows, read and carried in, is better off as `tuned_for_tiny_queries`."""


@dataclass(frozen=True)
class Task:
    """A range of slices that continues a ledger."""

    plan: Plan
    ledger: Ledger
    """The ledger as it stands when the job begins."""
    slices: range
    run: str
    """The name of this try of the job, which no other try has."""
    commit: int
    """Number of the ledger's commit that it would be."""
    predecessor: Entry | None
    """The slice before, whose state it continues; None for empty state."""
    attempts: Mapping[int, int]
    """Number of runs of each slice, including this one."""
    late_arrival_policy: Landing
    """Policy for late-arriving rows of earlier slices."""
    lane: Lane
    """The stream, with its watermarks when the first slice starts."""
    uncommitted_runs: Mapping[str, StagedRun]
    """What jobs before have written that is not committed, by run."""
    waivers: Waivers
    """What its slices are let through for."""

    @classmethod
    def create(cls, plan: Plan, ledger: Ledger, slices: range, uncommitted_runs: Mapping[str, StagedRun]) -> Task:
        """The job that runs these slices of a plan."""
        first, commit = slices[0], plan.number_after(ledger)
        predecessor = ledger.entry(first - 1)
        committed_entries = {number: ledger.entry(number) for number in slices}
        attempts = {number: entry.attempt + 1 if entry else 1 for number, entry in committed_entries.items()}
        initial_watermarks = predecessor.watermarks if predecessor else Watermarks()
        return cls(
            plan,
            ledger,
            slices,
            run=new_run(plan.grid, first, attempts[first], commit),
            commit=commit,
            predecessor=predecessor,
            attempts=attempts,
            late_arrival_policy=plan.pipeline.on_late_arriving_rows if predecessor else "start",
            lane=create_lane(plan.pipeline, initial_watermarks, plan.drain_from, plan.trace),
            uncommitted_runs=uncommitted_runs,
            waivers=read_waivers(plan.tables, plan.grid, attempts),
        )

    @property
    def is_expected_tiny(self) -> bool:
        """True if slices as large as the previous one make a tiny job; False for the first slice."""
        predecessor = self.predecessor
        return predecessor is not None and is_tiny(sum(predecessor.read) * len(self.slices), predecessor)


def is_tiny(read: int, predecessor: Entry | None) -> bool:
    """True if the rows read and carried in are at most `TINY_ROWS`."""
    return read + sum(predecessor.carried if predecessor else ()) <= TINY_ROWS
