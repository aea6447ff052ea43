"""Compute local days of a time zone, as day numbers since 1970-01-01 and UTC microseconds.

A day begins as in Java's `atZone`, and so in Spark: at its first instant if its midnight is skipped, at the first
midnight if there are two. A local time is counted as if it were UTC, as in `timegrid.zones`.
"""

from __future__ import annotations

from bisect import bisect
from datetime import UTC, date, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

from tidemark.config.types import from_micros, to_micros

DAY_MICROS = 86_400_000_000
_SECOND = 1_000_000
_WEEK = 7
_EPOCH = date(1970, 1, 1)
_CYCLE = 146_097 * DAY_MICROS
"""400 years in microseconds, the period of the Gregorian calendar including days of the week."""
_FIRST, _LAST = (to_micros(datetime(year, 1, 1, tzinfo=UTC)) for year in (1800, 2500))
_LAST_SCANNED_DAY = (date(2100, 1, 1) - _EPOCH).days
"""Day until which offset changes are searched. Later years repeat the same rules."""


def to_local_day(instant: int, zone: str) -> int:
    """Return the number of the local day at an instant.

    >>> to_local_day(0, "Europe/Berlin"), to_local_day(0, "America/New_York")
    (0, -1)
    """
    return (instant + _get_offset(instant, zone)) // DAY_MICROS


def get_day_start(day: int, zone: str) -> int:
    """Return the instant at which a local day begins.

    >>> get_day_start(0, "Europe/Berlin") // 3_600_000_000
    -1
    """
    offset = _to_supported_year(day * DAY_MICROS).replace(tzinfo=ZoneInfo(zone)).utcoffset()
    assert offset is not None, "zones of the database have offsets"
    return day * DAY_MICROS - to_micros(offset)


def find_irregular_day(first: int, zone: str) -> date | None:
    """Return the earliest day from `first` on that is skipped or split by an offset change, None if there is none."""
    for before, after in _find_offset_changes(first, zone):
        lower, upper = sorted((before, after))
        midnight = -(-lower // DAY_MICROS) * DAY_MICROS
        if lower < midnight < upper or upper - lower >= DAY_MICROS:
            return _EPOCH + timedelta(microseconds=midnight)
    return None


def find_repeated_midnight(first: int, zone: str) -> date | None:
    """Return the earliest day from `first` on that has two local midnights, None if there is none."""
    days = (
        _EPOCH + timedelta(microseconds=after)
        for before, after in _find_offset_changes(first, zone)
        if after < before and after % DAY_MICROS == 0
    )
    return next(days, None)


@cache
def _find_offset_changes(first: int, zone: str) -> tuple[tuple[int, int], ...]:
    """Find offset changes from a day on, at most one per week.

    Returns:
        Local times before and after each change, in order.
    """
    changes = []
    end = get_day_start(first, zone)
    offset_at_end = _get_offset(end, zone)
    for week in range(first + _WEEK, _LAST_SCANNED_DAY, _WEEK):
        start, offset_at_start = end, offset_at_end
        end = get_day_start(week, zone)
        offset_at_end = _get_offset(end, zone)
        if offset_at_start != offset_at_end:
            seconds = range(start, end + _SECOND, _SECOND)
            position = bisect(seconds, 0, key=lambda instant: _get_offset(instant, zone) != offset_at_start)
            change = seconds[position]
            changes.append((change + offset_at_start, change + offset_at_end))
    return tuple(changes)


def _get_offset(instant: int, zone: str) -> int:
    offset = _to_supported_year(instant).astimezone(ZoneInfo(zone)).utcoffset()
    assert offset is not None, "zones of the database have offsets"
    return to_micros(offset)


def _to_supported_year(value: int) -> datetime:
    """Convert to a datetime with the same zone rules in a year that Python supports."""
    if value >= _LAST:
        value = _LAST - _CYCLE + (value - _LAST) % _CYCLE
    return from_micros(int(max(value, _FIRST)))
