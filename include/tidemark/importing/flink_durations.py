"""Parse durations as Flink writes them in plans and settings."""

from __future__ import annotations

import re
from datetime import timedelta

from tidemark.errors import ImportRefusedError

_ISO = re.compile(r"(-)?P(?:(-?\d+)D)?(?:T(?:(-?\d+)H)?(?:(-?\d+)M)?(?:(-?\d+)(?:\.(\d{1,9}))?S)?)?")
_SETTING = re.compile(r"(\d+)\s*([a-zµ]*)", re.IGNORECASE)
_UNITS = {
    "d": timedelta(days=1),
    "day": timedelta(days=1),
    "h": timedelta(hours=1),
    "hour": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "min": timedelta(minutes=1),
    "minute": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "sec": timedelta(seconds=1),
    "second": timedelta(seconds=1),
    "": timedelta(milliseconds=1),
    "ms": timedelta(milliseconds=1),
    "milli": timedelta(milliseconds=1),
    "millisecond": timedelta(milliseconds=1),
}


def parse_iso_duration(text: str) -> timedelta:
    """Parse a duration of a compiled plan, in the form of `java.time.Duration`.

    Raises:
        ImportRefusedError: The text is no duration of whole ms.

    >>> parse_iso_duration("PT1H30M"), parse_iso_duration("PT-0.5S")
    (datetime.timedelta(seconds=5400), datetime.timedelta(days=-1, seconds=86399, microseconds=500000))
    """
    match = _ISO.fullmatch(text)
    if match is None:
        raise ImportRefusedError(f"the plan has the duration {text}, which is not in ISO 8601. Compile the plan again.")
    sign, days, hours, minutes, seconds, fraction = match.groups()
    nanos = int((fraction or "").ljust(9, "0"))
    if nanos % 1_000_000:
        raise ImportRefusedError(f"the plan has the duration {text}, which is finer than a millisecond. Use whole ms.")
    micros = nanos // 1000 * (-1 if (seconds or "").startswith("-") else 1)
    value = timedelta(
        days=int(days or 0),
        hours=int(hours or 0),
        minutes=int(minutes or 0),
        seconds=int(seconds or 0),
        microseconds=micros,
    )
    return -value if sign else value


def parse_flink_setting(name: str, text: str) -> timedelta:
    """Parse a duration of a Flink setting, such as `5 min`; a number without a unit is in ms.

    Raises:
        ImportRefusedError: The text is no duration of whole ms.

    >>> parse_flink_setting("table.exec.source.idle-timeout", "5 min"), parse_flink_setting("x", "PT1S")
    (datetime.timedelta(seconds=300), datetime.timedelta(seconds=1))
    """
    if _ISO.fullmatch(text.strip()):
        return parse_iso_duration(text.strip())
    match = _SETTING.fullmatch(text.strip())
    unit = match and (_UNITS.get(match[2].lower()) or _UNITS.get(match[2].lower().removesuffix("s")))
    if not match or not unit:
        raise ImportRefusedError(f"{name} is {text}, which is not a duration. Write it as 5 min or 250 ms.")
    return int(match[1]) * unit
