"""Durations as people write them: round numbers of a unit, halves and doubles."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

_NUMBERS = (
    (timedelta(milliseconds=1), (1, 2, 5, 10, 20, 50, 100, 200, 250, 500)),
    (timedelta(seconds=1), (1, 2, 3, 5, 10, 15, 20, 30, 45)),
    (timedelta(minutes=1), (1, 2, 3, 5, 10, 15, 20, 30, 45)),
    (timedelta(hours=1), (1, 2, 3, 4, 6, 8, 12)),
    (timedelta(days=1), (1, 2, 3, 7, 14, 30)),
)
ROUND_DURATIONS = tuple(unit * number for unit, numbers in _NUMBERS for number in numbers)
"""Positive durations in common use, ascending."""
_SHORTER_COUNT = 4
"""Number of round durations below a configured one to try."""


def is_round(duration: timedelta, configured: timedelta) -> bool:
    """Return True for zero, a duration in common use, and the half or the double of the configured one.

    >>> minute = timedelta(minutes=1)
    >>> is_round(22.5 * minute, 45 * minute), is_round(22 * minute, 45 * minute)
    (True, False)
    """
    return not duration or abs(duration) in ROUND_DURATIONS or duration in {2 * configured, configured / 2}


def round_up(duration: timedelta, configured: timedelta) -> timedelta:
    """Return the shortest round duration that is at least as long; whole days beyond those in common use.

    >>> round_up(timedelta(minutes=41), timedelta(minutes=30))
    datetime.timedelta(seconds=2700)
    """
    longer = (candidate for candidate in (*ROUND_DURATIONS, 2 * configured) if candidate >= duration)
    return min(longer, default=-(-duration // timedelta(days=1)) * timedelta(days=1))


def list_shorter(configured: timedelta) -> Iterator[timedelta]:
    """Yield the half of a duration, the next shorter round ones, and zero.

    >>> [str(duration) for duration in list_shorter(timedelta(minutes=45))]
    ['0:22:30', '0:30:00', '0:20:00', '0:15:00', '0:10:00', '0:00:00']
    """
    shorter = [candidate for candidate in reversed(ROUND_DURATIONS) if candidate < configured]
    millisecond = timedelta(milliseconds=1)
    half = configured / 2 // millisecond * millisecond
    yield from dict.fromkeys([half, *shorter[:_SHORTER_COUNT], timedelta()])
