"""What Spark says of a fault, without the values that it had before it: they may be a row's."""

from __future__ import annotations

import re

from pyspark.errors import AnalysisException, PySparkException

_CONDITION = re.compile(r"\[[A-Z][A-Z0-9_]+(\.[A-Z0-9_]+)*\]")
_FILE_CONDITIONS = "FAILED_READ_FILE"
"""Conditions whose messages are about files."""


def remove_values(message: str) -> str:
    """Cut a message after the first of Spark's error conditions, since the rest may quote a row.

    >>> remove_values("[CAST_INVALID_INPUT] The value 'secret' of the type ...")
    '[CAST_INVALID_INPUT]'
    >>> remove_values("no such column")
    'no such column'
    """
    found = _CONDITION.search(message)
    return message[: found.end()] if found else message


def format_safe_message(error: Exception) -> str:
    """The first line of what an exception says; of one that came as rows were worked on, without their values."""
    first = [*str(error).strip().splitlines(), ""][0]
    if not isinstance(error, PySparkException) or isinstance(error, AnalysisException):
        return first  # an analysis has seen no row
    if str(error.getCondition()).startswith(_FILE_CONDITIONS):
        return first
    expressions = [context.fragment() for context in error.getQueryContext() or []]
    where = f" in {expressions[0]}" if expressions and expressions[0] else ""
    return f"{remove_values(first)}{where}"
