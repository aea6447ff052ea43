"""Check that the tree of a user's expression, as parsed by Spark, contains allowed parts only."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from pyspark.sql import SparkSession

from tidemark.config.allowed_functions import ColumnCheck, check_column, check_function, split_words
from tidemark.spark.jvm import Expression, ExpressionNode, separate_session

_ALLOWED_OPERATORS = split_words(
    """
    Add And BitwiseAnd BitwiseNot BitwiseOr BitwiseXor CaseWhen Cast Concat CreateNamedStruct Divide EqualNullSafe
    EqualTo GreaterThan GreaterThanOrEqual ILike If In IntegralDivide IsNotNull IsNotUnknown IsNull IsUnknown LessThan
    LessThanOrEqual Like Literal Multiply NamePlaceholder$ Not Or Overlay RLike Remainder ShiftLeft ShiftRight
    ShiftRightUnsigned StringLocate StringTrim StringTrimLeft StringTrimRight Substring Subtract TimestampAdd
    TimestampDiff UnaryMinus UnaryPositive UnresolvedExtractValue
    """
)
"""Spark's class names of the allowed tree nodes, apart from column names, function calls and lambdas."""

RELATIVE_TIME_MESSAGE = "{!r} contains a relative time. Write it as '2013-01-01 00:00:00'."
EASTERNMOST_ZONE, WESTERNMOST_ZONE, _ZONE_DIFFERENCE = "+14:00", "-12:00", timedelta(hours=26)
"""Two time zones that never have the same date."""


def check_tree(
    spark: SparkSession, expression: str, parsed: Expression, column_check: ColumnCheck = check_column
) -> None:
    """Check that a parsed expression contains allowed parts only, and no times relative to the run, such as 'now'.

    Raises:
        ValueError: A part is not allowed. The message names it.
    """
    tree = parsed.to_tree()
    _check_node(tree, frozenset(), column_check)
    if any(_find_time_literals(tree)):
        trees = []
        for zone in (EASTERNMOST_ZONE, WESTERNMOST_ZONE):
            with separate_session(spark, {"spark.sql.session.timeZone": zone}) as session:
                trees.append(Expression.parse(session, expression).to_tree())
        for eastern, western in zip(*map(_find_time_literals, trees), strict=True):
            if eastern != western and not is_same_instant(eastern, western):
                raise ValueError(RELATIVE_TIME_MESSAGE.format(expression))


def _find_time_literals(node: ExpressionNode) -> Iterator[str]:
    """Yield all date and time literals, including those like TIMESTAMP 'now' that the parser has evaluated."""
    if node.time_literal is not None:
        yield node.time_literal
    for child in node.children:
        yield from _find_time_literals(child)


def is_same_instant(eastern: str, western: str) -> bool:
    """Return True if two local times, one per zone, are the same instant, as of a literal with its own time zone.

    False for a relative time such as 'now', which is evaluated at another instant for each zone, and for a relative day
    such as 'today', for which the local times differ by whole days.
    """
    try:
        return datetime.fromisoformat(eastern) - datetime.fromisoformat(western) == _ZONE_DIFFERENCE
    except ValueError:  # outside of the years 1 to 9999, or a number of microseconds
        return False


def _check_node(node: ExpressionNode, parameters: frozenset[str], column_check: ColumnCheck) -> None:
    """Check a node and its children; `parameters` are those of the enclosing lambdas, in lower case."""
    match node.class_name:
        case "UnresolvedFunction":
            check_function(node.name_parts)
        case "UnresolvedAttribute" | "UnresolvedNamedLambdaVariable":
            if node.name_parts[0].lower() not in parameters:
                column_check(node.name_parts[0])
        case "LambdaFunction":
            parameters |= {parameter.name_parts[0].lower() for parameter in node.children[1:]}
        case name if name not in _ALLOWED_OPERATORS:
            raise ValueError(f"{name} is not allowed in an expression. Use columns, literals, operators and functions.")
    for child in node.children:
        _check_node(child, parameters, column_check)
