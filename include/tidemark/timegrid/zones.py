"""Convert instants to local times of a time zone, and back.

A local time is represented as if it were UTC: 02:30 is 9,000,000 ms after its midnight in every zone.
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
"""Range in which changes are looked for. There was none before it, and after it each year has the same."""


@dataclass(frozen=True)
class Zone:
    """A zone of the IANA database by Java's rules, which Spark and Flink use. Times are columns of whole ms."""

    name: Column
    has_yearly_changes: Column
    """True if its clocks change every year; see the function of this name."""

    @classmethod
    def from_name(cls, name: str) -> Zone:
        """Create the zone of an IANA name."""
        return cls(F.lit(name), F.lit(has_yearly_changes(name)))

    def to_local(self, instant: Column) -> Column:
        """Return the local time at an instant."""
        return F.unix_millis(F.from_utc_timestamp(F.timestamp_millis(instant), self.name))

    def to_instant(self, to_local: Column) -> Column:
        """Return the instant of a local time.

        It is the first occurrence in an overlap. A local time in a gap is converted with the offset before the gap.
        """
        return F.unix_millis(F.to_utc_timestamp(F.timestamp_millis(to_local), self.name))


def to_local_time(instant: int, name: str) -> int:
    """Return the local time at one instant, both in ms.

    >>> to_local_time(1_767_225_600_000, "Europe/Berlin") - 1_767_225_600_000
    3600000
    """
    return instant + _get_offset(ZoneInfo(name), from_micros(instant * 1000)) // timedelta(milliseconds=1)


def has_yearly_changes(name: str) -> bool:
    """Return True if a zone's clocks change every year from now on, as Java's `TimeZone.useDaylightTime` computes it.

    >>> has_yearly_changes("Europe/Berlin"), has_yearly_changes("Europe/Moscow")
    (True, False)
    """
    months = (datetime(2400, month, 1, tzinfo=UTC) for month in range(1, 13))
    return len({_get_offset(ZoneInfo(name), month) for month in months}) > 1


@cache
def changes_by_full_hours(name: str, earliest: datetime, latest: datetime) -> bool:
    """Return True if a zone's clocks, between two instants, change only as in Europe, or not at all.

    Changes in Europe are by one hour, at a full hour of UTC, and recur every year.

    >>> between = datetime(1980, 1, 1, tzinfo=UTC), datetime(2030, 1, 1, tzinfo=UTC)
    >>> [changes_by_full_hours(name, *between) for name in ("Europe/Berlin", "Australia/Adelaide", "Europe/Moscow")]
    [True, False, False]
    """
    zone = ZoneInfo(name)
    changes = list(_find_changes(zone, max(earliest, _FIRST), min(latest, _LAST)))
    return not changes or (has_yearly_changes(name) and all(_is_full_hour_change(zone, hour) for hour in changes))


def _find_changes(zone: ZoneInfo, earliest: datetime, latest: datetime) -> Iterator[datetime]:
    """Yield the last full hour before each change of a zone's offset."""
    day = earliest.replace(minute=0, second=0, microsecond=0)
    while day < latest:
        if _get_offset(zone, day) != _get_offset(zone, day + _DAY):
            hours = (day + number * _HOUR for number in range(24))
            yield from (hour for hour in hours if _get_offset(zone, hour) != _get_offset(zone, hour + _HOUR))
        day += _DAY


def _is_full_hour_change(zone: ZoneInfo, hour_before: datetime) -> bool:
    last_instant = hour_before + _HOUR - timedelta(microseconds=1)
    is_at_full_hour = _get_offset(zone, hour_before) == _get_offset(zone, last_instant)
    return is_at_full_hour and abs(_get_offset(zone, hour_before + _HOUR) - _get_offset(zone, hour_before)) == _HOUR


def _get_offset(zone: ZoneInfo, instant: datetime) -> timedelta:
    offset = instant.astimezone(zone).utcoffset()
    assert offset is not None, "a zone of the database has an offset at every instant"
    return offset
