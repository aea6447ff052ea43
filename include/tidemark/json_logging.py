"""Write log records as JSON lines with context fields (`TIDEMARK_LOG_FORMAT=json`)."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime

from typing_extensions import override

_CONTEXT: ContextVar[Mapping[str, str]] = ContextVar("log_context", default={})  # noqa: B039 - never mutated
_STANDARD_FIELDS = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
"""Attributes of every log record; all others are fields of the log call."""


def is_json_enabled() -> bool:
    """Return True if the environment asks for JSON log lines."""
    return os.environ.get("TIDEMARK_LOG_FORMAT") == "json"


@contextmanager
def log_context(**fields: str) -> Iterator[None]:
    """Add fields to all log records written in the block, and to an exception that leaves it (`error_context`)."""
    token = _CONTEXT.set({**_CONTEXT.get(), **fields})
    try:
        yield
    except Exception as error:
        error.__dict__.setdefault("log_context", _CONTEXT.get())
        raise
    finally:
        _CONTEXT.reset(token)


def error_context(error: BaseException) -> dict[str, str]:
    """Return the context fields where an exception was raised, empty outside any `log_context`."""
    return dict(error.__dict__.get("log_context", {}))


def configure_json_logging() -> None:
    """Send the records of Tidemark's loggers (INFO and above) to standard error as JSON lines."""
    handler, logger = logging.StreamHandler(), logging.getLogger("tidemark")
    handler.setFormatter(JsonFormatter())
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO)


class JsonFormatter(logging.Formatter):
    """Format a record as JSON: `at` (ISO 8601, UTC), `level`, `logger`, `event`, context fields, own fields."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **_CONTEXT.get(),
            **{name: value for name, value in vars(record).items() if name not in _STANDARD_FIELDS},
        }
        return json.dumps(line, default=str)
