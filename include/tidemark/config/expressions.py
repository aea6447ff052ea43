"""Restrict SQL in pipeline files to columns, literals, operators and reviewed functions, and rewrite its columns.

This check runs without a JVM when a file is read. `spark.expression_sandbox` repeats it on the tree of Spark's own
parser. Both work by allow lists, so that new syntax of either parser is refused until it has been reviewed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tidemark.config.allowed_functions import ColumnCheck, check_column, check_function, split_words
from tidemark.formatting import quote_identifier

if TYPE_CHECKING:
    from sqlglot import exp

MAX_CHARACTERS = 10_000
"""Maximum length of an expression."""

_OPERATORS = split_words(
    """
    add and anonymous between bitwiseand bitwiseleftshift bitwisenot bitwiseor bitwiserightshift bitwisexor boolean
    bracket case cast column concat datatype div dot dpipe eq escape extract gt gte hexstring identifier if ilike in
    intdiv interval intervalspan is lambda like literal lt lte mod mul neg neq not null nullsafeeq nullsafeneq or
    overlay paren rawstring regexplike strposition sub substring trim trycast tuple var
    """
)
"""Allowed node types of sqlglot."""
_REMEDIES = {
    "a subquery reads other tables. Write its result as a table, and join it.": "exists select subquery",
    "* changes its meaning when a table gets more columns. Name the columns.": "star",
    "OVER spans many rows, but an expression has one row or pair. Apply it to the emissions.": "window",
    "parameters have no value here. Write the value itself.": "parameter placeholder sessionparameter",
    "AS has no effect here. Name columns by keys under `select`, and fields by named_struct('name', value).": "alias",
    "named arguments are not supported. Pass arguments by position.": "kwarg",
}
_REFUSED = {name: remedy for remedy, names in _REMEDIES.items() for name in names.split()}
_INSTANT = re.compile(r"\s*[-+T]?\d.*", re.DOTALL)
_NAME = re.compile(r"\w+(\.\w+)*")
_TIMES = ("date", "time", "timestamp")
_UNITS = split_words("year quarter month week day dayofyear hour minute second millisecond microsecond")
_UNIT_FUNCTIONS = split_words("timestampadd timestampdiff dateadd datediff date_add date_diff")
"""Functions whose first of three arguments is a time unit."""
_KEYWORD_FUNCTIONS = ("CAST", "TRY_CAST", "EXTRACT", "OVERLAY", "POSITION", "SUBSTR", "SUBSTRING", "TRIM")
"""Functions with keywords between their arguments, as in CAST(x AS int). sqlglot parses only these specially."""


def check_expression(expression: str, column_check: ColumnCheck = check_column) -> None:
    """Check that SQL is a deterministic expression over the columns of one row or pair.

    Args:
        expression: The SQL expression.
        column_check: Check of column names, by default for columns of a pair.

    Raises:
        ValueError: The expression contains something that is not allowed. The message has the remedy.
    """
    if len(expression) > MAX_CHARACTERS:
        raise ValueError(
            f"has {len(expression):,} characters, more than the maximum of {MAX_CHARACTERS:,}. Split the expression."
        )
    # Spark substitutes session settings and environment variables before parsing, even inside literals.
    if "${" in expression:
        raise ValueError("${...} would be replaced from the session or the environment. Write the value itself.")
    try:
        for node in _parse(expression).walk(prune=lambda node: node.key == "datatype"):
            _check_node(node, column_check)
    except RecursionError:
        raise ValueError("is nested too deeply. Split the expression.") from None


def split_conjuncts(expression: str) -> list[str]:
    """Split an expression at each top-level AND.

    >>> split_conjuncts("(left_a BETWEEN 1 AND 2 AND right_b) AND (left_c OR right_d AND left_e)")
    ['left_a BETWEEN 1 AND 2', 'right_b', 'left_c OR right_d AND left_e']
    """
    return list(_split_conjuncts(expression, _dialect().tokenize(expression)))


def is_column_path(text: str) -> bool:
    """Return True if text can only be the name of a column or struct field, not an expression.

    >>> is_column_path("customer.id"), is_column_path("lower(email)")
    (True, False)
    """
    return _NAME.fullmatch(text) is not None


def list_columns(expression: str) -> list[str]:
    """List the columns that an expression reads, in order; none if it is not a valid expression.

    >>> list_columns("lower(email) || customer.id")
    ['email', 'customer']
    """
    return list(dict.fromkeys(name for name, _, _ in _find_columns(expression)))


def use_spelling(names: Iterable[str], existing: Sequence[str]) -> list[str]:
    """Return names as existing ones are spelled, because SQL ignores the case of letters.

    >>> use_spelling(["STATUS", "new"], ["status"])
    ['status', 'new']
    """
    spellings = {name.lower(): name for name in reversed(existing)}
    return [spellings.get(name.lower(), name) for name in names]


def qualify_for_pair(expression: str, side: str) -> str:
    """Rewrite an expression over an input's columns to the columns of a pair.

    >>> qualify_for_pair("lower(email) || `a b`.c", "left")
    'lower(`left_email`) || `left_a b`.c'
    """
    return rename_columns(expression, lambda name: quote_identifier(f"{side}_{name}"))


def qualify_for_row(expression: str, side: str) -> str:
    """Rewrite an expression over an input's columns to the fields of a struct named after the side.

    >>> qualify_for_row("lower(email) || `a b`.c", "left")
    'lower(`left`.`email`) || `left`.`a b`.c'
    """
    return rename_columns(expression, lambda name: f"{quote_identifier(side)}.{quote_identifier(name)}")


def rename_columns(expression: str, rename: Callable[[str], str]) -> str:
    """Replace each column of an expression by the SQL that `rename` returns for its name.

    >>> rename_columns("lower(email) = 'ada'", {"email": "`who`"}.__getitem__)
    "lower(`who`) = 'ada'"
    """
    for name, start, end in reversed(_find_columns(expression)):
        expression = expression[:start] + rename(name) + expression[end:]
    return expression


def find_copied_columns(expression: str) -> dict[str, str]:
    """Find fields that are unchanged columns in all structs of an array expression.

    Returns:
        The column of each such field, as far as the syntax shows it.

    >>> find_copied_columns("filter(transform(left_a, i -> named_struct('of', left_id, 'sku', i.sku)), s -> s.sku > 0)")
    {'of': 'left_id'}
    >>> find_copied_columns("array(struct(left_id, right_v), named_struct('left_id', left_id, 'right_v', 0))")
    {'left_id': 'left_id'}
    """
    try:
        return _copied_columns_of_array(_parse(expression))
    except ValueError:
        return {}


def _copied_columns_of_array(node: Any) -> dict[str, str]:
    match _split_call(node):
        case "array", [*structs]:
            copied = [dict(_copied_columns_of_struct(struct)) for struct in structs]
            return {
                name: column
                for name, column in copied[0].items()
                if all(columns.get(name) == column for columns in copied)
            }
        case "transform", [_, function] if function.key == "lambda":
            return dict(_copied_columns_of_struct(function.this))
        case "filter" | "slice" | "array_sort" | "sort_array" | "array_distinct", [array, *_]:
            return _copied_columns_of_array(array)
        case "flatten", [arrays]:
            match _split_call(arrays):
                case "transform", [_, function] if function.key == "lambda":
                    return _copied_columns_of_array(function.this)
    return {}


def _copied_columns_of_struct(node: Any) -> Iterator[tuple[str, str]]:
    match _split_call(node):
        case "struct", values:
            fields = [(_column_name(value), value) for value in values if value.key == "column"]
        case "named_struct", [*arguments]:
            fields = [(name.name, value) for name, value in zip(arguments[::2], arguments[1::2], strict=False)]
        case _:
            fields = []
    yield from (
        (name, _column_name(value)) for name, value in fields if value.key == "column" and len(value.parts) == 1
    )


def _split_call(node: Any) -> tuple[str, list[Any]]:
    """Split a function call into name and arguments; both are empty for other nodes."""
    return (node.name.lower(), node.expressions) if node.key == "anonymous" else ("", [])


def _find_columns(expression: str) -> list[tuple[str, int, int]]:
    """Find the columns of an expression: name, start and end (exclusive) of each occurrence, in order."""
    try:
        nodes: Iterator[Any] = _parse(expression).walk(prune=lambda node: node.key == "datatype")
        columns = [node for node in nodes if node.key == "column" and not _is_time_unit(node)]
    except ValueError:
        return []
    spans = ((_column_name(column), column.parts[0].meta) for column in columns)
    return sorted(((name, span["start"], span["end"] + 1) for name, span in spans), key=lambda span: span[1])


_OPENING, _CLOSING = split_words("L_PAREN L_BRACKET CASE"), split_words("R_PAREN R_BRACKET END")


def _split_conjuncts(expression: str, tokens: Sequence[Any]) -> Iterator[str]:
    # An AND that belongs to a BETWEEN does not split. After an OR at the top level no AND does.
    starts, open_betweens, top_level, depth = [0], 0, [], 0
    for number, token in enumerate(tokens):
        symbol = token.token_type.name
        depth += (symbol in _OPENING) - (symbol in _CLOSING)
        if depth == 0:
            top_level.append(number)
            open_betweens += symbol == "BETWEEN"
            if symbol == "AND" and open_betweens:
                open_betweens -= 1
            elif symbol == "AND":
                starts.append(number)
            elif symbol == "OR":
                starts, open_betweens = [0], len(tokens)
    if top_level == [len(tokens) - 1] and tokens[0].token_type.name == "L_PAREN":
        yield from _split_conjuncts(expression, tokens[1:-1])
    elif len(starts) == 1:
        yield expression[tokens[0].start : tokens[-1].end + 1]
    else:
        for start, stop in pairwise([*starts, len(tokens)]):
            yield from _split_conjuncts(expression, tokens[start + (start > 0) : stop])


def _check_node(node: exp.Expr, column_check: ColumnCheck) -> None:
    match node.key:
        case "anonymous":
            check_function([*_qualifier(node), node.name])
        case "column":
            if not _is_time_unit(node):
                column_check(_column_name(node))
        case "cast" | "trycast" if _is_relative_time(node):
            raise ValueError(f"{node.this.name!r} is a relative time. Write it as '2013-01-01 00:00:00'.")
        case key if key not in _OPERATORS:
            default = f"{key} is not allowed in an expression. Use columns, literals, operators and functions."
            raise ValueError(_REFUSED.get(key, default))


def _column_name(column: Any) -> str:
    """Return the first part of a dotted path, which is the column."""
    return str(column.parts[0].name)


def _qualifier(call: exp.Expr) -> Iterator[str]:
    """Yield the catalog or schema before a function name."""
    if call.parent is not None and call.parent.key == "dot" and call.arg_key == "expression":
        yield call.parent.this.sql()


def _is_time_unit(column: exp.Expr) -> bool:
    """Return True if a name is a time unit, as in timestampdiff(MINUTE, a, b)."""
    call = column.parent
    return (
        call is not None
        and call.key == "anonymous"
        and call.name.lower() in _UNIT_FUNCTIONS
        and column.index == 0
        and column.sql().lower() in _UNITS
    )


def _is_relative_time(cast: Any) -> bool:
    """Return True if a literal such as 'now', which Spark resolves to the time of the run, is cast to a time."""
    is_time: bool = cast.to.sql(dialect="spark").lower().startswith(_TIMES)
    return is_time and cast.this.key in {"literal", "rawstring"} and not _INSTANT.fullmatch(cast.this.name)


def _parse(expression: str) -> exp.Expr:
    """Parse an expression, with function names as they are written.

    Raises:
        ValueError: The text is not an SQL expression, or has comments.
    """
    from sqlglot import exp  # noqa: PLC0415 - its import takes 0.3 s, and few pipelines have expressions
    from sqlglot.errors import ParseError, SqlglotError  # noqa: PLC0415

    dialect = _dialect()
    try:
        tokens = dialect.tokenize(expression)
        trees: list[exp.Expr | None] = dialect.parser().parse_into(exp.Condition, tokens, expression)
    except ParseError as error:
        raise ValueError(f"is not an SQL expression. Correct the syntax{_find_position(error.errors)}.") from None
    except SqlglotError:
        raise ValueError("is not an SQL expression. Close the open quote.") from None
    if any(token.token_type.name == "SEMICOLON" for token in tokens):
        raise ValueError("has a semicolon. Remove it, and combine conditions by AND.")
    if len(trees) != 1:
        raise ValueError("is not one SQL expression. Combine conditions by AND, and quote names that are SQL words.")
    [tree] = trees
    if tree is None:
        raise ValueError("is empty. Remove it.")
    if any(token.comments for token in tokens):
        raise ValueError("has comments or hints. Write # comments in the file instead.")
    return tree


def _find_position(errors: Sequence[Mapping[str, Any]]) -> str:
    """Return the place of a syntax error: the word that does not fit, and its first character, counted from 1."""
    details = errors[0] if errors else {}
    if not (word := details.get("highlight")):
        return ""
    line, last_character = details["line"], details["col"]
    return f" at {word}, character {last_character - len(word) + 1}{f' of line {line}' if line > 1 else ''}"


@cache
def _dialect() -> Any:
    from sqlglot.dialects.spark import Spark  # noqa: PLC0415 - as above
    from sqlglot.parsers.spark import SparkParser  # noqa: PLC0415

    class Plain(Spark):  # type: ignore[misc, unused-ignore]
        """Spark dialect without sqlglot's own functions, which would rename or restructure calls."""

        class Parser(SparkParser):
            FUNCTIONS = {}
            NO_PAREN_FUNCTIONS = {}
            ARRAY_CONSTRUCTORS = {}
            NO_PAREN_FUNCTION_PARSERS = {"CASE": SparkParser.NO_PAREN_FUNCTION_PARSERS["CASE"]}
            FUNCTION_PARSERS = {name: SparkParser.FUNCTION_PARSERS[name] for name in _KEYWORD_FUNCTIONS}

    return Plain()
