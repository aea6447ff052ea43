"""Explain Spark's errors about users' SQL expressions in plain words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches

from pyspark.errors import PySparkException

_CONDITION = re.compile(r"\s*\[[A-Z0-9_.]+\]\s*")
_QUOTED = re.compile(r'"([^"]+)"')
_POSITION = re.compile(r"\(line (\d+), pos (\d+)\)")
DERIVED_PARAMETERS = frozenset({"expression", "suggestion", "position"})
"""Names in the texts that are derived from a message and its parameters."""
TEXTS = {
    "UNRESOLVED_COLUMN": "there is no column {objectName}. {suggestion}",
    "FIELD_NOT_FOUND": "the struct has no field {fieldName}. {suggestion}",
    "WRONG_NUM_ARGS": "{functionName}() takes {expectedNum} arguments, not {actualNum}. Correct the call.",
    "INVALID_EXTRACT_BASE_FIELD_TYPE": (
        "{base} has type {other}, so it has no fields or elements. Use another column."
    ),
    "PARSE_SYNTAX_ERROR": "Spark cannot parse the SQL at {error}{position}. Correct the syntax.",
    "FILTER_NOT_BOOLEAN": "{filter} has type {type}, but a condition must be BOOLEAN. Write a comparison.",
    "UNEXPECTED_INPUT_TYPE": (
        "the {paramIndex} argument of {expression} has type {inputType}, but must be {requiredType}. Cast it, or use "
        "another column."
    ),
    "BINARY_OP_DIFF_TYPES": (
        "the two sides of {expression} have types {left} and {right}, which do not fit. Cast one of them."
    ),
    "BINARY_OP_WRONG_TYPE": (
        "the two sides of {expression} have type {actualDataType}, but must be {inputType}. Cast them, or use other "
        "columns."
    ),
    "DATA_DIFF_TYPES": "the values in {expression} have different types: {dataType}. Cast them to one type.",
    "CAST_WITHOUT_SUGGESTION": "{expression}: {srcType} cannot be cast to {targetType}. Use another type or column.",
    "NON_FOLDABLE_INPUT": "{expression}: {inputName} must be a constant, not {inputExpr}. Write the value itself.",
}
"""Text by Spark's error condition; of mismatched types, by the condition's second part. Names in braces are parameters
of Spark's message, or derived."""


def format_expression_error(error: PySparkException) -> str:
    """Return the message about an invalid expression, with the remedy, in one line.

    Errors without a text of their own, or without its parameters, have Spark's message, without error class and query
    plan.
    """
    kind, _, detail = str(error.getCondition()).partition(".")
    is_mismatch = kind == "DATATYPE_MISMATCH"
    text = TEXTS.get(detail if is_mismatch else kind)
    message = _CONDITION.sub("", str(error).split("SQLSTATE")[0].split("== SQL")[0], count=1)
    if text is not None:
        with suppress(KeyError):  # a server of Spark Connect may send a message without parameters
            return " ".join(text.format_map(_collect_parameters(error)).split())
    if is_mismatch:
        message = message.rpartition("data type mismatch: ")[2]
    return " ".join(message.split())


def _collect_parameters(error: PySparkException) -> dict[str, str]:
    """Return the parameters of an error's message without quotes, and those that are derived from them."""
    quoted = {name: str(value) for name, value in (error.getMessageParameters() or {}).items()}
    raw = {name: value.strip('"').replace("`", "") for name, value in quoted.items()}
    contexts = error.getQueryContext() or []
    fragment = next((context.fragment() for context in contexts if context.fragment()), None)
    name = raw.get("objectName") or raw.get("fieldName", "")
    similar = raw.get("proposal") or raw.get("fields", "")
    derived = {
        "expression": fragment or raw.get("sqlExpr", "the expression"),
        "suggestion": _suggest(name, similar.split(", ") if similar else ()),
        "position": _format_position(str(error)),
    }
    if "expectedNum" in raw:
        derived["expectedNum"] = raw["expectedNum"].strip("[]").replace(", ", " or ")
    if "dataType" in raw:
        derived["dataType"] = " and ".join(_QUOTED.findall(quoted["dataType"]))
    return raw | derived


def _suggest(name: str, similar: Sequence[str]) -> str:
    """Suggest the most similar name. Spark proposes some of the names only."""
    if matches := get_close_matches(name, similar, n=1):
        return f"Did you mean {matches[0]}?"
    return f"Similar names: {', '.join(similar)}." if similar else "Name a column of the rows."


def _format_position(message: str) -> str:
    """Return the position of a syntax error, counted from 1; empty if the message has none."""
    if (position := _POSITION.search(message)) is None:
        return ""
    line, column = map(int, position.groups())
    return f", character {column + 1}{f' of line {line}' if line > 1 else ''}"
