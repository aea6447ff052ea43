"""SQL that a pipeline file holds, confined to columns, literals, operators and reviewed functions.

Here without a JVM, when the file is read; `spark.expression_sandbox` asks the same of what Spark's own parser makes of it. Both
allow what they know and refuse all else, so that a new syntax of either is refused until someone has looked at it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tidemark.config.allowed_functions import CheckColumn, check_column, check_function, words
from tidemark.formatting import quoted

if TYPE_CHECKING:
    from sqlglot import exp

MOST_CHARACTERS = 10_000
"""Of an expression."""

_OPERATORS = words(
    """
    add and anonymous between bitwiseand bitwiseleftshift bitwisenot bitwiseor bitwiserightshift bitwisexor boolean
    bracket case cast column concat datatype div dot dpipe eq escape extract gt gte hexstring identifier if ilike in
    intdiv interval intervalspan is lambda like literal lt lte mod mul neg neq not null nullsafeeq nullsafeneq or
    overlay paren rawstring regexplike strposition sub substring trim trycast tuple var
    """
)
"""What sqlglot calls that which may stand in an expression."""
_REMEDIES = {
    "a subquery reads other tables; write what it gives as a table, and join that": "exists select subquery",
    "* is other columns whenever a table has more; name them": "star",
    "OVER is about many rows, and an expression has one row, or one pair; do so where the emissions are read": "window",
    "a parameter has no value here; write the value itself": "parameter placeholder sessionparameter",
    "AS names nothing here; the key under `select` is the name, named_struct('name', value) names a field": "alias",
    "arguments have no names here; give them in their order": "kwarg",
}
_REFUSED = {name: remedy for remedy, names in _REMEDIES.items() for name in names.split()}
_INSTANT = re.compile(r"\s*[-+T]?\d.*", re.DOTALL)
_NAME = re.compile(r"\w+(\.\w+)*")
_TIMES = ("date", "time", "timestamp")
_UNITS = words("year quarter month week day dayofyear hour minute second millisecond microsecond")
_TAKE_UNITS = words("timestampadd timestampdiff dateadd datediff date_add date_diff")
"""Functions whose first of three arguments is a unit."""
_WITH_WORDS = ("CAST", "TRY_CAST", "EXTRACT", "OVERLAY", "POSITION", "SUBSTR", "SUBSTRING", "TRIM")
"""Calls with words between their arguments, as in CAST(x AS int); others are left as they were written."""


def check_expression(text: str, columns: CheckColumn = check_column) -> None:
    """See that SQL is an expression over columns, by default a pair's, that gives the same in every run.

    Raises:
        ValueError: says what it may not hold, and the remedy.
    """
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"has {len(text):,} characters, and {MOST_CHARACTERS:,} are the most; split the expression")
    # Spark puts settings of the session and the environment in its place before it parses, inside literals too.
    if "${" in text:
        raise ValueError("${...} would be taken from the session or the environment; write the value itself")
    try:
        for node in _parsed(text).walk(prune=lambda node: node.key == "datatype"):
            _check(node, columns)
    except RecursionError:
        raise ValueError("is nested too deeply; split the expression") from None


def conjuncts(text: str) -> list[str]:
    """The parts of an expression at each AND, in their order; what has none is one part.

    >>> conjuncts("(left_a BETWEEN 1 AND 2 AND right_b) AND (left_c OR right_d AND left_e)")
    ['left_a BETWEEN 1 AND 2', 'right_b', 'left_c OR right_d AND left_e']
    """
    return list(_conjuncts(text, _dialect().tokenize(text)))


def is_name(text: str) -> bool:
    """Whether a text can be nothing but a column's name, or that of a field: no expression.

    >>> is_name("customer.id"), is_name("lower(email)")
    (True, False)
    """
    return _NAME.fullmatch(text) is not None


def columns_of(text: str) -> list[str]:
    """The columns that an expression reads, in its order; none where it is no expression.

    >>> columns_of("lower(email) || customer.id")
    ['email', 'customer']
    """
    return list(dict.fromkeys(name for name, _, _ in _heads(text)))


def over_pair(text: str, side: str) -> str:
    """An expression over an input's columns as one over those of a pair.

    >>> over_pair("lower(email) || `a b`.c", "left")
    'lower(`left_email`) || `left_a b`.c'
    """
    return renamed(text, lambda name: quoted(f"{side}_{name}"))


def over_row(text: str, side: str) -> str:
    """An expression over an input's columns as one over a row that has these in a struct.

    >>> over_row("lower(email) || `a b`.c", "left")
    'lower(`left`.`email`) || `left`.`a b`.c'
    """
    return renamed(text, lambda name: f"{quoted(side)}.{quoted(name)}")


def renamed(text: str, told: Callable[[str], str]) -> str:
    """An expression in which each column is what `told` makes of its name.

    >>> renamed("lower(email) = 'ada'", {"email": "`who`"}.__getitem__)
    "lower(`who`) = 'ada'"
    """
    for name, start, end in reversed(_heads(text)):
        text = text[:start] + told(name) + text[end:]
    return text


def fields_told(text: str) -> dict[str, str]:
    """The columns that all structs of an array have as they are, by their fields, as far as the text shows them.

    >>> fields_told("filter(transform(left_items, i -> named_struct('of', left_id, 'sku', i.sku)), s -> s.sku > 0)")
    {'of': 'left_id'}
    >>> fields_told("array(struct(left_id, right_v), named_struct('left_id', left_id, 'right_v', 0))")
    {'left_id': 'left_id'}
    """
    try:
        return _told_by_array(_parsed(text))
    except ValueError:
        return {}


def _told_by_array(node: Any) -> dict[str, str]:
    match _call(node):
        case "array", [*structs]:
            found = [dict(_told_by_struct(one)) for one in structs]
            return {name: column for name, column in found[0].items() if all(one.get(name) == column for one in found)}
        case "transform", [_, made] if made.key == "lambda":
            return dict(_told_by_struct(made.this))
        case "filter" | "slice" | "array_sort" | "sort_array" | "array_distinct", [array, *_]:
            return _told_by_array(array)
        case "flatten", [arrays]:
            match _call(arrays):
                case "transform", [_, made] if made.key == "lambda":
                    return _told_by_array(made.this)
    return {}


def _told_by_struct(node: Any) -> Iterator[tuple[str, str]]:
    match _call(node):
        case "struct", values:
            named = [(_head(one), one) for one in values if one.key == "column"]
        case "named_struct", [*parts]:
            named = [(name.name, one) for name, one in zip(parts[::2], parts[1::2], strict=False)]
        case _:
            named = []
    yield from ((name, _head(one)) for name, one in named if one.key == "column" and len(one.parts) == 1)


def _call(node: Any) -> tuple[str, list[Any]]:
    """The name and the arguments of a call, neither of what is none."""
    return (node.name.lower(), node.expressions) if node.key == "anonymous" else ("", [])


def _heads(text: str) -> list[tuple[str, int, int]]:
    """The names of an expression's columns with where each stands in it, in order."""
    try:
        nodes: Iterator[Any] = _parsed(text).walk(prune=lambda node: node.key == "datatype")
        found = [node for node in nodes if node.key == "column" and not _is_unit(node)]
    except ValueError:
        return []
    names = ((_head(one), one.parts[0].meta) for one in found)
    return sorted(((name, at["start"], at["end"] + 1) for name, at in names), key=lambda one: one[1])


