"""What an expression may hold, as the file's own parser sees it; tests/spark/test_confined.py asks Spark's."""

import pytest

from tidemark.config.allowed_functions import WHY, ColumnsOf, catalogue
from tidemark.config.expressions import MOST_CHARACTERS, check_expression, columns_of, over_pair

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
    "rand() < 0.5": "rand() gives something else in each run",
    "`RAND`()": "rand() gives something else in each run",
    "now() > left_t": "now() tells the time of the run",
    "left_t > current_timestamp": "current_timestamp is no column of the join; columns are left_NAME and right_NAME",
    "transform(left_a, x -> current_date)": "current_date is no column of the join",
    "transform(left_a, x -> y)": "y is no column of the join",
    "unix_timestamp() - left_v": "unix_timestamp() tells the time of the run; take a column with a time",
    "TIMESTAMP 'now'": "'now' is no time that stays the same; write it as '2013-01-01 00:00:00'",
    "TIMESTAMP '\\156ow'": "is no time that stays the same",
    "TIMESTAMP_NTZ ' Tomorrow '": "is no time that stays the same",
    "CAST('today' AS date)": "'today' is no time that stays the same",
    "'yesterday'::timestamp": "'yesterday' is no time that stays the same",
    "user": "user is no column of the join",
    "version()": "version() tells of the session",
    "uuid()": "uuid() gives something else",
    "shuffle(left_a)": "shuffle() gives something else",
    "aes_encrypt(left_a, left_b)": "aes_encrypt() gives something else",
    "input_file_name()": "input_file_name() tells how Spark has cut its work",
    "monotonically_increasing_id()": "monotonically_increasing_id() tells how Spark has cut its work",
    "java_method('java.lang.System', 'getenv', 'HOME')": "java_method() calls Java; take a function of SQL",
    "reflect('java.lang.System', 'exit')": "reflect() calls Java",
    "try_reflect('java.lang.System', 'exit')": "try_reflect() calls Java",
    "raise_error(left_a)": "raise_error() stops the job with a row's values; write an expectation under quality",
    "xpath_string(left_a, '/a')": "xpath_string() can read files",
    "from_xml(left_a, 'a int', map('rowValidationXSDPath', '/x'))": "from_xml() can read files",
    "from_protobuf(left_a, 'm', '/etc/hostname')": "from_protobuf() can read files",
    "explode(left_a)": "explode() makes other rows of a row",
    "count(*)": "count() is over many rows",
    "max(left_a) OVER ()": "OVER is about many rows",
    "(SELECT max(value) FROM text.`/etc/hostname`)": "a subquery reads other tables; write what it gives as a table",
    "EXISTS (SELECT 1)": "a subquery reads other tables",
    "left_a IN (SELECT value FROM text.`/etc/hostname`)": "a subquery reads other tables",
    "SELECT 1": "is no SQL expression",
    "left_a; DROP TABLE x": "is no SQL expression",
    "left_v +": "is no SQL expression",
    "left_a = 'x": "is no SQL expression: a quote is open; close it",
    " ": "is empty; leave it out",
    "*": "* is other columns whenever a table has more; name them",
    "struct(left_a.*)": "* is other columns whenever a table has more",
    "1 AS x": "is no SQL expression, at AS",
    "struct(left_a AS x)": "AS names nothing here",
    ":p": "a parameter has no value here",
    "?": "a parameter has no value here",
    "@x": "a parameter has no value here",
    "mask(left_a, upperChar => 'x')": "arguments have no names here",
    "IDENTIFIER('rand')()": "is no SQL expression",
    "system.builtin.rand()": "system.builtin.rand() names a catalog or a schema",
    "default.mine(left_a)": "default.mine() names a catalog or a schema",
    "mine(left_a)": "mine() is none of Spark's own functions; did you mean",
    "_metadata.file_path": "_metadata is no column of the join",
    "other.left_v": "other is no column of the join",
    "left_a = '${env:HOME}'": "${...} would be taken from the session or the environment; write the value itself",
    "left_a -- = right_a": "comments and hints do not belong into an expression",
    "/*+ BROADCAST(x) */ left_a": "comments and hints do not belong into an expression",
    "left_a LIKE ANY ('a')": "any is no part of an expression here",
    "(" * 3000 + "1" + ")" * 3000: "is nested too deeply; split the expression",
    "'" + "x" * MOST_CHARACTERS + "'": "characters, and 10,000 are the most; split the expression",
}


