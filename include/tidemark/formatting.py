"""Format numbers, durations, names and results for people, SQL and scripts."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any


class ToDict:
    """Mixin of dataclasses that scripts read as JSON."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a JSON-ready dictionary, nested dataclasses included."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]


def counted(number: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "slice"), counted(2, "batch")
    ('1 slice', '2 batches')
    """
    return f"{number:,} {noun}{'' if number == 1 else 'es' if noun.endswith('ch') else 's'}"


def brief_span(milliseconds: int) -> str:
    """A span of time to the minute, or to the second below an hour.

    >>> brief_span(90_061_000), brief_span(61_000)
    ('25 h 01 min', '1 min 01 s')
    """
    minutes, seconds = divmod(round(milliseconds / 1000), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds:02} s"


def in_one_line(text: str) -> str:
    r"""A text without what ends a line or moves a terminal's cursor.

    >>> in_one_line("a\nb\x1b[2J")
    'a b [2J'
    """
    return "".join(sign if sign.isprintable() else " " for sign in text)


def quoted(name: str) -> str:
    """A name of a column or a table that Spark's SQL reads literally, whatever its characters."""
    return "`" + name.replace("`", "``") + "`"
