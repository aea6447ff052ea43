"""Types of settings, such as durations and instants, with parsing and validation."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, Literal
from zoneinfo import available_timezones

from pydantic import AfterValidator, BeforeValidator, PlainSerializer, TypeAdapter, ValidationError, WithJsonSchema

_UNITS = {
    "us": timedelta(microseconds=1),
    "microsecond": timedelta(microseconds=1),
    "ms": timedelta(milliseconds=1),
    "millisecond": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "sec": timedelta(seconds=1),
    "second": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "min": timedelta(minutes=1),
    "minute": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "hour": timedelta(hours=1),
    "d": timedelta(days=1),
    "day": timedelta(days=1),
    "w": timedelta(weeks=1),
    "week": timedelta(weeks=1),
}
_PART = re.compile(r"(\d+)\s*([a-z]+)", re.IGNORECASE | re.ASCII)
_DURATION = re.compile(r"\s*(-)?\s*((?:\d+\s*[a-z]+\s*)+)", re.IGNORECASE | re.ASCII)
_VERSION = re.compile(r"\d{1,3}\.\d{1,3}(\.\d{1,3})?")
_OFFSET = re.compile(r"(UTC|GMT|Z)?\s*[+-]\d.*", re.IGNORECASE)
_ALLOWANCE = re.compile(r"(\d+)|(\d+(?:\.\d+)?)\s*%")
_MICROSECOND = timedelta(microseconds=1)
_MAX_DIGITS = 20
_LOG = logging.getLogger(__name__)
_NOTED_INSTANTS: list[object] = []
"""Instant without a zone that the process has noted; the next ones are not noted."""
MAX_DURATION = timedelta(days=365_000)
"""Maximum duration, so that sums of durations stay within Python's timedelta."""


def parse_duration(value: object) -> timedelta:
    """Parse a duration such as `30 minutes`, `-1 hour`, `1 day 6 hours`, `45m` or `250 ms`.

    Raises:
        ValueError: The value is not a duration.

    >>> parse_duration("-1 hour 30 minutes") == parse_duration("-1h 30m")
    True
    """
    if isinstance(value, timedelta):
        return value
    if value == 0 and not isinstance(value, bool):
        return timedelta()
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is not a duration. Write a whole number and a unit, such as '30 minutes' or 30m.")
    total = sum((_parse_part(number, unit) for number, unit in _PART.findall(match[2])), timedelta())
    return -total if match[1] else total


