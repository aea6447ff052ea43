"""Write expressions of Flink's plans as SQL that Spark evaluates in the same way."""

import pytest
import yaml

from tidemark.config.allowed_functions import InputColumns
from tidemark.config.expressions import check_expression
from tidemark.errors import ImportRefusedError
from tidemark.importing.draft import Draft, Setting
from tidemark.importing.expressions import Call, Column, Interval, Literal, ValueRanges, WindowColumn
from tidemark.importing.flink_expression_sql import to_sql
from tidemark.importing.pipeline_writer import format_pipeline_file

INT, BIG, D, F, DC = (
    Column((name,), dtype)
    for name, dtype in (("i", "INT"), ("b", "BIGINT"), ("d", "DOUBLE"), ("f", "FLOAT"), ("dc", "DECIMAL(10, 2)"))
)
K, C, OK = Column(("k",), "VARCHAR(2147483647)"), Column(("c",), "CHAR(3)"), Column(("ok",), "BOOLEAN")
DAY, TIME = Column(("day",), "DATE"), Column(("t",), "TIMESTAMP(3)")
ONE, TEXT = Literal(1, "INT"), Literal("it's \\", "CHAR(6)")


def call(name, *operands, dtype="BOOLEAN"):
    return Call(name, operands, dtype)


def search(operand, *ranges, null_as="UNKNOWN"):
    return call("SEARCH", operand, ValueRanges(ranges, operand.dtype, null_as))


def point(value):
    return ((value, True), (value, True))


