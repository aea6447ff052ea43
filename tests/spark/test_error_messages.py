"""Errors caused by a row's value do not quote it, neither on the terminal nor in Spark's log."""

import pytest

from tidemark.cli import app
from tidemark.spark.session import _get_log_path

FAILING = {
    "CAST(k AS int)": "NumberFormatException: [CAST_INVALID_INPUT] in CAST(k AS int)",
    "to_date(k)": "DateTimeException: [CAST_INVALID_INPUT] in to_date(k)",
    "raise_error(k)": "SparkRuntimeException: [USER_RAISED_EXCEPTION]",
    "map_from_arrays(array(k, k), array(1, 2))": "SparkRuntimeException: [DUPLICATED_MAP_KEY]",
}


@pytest.mark.parametrize("expression", FAILING)
def test_main_error_on_a_value_does_not_quote_it(spark, expression, capfd, monkeypatch):
    rows = spark.createDataFrame([("secret4711",)], "k string")
    monkeypatch.setattr(app, "create_app", lambda _: lambda _: rows.selectExpr(expression).collect())
    monkeypatch.setenv("COLUMNS", "10000")

    assert app.main(["run"]) == 3

    errors = capfd.readouterr().err
    assert errors.startswith(f"fault: {FAILING[expression]}")
    assert "secret4711" not in errors
    assert "secret4711" not in _get_log_path().read_text()


def test_main_error_without_a_value_is_printed_in_full(spark, capfd, monkeypatch):
    monkeypatch.setattr(app, "create_app", lambda _: lambda _: spark.range(1).selectExpr("no_such"))
    monkeypatch.setenv("COLUMNS", "10000")

    assert app.main(["run"]) == 3
    assert "`no_such` cannot be resolved" in capfd.readouterr().err