def _parse_part(number: str, unit: str) -> timedelta:
    if unit == "M":
        raise ValueError("'M' may mean minutes or months. Write m for minutes, and 30 d for a month.")
    name = unit.lower()
    size = _UNITS.get(name) or _UNITS.get(name.removesuffix("s"))
    if size is None:
        raise ValueError(
            f"{unit!r} is not a unit of time. Use ms, s, m, h, d or w, or the words seconds, minutes, hours, days or "
            "weeks."
        )
    # int() refuses very long numbers with an error of its own.
    if len(number) > _MAX_DIGITS or int(number) * (size // _MICROSECOND) > MAX_DURATION // _MICROSECOND:
        raise ValueError(f"is longer than the maximum of {MAX_DURATION.days:,} days.")
    return int(number) * size


def format_duration(value: timedelta) -> str:
    """Format a duration for `parse_duration`, in the largest units that fit.

    >>> format_duration(timedelta(minutes=-90))
    '-1 hour 30 minutes'
    """
    remainder, parts = abs(value), []
    for unit in ("day", "hour", "minute", "second", "ms", "us"):
        number, remainder = divmod(remainder, _UNITS[unit])
        if number:
            plural = "" if number == 1 or unit in ("ms", "us") else "s"
            parts.append(f"{number} {unit}{plural}")
    return ("-" if value < timedelta() else "") + (" ".join(parts) or "0 seconds")


def parse_switch(value: object) -> bool | None:
    """Parse a switch as settings do; None if the value is no switch.

    YAML 1.2 and the loader read the words as text.

    >>> [parse_switch(value) for value in ("on", "no", True, None, {})]
    [True, False, True, None, None]
    """
    try:
        return TypeAdapter(bool).validate_python(value)
    except ValidationError:
        return None


def parse_instant(value: object, *, note_missing_zone: bool = True) -> datetime:
    """Parse an ISO 8601 instant. Without a zone it is UTC, which a log record says once per process.

    Args:
        value: Text or a datetime.
        note_missing_zone: False to write no record, for a column whose times have no zone.

    Raises:
        ValueError: The value is not an instant, or outside the years 1 to 9999.

    >>> parse_instant("2013-01-01T00:00Z")
    datetime.datetime(2013, 1, 1, 0, 0, tzinfo=datetime.timezone.utc)
    """
    try:
        instant = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    except ValueError:
        raise ValueError(f"{value!r} is not an instant. Write it as 2013-01-01T00:00:00Z.") from None
    if instant.tzinfo is None:
        if note_missing_zone:
            _note_missing_zone(value)
        return instant.replace(tzinfo=UTC)
    try:
        return instant.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{value!r} is outside the years 1 to 9999 UTC") from None


def _note_missing_zone(value: object) -> None:
    if not _NOTED_INSTANTS:
        _NOTED_INSTANTS.append(value)
        _LOG.warning("note: times without a zone are UTC, such as %s. Write Z or an offset to choose the zone.", value)


def format_instant(value: datetime) -> str:
    """Format an instant in UTC without trailing zero units.

    >>> format_instant(datetime(2013, 1, 1, tzinfo=UTC))
    '2013-01-01T00:00Z'
    """
    fraction = "microseconds" if value.microsecond % 1000 else "milliseconds"
    precision = fraction if value.microsecond else "seconds" if value.second else "minutes"
    return value.astimezone(UTC).isoformat(timespec=precision).replace("+00:00", "Z")


def to_micros(value: timedelta | datetime) -> int:
    """Convert a duration, or an instant since 1970-01-01T00:00Z, to microseconds."""
    span = value - datetime(1970, 1, 1, tzinfo=UTC) if isinstance(value, datetime) else value
    return span // _MICROSECOND


def to_millis(value: timedelta) -> int:
    """Convert a duration without microseconds to milliseconds."""
    return value // timedelta(milliseconds=1)


def from_micros(value: int) -> datetime:
    """Convert microseconds since 1970-01-01T00:00Z to a UTC instant."""
    return datetime(1970, 1, 1, tzinfo=UTC) + value * _MICROSECOND


def format_micros(value: int) -> str:
    """Format microseconds since 1970-01-01T00:00Z as an instant, or as a number outside the years 1 to 9999.

    >>> format_micros(0), format_micros(10**18)
    ('1970-01-01T00:00Z', '1,000,000,000,000,000,000 µs')
    """
    try:
        return format_instant(from_micros(value))
    except OverflowError:
        return f"{value:,} µs"


@dataclass(frozen=True)
class Allowance:
    """Maximum number of rows, absolute or as a share of all rows."""

    amount: Decimal
    """Number of rows, or percent."""
    is_share: bool = False
    """True if the amount is in percent."""

    def max_rows(self, total: int) -> int:
        """Return the maximum number of rows out of a total, rounded down.

        >>> parse_allowance("0.1 %").max_rows(5123)
        5
        """
        return int(self.amount * total / 100) if self.is_share else int(self.amount)

    def __str__(self) -> str:
        return f"{self.amount} %" if self.is_share else str(self.amount)


def parse_allowance(value: object) -> Allowance:
    """Parse a maximum number of rows: a whole number, or a share such as `0.1 %`.

    Raises:
        ValueError: The value is neither.
    """
    if isinstance(value, Allowance):
        return value
    match = _ALLOWANCE.fullmatch(str(value).strip())
    if match is None:
        raise ValueError(
            f"{value!r} is not a number of rows. Write it as 5, or as a share of all rows such as '0.1 %'."
        )
    return Allowance(Decimal(match[1] or match[2]), is_share=match[2] is not None)


def _parse_setting_duration(value: Any) -> timedelta:
    duration = parse_duration(value)
    if duration % timedelta(milliseconds=1):
        raise ValueError(f"{format_duration(duration)} is finer than a millisecond. Use whole ms, as engines do.")
    return duration


def _check_positive(value: timedelta) -> timedelta:
    if value <= timedelta():
        raise ValueError("must be positive, such as '1 hour'")
    return value


def check_not_negative(value: timedelta) -> timedelta:
    """Return a duration that is not negative.

    Raises:
        ValueError: It is negative.
    """
    if value < timedelta():
        raise ValueError("must not be negative")
    return value


def _parse_cleanup_interval(value: Any) -> Any:
    if value == "half":
        return value
    try:
        return check_not_negative(_parse_setting_duration(value))
    except ValueError as error:
        raise ValueError(f"{error} Or write half.") from None


@cache
def _list_time_zones() -> frozenset[str]:
    return frozenset(name for name in available_timezones() if "/" in name)


def _check_time_zone(value: Any) -> str:
    """Check for UTC or a name such as Europe/Berlin, whose rules are equal in Python, Spark and Flink."""
    if value == "UTC":
        return "UTC"
    if isinstance(value, str) and value in _list_time_zones():
        return value
    if isinstance(value, str) and _OFFSET.fullmatch(value):
        raise ValueError(
            f"{value!r} is an offset, not a name. Write a name of the IANA database, such as Europe/Berlin, or "
            "Etc/GMT-2 for a zone that is always 2 hours ahead of UTC."
        )
    matches = get_close_matches(str(value), _list_time_zones(), n=1)
    hint = f"Did you mean {matches[0]}?" if matches else "Write one such as Europe/Berlin, or UTC."
    raise ValueError(f"{value!r} is not in the IANA time zone database. {hint}")


def _check_version(value: Any) -> str:
    if not isinstance(value, str) or not _VERSION.fullmatch(value):
        raise ValueError(f"{value!r} is not a version. Quote it, such as '1.17', because YAML reads 1.20 as 1.2.")
    return value


Duration = Annotated[
    timedelta,
    BeforeValidator(_parse_setting_duration),
    PlainSerializer(format_duration),
    WithJsonSchema({"type": "string", "examples": ["30 minutes", "-1 hour", "250 ms"]}),
]
CleanupInterval = Annotated[
    timedelta | Literal["half"],
    BeforeValidator(_parse_cleanup_interval),
    PlainSerializer(lambda value: value if value == "half" else format_duration(value), return_type=str),
    WithJsonSchema({"type": "string", "examples": ["half", "30 minutes"]}),
]
Version = Annotated[
    str, BeforeValidator(_check_version), WithJsonSchema({"type": "string", "pattern": f"^{_VERSION.pattern}$"})
]
TimeZone = Annotated[
    str,
    BeforeValidator(_check_time_zone),
    WithJsonSchema({"type": "string", "examples": ["Europe/Berlin", "America/New_York"]}),
]
PositiveDuration = Annotated[Duration, AfterValidator(_check_positive)]
NonNegativeDuration = Annotated[Duration, AfterValidator(check_not_negative)]
Instant = Annotated[
    datetime,
    BeforeValidator(parse_instant),
    PlainSerializer(format_instant),
    WithJsonSchema({"type": "string", "format": "date-time", "examples": ["2013-01-01T00:00:00Z"]}),
]
RowAllowance = Annotated[
    Allowance,
    BeforeValidator(parse_allowance),
    PlainSerializer(str),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": r"^\d+(\.\d+)?\s*%$|^\d+$"}]}
    ),
]
