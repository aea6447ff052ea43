"""What Spark's own parser makes of a user's expression, held to what an expression may have."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from pyspark.sql import SparkSession

from tidemark.config.allowed_functions import ColumnCheck, check_column, check_function, split_words
from tidemark.spark.jvm import Expression, ExpressionNode
from tidemark.spark.temporary_settings import override_settings

_ALLOWED_OPERATORS = split_words(
    """
    Add And BitwiseAnd BitwiseNot BitwiseOr BitwiseXor CaseWhen Cast Concat CreateNamedStruct Divide EqualNullSafe
    EqualTo GreaterThan GreaterThanOrEqual ILike If In IntegralDivide IsNotNull IsNotUnknown IsNull IsUnknown LessThan
    LessThanOrEqual Like Literal Multiply NamePlaceholder$ Not Or Overlay RLike Remainder ShiftLeft ShiftRight
    ShiftRightUnsigned StringLocate StringTrim StringTrimLeft StringTrimRight Substring Subtract TimestampAdd
    TimestampDiff UnaryMinus UnaryPositive UnresolvedExtractValue
    """
)
"""What Spark calls that which may stand in an expression, beside names and calls."""


RELATIVE_TIME_MESSAGE = "{!r} has no time that stays the same; write it as '2013-01-01 00:00:00'"
EASTERNMOST_ZONE, WESTERNMOST_ZONE, _ZONE_DIFFERENCE = "+14:00", "-12:00", timedelta(hours=26)
"""Time zones in which it is never the same day."""


def check_tree(spark: SparkSession, text: str, parsed: Expression, columns: ColumnCheck = check_column) -> None:
    """See that a parsed expression has only what it may have, and the same in every run.

    Raises:
        ValueError: says what it may not hold.
    """
    tree = parsed.to_tree()
    _check_node(tree, frozenset(), columns)
    if any(_find_time_literals(tree)):
        trees = []
        for zone in (EASTERNMOST_ZONE, WESTERNMOST_ZONE):
            with override_settings(spark, {"spark.sql.session.timeZone": zone}):
                trees.append(Expression.parse(spark, text).to_tree())
        for ahead, behind in zip(*map(_find_time_literals, trees), strict=True):
            if ahead != behind and not is_same_instant(ahead, behind):
                raise ValueError(RELATIVE_TIME_MESSAGE.format(text))


def _find_time_literals(node: ExpressionNode) -> Iterator[str]:
    """The dates and times of a tree, of which Spark's parser has made literals: of TIMESTAMP 'now' too."""
    if node.time_literal is not None:
        yield node.time_literal
    for child in node.children:
        yield from _find_time_literals(child)


def is_same_instant(ahead: str, behind: str) -> bool:
    """Whether two texts, each in its zone, stand for the instant that a literal with a zone of its own names.

    That of the run has gone on between them, and where it is a day, it is another day.
    """
    try:
        return datetime.fromisoformat(ahead) - datetime.fromisoformat(behind) == _ZONE_DIFFERENCE
    except ValueError:  # beyond the years 1 to 9999, or a number of microseconds
        return False


def _check_node(node: ExpressionNode, bound: frozenset[str], columns: ColumnCheck) -> None:
    """`bound` are the names of the parameters of the lambdas around a node."""
    match node.class_name:
        case "UnresolvedFunction":
            check_function(node.name_parts)
        case "UnresolvedAttribute" | "UnresolvedNamedLambdaVariable":
            if node.name_parts[0].lower() not in bound:
                columns(node.name_parts[0])
        case "LambdaFunction":
            bound |= {parameter.name_parts[0].lower() for parameter in node.children[1:]}
        case kind if kind not in _ALLOWED_OPERATORS:
            raise ValueError(f"{kind} is no part of an expression here; take columns, literals, operators, functions")
    for child in node.children:
        _check_node(child, bound, columns)
