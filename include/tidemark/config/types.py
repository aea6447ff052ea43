"""Durations and instants as a person writes them, with their validation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, Literal
from zoneinfo import available_timezones

from pydantic import AfterValidator, BeforeValidator, PlainSerializer, WithJsonSchema

_UNITS = {
    "us": timedelta(microseconds=1),
    "microsecond": timedelta(microseconds=1),
    "ms": timedelta(milliseconds=1),
    "millisecond": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "sec": timedelta(seconds=1),
    "second": timedelta(seconds=1),
    "min": timedelta(minutes=1),
    "minute": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "hour": timedelta(hours=1),
    "d": timedelta(days=1),
    "day": timedelta(days=1),
    "w": timedelta(weeks=1),
    "week": timedelta(weeks=1),
}
_PART = re.compile(r"(\d+)\s*([a-z]+)")
_DURATION = re.compile(r"\s*(-)?\s*((?:\d+\s*[a-z]+\s*)+)")
_VERSION = re.compile(r"\d{1,3}\.\d{1,3}(\.\d{1,3})?")
_OFFSET = re.compile(r"(UTC|GMT|Z)?\s*[+-]\d.*", re.IGNORECASE)
_ALLOWANCE = re.compile(r"(\d+)|(\d+(?:\.\d+)?)\s*%")
_MICROSECOND = timedelta(microseconds=1)
_DIGITS = 20
LONGEST = timedelta(days=365_000)
"""Of a duration, so that no sum of some of them is beyond what Python counts."""


def parse_duration(text: object) -> timedelta:
    """Read a duration such as `30 minutes`, `-1 hour`, `1 day 6 hours` or `250 ms`.

    Raises:
        ValueError: not a duration; the message shows the form that is.

    >>> parse_duration("-1 hour 30 minutes")
    datetime.timedelta(days=-1, seconds=81000)
    """
    if isinstance(text, timedelta):
        return text
    if text == 0:
        return timedelta()
    match = _DURATION.fullmatch(text.lower()) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"{text!r} is not a duration; write a number and a unit, such as '30 minutes'")
    total = sum((_part(number, unit) for number, unit in _PART.findall(match[2])), timedelta())
    return -total if match[1] else total


def _part(number: str, unit: str) -> timedelta:
    size = _UNITS.get(unit) or _UNITS.get(unit.removesuffix("s"))
    if size is None:
        raise ValueError(f"{unit!r} is not a unit of time; use ms, seconds, minutes, hours, days or weeks")
    # Python reads no number of any length.
    if len(number) > _DIGITS or int(number) * (size // _MICROSECOND) > LONGEST // _MICROSECOND:
        raise ValueError(f"is longer than {LONGEST.days:,} days, which is the most")
    return int(number) * size


def format_duration(value: timedelta) -> str:
    """Write a duration the way `parse_duration` reads it, in the largest units that fit.

    >>> format_duration(timedelta(minutes=-90))
    '-1 hour 30 minutes'
    """
    left, parts = abs(value), []
    for unit in ("day", "hour", "minute", "second", "ms", "us"):
        number, left = divmod(left, _UNITS[unit])
        if number:
            plural = "" if number == 1 or unit in ("ms", "us") else "s"
            parts.append(f"{number} {unit}{plural}")
    return ("-" if value < timedelta() else "") + (" ".join(parts) or "0 seconds")


def parse_instant(text: object) -> datetime:
    """Read an ISO 8601 instant; one without an offset is taken as UTC.

    Raises:
        ValueError: not an instant; the message shows the form that is.

    >>> parse_instant("2013-01-01T00:00Z")
    datetime.datetime(2013, 1, 1, 0, 0, tzinfo=datetime.timezone.utc)
    """
    try:
        value = text if isinstance(text, datetime) else datetime.fromisoformat(str(text))
    except ValueError:
        raise ValueError(f"{text!r} is not an instant; write it as 2013-01-01T00:00:00Z") from None
    try:
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{text!r} lies in no year from 1 to 9999 of UTC") from None


def format_instant(value: datetime) -> str:
    """Write an instant the way the pipeline file has it, without needless digits.

    >>> format_instant(datetime(2013, 1, 1, tzinfo=UTC))
    '2013-01-01T00:00Z'
    """
    finest = "microseconds" if value.microsecond % 1000 else "milliseconds"
    exact = finest if value.microsecond else "seconds" if value.second else "minutes"
    return value.astimezone(UTC).isoformat(timespec=exact).replace("+00:00", "Z")


def micros(value: timedelta | datetime) -> int:
    """Whole microseconds of a duration, or since 1970-01-01T00:00Z of an instant."""
    span = value - datetime(1970, 1, 1, tzinfo=UTC) if isinstance(value, datetime) else value
    return span // _MICROSECOND


def millis(value: timedelta) -> int:
    """Whole milliseconds of a duration that has no finer part."""
    return value // timedelta(milliseconds=1)


def from_micros(value: int) -> datetime:
    """The UTC instant that lies `value` microseconds after 1970-01-01T00:00Z."""
    return datetime(1970, 1, 1, tzinfo=UTC) + value * _MICROSECOND


@dataclass(frozen=True)
class Allowance:
    """How many rows may be so: a number of them, or a share of all."""

    amount: Decimal
    """Rows, or percent."""
    is_share: bool = False

    def of(self, rows: int) -> int:
        """How many that is at most, of so many rows.

        >>> parse_allowance("0.1 %").of(5123)
        5
        """
        return int(self.amount * rows / 100) if self.is_share else int(self.amount)

    def __str__(self) -> str:
        return f"{self.amount} %" if self.is_share else str(self.amount)


def parse_allowance(text: object) -> Allowance:
    """Read how many rows may be so: a whole number, or a share such as `0.1 %`.

    Raises:
        ValueError: neither; the message shows the form that is.
    """
    if isinstance(text, Allowance):
        return text
    match = _ALLOWANCE.fullmatch(str(text).strip())
    if match is None:
        raise ValueError(f"{text!r} is not a number of rows; write it as 5, or as a share of all such as '0.1 %'")
    return Allowance(Decimal(match[1] or match[2]), is_share=match[2] is not None)


def _whole_millis(value: timedelta) -> timedelta:
    if value % timedelta(milliseconds=1):
        raise ValueError(f"{format_duration(value)} is finer than a millisecond; engines reckon in whole ms")
    return value


def _positive(value: timedelta) -> timedelta:
    if value <= timedelta():
        raise ValueError("must be longer than nothing, such as '1 hour'")
    return value


def _duration(value: Any) -> timedelta:
    return _whole_millis(parse_duration(value))


def _cleanup(value: Any) -> Any:
    if value == "half":
        return value
    try:
        return _duration(value)
    except ValueError as error:
        raise ValueError(f"{error}; or half") from None


@cache
def _zones() -> frozenset[str]:
    return frozenset(name for name in available_timezones() if "/" in name)


def _time_zone(value: Any) -> str:
    """A name such as Europe/Berlin, or UTC: what Python, Spark and Flink know by the same rules."""
    if value == "UTC":
        return "UTC"
    if isinstance(value, str) and value in _zones():
        return value
    if isinstance(value, str) and _OFFSET.fullmatch(value):
        raise ValueError(
            f"{value!r} is an offset, as which Flink SQL takes no zone; write a name of the IANA database, such as "
            "Europe/Berlin, or Etc/GMT-2 for what is 2 hours ahead of UTC all year"
        )
    near = get_close_matches(str(value), _zones(), n=1)
    meant = f"did you mean {near[0]}?" if near else "write one such as Europe/Berlin, or UTC"
    raise ValueError(f"{value!r} is no name of the IANA time zone database; {meant}")


def _version(value: Any) -> str:
    if not isinstance(value, str) or not _VERSION.fullmatch(value):
        raise ValueError(f"{value!r} is not a version; write it in quotes, such as '1.17': YAML reads 1.20 as 1.2")
    return value


Duration = Annotated[
    timedelta,
    BeforeValidator(_duration),
    PlainSerializer(format_duration),
    WithJsonSchema({"type": "string", "examples": ["30 minutes", "-1 hour", "250 ms"]}),
]
Cleanup = Annotated[
    timedelta | Literal["half"],
    BeforeValidator(_cleanup),
    PlainSerializer(lambda value: value if value == "half" else format_duration(value), return_type=str),
    WithJsonSchema({"type": "string", "examples": ["half", "30 minutes"]}),
]
Version = Annotated[
    str, BeforeValidator(_version), WithJsonSchema({"type": "string", "pattern": f"^{_VERSION.pattern}$"})
]
TimeZone = Annotated[
    str,
    BeforeValidator(_time_zone),
    WithJsonSchema({"type": "string", "examples": ["Europe/Berlin", "America/New_York"]}),
]
PositiveDuration = Annotated[Duration, AfterValidator(_positive)]
Instant = Annotated[
    datetime,
    BeforeValidator(parse_instant),
    PlainSerializer(format_instant),
    WithJsonSchema({"type": "string", "format": "date-time", "examples": ["2013-01-01T00:00:00Z"]}),
]
Rows = Annotated[
    Allowance,
    BeforeValidator(parse_allowance),
    PlainSerializer(str),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": r"^\d+(\.\d+)?\s*%$|^\d+$"}]}
    ),
]
