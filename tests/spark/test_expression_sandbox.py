"""Spark's own parser and sqlglot allow and refuse the same expressions and functions."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from tests.config.test_expressions import ALLOWED, CALLS, REFUSED
from tidemark.config.allowed_functions import CATALOGUE_FILE, load_catalogue
from tidemark.config.expressions import check_expression
from tidemark.errors import PipelineFileError
from tidemark.spark.expression_sandbox import parse_user_expression
from tidemark.spark.expression_tree import check_tree
from tidemark.spark.jvm import Expression, is_nondeterministic, list_builtin_functions

EXAMPLES = int(os.environ.get("TIDEMARK_EXAMPLES", "1000")) // 5

PARSED_AWAY = (
    "CAST('today'",
    "'yesterday'::",
    "--",
    "${",
    "mask(",
    "'" + "x" * 99,
    "((((",
)
"""Parts of expressions that Spark's parsed tree does not contain, or contains only once it is analysed."""


def get_refusal(spark, expression):
    """Return why Spark's own tree of an expression is refused, None if it is allowed."""
    try:
        check_tree(spark, expression, Expression.parse(spark, expression))
    except (AnalysisException, ValueError) as error:
        return str(error)
    return None


@pytest.mark.parametrize("expression", ALLOWED)
def test_parse_user_expression_allowed_expression_is_a_column(spark, expression):
    assert parse_user_expression(spark, expression).column is not None


@pytest.mark.parametrize(
    "expression", [expression for expression in REFUSED if not any(part in expression for part in PARSED_AWAY)]
)
def test_check_tree_refused_expression_raises(spark, expression):
    assert get_refusal(spark, expression) is not None


@pytest.mark.parametrize("expression", REFUSED)
def test_parse_user_expression_refused_expression_raises(spark, expression):
    with pytest.raises((PipelineFileError, AnalysisException)):
        parse_user_expression(spark, expression)


@pytest.mark.parametrize("day", ["now", "today", "tomorrow", "yesterday", " NOW ", r"\156ow"])
@pytest.mark.parametrize("dtype", ["DATE", "TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ"])
def test_check_tree_literal_of_the_current_time_raises(spark, dtype, day):
    refusal = get_refusal(spark, f"left_v > {dtype} '{day}'")

    assert refusal is not None
    assert "contains a relative time" in refusal or "invalid" in refusal


@pytest.mark.parametrize(
    "literal",
    [
        "DATE '2013-01-01'",
        "DATE 'epoch'",
        "TIMESTAMP '2013-01-01 00:00:00.5'",
        "TIMESTAMP '2013-01-01 00:00:00.5Z'",
        "TIMESTAMP '2013-01-01T00:00:00+05:30'",
        "TIMESTAMP '2013-07-01 00:00:00 Europe/Berlin'",
        "TIMESTAMP_NTZ '2013-01-01 00:00:00'",
        "TIMESTAMP_LTZ 'epoch'",
        "TIME '10:00:00'",
    ],
)
def test_check_tree_constant_time_in_any_zone_is_allowed(spark, literal):
    assert get_refusal(spark, f"left_v > {literal}") is None


def test_check_tree_time_literal_leaves_settings_of_session_that_threads_share(spark, monkeypatch):
    zones, parse = [], Expression.parse

    def parse_and_record(session, expression):
        zones.append(spark.conf.get("spark.sql.session.timeZone"))
        return parse(session, expression)

    monkeypatch.setattr(Expression, "parse", parse_and_record)

    assert get_refusal(spark, "left_v > TIMESTAMP '2013-01-01 00:00:00'") is None
    assert get_refusal(spark, "left_v > TIMESTAMP 'today'") is not None
    assert zones == ["UTC"] * 6


def test_catalogue_lists_functions_of_the_installed_spark(spark):
    catalogue = {line.split(",")[0]: line.split(",")[1] for line in CATALOGUE_FILE.read_text().splitlines()[1:]}

    assert catalogue == list_builtin_functions(spark), "run: bin/list-functions, and review what it adds"


def test_check_tree_refuses_functions_that_the_catalogue_refuses(spark):
    refusals = {name: get_refusal(spark, expression) for name, expression in CALLS.items()}

    assert {name for name, refusal in refusals.items() if refusal} == {
        name for name, reason in load_catalogue().items() if reason
    }


LEAVES = st.sampled_from(["left_v", "right_s.f", "left_a[0]", "1", "'x'", "NULL", "_slice", "now", "x", "left_v.*"])
FUNCTIONS = [name for name in CALLS if name.isidentifier()]


def nest_expressions(part):
    """Return a strategy of expressions that contain expressions of strategy `part`."""
    arguments = st.lists(part, max_size=3).map(", ".join)
    operators = st.sampled_from(["+", "-", "AND", "=", "<=>", "LIKE", "||", "IS DISTINCT FROM"])
    return st.one_of(
        st.tuples(st.sampled_from(FUNCTIONS), arguments).map(lambda call: f"{call[0]}({call[1]})"),
        st.tuples(part, operators, part).map(lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"),
        st.tuples(part, part).map(lambda parts: f"CASE WHEN {parts[0]} THEN {parts[1]} END"),
        part.map(lambda body: f"transform(left_a, x -> {body})"),
        part.map(lambda value: f"CAST({value} AS string)"),
    )


@settings(max_examples=EXAMPLES, deadline=None, database=None)
@given(st.recursive(LEAVES, nest_expressions, max_leaves=6))
def test_check_tree_allows_what_check_expression_allows(spark, expression):
    try:
        check_expression(expression)
    except ValueError:
        return  # refused without Spark

    refusal = get_refusal(spark, expression)

    assert refusal is None or "syntax" in refusal.lower()


@pytest.mark.parametrize(
    ("expression", "nondeterministic"),
    [
        ("left_t > 'now'", True),
        ("to_timestamp('now') > left_t", True),
        ("CAST(concat('n', 'ow') AS timestamp)", True),
        ("date('today')", True),
        ("rand()", True),
        ("current_timestamp()", True),
        ("left_t > '2020-01-01'", False),
        ("left_s = 'now'", False),
        ("to_date(left_s)", False),
    ],
)
def test_is_nondeterministic_true_for_current_time_in_a_cast(spark, expression, nondeterministic):
    rows = spark.createDataFrame([], "left_t timestamp, left_s string")

    assert is_nondeterministic(rows.select(F.expr(expression))) == nondeterministic
