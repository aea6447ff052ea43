"""Parse expressions of Spark's analysed plans, and write them as SQL of a pipeline file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, isnan
from typing import Any

from tidemark.errors import ImportRefusedError
from tidemark.formatting import quote_literal
from tidemark.importing.expressions import Call, Column, Expression, Literal, walk
from tidemark.importing.written_expressions import write_column

_CALENDAR_PART = re.compile(r"(-?\d+(?:\.\d+)?) (day|hour|minute|second|millisecond|microsecond)s?")
_CALENDAR_MICROS = {
    "day": 86_400_000_000,
    "hour": 3_600_000_000,
    "minute": 60_000_000,
    "second": 1_000_000,
    "millisecond": 1000,
    "microsecond": 1,
}
_INFIX = {
    "EqualTo": "=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "And": "AND",
    "Or": "OR",
    "Add": "+",
    "Subtract": "-",
    "Multiply": "*",
    "Divide": "/",
    "Remainder": "%",
    "EqualNullSafe": "<=>",
}
_FUNCTIONS = {
    "Abs": "abs",
    "Coalesce": "coalesce",
    "Concat": "concat",
    "Contains": "contains",
    "EndsWith": "endswith",
    "Length": "length",
    "Lower": "lower",
    "MicrosToTimestamp": "timestamp_micros",
    "MillisToTimestamp": "timestamp_millis",
    "SecondsToTimestamp": "timestamp_seconds",
    "StartsWith": "startswith",
    "Substring": "substring",
    "Upper": "upper",
}
_TYPES = {"byte": "TINYINT", "short": "SMALLINT", "integer": "INT", "long": "BIGINT"}
_TYPE_NAME = re.compile(r"[a-z_]+(\(\d+,\s*\d+\))?")
"""Type without parts, unlike a struct or an array."""
_BETWEEN = ("input", "lower", "upper")
_UTC = (None, "UTC", "Etc/UTC", "GMT", "Z")
_TIMES = ("timestamp", "timestamp_ntz", "date")
WHOLE_NUMBERS = ("byte", "short", "integer", "long")
_MICROS_PER_DAY = _CALENDAR_MICROS["day"]
DAYS_IN_ZONE = "days in the time zone "
"""Beginning of the name of a sum of a time and days that can have 23 or 25 hours; the zone follows."""
EVAL_MODE, TRY = "evalMode", "TRY"
"""Field of a cast, and its value for `try_cast`, which is null where CAST fails."""


@dataclass(frozen=True)
class Tree:
    """A node of a plan or an expression, as `toJSON` writes it."""

    kind: str
    """Class name without the package."""
    fields: Mapping[str, Any] = field(compare=False)
    children: tuple[Tree, ...] = ()


@dataclass(frozen=True)
class TimeWindow(Call):
    """The window of a row: `window(time, size, slide, offset)`; spans in microseconds."""

    size: int = 0
    slide: int = 0
    offset: int = 0
    start: int = 0
    """Start of the window of the instant 0."""


def parse_tree(nodes: Sequence[Mapping[str, Any]]) -> Tree:
    """Parse a list of nodes, each before its children."""
    tree, rest = _parse_next(nodes)
    assert not rest, "a list has one root"
    return tree


def _parse_next(nodes: Sequence[Mapping[str, Any]]) -> tuple[Tree, Sequence[Mapping[str, Any]]]:
    first, rest, children = nodes[0], nodes[1:], []
    for _ in range(first["num-children"]):
        child, rest = _parse_next(rest)
        children.append(child)
    return Tree(str(first["class"]).rpartition(".")[2], first, tuple(children)), rest


def get_expression_id(fields: Mapping[str, Any]) -> int:
    """Return the id by which other expressions refer to a named one."""
    return int(fields["exprId"]["id"])


def parse_expression(tree: Tree, attributes: Mapping[int, Expression]) -> Expression:  # noqa: PLR0911 - a kind each
    """Parse an expression.

    Args:
        tree: The expression.
        attributes: Expressions that attributes stand for, by id.
    """
    if tree.kind == "AttributeReference":
        missing = Call(f"attribute {tree.fields['name']}", (), "")
        return attributes.get(get_expression_id(tree.fields), missing)
    if tree.kind == "Literal":
        return Literal(tree.fields.get("value"), str(tree.fields["dataType"]))
    if tree.kind == "Between":
        value, *bounds = (parse_expression(parse_tree(tree.fields[name]), attributes) for name in _BETWEEN)
        comparisons = zip(("GreaterThanOrEqual", "LessThanOrEqual"), bounds, strict=True)
        return Call("And", tuple(Call(name, (value, bound), "boolean") for name, bound in comparisons), "boolean")
    operands = tuple(parse_expression(child, attributes) for child in tree.children)
    dtype = str(tree.fields.get("dataType", ""))
    # The replacement of try_add and the like is an operator whose JSON does not show that an error becomes null.
    is_replaced = tree.fields.get("replacement") == 0 and not tree.kind.startswith("Try")
    if tree.kind in ("Alias", "KnownNullable", "KnownNotNull") or is_replaced:
        return operands[0]
    if tree.kind == "PreciseTimestampConversion":
        return Call("Micros", operands, "long") if tree.fields["fromType"] == "timestamp" else operands[0]
    if tree.kind == "GetStructField":
        match operands[0]:
            case Column(path=path, side=side) if tree.fields.get("name"):
                return Column((*path, str(tree.fields["name"])), "", side)
        return Call(f"GetStructField {tree.fields['ordinal']}", operands, "")
    if tree.kind == "Cast":
        return _parse_cast(operands[0], dtype, tree.fields.get("timeZoneId"), is_try=tree.fields.get(EVAL_MODE) == TRY)
    if tree.kind == "TimestampAddInterval":
        return _parse_addition(operands, tree.fields.get("timeZoneId"))
    window = _parse_window(operands) if tree.kind == "CreateNamedStruct" else None
    return window or Call(tree.kind, operands, dtype)


def _parse_addition(operands: Sequence[Expression], zone: Any) -> Call:
    """Parse a sum of a time and an interval. Spark adds whole days in the session's zone, except to a local time."""
    time, interval = operands
    dtype = "timestamp_ntz" if get_dtype(time) == "timestamp_ntz" else "timestamp"
    depends_on_zone = dtype == "timestamp" and zone not in _UTC and _may_have_days(interval)
    return Call(f"{DAYS_IN_ZONE}{zone}" if depends_on_zone else "TimestampAddInterval", (time, interval), dtype)