_OPENING, _CLOSING = words("L_PAREN L_BRACKET CASE"), words("R_PAREN R_BRACKET END")


def _conjuncts(text: str, tokens: Sequence[Any]) -> Iterator[str]:
    parts, betweens, outer, depth = [0], 0, [], 0
    for number, token in enumerate(tokens):
        kind = token.token_type.name
        depth += (kind in _OPENING) - (kind in _CLOSING)
        if depth == 0:
            outer.append(number)
            betweens += kind == "BETWEEN"
            if kind == "AND" and betweens:
                betweens -= 1
            elif kind == "AND":
                parts.append(number)
            elif kind == "OR":
                parts, betweens = [0], len(tokens)
    if outer == [len(tokens) - 1] and tokens[0].token_type.name == "L_PAREN":
        yield from _conjuncts(text, tokens[1:-1])
    elif len(parts) == 1:
        yield text[tokens[0].start : tokens[-1].end + 1]
    else:
        for start, stop in pairwise([*parts, len(tokens)]):
            yield from _conjuncts(text, tokens[start + (start > 0) : stop])


def _check(node: exp.Expr, columns: CheckColumn) -> None:
    match node.key:
        case "anonymous":
            check_function([*_path(node), node.name])
        case "column":
            if not _is_unit(node):
                columns(_head(node))
        case "cast" | "trycast" if _is_odd_time(node):
            raise ValueError(f"{node.this.name!r} is no time that stays the same; write it as '2013-01-01 00:00:00'")
        case what if what not in _OPERATORS:
            otherwise = f"{what} is no part of an expression here; take columns, literals, operators and functions"
            raise ValueError(_REFUSED.get(what, otherwise))


