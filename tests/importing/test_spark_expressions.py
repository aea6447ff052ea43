"""Read expressions of Spark's plans as `toJSON` writes them, without Spark."""

import pytest

from tidemark.errors import ImportRefusedError
from tidemark.importing.expressions import Call, Column, Literal
from tidemark.importing.spark_expressions import parse_expression, parse_span, parse_tree, to_sql
from tidemark.importing.written_expressions import OutputColumn, write_column, write_select

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
        ((literal("NaN", "double"),), "CAST('NaN' AS DOUBLE)"),
        ((literal("-Infinity", "double"),), "CAST('-Infinity' AS DOUBLE)"),
        (
            (node("Cast", 1, dataType="timestamp", timeZoneId="Europe/Berlin"), attribute(1)),
            "CAST(left_v AS TIMESTAMP)",
        ),
        (
            (node("If", 3), node("IsNull", 1), attribute(3), literal("1", "integer"), literal("2", "integer")),
            "CASE WHEN (right_k IS NULL) THEN 1 ELSE 2 END",
        ),
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
        (
            (node("Cast", 1, dataType={"type": "struct", "fields": []}, timeZoneId="UTC"), attribute(1)),
            "has Cast, which is not translated",
        ),
        (
            (
                node("TimestampAddInterval", 2, timeZoneId="Europe/Berlin"),
                attribute(2),
                literal("604800000000", "interval day"),
            ),
            "has days in the time zone Europe/Berlin",
        ),
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


def add_interval(zone, *interval, operand=2):
    return read(node("TimestampAddInterval", 2, timeZoneId=zone), attribute(operand), *interval)


@pytest.mark.parametrize(
    ("zone", "interval", "depends_on_zone"),
    [
        ("UTC", [literal("604800000000", "interval day")], False),
        ("Europe/Berlin", [literal("86399999999", "interval day to second")], False),
        ("Europe/Berlin", [node("UnaryMinus", 1), literal("86400000000", "interval hour")], True),
        ("Europe/Berlin", [literal("48 hours", "interval")], False),
        ("Europe/Berlin", [literal("1 days -1 hours", "interval")], True),
        ("Europe/Berlin", [literal("1 months", "interval")], True),
        ("Europe/Berlin", [attribute(1)], True),
    ],
)
def test_parse_days_added_to_time_depends_on_zone(zone, interval, depends_on_zone):
    assert add_interval(zone, *interval).name.startswith("days in the time zone") == depends_on_zone


def test_parse_days_added_to_local_time_does_not_depend_on_zone(monkeypatch):
    monkeypatch.setitem(ATTRIBUTES, 4, Column(("local",), "timestamp_ntz", "right"))

    addition = add_interval("Europe/Berlin", literal("604800000000", "interval day"), operand=4)

    assert (addition.name, addition.dtype) == ("TimestampAddInterval", "timestamp_ntz")


@pytest.mark.parametrize("name", ["null", "true", "from", "values", "on", "case", "Not"])
def test_write_column_named_as_sql_word_quotes_it(name):
    assert write_column(Column((name, name), "string", "left"), has_side=False) == f"`{name}`.`{name}`"


@pytest.mark.parametrize("name", ["day", "timestamp", "date", "value", "user", "_x"])
def test_write_column_with_plain_name_does_not_quote_it(name):
    assert write_column(Column((name,), "string", "left"), has_side=False) == name


def test_write_select_with_reserved_or_equal_names_renames_them():
    columns = [
        OutputColumn(name, Column((name,), "string", side), "output")
        for name, side in (("_id", "left"), ("id", "left"), ("ID", "right"), ("__", "left"))
    ]

    select = write_select(columns, lambda column: write_column(column, has_side=True))

    assert {name: setting.value for name, setting in select.items()} == {
        "id_2": "left__id",
        "id": "left_id",
        "ID_3": "right_ID",
        "column": "left___",
    }


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
