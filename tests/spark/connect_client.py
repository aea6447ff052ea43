"""Execute requests on a Spark Connect server: JSON on stdin, a JSON response as the last line of stdout."""

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


def run_command(arguments):
    """Run a command; return its exit code and its output."""
    output = io.StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        code = main(arguments)
    return [code, output.getvalue()]


def get_refusal(expression):
    """Return why Spark's own parse of an expression is refused, None if it is allowed."""
    try:
        explain_parser.check_function_calls(_explain_expression(get_spark_session("client"), expression))
    except (AnalysisException, ValueError) as error:
        return str(error)
    return None


def is_column(expression):
    """True if an expression is allowed."""
    try:
        return parse_user_expression(get_spark_session("client"), expression).column is not None
    except (TidemarkError, AnalysisException):
        return False


def parse_conjuncts(request):
    """Return the conjuncts of a pair of a condition and a schema."""
    expression, schema = request
    spark = get_spark_session("client")
    empty = get_engine(spark).create_empty_dataframe(StructType.fromJson(schema))
    return list_conjuncts(empty, parse_user_expression(spark, expression))


def list_conjuncts(empty, parsed):
    """Return each conjunct of a condition as lists of its parts."""
    conjuncts = (_Conjunct.analyze(empty, part) for part in parsed.split_conjuncts())
    return [
        [
            sorted(part)
            for part in (conjunct.sides, *conjunct.names.values(), *conjunct.required.values(), conjunct.floors)
        ]
        for conjunct in conjuncts
    ]


def is_nondeterministic(request):
    """True if the expression of a pair of an expression and a schema depends on the run."""
    expression, schema = request
    engine = get_engine(get_spark_session("client"))
    return engine.is_nondeterministic(engine.create_empty_dataframe(StructType.fromJson(schema)).selectExpr(expression))


if __name__ == "__main__":
    functions = {
        "commands": run_command,
        "refusals": get_refusal,
        "columns": is_column,
        "conjuncts": parse_conjuncts,
        "nondeterministic": is_nondeterministic,
    }
    response = {name: [functions[name](item) for item in items] for name, items in json.load(sys.stdin).items()}
    response["java"] = "py4j.java_gateway" in sys.modules and bool(
        sys.modules["pyspark"].SparkContext._gateway or sys.modules["pyspark"].SparkContext._jvm
    )
    response["great_expectations"] = "great_expectations" in sys.modules
    sys.stdout.write(f"\n{json.dumps(response)}\n")