def _head(column: Any) -> str:
    """The first of the names of a path, which is the column's."""
    return str(column.parts[0].name)


def _path(call: exp.Expr) -> Iterator[str]:
    """What stands before the name of a function: a schema or a catalog."""
    if call.parent is not None and call.parent.key == "dot" and call.arg_key == "expression":
        yield call.parent.this.sql()


def _is_unit(column: exp.Expr) -> bool:
    """Whether a name is that of a unit, as in timestampdiff(MINUTE, a, b)."""
    call = column.parent
    return (
        call is not None
        and call.key == "anonymous"
        and call.name.lower() in _TAKE_UNITS
        and column.index == 0
        and column.sql().lower() in _UNITS
    )


def _is_odd_time(cast: Any) -> bool:
    """Whether a text such as 'now', which Spark takes for the time of the run, becomes a time."""
    a_time: bool = cast.to.sql(dialect="spark").lower().startswith(_TIMES)
    return a_time and cast.this.key in {"literal", "rawstring"} and not _INSTANT.fullmatch(cast.this.name)


def _parsed(text: str) -> exp.Expr:
    """The expression as sqlglot reads it, with the names of functions as they were written.

    Raises:
        ValueError: it is none, or has comments.
    """
    from sqlglot import exp  # noqa: PLC0415 - a third of a second, and few pipelines have expressions
    from sqlglot.errors import ParseError, SqlglotError  # noqa: PLC0415

    dialect = _dialect()
    try:
        tokens = dialect.tokenize(text)
        tree: exp.Expr | None
        [tree] = dialect.parser().parse_into(exp.Condition, tokens, text)
    except ParseError as error:
        near = error.errors[0].get("highlight") if error.errors else None
        raise ValueError(f"is no SQL expression{f', at {near}' if near else ''}; see its syntax there") from None
    except SqlglotError:
        raise ValueError("is no SQL expression: a quote is open; close it") from None
    if tree is None:
        raise ValueError("is empty; leave it out")
    if any(token.comments for token in tokens):
        raise ValueError("comments and hints do not belong into an expression; write # comments in the file")
    return tree


@cache
def _dialect() -> Any:
    from sqlglot.dialects.spark import Spark  # noqa: PLC0415 - as above
    from sqlglot.parsers.spark import SparkParser  # noqa: PLC0415

    class Plain(Spark):  # type: ignore[misc, unused-ignore]
        """Spark's dialect without a function that sqlglot knows, so that none gets another name or shape."""

        class Parser(SparkParser):
            FUNCTIONS = {}
            NO_PAREN_FUNCTIONS = {}
            ARRAY_CONSTRUCTORS = {}
            NO_PAREN_FUNCTION_PARSERS = {"CASE": SparkParser.NO_PAREN_FUNCTION_PARSERS["CASE"]}
            FUNCTION_PARSERS = {name: SparkParser.FUNCTION_PARSERS[name] for name in _WITH_WORDS}

    return Plain()
