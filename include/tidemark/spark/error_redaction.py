"""Remove row values from Spark's error messages."""

from __future__ import annotations

import re

from pyspark.errors import AnalysisException, PySparkException

_CONDITION = re.compile(r"\[[A-Z][A-Z0-9_]+(\.[A-Z0-9_]+)*\]")
_FILE_CONDITIONS = "FAILED_READ_FILE"
"""Prefix of the error conditions whose messages name files and quote no values."""


def remove_values(message: str) -> str:
    """Cut a message after Spark's first error condition, because the rest can quote a row.

    >>> remove_values("[CAST_INVALID_INPUT] The value 'secret' of the type ...")
    '[CAST_INVALID_INPUT]'
    >>> remove_values("no such column")
    'no such column'
    """
    condition = _CONDITION.search(message)
    return message[: condition.end()] if condition else message


def format_safe_message(error: Exception) -> str:
    """Return the first line of an exception's message, without values if Spark raised it while it processed rows."""
    first_line = [*str(error).strip().splitlines(), ""][0]
    if not isinstance(error, PySparkException) or isinstance(error, AnalysisException):
        return first_line  # analysis does not read rows
    if str(error.getCondition()).startswith(_FILE_CONDITIONS):
        return first_line
    expressions = [context.fragment() for context in error.getQueryContext() or []]
    where = f" in {expressions[0]}" if expressions and expressions[0] else ""
    return f"{remove_values(first_line)}{where}"
