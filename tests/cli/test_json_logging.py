"""Tests of log lines and error contexts in JSON."""

import json
import logging

import pytest

from tidemark.json_logging import JsonFormatter, error_context, log_context


def test_json_formatter_adds_context_and_own_fields():
    record = logging.makeLogRecord(
        {"name": "tidemark.x", "levelname": "WARNING", "msg": "%s late", "args": (3,), "run": "r"}
    )
    with log_context(pipeline="orders", slice="2024-01-01T00:00Z"):
        line = json.loads(JsonFormatter().format(record))

    assert line.pop("at").endswith("+00:00")
    assert line == {
        "level": "warning",
        "logger": "tidemark.x",
        "event": "3 late",
        "pipeline": "orders",
        "slice": "2024-01-01T00:00Z",
        "run": "r",
    }
    assert "pipeline" not in json.loads(JsonFormatter().format(record))


def test_error_context_is_the_context_in_which_an_error_was_raised():
    with pytest.raises(KeyError) as caught, log_context(pipeline="orders"), log_context(slice="first"):
        raise KeyError("x")

    assert error_context(caught.value) == {"pipeline": "orders", "slice": "first"}
    assert error_context(KeyError("y")) == {}
