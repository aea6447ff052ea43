"""Content of expressions, as sqlglot parses it; tests/spark/test_expression_sandbox.py covers Spark's parser."""

import pytest

from tidemark.config.allowed_functions import REFUSAL_REASONS, InputColumns, load_catalogue
from tidemark.config.expressions import MAX_CHARACTERS, check_expression, list_columns, qualify_for_pair

ALLOWED = """
left_v + 1 > 2
-left_v % 2 div 3
left_v & 3 | ~1 ^ 2
left_v << 2
left_a || 'x' || "y"
LEFT_V <=> `RIGHT_a b`
left_v = 1 AND (left_w <> 2 OR NOT left_x) AND !left_y
left_a IN (1, 2)
(left_a, 1) IN ((1, 2))
left_a NOT BETWEEN 1 AND 2
left_a LIKE 'x%' ESCAPE '!' AND left_a NOT ILIKE 'y' AND left_a RLIKE '^z'
left_a IS NULL OR left_a IS NOT NULL
left_a IS DISTINCT FROM right_a OR left_a IS NOT DISTINCT FROM right_b
left_a IS TRUE AND left_a IS NOT UNKNOWN
CASE WHEN left_v IS NULL THEN 1 ELSE 2 END
CASE left_v WHEN 1 THEN 'a' END
if(left_a, 1, nvl(left_b, 2))
CAST(left_v AS decimal(10, 2)) + left_w::int + TRY_CAST(left_s AS bigint)
CAST(left_a AS struct<a: int, b: array<map<string, date>>>).b[0]['k']
left_a.b.c[0].d
`left_a b`.c
size(left) + right[0].v
date(left_t) >= DATE '2020-01-01' AND left_t < TIMESTAMP '2020-01-01 00:00:00+01:00'
left_t + INTERVAL 5 MINUTES - INTERVAL '1-2' YEAR TO MONTH + INTERVAL '1 day 2 hours'
extract(YEAR FROM left_t) + timestampdiff(MINUTE, left_t, right_t)
dateadd(DAY, 1, left_t) > date_add(left_t, 1)
trim(BOTH 'x' FROM left_a) || substring(left_a FROM 1 FOR 2) || overlay(left_a PLACING 'x' FROM 1)
position('a' IN left_a) + position('a', left_a)
transform(left_a, x -> transform(x.b, y -> y + x.c + left_v))
zip_with(left_a, right_a, (x, y) -> x + y)
exists(left_a, x -> x > 1)
map('a', array(1, 2)[0])['a']
named_struct('a', left_v).a
from_json(left_a, 'a int').a
X'1F' = unhex('1f') AND 10L + 1Y + 1S + 1.0F + 1e3D < 1.5BD
'now' = left_state
'--' = left_a AND left_b = '/* no comment */'
_emission = 'matched' AND _window_start < left_t
""".strip().splitlines()

REFUSED = {
    "rand() < 0.5": "rand() returns another value in each run",
    "`RAND`()": "rand() returns another value in each run",
    "now() > left_t": "now() returns the time of the run",
    "left_t > current_timestamp": "current_timestamp is not a column of the join. Columns are named left_NAME",
    "transform(left_a, x -> current_date)": "current_date is not a column of the join",
    "transform(left_a, x -> y)": "y is not a column of the join",
    "unix_timestamp() - left_v": "unix_timestamp() returns the time of the run. Use a time column",
    "TIMESTAMP 'now'": "'now' is a relative time. Write it as '2013-01-01 00:00:00'.",
    "TIMESTAMP '\\156ow'": "is a relative time",
    "TIMESTAMP_NTZ ' Tomorrow '": "is a relative time",
    "CAST('today' AS date)": "'today' is a relative time",
    "'yesterday'::timestamp": "'yesterday' is a relative time",
    "user": "user is not a column of the join",
    "version()": "version() depends on the session",
    "uuid()": "uuid() returns another value",
    "shuffle(left_a)": "shuffle() returns another value",
    "aes_encrypt(left_a, left_b)": "aes_encrypt() returns another value",
    "input_file_name()": "input_file_name() depends on how Spark partitions its work",
    "monotonically_increasing_id()": "monotonically_increasing_id() depends on how Spark partitions its work",
    "java_method('java.lang.System', 'getenv', 'HOME')": "java_method() calls Java. Use a function of SQL.",
    "reflect('java.lang.System', 'exit')": "reflect() calls Java",
    "try_reflect('java.lang.System', 'exit')": "try_reflect() calls Java",
    "raise_error(left_a)": "raise_error() fails the job with a row's values. Write an expectation under quality.",
    "xpath_string(left_a, '/a')": "xpath_string() can read files",
    "from_xml(left_a, 'a int', map('rowValidationXSDPath', '/x'))": "from_xml() can read files",
    "from_protobuf(left_a, 'm', '/etc/hostname')": "from_protobuf() can read files",
    "explode(left_a)": "explode() changes the number of rows",
    "count(*)": "count() aggregates many rows",
    "max(left_a) OVER ()": "OVER spans many rows",
    "(SELECT max(value) FROM text.`/etc/hostname`)": "a subquery reads other tables. Write its result as a table",
    "EXISTS (SELECT 1)": "a subquery reads other tables",
    "left_a IN (SELECT value FROM text.`/etc/hostname`)": "a subquery reads other tables",
    "SELECT 1": "is not an SQL expression",
    "left_a; DROP TABLE x": "is not an SQL expression",
    "left_a = 1; left_b = 2": "has a semicolon. Remove it, and combine conditions by AND.",
    "left_a = 1;": "has a semicolon",
    "else > 3": "is not one SQL expression. Combine conditions by AND, and quote names that are SQL words.",
    "left_v +": "is not an SQL expression",
    "left_a = 'x": "is not an SQL expression. Close the open quote.",
    " ": "is empty. Remove it.",
    "*": "* changes its meaning when a table gets more columns. Name the columns.",
    "struct(left_a.*)": "* changes its meaning when a table gets more columns",
    "1 AS x": "is not an SQL expression. Correct the syntax at AS, character 3.",
    "struct(left_a AS x)": "AS has no effect here",
    ":p": "parameters have no value here",
    "?": "parameters have no value here",
    "@x": "parameters have no value here",
    "mask(left_a, upperChar => 'x')": "named arguments are not supported",
    "IDENTIFIER('rand')()": "is not an SQL expression",
    "system.builtin.rand()": "system.builtin.rand() names a catalog or a schema",
    "default.mine(left_a)": "default.mine() names a catalog or a schema",
    "mine(left_a)": "mine() is not a function of Spark. Did you mean",
    "_metadata.file_path": "_metadata is not a column of the join",
    "other.left_v": "other is not a column of the join",
    "left_a = '${env:HOME}'": "${...} would be replaced from the session or the environment. Write the value itself.",
    "left_a -- = right_a": "has comments or hints",
    "/*+ BROADCAST(x) */ left_a": "has comments or hints",
    "left_a LIKE ANY ('a')": "any is not allowed in an expression",
    "(" * 3000 + "1" + ")" * 3000: "is nested too deeply. Split the expression.",
    "'" + "x" * MAX_CHARACTERS + "'": "characters, more than the maximum of 10,000. Split the expression.",
}


