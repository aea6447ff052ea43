"""Read expressions of Spark's plans as `toJSON` writes them, without Spark."""

import pytest

from tidemark.errors import ImportRefusedError
from tidemark.importing.expressions import Call, Column, Literal
from tidemark.importing.spark_expressions import parse_expression, parse_span, parse_tree, to_sql

ATTRIBUTES = {
    1: Column(("v",), "integer", "left"),
    2: Column(("ts",), "timestamp", "right"),
    3: Column(("k",), "string", "right"),
}
PACKAGE = "org.apache.spark.sql.catalyst.expressions."


def node(kind, children=0, **fields):
    return {"class": f"{PACKAGE}{kind}", "num-children": children, **fields}


def attribute(number):
    return node("AttributeReference", name="a", exprId={"id": number})


def literal(value, dtype):
    return node("Literal", value=value, dataType=dtype)


def read(*nodes):
    return parse_expression(parse_tree(nodes), ATTRIBUTES)


@pytest.mark.parametrize(
    ("nodes", "sql"),
    [
        (
            (node("GreaterThan", 2), attribute(1), node("Cast", 1, dataType="integer"), literal("3", "short")),
            "left_v > 3",
        ),
        ((node("Not", 1), node("EqualTo", 2), attribute(3), literal("it's", "string")), r"right_k <> 'it\'s'"),
        ((node("In", 3), attribute(1), literal("1", "integer"), literal("2", "integer")), "left_v IN (1, 2)"),
        (
            (
                node(
                    "Between", 1, input=[attribute(1)], lower=[literal("1", "integer")], upper=[literal("2", "integer")]
                ),
                node("With", 0),
            ),
            "(left_v >= 1) AND (left_v <= 2)",
        ),
        (
            (node("CaseWhen", 3), node("IsNull", 1), attribute(3), literal("1", "integer"), literal(None, "integer")),
            "CASE WHEN (right_k IS NULL) THEN 1 ELSE CAST(NULL AS INT) END",
        ),
        (
            (node("Lower", 1), node("Cast", 1, dataType="string", timeZoneId="UTC"), attribute(2)),
            "lower(CAST(right_ts AS STRING))",
        ),
        ((node("EqualTo", 2), literal("1.5", "double"), literal("true", "boolean")), "1.5E0 = true"),
    ],
)
def test_expression_is_written_as_sql(nodes, sql):
    assert to_sql(read(*nodes)) == sql


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ((node("Rand", 1), literal("1", "long")), "has Rand"),
        ((node("Cast", 1, dataType="string", timeZoneId="Europe/Berlin"), attribute(2)), "time zone Europe/Berlin"),
        ((node("Cast", 1, dataType="date", timeZoneId="Europe/Berlin"), attribute(3)), "time zone Europe/Berlin"),
        ((node("PythonUDF", 1), attribute(1)), "has PythonUDF"),
        ((node("Cast", 1, dataType="integer", evalMode="TRY"), attribute(3)), "has try_cast"),
        ((node("TryAdd", 1, replacement=0), node("Add", 2), attribute(1), literal("1", "integer")), "has TryAdd"),
        ((attribute(9),), "has attribute a"),
        ((literal("2024-01-01", "date"),), "a constant of type date"),
        ((node("Like", 2), attribute(3), literal("10\\%", "string")), "has Like"),
    ],
)
def test_expression_that_is_not_known_is_refused(nodes, reason):
    with pytest.raises(ImportRefusedError, match=reason):
        to_sql(read(*nodes))


@pytest.mark.parametrize(
    ("expression", "micros"),
    [
        (Literal("3600000000", "interval hour"), 3_600_000_000),
        (Literal("1 days 2 hours -0.5 seconds", "interval"), 93_599_500_000),
        (Call("UnaryMinus", (Literal("1000", "interval second"),), ""), -1000),
        (Literal("1 months", "interval"), None),
        (Literal("3", "interval month"), None),
        (Literal("3", "integer"), None),
    ],
)
def test_constant_interval_has_its_microseconds(expression, micros):
    assert parse_span(expression) == micros
