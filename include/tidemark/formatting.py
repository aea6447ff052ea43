"""Format numbers, durations, names and results for people, SQL and scripts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any


class ToDict:
    """Mixin of dataclasses that scripts read as JSON."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a JSON-ready dictionary, nested dataclasses included."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]


def format_count(number: int, noun: str) -> str:
    """Format a number with its noun, in the plural unless it is 1.

    >>> format_count(1, "slice"), format_count(2, "batch")
    ('1 slice', '2 batches')
    """
    return f"{number:,} {noun}{'' if number == 1 else 'es' if noun.endswith('ch') else 's'}"


def format_estimate(number: float, noun: str) -> str:
    """Format an estimated number with its noun, rounded to two significant digits from 1,000 on.

    >>> format_estimate(53_987.2, "row"), format_estimate(4, "row")
    ('about 54,000 rows', 'about 4 rows')
    """
    whole = round(number)
    digits = len(str(whole))
    return f"about {format_count(round(whole, 2 - digits) if digits > 3 else whole, noun)}"  # noqa: PLR2004


def format_duration_estimate(estimate: Mapping[str, float] | None) -> str:
    """Format the estimated duration of a plan.

    Args:
        estimate: `seconds` and `error`, in seconds; None if it is unknown.

    >>> format_duration_estimate({"seconds": 61.2, "error": 4}), format_duration_estimate(None)
    ('61 s, give or take 4 s', 'not enough jobs yet to estimate it')
    """
    if estimate is None:
        return "not enough jobs yet to estimate it"
    return f"{estimate['seconds']:,.0f} s, give or take {estimate['error']:,.0f} s"


def format_value(value: Any) -> str:
    r"""Format a value of a row as in SQL. A string with blank ends or invisible characters is quoted, with escapes.

    >>> [format_value(value) for value in ("a b", "a ", "a\u00a0b", "", 1.5, True, None, {"a": [None]})]
    ['a b', "'a '", "'a\\xa0b'", "''", '1.5', 'true', 'null', '{"a": [null]}']
    """
    if value is None or isinstance(value, bool | dict | list):
        return json.dumps(value, default=str, ensure_ascii=False)
    text = str(value)
    is_ambiguous = isinstance(value, str) and (not text or text != text.strip() or not text.isprintable())
    return repr(text) if is_ambiguous else text


def format_values(values: Mapping[str, Any]) -> str:
    """Format named values of a row.

    >>> format_values({"k": "a ", "v": None, "x": 2})
    "k 'a ', v null, x 2"
    """
    return ", ".join(f"{name} {format_value(value)}" for name, value in values.items())


def format_span(milliseconds: int) -> str:
    """Format a time span rounded to minutes, or to seconds if it is shorter than an hour.

    >>> format_span(90_061_000), format_span(61_000), format_span(-5_000)
    ('25 h 01 min', '1 min 01 s', '-0 min 05 s')
    """
    if milliseconds < 0:
        return f"-{format_span(-milliseconds)}"
    minutes, seconds = divmod(round(milliseconds / 1000), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds:02} s"


def format_lateness(milliseconds: int) -> str:
    """Format how far a late row was behind the watermark, or ahead of it if only its window was closed.

    >>> format_lateness(61_000), format_lateness(-5_000)
    ('1 min 01 s behind the watermark', '0 min 05 s ahead of the watermark, after its window had closed')
    """
    if milliseconds < 0:
        return f"{format_span(-milliseconds)} ahead of the watermark, after its window had closed"
    return f"{format_span(milliseconds)} behind the watermark"


def to_single_line(text: str) -> str:
    r"""Replace line breaks and control characters by spaces, so that text cannot forge log lines.

    >>> to_single_line("a\nb\x1b[2J")
    'a b [2J'
    """
    return "".join(character if character.isprintable() else " " for character in text)


def quote_identifier(name: str) -> str:
    """Quote a column or table name for Spark SQL, whatever its characters."""
    return "`" + name.replace("`", "``") + "`"


def quote_literal(text: str) -> str:
    r"""Quote a text as a string literal of Spark SQL.

    >>> print(quote_literal("it's \\ n"))
    'it\'s \\ n'
    """
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
