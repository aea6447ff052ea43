"""How long jobs would take, from jobs that have run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

import pandas as pd

from tidemark.config.sides import SIDES

FEWEST = 3
"""Committed jobs before which there is no history to speak of."""
NEWEST = 60
"""How many jobs, the newest, are looked at."""


@dataclass(frozen=True)
class PastJob:
    """A job that has run."""

    rows: float
    """That it read of both inputs."""
    seconds: float


@dataclass(frozen=True)
class Cost:
    """Seconds of a job: `base` + `slope` * rows."""

    base: float
    slope: float
    off: float
    """The median of how far jobs lie from that."""

    @classmethod
    def of(cls, past: Sequence[PastJob]) -> Cost:
        """The cost by past jobs: `slope` is the median slope between any two (Theil-Sen), `base` that of the rest."""
        newest = past[-NEWEST:]
        pairs = ((one, other) for one, other in combinations(newest, 2) if one.rows != other.rows)
        slopes = [(other.seconds - one.seconds) / (other.rows - one.rows) for one, other in pairs]
        slope = max(0.0, median(slopes)) if slopes else 0.0
        base = max(0.0, median(job.seconds - slope * job.rows for job in newest))
        return cls(base, slope, median(abs(job.seconds - base - slope * job.rows) for job in newest))

    def seconds(self, rows: float, jobs: int) -> float:
        """The time of so many jobs over so many rows together."""
        return jobs * self.base + self.slope * rows


@dataclass(frozen=True)
class Estimate:
    """Seconds, and how far history's own jobs lie from what it says of them."""

    seconds: float
    error: float
    jobs: int
    """How many committed jobs it is from."""


def past_jobs(ledger: pd.DataFrame) -> list[PastJob]:
    """The committed jobs in the order of their commits, of a ledger's rows (`Ledger.rows`)."""
    if ledger.empty:
        return []
    read = sum(ledger[side].map(lambda counts: counts["read"]) for side in SIDES)
    by_run = ledger.assign(rows=read).groupby("run", sort=False)
    known = by_run.agg(
        rows=("rows", "sum"),
        seconds=("job_seconds", "first"),
        at=("committed_at", "first"),
        slices=("run", "size"),
        of=("job_slices", "first"),
    )
    # Of a job whose slices do not all count, the ledger does not tell how many rows it read.
    known = known[known["slices"] == known["of"]].sort_values("at")
    return [PastJob(rows, seconds) for rows, seconds in zip(known["rows"], known["seconds"], strict=True)]


def estimate(past: Sequence[PastJob], rows: float, jobs: int) -> Estimate | None:
    """The time of so many jobs over so many rows together; None without jobs, or without a history."""
    if not jobs or len(past) < FEWEST:
        return None
    cost = Cost.of(past)
    return Estimate(round(cost.seconds(rows, jobs), 1), round(jobs * cost.off, 1), min(len(past), NEWEST))