@pytest.mark.parametrize("text", ALLOWED)
def test_what_a_pair_tells_of_itself_is_allowed(text):
    check_expression(text)


@pytest.mark.parametrize(("text", "told"), REFUSED.items(), ids=lambda part: part[:40])
def test_all_else_is_refused_in_one_line(text, told):
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - its text is compared
        check_expression(text)
    assert told in str(raised.value)
    assert "\n" not in str(raised.value)


WITH_WORDS = {
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
"""Functions of Spark's catalogue that have a syntax of their own."""
CALLS = {
    name: WITH_WORDS.get(name, f"{name}(left_v, right_v)" if name.isidentifier() else f"left_v {name} right_v")
    for name in catalogue()
} | {"!": "!left_v", "~": "~left_v", "not": "NOT left_v", ">>>": "shiftrightunsigned(left_v, 2)"}
CALLS |= {name: f"left_v {name} right_v" for name in ("and", "or", "like", "ilike", "rlike", "regexp")}
"""An expression with each function and operator of Spark."""


@pytest.mark.parametrize("name", CALLS)
def test_each_function_of_spark_is_allowed_or_refused_as_reviewed(name):
    why = catalogue()[name]
    if not why:
        check_expression(CALLS[name])
        return
    with pytest.raises(ValueError, match=rf"^{name}\(\) ") as raised:
        check_expression(CALLS[name])
    assert str(raised.value) == f"{name}() {WHY[why]}"


def test_every_function_has_been_reviewed():
    assert "unreviewed" not in catalogue().values()


OF_AN_INPUT = {
    "user = 'x' AND `order id` IS NOT NULL AND s.k > date('2024-01-01')": None,
    "current_date > day": "current_date tells the time or the user of the run; take a column, called otherwise",
    "rand() < 0.5": "rand() gives something else in each run",
    "max(v) > 1": "max() is over many rows",
    "v > (SELECT 1)": "a subquery reads other tables",
    "max(v) OVER ()": "OVER is about many rows",
    "v >": "is no SQL expression",
    "": "is empty",
}


@pytest.mark.parametrize("text", OF_AN_INPUT)
def test_what_is_over_an_input_is_confined_before_its_table_is_known(text):
    if OF_AN_INPUT[text] is None:
        check_expression(text, ColumnsOf())
        return
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - the text is compared
        check_expression(text, ColumnsOf())
    assert OF_AN_INPUT[text] in str(refused.value)


def test_a_table_says_which_columns_an_input_has():
    columns = ColumnsOf(("status", "current_date"))
    check_expression("STATUS = 'x' AND current_date IS NOT NULL", columns)
    for name, hint in (("statsu", "did you mean status?"), ("user", "it has status, current_date")):
        with pytest.raises(ValueError, match=f"{name} is no column of it; {hint}".replace("?", r"\?")):
            check_expression(f"{name} = 'x'", columns)


def test_an_expression_over_an_input_becomes_one_over_a_pair():
    text = "transform(a, x -> x + `b``c`) || a.b || timestampdiff(MINUTE, t, u) || CAST(s AS struct<v: int>).v"
    assert columns_of(text) == ["a", "b`c", "t", "u", "s"]
    assert over_pair(text, "left") == (
        "transform(`left_a`, x -> x + `left_b``c`) || `left_a`.b || timestampdiff(MINUTE, `left_t`, `left_u`) || "
        "CAST(`left_s` AS struct<v: int>).v"
    )
    assert columns_of("no expression ((") == []
