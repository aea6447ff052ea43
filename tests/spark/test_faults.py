"""What fails on a row's value is told without it, by the command and in Spark's log."""

import pytest

from tidemark.cli import app
from tidemark.spark.session import _get_log_path

FAILING = {
    "CAST(k AS int)": "NumberFormatException: [CAST_INVALID_INPUT] in CAST(k AS int)",
    "to_date(k)": "DateTimeException: [CAST_INVALID_INPUT] in to_date(k)",
    "raise_error(k)": "SparkRuntimeException: [USER_RAISED_EXCEPTION]",
    "map_from_arrays(array(k, k), array(1, 2))": "SparkRuntimeException: [DUPLICATED_MAP_KEY]",
}


@pytest.mark.parametrize("text", FAILING)
def test_a_fault_quotes_no_row(spark, text, capfd, monkeypatch):
    rows = spark.createDataFrame([("secret4711",)], "k string")
    monkeypatch.setattr(app, "app", lambda *_, **__: rows.selectExpr(text).collect())
    monkeypatch.setenv("COLUMNS", "10000")
    assert app.main(["run"]) == 3
    told = capfd.readouterr().err
    assert told.startswith(f"fault: {FAILING[text]}")
    assert "secret4711" not in told
    assert "secret4711" not in _get_log_path().read_text()


def test_what_no_row_has_part_in_is_told_whole(spark, capfd, monkeypatch):
    monkeypatch.setattr(app, "app", lambda *_, **__: spark.range(1).selectExpr("no_such"))
    monkeypatch.setenv("COLUMNS", "10000")
    assert app.main(["run"]) == 3
    assert "`no_such` cannot be resolved" in capfd.readouterr().err
