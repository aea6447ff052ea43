"""A client of a Spark Connect server: does what it is asked in JSON on stdin, and answers in JSON in its last line."""

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout

from pyspark.errors import AnalysisException
from pyspark.sql.types import StructType

from tidemark.cli import main
from tidemark.errors import TidemarkError
from tidemark.joins.condition import _Conjunct
from tidemark.spark import explain_parser
from tidemark.spark.connect_engine import _explain_expression
from tidemark.spark.engine import get_engine
from tidemark.spark.expression_sandbox import parse_user_expression
from tidemark.spark.session import get_spark_session


def command(arguments):
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        code = main(arguments)
    return [code, said.getvalue()]


def refused(text):
    """What Spark's own parse is refused for, None if it is allowed."""
    try:
        explain_parser.check_parsed(_explain_expression(get_spark_session("client"), text))
    except (AnalysisException, ValueError) as error:
        return str(error)
    return None


def column(text):
    try:
        return parse_user_expression(get_spark_session("client"), text).column is not None
    except (TidemarkError, AnalysisException):
        return False


def conjuncts(asked):
    text, schema = asked
    spark = get_spark_session("client")
    empty = get_engine(spark).create_opaque_empty(StructType.fromJson(schema))
    return told(empty, parse_user_expression(spark, text))


def told(empty, parsed):
    """What a condition comes to, conjunct by conjunct."""
    found = (_Conjunct.analyze(empty, part) for part in parsed.split_conjuncts())
    return [
        [sorted(part) for part in (one.sides, *one.names.values(), *one.required.values(), one.floors)] for one in found
    ]


def moving(asked):
    text, schema = asked
    engine = get_engine(get_spark_session("client"))
    return engine.is_nondeterministic(engine.create_opaque_empty(StructType.fromJson(schema)).selectExpr(text))


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    known = {"commands": command, "refused": refused, "columns": column, "conjuncts": conjuncts, "moving": moving}
    answer = {name: [known[name](one) for one in each] for name, each in asked.items()}
    answer["java"] = "py4j.java_gateway" in sys.modules and bool(
        sys.modules["pyspark"].SparkContext._gateway or sys.modules["pyspark"].SparkContext._jvm
    )
    answer["library"] = "great_expectations" in sys.modules
    sys.stdout.write(f"\n{json.dumps(answer)}\n")
