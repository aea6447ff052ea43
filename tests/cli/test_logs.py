"""Lines of JSON say what they are about, errors too."""

import json
import logging

import pytest

from tidemark.json_logging import JsonFormatter, error_context, log_context


def test_a_line_says_what_it_is_about_and_has_its_own_fields():
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


def test_an_error_says_what_it_was_about_where_it_came_up():
    with pytest.raises(KeyError) as caught, log_context(pipeline="orders"), log_context(slice="one"):
        raise KeyError("x")
    assert error_context(caught.value) == {"pipeline": "orders", "slice": "one"}
    assert error_context(KeyError("y")) == {}
