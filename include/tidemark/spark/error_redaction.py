"""Remove row values from Spark's error messages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException, QueryContextType

from tidemark.spark.struct_columns import restore_pair_columns

_CONDITION = re.compile(r"\[[A-Z][A-Z0-9_]+(\.[A-Z0-9_]+)*\]")
_SQL_STATES_OF_ROWS = ("22", "23", "P0")
"""Classes of SQLSTATE: data exceptions, constraints, and errors that an expression raises."""
_FILE_ERRORS = ("IOException", "FileNotFoundException", "FileSystemException", "AccessDeniedException")
"""Endings of the classes of Java exceptions whose messages name files and quote no values."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_INVALID_PATTERN = "java.util.regex.PatternSyntaxException"
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


def find_row_error(error: Exception) -> str | None:
    """Describe an SQL expression that fails on a row, with Spark's error condition; None for other errors.

    Expressions are those of the pipeline file, so this is no fault of the machine: another run fails, too.
    """
    if isinstance(error, Py4JJavaError):
        is_pattern = _INVALID_PATTERN in [_get_class_name(cause) for cause in _list_causes(error.java_exception)]
        return "a regular expression in the pipeline file is not valid" if is_pattern else None
    if not isinstance(error, PySparkException) or isinstance(error, AnalysisException):
        return None
    if not str(error.getSqlState()).startswith(_SQL_STATES_OF_ROWS):
        return None
    condition = error.getCondition()
    expressions = [
        restore_pair_columns(context.fragment())
        for context in error.getQueryContext() or []
        if context.contextType() == QueryContextType.SQL and context.fragment()
    ]
    return f"{expressions[0] if expressions else 'an expression'} fails on a row: {condition}"


def _list_causes(error: Any) -> Iterator[Any]:
    """Yield a Java exception and its causes."""
    while error is not None:
        yield error
        error = error.getCause()


def _describe_cause(error: Any) -> str:
    """Return the class of a Java exception, and the message if it names a file. Other messages can quote a row."""
    name, message = _get_class_name(error), str(error.getMessage() or "").strip()
    names_file = name.endswith(_FILE_ERRORS) or message.startswith(f"[{_FILE_CONDITIONS}")
    return f"{name}: {message.splitlines()[0]}" if message and names_file else name


def _get_class_name(error: Any) -> str:
    return str(error.getClass().getName())


def format_safe_message(error: Exception) -> str:
    """Return the first line of an exception's message, without values if Spark raised it while it processed rows."""
    if isinstance(error, Py4JJavaError):
        # The first line names an object of py4j only.
        return ", caused by ".join(map(_describe_cause, _list_causes(error.java_exception)))
    if isinstance(error, OSError):  # delta-rs has file and cause on further lines
        return ": ".join(line.strip(" \u21b3") for line in _COLOUR.sub("", str(error)).strip().splitlines())
    first_line = [*str(error).strip().splitlines(), ""][0]
    if not isinstance(error, PySparkException) or isinstance(error, AnalysisException):
        return first_line  # analysis does not read rows
    if str(error.getCondition()).startswith(_FILE_CONDITIONS):
        return first_line
    expressions = [context.fragment() for context in error.getQueryContext() or []]
    where = f" in {expressions[0]}" if expressions and expressions[0] else ""
    return f"{remove_values(first_line)}{where}"
