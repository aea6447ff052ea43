"""Lines of a log as JSON, each with what it is about: `TIDEMARK_LOG=json`."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime

from typing_extensions import override

_ABOUT: ContextVar[Mapping[str, str]] = ContextVar("about", default={})  # noqa: B039 - a Mapping, which nobody changes
_OWN = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
"""What every record has."""


def are_json() -> bool:
    """Whether whoever runs this wants lines of JSON."""
    return os.environ.get("TIDEMARK_LOG") == "json"


@contextmanager
def about(**fields: str) -> Iterator[None]:
    """Say in each line what it is about; an error that leaves says so, too (`told_of`)."""
    token = _ABOUT.set({**_ABOUT.get(), **fields})
    try:
        yield
    except Exception as error:
        error.__dict__.setdefault("about", _ABOUT.get())
        raise
    finally:
        _ABOUT.reset(token)


def told_of(error: BaseException) -> dict[str, str]:
    """What an error is about."""
    return dict(error.__dict__.get("about", {}))


def to_json() -> None:
    """Let what Tidemark logs go to standard error, a line of JSON for each record."""
    handler, log = logging.StreamHandler(), logging.getLogger("tidemark")
    handler.setFormatter(JsonLines())
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.INFO)


class JsonLines(logging.Formatter):
    """A record as JSON: `at` (ISO 8601, UTC), `level`, `logger`, `event`, what it is about, and its own fields."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **_ABOUT.get(),
            **{name: value for name, value in vars(record).items() if name not in _OWN},
        }
        return json.dumps(line, default=str)
