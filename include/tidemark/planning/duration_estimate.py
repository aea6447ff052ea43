"""Estimate the duration of jobs from past jobs by Theil-Sen regression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

import pandas as pd

from tidemark.config.sides import SIDES

MIN_PAST_JOBS = 3
"""Smallest number of committed jobs for an estimate."""
MAX_PAST_JOBS = 60
"""Number of newest jobs used for an estimate."""


@dataclass(frozen=True)
class PastJob:
    """A finished job."""

    rows: float
    """Rows read of both inputs."""
    seconds: float


@dataclass(frozen=True)
class JobCost:
    """Linear cost model: a job takes `base` + `slope` * rows seconds."""

    base: float
    slope: float
    error: float
    """Median absolute deviation of past jobs, in seconds."""

    @classmethod
    def from_past_jobs(cls, past: Sequence[PastJob]) -> JobCost:
        """Fit the model: `slope` is the median slope of all pairs (Theil-Sen), `base` the median remainder."""
        newest = past[-MAX_PAST_JOBS:]
        pairs = ((earlier, later) for earlier, later in combinations(newest, 2) if earlier.rows != later.rows)
        slopes = [(later.seconds - earlier.seconds) / (later.rows - earlier.rows) for earlier, later in pairs]
        slope = max(0.0, median(slopes)) if slopes else 0.0
        base = max(0.0, median(job.seconds - slope * job.rows for job in newest))
        return cls(base, slope, median(abs(job.seconds - base - slope * job.rows) for job in newest))

    def estimate_seconds(self, rows: float, jobs: int) -> float:
        """Return the seconds of a number of jobs that read this many rows in total."""
        return jobs * self.base + self.slope * rows


@dataclass(frozen=True)
class Estimate:
    """Estimated seconds, with the typical error for past jobs."""

    seconds: float
    error: float
    jobs: int
    """Number of past jobs used."""


def list_past_jobs(ledger: pd.DataFrame) -> list[PastJob]:
    """Return the committed jobs of a ledger's rows (`Ledger.rows`) in commit order."""
    if ledger.empty:
        return []
    read = sum(ledger[side].map(lambda counts: counts["read"]) for side in SIDES)
    by_run = ledger.assign(rows=read).groupby("run", sort=False)
    jobs = by_run.agg(
        rows=("rows", "sum"),
        seconds=("job_seconds", "first"),
        committed_at=("committed_at", "first"),
        slices=("run", "size"),
        job_slices=("job_slices", "first"),
    )
    # If some slices of a job were superseded, the ledger lacks the rows that it read.
    jobs = jobs[jobs["slices"] == jobs["job_slices"]].sort_values("committed_at")
    return [PastJob(rows, seconds) for rows, seconds in zip(jobs["rows"], jobs["seconds"], strict=True)]


def estimate_duration(past: Sequence[PastJob], rows: float, jobs: int) -> Estimate | None:
    """Estimate the seconds of a number of jobs that read this many rows in total; None without jobs or history."""
    if not jobs or len(past) < MIN_PAST_JOBS:
        return None
    cost = JobCost.from_past_jobs(past)
    return Estimate(
        round(cost.estimate_seconds(rows, jobs), 1), round(jobs * cost.error, 1), min(len(past), MAX_PAST_JOBS)
    )
