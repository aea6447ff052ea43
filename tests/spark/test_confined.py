"""Expressions as Spark's own parser sees them, held to the list that the file's parser has."""

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
from tidemark.spark.jvm import Expression, is_nondeterministic, list_builtin_functions
from tidemark.spark.trees import check_tree

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
"""Beginnings or parts of what Spark's tree shows no trace of, or shows once it is analysed."""


def spark_refuses(spark, text):
    """What Spark's own tree alone is refused for, None if it is allowed."""
    try:
        check_tree(spark, text, Expression.parse(spark, text))
    except (AnalysisException, ValueError) as error:
        return str(error)
    return None


@pytest.mark.parametrize("text", ALLOWED)
def test_spark_reads_what_is_allowed(spark, text):
    assert parse_user_expression(spark, text).column is not None


@pytest.mark.parametrize("text", [text for text in REFUSED if not any(part in text for part in PARSED_AWAY)])
def test_spark_s_own_tree_is_refused_as_well(spark, text):
    assert spark_refuses(spark, text) is not None


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_refused_never_becomes_a_column(spark, text):
    with pytest.raises((PipelineFileError, AnalysisException)):
        parse_user_expression(spark, text)


@pytest.mark.parametrize("day", ["now", "today", "tomorrow", "yesterday", " NOW ", r"\156ow"])
@pytest.mark.parametrize("kind", ["DATE", "TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ"])
def test_spark_s_parser_alone_tells_a_time_of_the_run(spark, kind, day):
    told = spark_refuses(spark, f"left_v > {kind} '{day}'")
    assert told is not None
    assert "has no time that stays the same" in told or "invalid" in told


@pytest.mark.parametrize(
    "text",
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
def test_a_time_that_stays_the_same_is_taken_in_every_zone(spark, text):
    assert spark_refuses(spark, f"left_v > {text}") is None


def test_the_list_is_that_of_the_installed_spark(spark):
    known = {line.split(",")[0]: line.split(",")[1] for line in CATALOGUE_FILE.read_text().splitlines()[1:]}
    assert known == list_builtin_functions(spark), "run: bin/list-functions, and review what it adds"


def test_both_parsers_agree_on_every_function(spark):
    found = {name: spark_refuses(spark, text) for name, text in CALLS.items()}
    assert {name for name, told in found.items() if told} == {name for name, why in load_catalogue().items() if why}


WHOLE = st.sampled_from(["left_v", "right_s.f", "left_a[0]", "1", "'x'", "NULL", "_slice", "now", "x", "left_v.*"])
WORDS = [name for name in CALLS if name.isidentifier()]


def grown(part):
    calls = st.tuples(st.sampled_from(WORDS), st.lists(part, max_size=3)).map(lambda c: f"{c[0]}({', '.join(c[1])})")
    signs = st.sampled_from(["+", "-", "AND", "=", "<=>", "LIKE", "||", "IS DISTINCT FROM"])
    return st.one_of(
        calls,
        st.tuples(part, signs, part).map(lambda of: f"({of[0]} {of[1]} {of[2]})"),
        st.tuples(part, part).map(lambda of: f"CASE WHEN {of[0]} THEN {of[1]} END"),
        part.map(lambda one: f"transform(left_a, x -> {one})"),
        part.map(lambda one: f"CAST({one} AS string)"),
    )


@settings(max_examples=EXAMPLES, deadline=None, database=None)
@given(st.recursive(WHOLE, grown, max_leaves=6))
def test_what_the_file_s_parser_allows_spark_s_does(spark, text):
    try:
        check_expression(text)
    except ValueError:
        return  # before Spark is asked
    told = spark_refuses(spark, text)
    assert told is None or "syntax" in told.lower()


@pytest.mark.parametrize(
    ("text", "depends"),
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
def test_a_text_that_spark_takes_for_the_time_of_the_run_is_seen_once_types_are_known(spark, text, depends):
    rows = spark.createDataFrame([], "left_t timestamp, left_s string")
    assert is_nondeterministic(rows.select(F.expr(text))) == depends
