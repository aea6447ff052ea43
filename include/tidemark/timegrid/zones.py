"""Convert instants to local times of a time zone, and back.

A local time is represented as if it were UTC: 02:30 is 9,000,000 ms after its midnight in every zone.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidemark.config.clock_changes import FIRST, LAST, find_changes, get_offset
from tidemark.config.types import from_micros

_HOUR = timedelta(hours=1)


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
    return instant + get_offset(ZoneInfo(name), from_micros(instant * 1000)) // timedelta(milliseconds=1)


def has_yearly_changes(name: str) -> bool:
    """Return True if a zone's clocks change every year from now on, as Java's `TimeZone.useDaylightTime` computes it.

    >>> has_yearly_changes("Europe/Berlin"), has_yearly_changes("Europe/Moscow")
    (True, False)
    """
    months = (datetime(2400, month, 1, tzinfo=UTC) for month in range(1, 13))
    return len({get_offset(ZoneInfo(name), month) for month in months}) > 1


@cache
def changes_by_full_hours(name: str, earliest: datetime, latest: datetime) -> bool:
    """Return True if a zone's clocks, between two instants, change only as in Europe, or not at all.

    Changes in Europe are by one hour, at a full hour of UTC, and recur every year.

    >>> between = datetime(1980, 1, 1, tzinfo=UTC), datetime(2030, 1, 1, tzinfo=UTC)
    >>> [changes_by_full_hours(name, *between) for name in ("Europe/Berlin", "Australia/Adelaide", "Europe/Moscow")]
    [True, False, False]
    """
    zone = ZoneInfo(name)
    changes = list(find_changes(zone, max(earliest, FIRST), min(latest, LAST)))
    return not changes or (has_yearly_changes(name) and all(_is_full_hour_change(zone, hour) for hour in changes))


def _is_full_hour_change(zone: ZoneInfo, hour_before: datetime) -> bool:
    last_instant = hour_before + _HOUR - timedelta(microseconds=1)
    is_at_full_hour = get_offset(zone, hour_before) == get_offset(zone, last_instant)
    return is_at_full_hour and abs(get_offset(zone, hour_before + _HOUR) - get_offset(zone, hour_before)) == _HOUR
