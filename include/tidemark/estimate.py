"""How long jobs would take, from the ledger's own history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

import pandas as pd

FEWEST = 3
"""Committed jobs before which there is no history to speak of."""
NEWEST = 60
"""How many jobs, the newest, are looked at."""


@dataclass(frozen=True)
class Estimate:
    """Seconds, and how far history's own jobs lie from what it says of them."""

    seconds: float
    error: float
    jobs: int
    """How many committed jobs it is from."""


def estimate(ledger: pd.DataFrame, rows: Sequence[int | None], jobs: int) -> Estimate | None:
    """The time of so many jobs over so many rows of each input (None where not known).

    Seconds are a + b * rows for a job: b the median slope between any two jobs (Theil-Sen), a the median of the rest.
    """
    if not jobs or ledger.empty:
        return None
    read = sum(ledger[side].map(lambda counts: counts["read"] + counts["carried_in"]) for side in ("left", "right"))
    by_run = ledger.assign(rows=read).groupby("run", sort=False)
    known = by_run.agg(
        rows=("rows", "sum"),
        seconds=("job_seconds", "first"),
        at=("committed_at", "first"),
        slices=("run", "size"),
        of=("job_slices", "first"),
    )
    # Of a job whose slices do not all count, the ledger does not tell how many rows it read.
    known = known[known["slices"] == known["of"]]
    known = known.sort_values("at").tail(NEWEST)
    if len(known) < FEWEST:
        return None
    points = list(zip(known["rows"], known["seconds"], strict=True))
    slopes = [(t - s) / (y - x) for (x, s), (y, t) in combinations(points, 2) if x != y]
    slope = max(0.0, median(slopes)) if slopes else 0.0
    base = max(0.0, median(seconds - slope * count for count, seconds in points))
    off = median(abs(seconds - base - slope * count) for count, seconds in points)
    expected = sum(count for count in rows if count is not None)
    return Estimate(round(jobs * base + slope * expected, 1), round(jobs * off, 1), len(known))
