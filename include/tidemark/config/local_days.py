"""Days as the clocks of a time zone show them, by their numbers since 1970-01-01; times in whole microseconds.

Days begin as Java's `atZone` has it, and so Spark: one whose midnight is skipped at its first instant, one with two
midnights at the first. A local time is counted as if it were one of UTC, as in `timegrid.zones`.
"""

from __future__ import annotations

from bisect import bisect
from datetime import UTC, date, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

from tidemark.config.types import from_micros, micros

DAY = 86_400_000_000
_SECOND = 1_000_000
_WEEK = 7
_EPOCH = date(1970, 1, 1)
_CYCLE = 146_097 * DAY
"""400 years, after which the same dates are the same days of the week."""
_FIRST, _LAST = (micros(datetime(year, 1, 1, tzinfo=UTC)) for year in (1800, 2500))
_SCANNED = (date(2100, 1, 1) - _EPOCH).days
"""The day until which changes are looked for: later ones are every year alike."""


def local_day(instant: int, zone: str) -> int:
    """The day that the clocks show at an instant.

    >>> local_day(0, "Europe/Berlin"), local_day(0, "America/New_York")
    (0, -1)
    """
    return (instant + _offset(instant, zone)) // DAY


def start_of_day(day: int, zone: str) -> int:
    """The instant at which a local day begins.

    >>> start_of_day(0, "Europe/Berlin") // 3_600_000_000
    -1
    """
    offset = _with_rules(day * DAY).replace(tzinfo=ZoneInfo(zone)).utcoffset()
    assert offset is not None, "a zone of the database has one"
    return day * DAY - micros(offset)


def odd_day(first: int, zone: str) -> date | None:
    """The date of the earliest day from one on that is skipped, or is not one stretch of time; None for none."""
    for was, now in _changes(first, zone):
        lower, upper = sorted((was, now))
        midnight = -(-lower // DAY) * DAY
        if lower < midnight < upper or upper - lower >= DAY:
            return _EPOCH + timedelta(microseconds=midnight)
    return None


def day_of_two_midnights(first: int, zone: str) -> date | None:
    """The date of the earliest day from one on whose midnight the clocks show twice; None for none."""
    days = (_EPOCH + timedelta(microseconds=now) for was, now in _changes(first, zone) if now < was and now % DAY == 0)
    return next(days, None)


@cache
def _changes(first: int, zone: str) -> tuple[tuple[int, int], ...]:
    """The local times from which and to which the clocks are changed from a day on, in order; of two in a week one."""
    found = []
    end = start_of_day(first, zone)
    after = _offset(end, zone)
    for week in range(first + _WEEK, _SCANNED, _WEEK):
        start, before = end, after
        end = start_of_day(week, zone)
        after = _offset(end, zone)
        if before != after:
            seconds = range(start, end + _SECOND, _SECOND)
            change = seconds[bisect(seconds, 0, key=lambda instant: _offset(instant, zone) != before)]
            found.append((change + before, change + after))
    return tuple(found)


def _offset(instant: int, zone: str) -> int:
    offset = _with_rules(instant).astimezone(ZoneInfo(zone)).utcoffset()
    assert offset is not None, "a zone of the database has one"
    return micros(offset)


def _with_rules(value: int) -> datetime:
    """A time at which the rules of zones are those of a time in a year that Python may not have."""
    if value >= _LAST:
        value = _LAST - _CYCLE + (value - _LAST) % _CYCLE
    return from_micros(int(max(value, _FIRST)))
