"""Errors caused by a row's value do not quote it, neither on the terminal nor in Spark's log."""

from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JJavaError

from tidemark.cli import app
from tidemark.spark.error_redaction import find_row_error, format_safe_message
from tidemark.spark.session import _get_log_path

FAILING = {
    "CAST(k AS int)": "CAST(k AS int) fails on a row: CAST_INVALID_INPUT",
    "to_date(k)": "to_date(k) fails on a row: CAST_INVALID_INPUT",
    "1 / (length(k) - 10)": "1 / (length(k) - 10) fails on a row: DIVIDE_BY_ZERO",
    "raise_error(k)": "an expression fails on a row: USER_RAISED_EXCEPTION",
    "map_from_arrays(array(k, k), array(1, 2))": "an expression fails on a row: DUPLICATED_MAP_KEY",
    "regexp_replace(k, concat('[', k), '')": "an expression fails on a row: INVALID_PARAMETER_VALUE.PATTERN",
    "k RLIKE concat('[', k)": "an expression fails on a row: INVALID_PARAMETER_VALUE.PATTERN",
}


@pytest.mark.parametrize("expression", FAILING)
def test_main_error_on_a_value_does_not_quote_it(spark, expression, capfd, monkeypatch):
    rows = spark.createDataFrame([("secret4711",)], "k string")
    monkeypatch.setattr(app, "create_app", lambda _: lambda _: rows.selectExpr(expression).collect())
    monkeypatch.setenv("COLUMNS", "10000")

    assert app.main(["run"]) == 2

    errors = capfd.readouterr().err
    assert errors.startswith(f"error: {FAILING[expression]}. Correct it in the pipeline file")
    assert "secret4711" not in errors
    assert "secret4711" not in _get_log_path().read_text()


def create_java_error(*class_names):
    """Create an error of py4j whose Java exception has causes of these classes, the outermost first."""
    cause = None
    for name in reversed(class_names):
        java_class = SimpleNamespace(getName=lambda name=name: name)
        cause = SimpleNamespace(
            getMessage=lambda: "file:/lake",
            getClass=lambda of=java_class: of,
            getCause=lambda of=cause: of,
            _target_id="o1",
            _gateway_client=None,
        )
    return Py4JJavaError("An error occurred while calling o1.getResult.", cause)


def test_error_of_py4j_names_the_classes_of_its_causes():
    spark_error, pattern_error = "org.apache.spark.SparkException", "java.util.regex.PatternSyntaxException"

    fault = create_java_error(spark_error, "java.io.IOException")
    assert format_safe_message(fault) == f"{spark_error}, caused by java.io.IOException: file:/lake"
    assert find_row_error(fault) is None
    pattern = create_java_error(spark_error, spark_error, pattern_error)
    assert find_row_error(pattern) == "a regular expression in the pipeline file is not valid"


def test_error_of_delta_rs_names_file_and_cause():
    error = OSError(
        "Generic LocalFileSystem error\n   \x1b[31m\u21b3\x1b[0m Unable to open file a\n  \u21b3 Read-only\n"
    )
    assert format_safe_message(error) == "Generic LocalFileSystem error: Unable to open file a: Read-only"


def test_main_error_without_a_value_is_printed_in_full(spark, capfd, monkeypatch):
    monkeypatch.setattr(app, "create_app", lambda _: lambda _: spark.range(1).selectExpr("no_such"))
    monkeypatch.setenv("COLUMNS", "10000")

    assert app.main(["run"]) == 3
    assert "`no_such` cannot be resolved" in capfd.readouterr().err
