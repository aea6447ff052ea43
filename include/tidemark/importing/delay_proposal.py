"""Propose a watermark delay from the measured disorder of an input."""

from __future__ import annotations

from datetime import timedelta

import numpy as np

from tidemark.config.types import format_duration
from tidemark.importing.choice import Candidate, Choice
from tidemark.importing.time_candidates import format_share
from tidemark.watermarks.disorder import Longs

_DELAYS = (
    *(timedelta(seconds=seconds) for seconds in (0, 1, 5, 10, 30)),
    *(timedelta(minutes=minutes) for minutes in (1, 2, 5, 10, 15, 30)),
    *(timedelta(hours=hours) for hours in (1, 2, 3, 6, 12)),
    *(timedelta(days=days) for days in (1, 2, 3, 7, 14, 30)),
)
"""Delays that are proposed. Beyond them: whole days."""
_MS = timedelta(milliseconds=1)
MAX_LATE_SHARE = 0.001
"""Greatest share of late rows that a proposed delay accepts."""


def create_delay_choice(disorder: Longs, subject: str, option: str) -> Choice:
    """Rank watermark delays: the shortest with at most `MAX_LATE_SHARE` late rows, then the others by length.

    Args:
        disorder: Disorder of at least one row, ms, from `measure_disorder`.
        subject: Subject of the choice.
        option: Option that makes the choice.
    """
    days = int(disorder.max()) // (timedelta(days=1) // _MS) + 1
    delays = [*_DELAYS, *([timedelta(days=days)] if timedelta(days=days) > _DELAYS[-1] else [])]
    shares = {delay: compute_late_share(disorder, delay) for delay in delays}
    proposed = next(delay for delay, share in shares.items() if share <= MAX_LATE_SHARE)
    first_without_late_rows = next(delay for delay, share in shares.items() if share == 0)
    candidates = [
        Candidate(
            format_duration(delay),
            delay,
            f"{format_share(share)} of {len(disorder):,} rows late",
            (int(delay == proposed), -number),
        )
        for number, (delay, share) in enumerate(shares.items())
        if delay <= first_without_late_rows
    ]
    criteria = f"the shortest delay with at most {format_share(MAX_LATE_SHARE)} late rows"
    return Choice.create(subject, option, criteria, candidates)


def compute_late_share(disorder: Longs, delay: timedelta) -> float:
    """Return the share of rows that a delay makes late."""
    return float(np.mean(disorder >= delay // _MS))


def describe_disorder(choice: Choice, disorder: Longs) -> str:
    """Describe the shares of late rows under all delays of a choice, in one line, the shortest delay first."""
    by_length = sorted(choice.candidates, key=lambda candidate: candidate.value)
    shares = [f"{format_share(compute_late_share(disorder, item.value))} at {item.label}" for item in by_length]
    sufficient = (int(disorder.max()) + 1) * _MS
    return (
        f"late rows of {len(disorder):,} in arrival order, for the input's own watermark: {', '.join(shares)}; "
        f"no row late from {format_duration(sufficient)} on"
    )