@pytest.mark.parametrize(
    ("expression", "sql"),
    [
        (call("AND", call(">", INT, ONE), call("OR", OK, call("NOT", OK))), "(i > 1) AND (ok OR (NOT ok))"),
        (call("=", K, TEXT), r"k = 'it\'s \\'"),
        (call("<", INT, DC), "i < dc"),
        (call("<", D, BIG), "d < b"),
        (call(">=", F, Literal("1.5", "DECIMAL(2, 1)")), "f >= 1.5"),
        (call("=", D, Literal("1.0E300", "DOUBLE")), "d = 1e+300"),
        (call("=", D, Literal(2, "DOUBLE")), "d = 2.0E0"),
        (call("=", call("+", INT, ONE, dtype="INT"), BIG), "(i + 1) = b"),
        (call("=", call("MOD", INT, ONE, dtype="INT"), ONE), "(i % 1) = 1"),
        (call("=", call("CAST", INT, dtype="BIGINT"), BIG), "CAST(i AS BIGINT) = b"),
        (call("=", call("CAST", K, dtype="VARCHAR(2147483647)"), K), "k = k"),
        (call("CAST", TIME, dtype="TIMESTAMP(6)"), "t"),
        (call("=", call("CAST", BIG, dtype="VARCHAR(2147483647)"), K), "CAST(b AS STRING) = k"),
        (call("<", call("CAST", INT, dtype="DOUBLE"), D), "CAST(i AS DOUBLE) < d"),
        (call(">", call("-", INT, dtype="INT"), ONE), "(-i) > 1"),
        (call(">", call("-", Literal(-5, "INT"), dtype="INT"), INT), "(-(-5)) > i"),
        (call("<", D, call("-", Literal("-1.5", "DOUBLE"), dtype="DOUBLE")), "d < (-(-1.5E0))"),
        (
            call("=", call("CASE", OK, INT, call(">", INT, ONE), ONE, Literal(None, "INT"), dtype="INT"), ONE),
            "CASE WHEN ok THEN i WHEN (i > 1) THEN 1 ELSE CAST(NULL AS INT) END = 1",
        ),
        (call("CASE", OK, INT, BIG, dtype="BIGINT"), "CASE WHEN ok THEN CAST(i AS BIGINT) ELSE b END"),
        (call("CASE", OK, ONE, D, dtype="DOUBLE"), "CASE WHEN ok THEN CAST(1 AS DOUBLE) ELSE d END"),
        (
            call("CASE", OK, Literal("a", "CHAR(1)"), K, dtype="VARCHAR(2147483647)"),
            "CASE WHEN ok THEN 'a' ELSE k END",
        ),
        (call("CAST", INT, dtype="INTEGER"), "i"),
        (call("CAST", Column(("a",), "ARRAY<INT>"), dtype="ARRAY<INT>"), "a"),
        (call("LIKE", K, Literal("a_%", "CHAR(3)")), "k LIKE 'a_%'"),
        (call("IS NOT TRUE", call("=", INT, ONE)), "(i = 1) IS NOT TRUE"),
        (call("=", call("||", K, K, dtype="VARCHAR(10)"), K), "(k || k) = k"),
        (call(">", DAY, Literal("2024-01-31", "DATE")), "day > DATE '2024-01-31'"),
        (call(">", TIME, Literal("2024-01-31 00:00:00", "TIMESTAMP(0)")), "t > TIMESTAMP_NTZ '2024-01-31 00:00:00'"),
        (search(INT, point(1), point(2)), "i IN (1, 2)"),
        (search(INT, (None, (1, False)), ((1, False), None)), "i NOT IN (1)"),
        (search(INT, ((1, True), (5, False))), "i >= 1 AND i < 5"),
        (search(INT, (None, (1, True)), point(3)), "i <= 1 OR i = 3"),
        (search(INT, (None, (1, True)), ((1, False), None)), "i <= 1 OR i > 1"),
        (search(INT, ((1, True), (5, False)), ((7, False), None)), "(i >= 1 AND i < 5) OR i > 7"),
        (search(INT, point(1), null_as="TRUE"), "i IN (1) OR i IS NULL"),
        (search(INT, (None, (1, True)), point(3), null_as="FALSE"), "(i <= 1 OR i = 3) AND i IS NOT NULL"),
        (Literal(None, "VARCHAR(5)"), "CAST(NULL AS STRING)"),
        (Column(("r", "a b"), "INT", "left"), "left_r.`a b`"),
        (call("=", INT, Column(("select x",), "INT")), "i = `select x`"),
    ],
)
def test_expression_that_both_engines_evaluate_equally_is_written(expression, sql):
    assert to_sql(expression) == sql
    check_expression(sql, InputColumns())


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        (call("/", INT, ONE, dtype="INT"), "calls /"),
        (call("=", call("+", INT, DC, dtype="DECIMAL(13, 2)"), ONE), r"calls \+"),
        (call("=", call("+", INT, Column(("s",), "SMALLINT"), dtype="INT"), ONE), r"calls \+"),
        (call("-", TIME, Interval(1000), dtype="TIMESTAMP(3)"), "calls -"),
        (call("=", C, TEXT), "CHAR column"),
        (call("=", call("CAST", C, dtype="VARCHAR(3)"), TEXT), "CHAR column"),
        (call("=", F, INT), "compares FLOAT with INTEGER"),
        (call("=", TIME, Column(("l",), "TIMESTAMP(3) WITH LOCAL TIME ZONE")), "compares TIMESTAMP with TIMESTAMP_LTZ"),
        (call("CAST", K, dtype="INT"), "casts VARCHAR"),
        (call("CAST", Literal("a", "CHAR(1)"), dtype="CHAR(3)"), r"casts CHAR\(1\)"),
        (call("CAST", INT, dtype="VARCHAR(3)"), "casts INT"),
        (call("CAST", BIG, dtype="FLOAT"), "casts BIGINT"),
        (call("-", DC, dtype="DECIMAL(10, 2)"), "calls -"),
        (call("CASE", OK, INT, BIG, dtype="INT"), "has CASE with BIGINT as INT, which engines may convert"),
        (call("CASE", OK, INT, K, dtype="VARCHAR(2147483647)"), "has CASE with INT as VARCHAR"),
        (call("CASE", OK, C, K, dtype="VARCHAR(2147483647)"), "has a CHAR column, which Spark pads"),
        (call("CASE", OK, INT, dtype="INT"), "calls CASE"),
        (call("CAST", K, dtype="VARCHAR(3)"), "casts VARCHAR"),
        (call("CAST", D, dtype="INT"), "casts DOUBLE"),
        (call("CAST", Column(("t6",), "TIMESTAMP(6)"), dtype="TIMESTAMP(3)"), r"casts TIMESTAMP\(6\)"),
        (call("CAST", Column(("a",), "ARRAY<INT>"), dtype="ARRAY<VARCHAR(9)>"), "casts ARRAY"),
        (call("CAST", Column(("b",), "VARBINARY(100)"), dtype="VARBINARY(5)"), "casts VARBINARY"),
        (call("CAST", BIG, dtype="INT"), "casts BIGINT"),
        (call("LIKE", K, Literal(r"10\%", "CHAR(4)")), "calls LIKE"),
        (call("REVERSE", K), "calls REVERSE"),
        (call("ITEM", K, ONE), "calls ITEM"),
        (WindowColumn("window_start"), "reads window_start"),
        (Literal("12:00:00", "TIME(0)"), "constant of type TIME"),
        (search(INT, (None, None)), "a set of all values"),
    ],
)
def test_expression_that_may_differ_is_refused(expression, reason):
    with pytest.raises(ImportRefusedError, match=reason):
        to_sql(expression)


@pytest.mark.parametrize(
    "value", ["k = 'a\nb'", "# no comment: yes", "on", "'", {"a": ["x: y", "# z"]}, "ä\u2028b", "TODO"]
)
def test_written_values_are_read_back(value):
    text = format_pipeline_file(Draft("a\nb", {"a b": Setting(value, "from\n# here"), "n": {"x": Setting(1, "")}}), "s")

    assert yaml.safe_load(text) == {"a b": value, "n": {"x": 1}}
