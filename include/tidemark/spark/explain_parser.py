"""Parse the output of EXPLAIN, the only view that Spark Connect gives of Spark's plans.

EXPLAIN prints string literals without quotes, so they can look like anything. Each pattern therefore requires a mark
that no literal contains by accident: the `'` before an unresolved name, or a column with its expression ID (`a#12`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pyspark.sql import types as T

from tidemark.config.allowed_functions import check_function, load_catalogue
from tidemark.spark.engine_protocol import AnalyzedFilter, NumericComparison
from tidemark.spark.expression_tree import is_same_instant

MISSING_COLUMN = "no such column"
"""Name that no column has. A SELECT that contains it fails in analysis, so it is parsed but never evaluated."""
_PARSED_PLAN = re.compile(
    rf"\A== Parsed Logical Plan ==\n'Project \['{MISSING_COLUMN}, (.*?)\]\n\+- OneRowRelation\n\n== Analyzed", re.DOTALL
)
_NAME = r"(?:\w+|`[^`]*`)"
_UNRESOLVED_CALL = re.compile(rf"'({_NAME}(?:\.{_NAME})*)\(")
_UNRESOLVED_NAME = re.compile(r"'(\w+)")
_PLAN_HEADING = re.compile(r"(?:\n*|\A)== (?:Parsed Logical|Analyzed Logical|Optimized Logical|Physical) Plan ==\n")
_FILTER_NODE = re.compile(r"^Filter (.*?)\n\+- MapInArrow [^\n]*? \[([^\n]*)\], false", re.DOTALL | re.MULTILINE)
"""Filter over `ConnectEngine.create_empty_dataframe`. Groups: condition, columns of the DataFrame."""
_NUMBER = re.compile(r"-?\d+(\.\d+)?(E-?\d+)?")
_SWAPPED_OPERATORS = str.maketrans("<>", "><")
_EXPRESSION_ID = re.compile(r"#\d+L?")
_TIME_LITERAL = re.compile(r"[+-]?\d{4,}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d(?:\.\d+)?)?)?")


def extract_parsed_expression(explanation: str) -> str:
    """Return the parsed form of an expression from the EXPLAIN of `SELECT MISSING_COLUMN, expression`.

    Raises:
        ValueError: Spark has not parsed a single expression.
    """
    match = _PARSED_PLAN.search(explanation)
    projection = expression = match[1] if match else ""
    if projection.startswith("unresolvedalias("):
        expression = projection.removeprefix("unresolvedalias(").removesuffix(")")
    has_subquery, has_alias = "\n:  +- " in projection, re.search(r" AS \S+#\d+\Z", projection)
    if not expression or has_subquery or has_alias or ", unresolvedalias(" in projection:
        raise ValueError("is not a single expression. Use columns, literals, operators and functions.")
    return expression


def check_function_calls(parsed_plan: str) -> None:
    """Check that a parsed plan calls allowed functions only.

    Raises:
        ValueError: A function is unknown or refused. The message has reason and remedy.
    """
    for call in _UNRESOLVED_CALL.findall(parsed_plan):
        check_function([part.strip("`") for part in re.findall(_NAME, call)])
    for name in _UNRESOLVED_NAME.findall(parsed_plan):
        if load_catalogue().get(name.lower()):  # a call without parentheses, such as current_date
            check_function([name])


def is_zone_independent(eastern: str, western: str) -> bool:
    """Return True if plans for the two outermost time zones differ only in the local times of equal instants."""
    plans = [_EXPRESSION_ID.sub("", plan) for plan in (eastern, western)]
    if len({_TIME_LITERAL.sub("", plan) for plan in plans}) > 1:
        return False
    times = zip(*(_TIME_LITERAL.findall(plan) for plan in plans), strict=True)
    return all(east == west or is_same_instant(east, west) for east, west in times)


def extract_optimized_plan(explanation: str) -> str:
    """Return the optimized plan from the output of EXPLAIN EXTENDED."""
    return _PLAN_HEADING.split(explanation)[3]


def parse_filter(explanation: str, schema: T.StructType) -> AnalyzedFilter:
    """Parse the EXPLAIN EXTENDED output of a filter over `ConnectEngine.create_empty_dataframe(schema)`.

    Raises:
        ValueError: A literal cannot be distinguished from the rest of the condition.
    """
    _, _, analyzed_plan, optimized_plan, *_ = _PLAN_HEADING.split(explanation)
    analyzed = _FILTER_NODE.search(analyzed_plan)
    assert analyzed, "a filter over an opaque empty DataFrame"
    columns = [column for column in _parse_columns(analyzed[2], schema) if column.is_in(analyzed[1])]
    names = [column.name for column in columns]
    if (optimized := _FILTER_NODE.match(optimized_plan)) is None:  # it is always true or always false
        return AnalyzedFilter(names, [], [])
    conjuncts = list(_split_conjuncts(optimized[1]))
    not_null = [conjunct for conjunct in conjuncts if conjunct.startswith("isnotnull(")]
    return AnalyzedFilter(
        names,
        [column.name for conjunct in not_null for column in columns if column.is_in(conjunct)],
        [result for conjunct in conjuncts for column in columns for result in column.parse_comparisons(conjunct)],
    )


class _PlanColumn:
    """A column in a printed plan, where it is `name#id`."""

    def __init__(self, field: T.StructField, number: str) -> None:
        self.name, self._type, self._attribute = field.name, field.dataType, f"{field.name}#{number}"

    def is_in(self, condition: str) -> bool:
        return re.search(re.escape(self._attribute) + r"(?!\d)", condition) is not None

    def parse_comparisons(self, conjunct: str) -> Iterator[NumericComparison]:
        """Yield the conjunct if it compares this column with a number. Digits after a string column are a string."""
        match = re.fullmatch(r"(\S.*?) (>=|>|<=|<) (\S.*)", conjunct, re.DOTALL)
        if match is None or not isinstance(self._type, T.NumericType):
            return
        left, operator, right = match.groups()
        if _NUMBER.fullmatch(left):
            left, operator, right = right, operator.translate(_SWAPPED_OPERATORS), left
        if left.removesuffix("L") == self._attribute and _NUMBER.fullmatch(right):
            yield NumericComparison(operator, float(right))


def _parse_columns(attributes: str, schema: T.StructType) -> Iterator[_PlanColumn]:
    position = 0
    for field in schema:
        match = re.compile(re.escape(field.name) + r"#(\d+)L?(?=, |\Z)").search(attributes, position)
        assert match, f"{field.name} is one of {attributes}"
        position = match.end()
        yield _PlanColumn(field, match[1])


def _split_conjuncts(condition: str) -> Iterator[str]:
    """Split a condition at each AND outside of parentheses, after removing those around an entire condition."""
    unbalanced = "has a string literal with an unbalanced parenthesis, so EXPLAIN does not show where the literal ends"
    depth, start, conjuncts, is_enclosed = 0, 0, [], condition.startswith("(")
    for position, character in enumerate(condition):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth < 0:
            raise ValueError(unbalanced)
        if depth == 0 and position + 1 < len(condition):
            is_enclosed = False
            if condition.startswith(" AND ", position + 1):
                conjuncts.append(condition[start : position + 1])
                start = position + 1 + len(" AND ")
    if depth:
        raise ValueError(unbalanced)
    if is_enclosed:
        yield from _split_conjuncts(condition[1:-1])
    elif conjuncts:
        for conjunct in (*conjuncts, condition[start:]):
            yield from _split_conjuncts(conjunct)
    else:
        yield condition


def join_without_parentheses(conjuncts: Sequence[str]) -> str:
    """Join parsed conjuncts without parentheses, so that nested and flat conjunctions are equal."""
    return " AND ".join(conjuncts).replace("(", "").replace(")", "")
