"""Model expressions of a query plan over the columns of its source tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Column:
    """A column of a source table, or a field of a struct column."""

    path: tuple[str, ...]
    """Column name, then names of fields."""
    dtype: str
    side: str = ""
    """Side of the join, in expressions over pairs; empty in expressions over one input."""


@dataclass(frozen=True)
class WindowColumn:
    """A column that a window function adds, such as window_start."""

    name: str
    side: str = ""


@dataclass(frozen=True)
class Literal:
    """A constant."""

    value: Any
    dtype: str


@dataclass(frozen=True)
class Interval:
    """A constant span of time."""

    ms: int


@dataclass(frozen=True)
class ValueRanges:
    """A set of values, as ranges."""

    ranges: tuple[tuple[tuple[Any, bool] | None, tuple[Any, bool] | None], ...]
    """Lower and upper bound of each range, each with True if it is inclusive; None for no bound."""
    dtype: str
    null_as: str
    """Result for null: UNKNOWN, TRUE or FALSE."""


@dataclass(frozen=True)
class Call:
    """An operator or function over expressions."""

    name: str
    """Name of the operator or function in the plan: `LOWER` in Flink's, `Lower` in Spark's."""
    operands: tuple[Expression, ...]
    dtype: str


Expression = Column | WindowColumn | Literal | Interval | ValueRanges | Call


def walk(expression: Expression) -> Iterator[Expression]:
    """Yield an expression and all expressions in it."""
    yield expression
    if isinstance(expression, Call):
        for operand in expression.operands:
            yield from walk(operand)


def transform_columns(expression: Expression, transform: Callable[[Column | WindowColumn], Expression]) -> Expression:
    """Replace the columns of an expression."""
    match expression:
        case Column() | WindowColumn():
            return transform(expression)
        case Call(operands=operands):
            return replace(expression, operands=tuple(transform_columns(operand, transform) for operand in operands))
    return expression


def list_conjuncts(expression: Expression | None) -> Iterator[Expression]:
    """Yield the parts of a condition that are combined by AND, or by Spark's And."""
    if isinstance(expression, Call) and expression.name.upper() == "AND":
        for operand in expression.operands:
            yield from list_conjuncts(operand)
    elif expression is not None:
        yield expression