@pytest.mark.parametrize("expression", ALLOWED)
def test_check_expression_over_a_pair_is_allowed(expression):
    check_expression(expression)


@pytest.mark.parametrize(("expression", "message"), REFUSED.items(), ids=lambda part: part[:40])
def test_check_expression_refused_syntax_raises_a_single_line(expression, message):
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - its text is compared
        check_expression(expression)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


KEYWORD_SYNTAX = {
    "between": "left_v BETWEEN 1 AND 2",
    "case": "CASE WHEN left_v THEN 1 END",
    "cast": "CAST(left_v AS int)",
    "extract": "extract(DAY FROM left_v)",
    "in": "left_v IN (1)",
    "overlay": "overlay(left_v, 'x', 1)",
    "timestampadd": "timestampadd(DAY, 1, left_v)",
    "timestampdiff": "timestampdiff(DAY, left_v, right_v)",
    "trim": "trim(left_v)",
    "when": "CASE WHEN left_v THEN 1 END",
}
"""Functions of Spark that have a syntax of their own."""
CALLS = {
    name: KEYWORD_SYNTAX.get(name, f"{name}(left_v, right_v)" if name.isidentifier() else f"left_v {name} right_v")
    for name in load_catalogue()
} | {"!": "!left_v", "~": "~left_v", "not": "NOT left_v", ">>>": "shiftrightunsigned(left_v, 2)"}
CALLS |= {name: f"left_v {name} right_v" for name in ("and", "or", "like", "ilike", "rlike", "regexp")}
"""An expression with each function and operator of Spark."""


@pytest.mark.parametrize("name", CALLS)
def test_check_expression_function_follows_its_review(name):
    reason = load_catalogue()[name]
    if not reason:
        check_expression(CALLS[name])
        return
    with pytest.raises(ValueError, match=rf"^{name}\(\) ") as raised:
        check_expression(CALLS[name])
    assert str(raised.value) == f"{name}() {REFUSAL_REASONS[reason]}"


def test_catalogue_has_no_unreviewed_function():
    assert "unreviewed" not in load_catalogue().values()


INPUT_EXPRESSIONS = {
    "user = 'x' AND `order id` IS NOT NULL AND s.k > date('2024-01-01')": None,
    "current_date > day": "current_date returns the time or the user of the run. Use a column with another name.",
    "rand() < 0.5": "rand() returns another value in each run",
    "max(v) > 1": "max() aggregates many rows",
    "v > (SELECT 1)": "a subquery reads other tables",
    "max(v) OVER ()": "OVER spans many rows",
    "v >": "is not an SQL expression",
    "": "is empty",
}


@pytest.mark.parametrize(("expression", "message"), INPUT_EXPRESSIONS.items())
def test_check_expression_over_an_input_before_its_table_is_read(expression, message):
    if message is None:
        check_expression(expression, InputColumns())
        return
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - the text is compared
        check_expression(expression, InputColumns())
    assert message in str(raised.value)


def test_input_columns_unknown_column_raises():
    columns = InputColumns(("status", "current_date"))
    check_expression("STATUS = 'x' AND current_date IS NOT NULL", columns)
    for name, hint in (("statsu", "Did you mean status?"), ("user", "Available: status, current_date.")):
        with pytest.raises(ValueError, match=f"{name} is not a column of the input. {hint}".replace("?", r"\?")):
            check_expression(f"{name} = 'x'", columns)


def test_qualify_for_pair_renames_columns_only():
    expression = "transform(a, x -> x + `b``c`) || a.b || timestampdiff(MINUTE, t, u) || CAST(s AS struct<v: int>).v"
    assert list_columns(expression) == ["a", "b`c", "t", "u", "s"]
    assert qualify_for_pair(expression, "left") == (
        "transform(`left_a`, x -> x + `left_b``c`) || `left_a`.b || timestampdiff(MINUTE, `left_t`, `left_u`) || "
        "CAST(`left_s` AS struct<v: int>).v"
    )
    assert list_columns("no expression ((") == []