def _may_have_days(interval: Expression) -> bool:
    """Return False for a constant interval without whole days; a calendar interval keeps days apart from hours."""
    match interval:
        case Call(name="UnaryMinus", operands=(operand,)):
            return _may_have_days(operand)
        case Literal(value=str(value), dtype="interval"):
            return "day" in value or parse_span(interval) is None
    span = parse_span(interval)
    return span is None or abs(span) >= _MICROS_PER_DAY


def get_dtype(expression: Expression) -> str:
    """Return the type of a column, a call or a constant; empty if it is unknown."""
    return expression.dtype if isinstance(expression, (Column, Call, Literal)) else ""


def _parse_cast(operand: Expression, dtype: str, zone: Any, *, is_try: bool) -> Expression:
    if uncast := _drop_cast(operand, dtype):
        return uncast
    if is_try:
        return Call("try_cast", (operand,), dtype)
    name = f"a cast in the time zone {zone}" if _depends_on_zone(operand, dtype, zone) else "Cast"
    return Call(name, (operand,), dtype)


def _depends_on_zone(operand: Expression, dtype: str, zone: Any) -> bool:
    """Return True if a cast may depend on a time zone that is not UTC, which Tidemark's sessions have."""
    source = get_dtype(operand)
    if source in WHOLE_NUMBERS:  # an instant, in seconds since 1970 UTC
        return False
    return zone not in _UTC and (dtype in _TIMES or source in (*_TIMES, ""))


def _drop_cast(operand: Expression, dtype: str) -> Expression | None:
    """Return the operand of a cast that changes no value, and that Spark adds again; None for another cast."""
    match operand:
        case Column(dtype=source) | Call(dtype=source) if source == dtype and dtype in ("timestamp", "timestamp_ntz"):
            return operand
        case Literal(dtype=source) if source in WHOLE_NUMBERS and dtype in WHOLE_NUMBERS[WHOLE_NUMBERS.index(source) :]:
            return operand
    return None


def _parse_window(operands: Sequence[Expression]) -> TimeWindow | None:
    """Return the window that a struct of start and end is, computed for the instant 0; None for another struct."""
    match operands:
        case [Literal(value="start"), start, Literal(value="end"), end]:
            times = [part.operands[0] for part in walk(start) if isinstance(part, Call) and part.name == "Micros"]
            if times:
                lower, upper = _evaluate(start), _evaluate(end)
                size = upper - lower
                return TimeWindow("window", (times[0],), "struct", size, size, lower % size, lower)
    return None


def _evaluate(expression: Expression) -> int:
    """Compute the bound of a window in microseconds, for the event time 0.

    Raises:
        ImportRefusedError: The expression is not the one that Spark makes of `window`.
    """
    match expression:
        case Call(name="Micros"):
            return 0
        case Literal(value=value):
            return int(value)
        case Call(name="Cast", operands=(operand,)):
            return _evaluate(operand)
        case Call(name="CaseWhen", operands=(condition, value, default)):
            return _evaluate(value if _evaluate(condition) else default)
        case Call(name=name, operands=(left, right)):
            first, second = _evaluate(left), _evaluate(right)
            remainder = abs(first) % abs(second or 1) * (-1 if first < 0 else 1)
            results = {"Add": first + second, "Subtract": first - second, "LessThan": first < second}
            if name in (*results, "Remainder"):
                return int({**results, "Remainder": remainder}[name])
    raise ImportRefusedError("the query has a struct of start and end that window() has not made. Use window().")


