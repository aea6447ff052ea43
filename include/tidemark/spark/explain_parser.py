"""What EXPLAIN shows of an expression: all that a server of Spark Connect tells of how it has read one.

Spark prints the texts of literals without quotes. So each pattern here asks for something that no literal has by
accident: the mark before the name of a call that is not resolved, or a column with the number that Spark gave it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pyspark.sql import types as T

from tidemark.config.allowed_functions import check_function, load_catalogue
from tidemark.spark.engine_protocol import AnalyzedFilter, Comparison
from tidemark.spark.trees import is_same_instant

MISSING_COLUMN = "no such column"
"""A name that no row has: what is selected beside it is parsed, and neither optimized nor run."""
_PARSED_PLAN = re.compile(
    rf"\A== Parsed Logical Plan ==\n'Project \['{MISSING_COLUMN}, (.*?)\]\n\+- OneRowRelation\n\n== Analyzed", re.DOTALL
)
_NAME = r"(?:\w+|`[^`]*`)"
_UNRESOLVED_CALL = re.compile(rf"'({_NAME}(?:\.{_NAME})*)\(")
_UNRESOLVED_NAME = re.compile(r"'(\w+)")
_PLAN_HEADING = re.compile(r"(?:\n*|\A)== (?:Parsed Logical|Analyzed Logical|Optimized Logical|Physical) Plan ==\n")
_FILTER_NODE = re.compile(r"^Filter (.*?)\n\+- MapInArrow [^\n]*? \[([^\n]*)\], false", re.DOTALL | re.MULTILINE)
_NUMBER = re.compile(r"-?\d+(\.\d+)?(E-?\d+)?")
_SWAPPED_OPERATORS = str.maketrans("<>", "><")
_EXPRESSION_ID = re.compile(r"#\d+L?")
_TIME_LITERAL = re.compile(r"[+-]?\d{4,}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d(?:\.\d+)?)?)?")


def extract_parsed_expression(explained: str) -> str:
    """How Spark has parsed the one expression that was selected beside `NOWHERE`.

    Raises:
        ValueError: it has made something else of it.
    """
    found = _PARSED_PLAN.search(explained)
    shown = found[1] if found else ""
    whole = shown.removeprefix("unresolvedalias(")
    if whole != shown:
        whole = whole.removesuffix(")")
    if not whole or "\n:  +- " in shown or ", unresolvedalias(" in shown or re.search(r" AS \S+#\d+\Z", shown):
        raise ValueError("is more than one expression to Spark; take columns, literals, operators and functions")
    return whole


def check_parsed(shown: str) -> None:
    """See that Spark's parser has found reviewed calls alone.

    Raises:
        ValueError: names another one, why not, and the remedy.
    """
    for call in _UNRESOLVED_CALL.findall(shown):
        check_function([part.strip("`") for part in re.findall(_NAME, call)])
    for name in _UNRESOLVED_NAME.findall(shown):
        if load_catalogue().get(name.lower()):  # a call without brackets
            check_function([name])


def is_zone_independent(ahead: str, behind: str) -> bool:
    """Whether two plans, each explained in a zone of its own, have the same times, and nothing else that differs."""
    plain = [_EXPRESSION_ID.sub("", text) for text in (ahead, behind)]
    if len({_TIME_LITERAL.sub("", text) for text in plain}) > 1:
        return False
    times = zip(*(_TIME_LITERAL.findall(text) for text in plain), strict=True)
    return all(one == other or is_same_instant(one, other) for one, other in times)


def extract_optimized_plan(explained: str) -> str:
    """The optimized plan of EXPLAIN EXTENDED."""
    return _PLAN_HEADING.split(explained)[3]


def parse_filter(explained: str, schema: T.StructType) -> AnalyzedFilter:
    """What EXPLAIN EXTENDED tells of a filter over rows that `connect` has made with that schema.

    Raises:
        ValueError: what it shows cannot be told from the text of a literal.
    """
    _, _, of_analysis, of_optimizer, *_ = _PLAN_HEADING.split(explained)
    found = _FILTER_NODE.search(of_analysis)
    assert found, "a filter over what is opaque"
    read = [one for one in _parse_columns(found[2], schema) if one.is_read_by(found[1])]
    names = [one.name for one in read]
    if (left := _FILTER_NODE.match(of_optimizer)) is None:  # it is always true, or never
        return AnalyzedFilter(names, [], [])
    parts = list(_split_conjuncts(left[1]))
    not_null = [part for part in parts if part.startswith("isnotnull(")]
    return AnalyzedFilter(
        names,
        [one.name for part in not_null for one in read if one.is_read_by(part)],
        [compared for part in parts for one in read for compared in one.find_comparison(part)],
    )


class _PlanColumn:
    """A column of a plan, as it is printed there."""

    def __init__(self, field: T.StructField, number: str) -> None:
        self.name, self._type, self._shown = field.name, field.dataType, f"{field.name}#{number}"

    def is_read_by(self, text: str) -> bool:
        return re.search(re.escape(self._shown) + r"(?!\d)", text) is not None

    def find_comparison(self, part: str) -> Iterator[Comparison]:
        """A conjunct as this column compared with a number, if it is that; the type tells a number from a text."""
        found = re.fullmatch(r"(\S.*?) (>=|>|<=|<) (\S.*)", part, re.DOTALL)
        if found is None or not isinstance(self._type, T.NumericType):
            return
        left, operator, right = found.groups()
        if _NUMBER.fullmatch(left):
            left, operator, right = right, operator.translate(_SWAPPED_OPERATORS), left
        if left.removesuffix("L") == self._shown and _NUMBER.fullmatch(right):
            yield Comparison(operator, float(right))


def _parse_columns(listed: str, schema: T.StructType) -> Iterator[_PlanColumn]:
    at = 0
    for field in schema:
        found = re.compile(re.escape(field.name) + r"#(\d+)L?(?=, |\Z)").search(listed, at)
        assert found, f"{field.name} is one of {listed}"
        at = found.end()
        yield _PlanColumn(field, found[1])


def _split_conjuncts(text: str) -> Iterator[str]:
    """The parts of a text at each AND outside of brackets, or within brackets around all of it."""
    depth, start, parts, is_enclosed = 0, 0, [], text.startswith("(")
    for at, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth < 0:
            raise ValueError("has a text with brackets that open or close alone, behind which Connect shows no end")
        if depth == 0 and at + 1 < len(text):
            is_enclosed = False
            if text.startswith(" AND ", at + 1):
                parts.append(text[start : at + 1])
                start = at + 1 + len(" AND ")
    if depth:
        raise ValueError("has a text with brackets that open or close alone, behind which Connect shows no end")
    if is_enclosed:
        yield from _split_conjuncts(text[1:-1])
    elif parts:
        for part in (*parts, text[start:]):
            yield from _split_conjuncts(part)
    else:
        yield text


def join_without_brackets(parts: Sequence[str]) -> str:
    """Parsed conjuncts as one text, without what their nesting adds."""
    return " AND ".join(part.replace("(", "").replace(")", "") for part in parts)
