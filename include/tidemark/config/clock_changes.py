"""Find the changes of a time zone's clocks. Imports no Spark."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

FIRST, LAST = datetime(1800, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
"""Range in which changes are looked for. There was none before it, and after it each year has the same."""
_HOUR = timedelta(hours=1)
_DAY = timedelta(days=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@cache
def list_skipped_times(
    name: str, earliest: datetime = FIRST, latest: datetime = LAST
) -> tuple[tuple[timedelta, timedelta], ...]:
    """List the local times that a zone's clocks skip between two instants: start and end, since 1970.

    >>> between = datetime(2024, 1, 1, tzinfo=UTC), datetime(2025, 1, 1, tzinfo=UTC)
    >>> [(start, end)] = list_skipped_times("Europe/Berlin", *between)
    >>> str(datetime(1970, 1, 1) + start), str(datetime(1970, 1, 1) + end)
    ('2024-03-31 02:00:00', '2024-03-31 03:00:00')
    """
    zone = ZoneInfo(name)
    skipped = []
    for hour in find_changes(zone, max(earliest, FIRST), min(latest, LAST)):
        before, after = get_offset(zone, hour), get_offset(zone, hour + _HOUR)
        seconds = (hour + timedelta(seconds=number) for number in range(1, 3601))
        change = next(instant for instant in seconds if get_offset(zone, instant) != before) - _EPOCH
        if after > before:
            skipped.append((change + before, change + after))
    return tuple(skipped)


def find_changes(zone: ZoneInfo, earliest: datetime, latest: datetime) -> Iterator[datetime]:
    """Yield the last full hour before each change of a zone's offset."""
    day = earliest.replace(minute=0, second=0, microsecond=0)
    while day < latest:
        if get_offset(zone, day) != get_offset(zone, day + _DAY):
            hours = (day + number * _HOUR for number in range(24))
            yield from (hour for hour in hours if get_offset(zone, hour) != get_offset(zone, hour + _HOUR))
        day += _DAY


def get_offset(zone: ZoneInfo, instant: datetime) -> timedelta:
    """Return the offset of a zone from UTC at an instant."""
    offset = instant.astimezone(zone).utcoffset()
    assert offset is not None, "a zone of the database has an offset at every instant"
    return offset
