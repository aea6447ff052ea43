"""Time zones: what the clocks on the wall show at an instant, and at which instant they show a time.

A local time is counted as if it were one of UTC: 02:30 is 9,000,000 ms into its day wherever the wall is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidemark.config.types import from_micros

_HOUR = timedelta(hours=1)
_DAY = timedelta(days=1)
_FIRST, _LAST = datetime(1800, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
"""No clock was changed before, and those after are changed every year alike."""


@dataclass(frozen=True)
class Zone:
    """A zone of the IANA database over columns of whole milliseconds, as Java has it, and so Spark and Flink."""

    name: Column
    changes: Column
    """Whether its clocks change every year (`changes_yearly`)."""

    @classmethod
    def of(cls, name: str) -> Zone:
        """The zone of a name."""
        return cls(F.lit(name), F.lit(changes_yearly(name)))

    def local(self, instant: Column) -> Column:
        """What the clocks show at an instant."""
        return F.unix_millis(F.from_utc_timestamp(F.timestamp_millis(instant), self.name))

    def instant(self, local: Column) -> Column:
        """When the clocks show a time: the first time that they do; a skipped time is as far behind the last before."""
        return F.unix_millis(F.to_utc_timestamp(F.timestamp_millis(local), self.name))


def local_time(instant: int, name: str) -> int:
    """`Zone.local` of one instant.

    >>> local_time(1_767_225_600_000, "Europe/Berlin") - 1_767_225_600_000
    3600000
    """
    return instant + _offset(ZoneInfo(name), from_micros(instant * 1000)) // timedelta(milliseconds=1)


def changes_yearly(name: str) -> bool:
    """Whether a zone's clocks change every year from now on: Java's `TimeZone.useDaylightTime`.

    >>> changes_yearly("Europe/Berlin"), changes_yearly("Europe/Moscow")
    (True, False)
    """
    months = (datetime(2400, month, 1, tzinfo=UTC) for month in range(1, 13))
    return len({_offset(ZoneInfo(name), month) for month in months}) > 1


@cache
def changes_by_hours(name: str, earliest: datetime, latest: datetime) -> bool:
    """Whether all changes of a zone's clocks between two instants are as Europe's are, or there are none.

    These are of an hour, at a full hour of UTC, in a zone whose clocks change every year.

    >>> between = datetime(1980, 1, 1, tzinfo=UTC), datetime(2030, 1, 1, tzinfo=UTC)
    >>> [changes_by_hours(name, *between) for name in ("Europe/Berlin", "Australia/Adelaide", "Europe/Moscow")]
    [True, False, False]
    """
    zone = ZoneInfo(name)
    found = list(_changes(zone, max(earliest, _FIRST), min(latest, _LAST)))
    return not found or (changes_yearly(name) and all(_is_by_an_hour(zone, hour) for hour in found))


def _changes(zone: ZoneInfo, earliest: datetime, latest: datetime) -> Iterator[datetime]:
    """The full hours before each change of a zone's offset."""
    day = earliest.replace(minute=0, second=0, microsecond=0)
    while day < latest:
        if _offset(zone, day) != _offset(zone, day + _DAY):
            hours = (day + number * _HOUR for number in range(24))
            yield from (hour for hour in hours if _offset(zone, hour) != _offset(zone, hour + _HOUR))
        day += _DAY


def _is_by_an_hour(zone: ZoneInfo, before: datetime) -> bool:
    last = before + _HOUR - timedelta(microseconds=1)
    at_the_end = _offset(zone, before) == _offset(zone, last)
    return at_the_end and abs(_offset(zone, before + _HOUR) - _offset(zone, before)) == _HOUR


def _offset(zone: ZoneInfo, instant: datetime) -> timedelta:
    offset = instant.astimezone(zone).utcoffset()
    assert offset is not None, "a zone of the database has one"
    return offset
