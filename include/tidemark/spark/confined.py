"""SQL that a pipeline file holds, confined a second time: by what Spark's own parser makes of it.

Where the parser of `settings.expressions` reads a text in another way, this is what Spark would run. What leaves no
trace in Spark's reading, such as comments and TIMESTAMP 'now', is known to that one alone, so both are asked.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from tidemark.errors import PipelineFileError
from tidemark.settings.expressions import check_expression
from tidemark.settings.functions import check_column, check_function, words
from tidemark.spark.jvm import Expression, Node

_OPERATORS = words(
    """
    Add And BitwiseAnd BitwiseNot BitwiseOr BitwiseXor CaseWhen Cast Concat CreateNamedStruct Divide EqualNullSafe
    EqualTo GreaterThan GreaterThanOrEqual ILike If In IntegralDivide IsNotNull IsNotUnknown IsNull IsUnknown LessThan
    LessThanOrEqual Like Literal Multiply NamePlaceholder$ Not Or Overlay RLike Remainder ShiftLeft ShiftRight
    ShiftRightUnsigned StringLocate StringTrim StringTrimLeft StringTrimRight Substring Subtract TimestampAdd
    TimestampDiff UnaryMinus UnaryPositive UnresolvedExtractValue
    """
)
"""What Spark calls that which may stand in an expression, beside names and calls."""


def confined(spark: SparkSession, text: str) -> Expression:
    """Parse a user's expression, as Spark will run it.

    Raises:
        ParseException: it is none to Spark.
        PipelineFileError: it has something that an expression may not have.
    """
    try:
        check_expression(text)
        parsed = Expression.parse(spark, text)
        _check(parsed.tree(), frozenset())
    except ValueError as error:
        raise PipelineFileError(f"expression {text!r}: {error}") from None
    return parsed


def _check(node: Node, bound: frozenset[str]) -> None:
    """`bound` are the names of the parameters of the lambdas around a node."""
    match node.kind:
        case "UnresolvedFunction":
            check_function(node.names)
        case "UnresolvedAttribute" | "UnresolvedNamedLambdaVariable":
            if node.names[0].lower() not in bound:
                check_column(node.names[0])
        case "LambdaFunction":
            bound |= {parameter.names[0].lower() for parameter in node.children[1:]}
        case kind if kind not in _OPERATORS:
            raise ValueError(f"{kind} is no part of an expression here; take columns, literals, operators, functions")
    for child in node.children:
        _check(child, bound)
