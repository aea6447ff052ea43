"""Explain Spark's errors about expressions, without Spark."""

import json
import re
from pathlib import Path
from string import Formatter
from types import SimpleNamespace
from zipfile import ZipFile

import pyspark
import pytest

from tidemark.spark.expression_errors import DERIVED_PARAMETERS, TEXTS, format_expression_error

PLAN = "SQLSTATE: 42K09; line 1 pos 0;\n'Project ['amonut]\n+- LocalRelation"


def create_error(condition, fragment, message="", **parameters):
    context = [SimpleNamespace(fragment=lambda: fragment)] if fragment else []

    class Error(Exception):
        """Error with the methods of Spark's."""

        getCondition = staticmethod(lambda: condition)  # noqa: N815 - Spark's name
        getMessageParameters = staticmethod(lambda: parameters)  # noqa: N815
        getQueryContext = staticmethod(lambda: context)  # noqa: N815

    return Error(f"[{condition}] {message} {PLAN}")


MISMATCH = "DATATYPE_MISMATCH"
TYPES = {"left": '"TIMESTAMP"', "right": '"INT"'}
ERRORS = {
    "there is no column left_amonut. Did you mean left_amount?": (
        ("UNRESOLVED_COLUMN.WITH_SUGGESTION", "left_amonut"),
        {"objectName": "`left_amonut`", "proposal": "`left_amount`, `left_k`"},
    ),
    "there is no column zzz. Similar names: left_amount, left_k.": (
        ("UNRESOLVED_COLUMN.WITH_SUGGESTION", "zzz"),
        {"objectName": "`zzz`", "proposal": "`left_amount`, `left_k`"},
    ),
    "there is no column zzz. Name a column of the rows.": (
        ("UNRESOLVED_COLUMN.WITHOUT_SUGGESTION", "zzz"),
        {"objectName": "`zzz`"},
    ),
    "the struct has no field citi. Did you mean city?": (
        ("FIELD_NOT_FOUND", "addr.citi"),
        {"fieldName": "`citi`", "fields": "`city`, `zip`"},
    ),
    "substring() takes 2 or 3 arguments, not 1. Correct the call.": (
        ("WRONG_NUM_ARGS.WITHOUT_SUGGESTION", "substring(k)"),
        {"functionName": "`substring`", "expectedNum": "[2, 3]", "actualNum": "1"},
    ),
    "k has type STRING, so it has no fields or elements. Use another column.": (
        ("INVALID_EXTRACT_BASE_FIELD_TYPE", None),
        {"base": '"k"', "other": '"STRING"'},
    ),
    "Spark cannot parse the SQL at 'foo', character 12. Correct the syntax.": (
        ("PARSE_SYNTAX_ERROR", None, "Syntax error (line 1, pos 11)"),
        {"error": "'foo'"},
    ),
    "Spark cannot parse the SQL at 'foo', character 1 of line 2. Correct the syntax.": (
        ("PARSE_SYNTAX_ERROR", None, "Syntax error (line 2, pos 0)"),
        {"error": "'foo'"},
    ),
    "amount has type INT, but a condition must be BOOLEAN. Write a comparison.": (
        (f"{MISMATCH}.FILTER_NOT_BOOLEAN", None),
        {"filter": '"amount"', "type": '"INT"'},
    ),
    "the first argument of upper(t) has type ARRAY<STRING>, but must be STRING. Cast it, or use another column.": (
        (f"{MISMATCH}.UNEXPECTED_INPUT_TYPE", "upper(t)"),
        {"paramIndex": "first", "inputType": '"ARRAY<STRING>"', "requiredType": '"STRING"'},
    ),
    "the two sides of at + 5 have types TIMESTAMP and INT, which do not fit. Cast one of them.": (
        (f"{MISMATCH}.BINARY_OP_DIFF_TYPES", "at + 5"),
        TYPES,
    ),
    "the two sides of (a AND b) have type INT, but must be BOOLEAN. Cast them, or use other columns.": (
        (f"{MISMATCH}.BINARY_OP_WRONG_TYPE", None),
        {"sqlExpr": '"(a AND b)"', "actualDataType": '"INT"', "inputType": '"BOOLEAN"'},
    ),
    "the values in coalesce(k, t) have different types: STRING and DECIMAL(10,2). Cast them to one type.": (
        (f"{MISMATCH}.DATA_DIFF_TYPES", "coalesce(k, t)"),
        {"dataType": '("STRING" or "DECIMAL(10,2)")'},
    ),
    "CAST(t AS INT): ARRAY cannot be cast to INT. Use another type or column.": (
        (f"{MISMATCH}.CAST_WITHOUT_SUGGESTION", "CAST(t AS INT)"),
        {"srcType": '"ARRAY"', "targetType": '"INT"'},
    ),
    "round(k, v): scale must be a constant, not v. Write the value itself.": (
        (f"{MISMATCH}.NON_FOLDABLE_INPUT", "round(k, v)"),
        {"inputName": "`scale`", "inputExpr": '"v"'},
    ),
    "Its key is no INT.": (
        (
            f"{MISMATCH}.MAP_FUNCTION_DIFF_TYPES",
            "element_at(m, 3)",
            "Due to data type mismatch: Its key is no INT.",
        ),
        {},
    ),
    "A column with name k cannot be resolved.": (  # Spark Connect may send no parameters
        ("UNRESOLVED_COLUMN.WITHOUT_SUGGESTION", None, "A column with name k cannot be resolved."),
        {},
    ),
    "Input to coalesce should be the same type.": (
        (f"{MISMATCH}.DATA_DIFF_TYPES", None, "Due to data type mismatch: Input to coalesce should be the same type."),
        {},
    ),
    "Something else is wrong.": (("SOMETHING.ELSE", None, "Something else is wrong."), {}),
}


@pytest.mark.parametrize("text", ERRORS)
def test_error_of_an_expression_is_explained(text):
    arguments, parameters = ERRORS[text]

    assert format_expression_error(create_error(*arguments, **parameters)) == text


@pytest.fixture(scope="module")
def spark_conditions():
    """Return the error conditions of the installed Spark."""
    [jar] = (Path(pyspark.__file__).parent / "jars").glob("spark-common-utils_*.jar")
    with ZipFile(jar) as archive:
        return json.loads(archive.read("error/error-conditions.json"))


@pytest.mark.parametrize("name", TEXTS)
def test_text_has_only_parameters_of_sparks_message(spark_conditions, name):
    """Parameters of a message are those of the condition and its parent."""
    mismatch = spark_conditions[MISMATCH]
    conditions = [spark_conditions[name]] if name in spark_conditions else [mismatch, mismatch["subClass"][name]]
    messages = "".join(line for condition in conditions for line in condition["message"])

    names = {field for _, field, _, _ in Formatter().parse(TEXTS[name]) if field}

    assert names <= DERIVED_PARAMETERS.union(re.findall("<(\\w+)>", messages))