def find_sides(expression: Expression) -> set[str]:
    """Return the sides whose columns an expression reads."""
    return {part.side for part in walk(expression) if isinstance(part, Column)}


def parse_span(expression: Expression) -> int | None:
    """Return the microseconds of a constant interval; None for anything else."""
    match expression:
        case Call(name="UnaryMinus", operands=(operand,)):
            span = parse_span(operand)
            return None if span is None else -span
        case Literal(value=str(value), dtype="interval"):
            return _parse_calendar_interval(value)
        case Literal(value=value, dtype=dtype) if dtype.startswith("interval") and not _has_months(dtype):
            return int(value)
    return None


def _has_months(dtype: str) -> bool:
    return "month" in dtype or "year" in dtype


def _parse_calendar_interval(text: str) -> int | None:
    parts = _CALENDAR_PART.findall(text)
    if " ".join(text.split()) != " ".join(m[0] for m in _CALENDAR_PART.finditer(text)):
        return None
    return sum(round(float(number) * _CALENDAR_MICROS[unit]) for number, unit in parts)


def to_sql(expression: Expression, *, is_top: bool = True, has_sides: bool = True) -> str:
    """Write an expression as SQL.

    Args:
        expression: The expression.
        is_top: False to put operators into parentheses.
        has_sides: True for columns of a pair, such as left_amount; False for columns of one input.

    Raises:
        ImportRefusedError: A part of it is not translated.
    """

    def write(part: Expression) -> str:
        return to_sql(part, is_top=False, has_sides=has_sides)

    match expression:
        case Column():
            return write_column(expression, has_side=has_sides)
        case Literal():
            return _write_literal(expression)
        case TimeWindow():
            raise ImportRefusedError("reads a window, which a pipeline file has no name for. Remove it from the query.")
        case Call() if text := _write_function(expression, write):
            return text
        case Call() if text := _write_operator(expression, write):
            return text if is_top else f"({text})"
    name = expression.name if isinstance(expression, Call) else type(expression).__name__
    raise ImportRefusedError(f"has {name}, which is not translated. Store its result as a column.")


def _write_operator(call: Call, write: Callable[[Expression], str]) -> str:  # noqa: PLR0911 - an operator each
    """Write an operator; empty for another call."""
    match call:
        case Call(name=name, operands=(left, right)) if name in _INFIX:
            return f"{write(left)} {_INFIX[name]} {write(right)}"
        case Call(name="Not", operands=(Call(name="EqualTo", operands=(left, right)),)):
            return f"{write(left)} <> {write(right)}"
        case Call(name="Not", operands=(operand,)):
            return f"NOT {write(operand)}"
        case Call(name="IsNull" | "IsNotNull" as name, operands=(operand,)):
            return f"{write(operand)} IS {'NOT ' if name == 'IsNotNull' else ''}NULL"
        case Call(name="In", operands=(operand, *values)):
            return f"{write(operand)} IN ({', '.join(map(write, values))})"
        case Call(name="Like", operands=(operand, Literal(value=str(pattern)))) if "\\" not in pattern:
            return f"{write(operand)} LIKE {quote_literal(pattern)}"
    return ""


def _write_function(call: Call, write: Callable[[Expression], str]) -> str:
    """Write a function, a cast or CASE; empty for another call."""
    name, operands = call.name, call.operands
    if name == "Cast" and _TYPE_NAME.fullmatch(call.dtype):
        return f"CAST({write(operands[0])} AS {_TYPES.get(call.dtype, call.dtype.upper())})"
    if name == "If":
        condition, value, default = map(write, operands)
        return f"CASE WHEN {condition} THEN {value} ELSE {default} END"
    if name == "CaseWhen":
        pairs = zip(operands[0::2], operands[1::2], strict=False)
        branches = [f"WHEN {write(condition)} THEN {write(value)}" for condition, value in pairs]
        default = f" ELSE {write(operands[-1])}" if len(operands) % 2 else ""
        return f"CASE {' '.join(branches)}{default} END"
    return f"{_FUNCTIONS[name]}({', '.join(map(write, operands))})" if name in _FUNCTIONS else ""


def _write_literal(literal: Literal) -> str:
    value, dtype = literal.value, literal.dtype
    if value is None and dtype in (*_TYPES, "string", "boolean", "double"):
        return f"CAST(NULL AS {_TYPES.get(dtype, dtype.upper())})"
    if dtype == "string" and isinstance(value, str):
        return quote_literal(value)
    if dtype in WHOLE_NUMBERS or (dtype.startswith("decimal") and re.fullmatch(r"-?\d+(\.\d+)?", str(value))):
        return str(value)
    if dtype == "boolean":
        return str(value).lower()
    if dtype == "double":
        number = float(value)
        text = repr(number)
        if not isfinite(number):
            return f"CAST('{'NaN' if isnan(number) else text.replace('inf', 'Infinity')}' AS DOUBLE)"
        return text if "e" in text or not text[-1].isdigit() else f"{text}E0"
    raise ImportRefusedError(f"has a constant of type {dtype}, {value}, which is not translated. Use another type.")
