"""Write expressions of a Flink plan as SQL of a pipeline file, or refuse them.

Only operators with equal results in Flink and Spark are written. Nothing is left out of an expression.
"""

from __future__ import annotations

import re
from typing import Any

from tidemark.errors import ImportRefusedError
from tidemark.formatting import quote_literal
from tidemark.importing.expressions import Call, Column, Expression, Interval, Literal, ValueRanges, WindowColumn
from tidemark.importing.written_expressions import write_column

_INTEGERS = ("TINYINT", "SMALLINT", "INTEGER", "INT", "BIGINT")
_EXACT = (*_INTEGERS, "DECIMAL")
_TEXT = ("CHAR", "VARCHAR", "STRING")
_PLAIN = (*_INTEGERS, "BOOLEAN", "FLOAT", "DOUBLE", "DATE")
"""Types without a precision, a length or parts."""
_UNBOUNDED = 2_147_483_647
"""Length of a STRING."""
_TIMESTAMPS = ("TIMESTAMP", "TIMESTAMP_LTZ")
_COMPARISONS = ("=", "<>", "<", "<=", ">", ">=")
_POSTFIX = ("IS NULL", "IS NOT NULL", "IS TRUE", "IS NOT TRUE", "IS FALSE", "IS NOT FALSE")
_COMPARABLE = ({*_EXACT}, {*_INTEGERS, "DOUBLE"}, {"DECIMAL", "FLOAT", "DOUBLE"}, {*_TEXT})
"""Types that both engines convert to the same type, to compare them."""
_ARITHMETIC = {"+": "+", "-": "-", "*": "*", "MOD": "%"}
_NULL_TYPES = {name: name for name in (*_INTEGERS, "BOOLEAN", "DOUBLE")} | {"INTEGER": "INT", "VARCHAR": "STRING"}
_FUNCTIONS = {"CHAR_LENGTH": "char_length", "COALESCE": "coalesce", "LOWER": "lower", "UPPER": "upper"}
_EPOCH_FUNCTIONS = {0: "timestamp_seconds", 3: "timestamp_millis"}


def get_type_root(dtype: str) -> str:
    """Return the name of a type without precision and nullability.

    >>> get_type_root("DECIMAL(10, 2) NOT NULL"), get_type_root("TIMESTAMP(3) WITH LOCAL TIME ZONE")
    ('DECIMAL', 'TIMESTAMP_LTZ')
    """
    root = re.split(r"[( <]", dtype, maxsplit=1)[0]
    if root == "TIMESTAMP" and "LOCAL TIME ZONE" in dtype:
        return "TIMESTAMP_LTZ"
    return "INTEGER" if root == "INT" else root


def to_sql(expression: Expression) -> str:
    """Write an expression as Spark SQL. Columns of a side get its prefix, such as left_amount.

    Raises:
        ImportRefusedError: The expression, or a part of it, is not known to be equal in both engines.
    """
    return _write(expression, is_top=True)


def _write(expression: Expression, *, is_top: bool = False) -> str:
    match expression:
        case Column(side=side):
            return write_column(expression, has_side=bool(side))
        case WindowColumn(name=name):
            raise ImportRefusedError(f"reads {name}, which a pipeline file has no name for. Remove it from the query.")
        case Literal(value=value, dtype=dtype):
            return _write_literal(value, dtype)
        case Interval():
            raise ImportRefusedError("computes a time, which is not translated. Store the time as a column.")
        case Call(name="SEARCH", operands=(operand, ValueRanges() as ranges)):
            text = _write_search(operand, ranges)
        case Call():
            text = _write_call(expression)
        case _:
            raise ImportRefusedError(f"has {type(expression).__name__}, which is not translated. Simplify the query.")
    return text if is_top or not _is_operator(expression) else f"({text})"


def _is_operator(expression: Expression) -> bool:
    return isinstance(expression, Call) and expression.name not in {*_FUNCTIONS, "CASE", "CAST", "TO_TIMESTAMP_LTZ"}


def _write_call(call: Call) -> str:
    name, operands = call.name, call.operands
    match name, operands:
        case ("AND" | "OR" | "||", (_, _, *_)):
            text = f" {name} ".join(_write(operand) for operand in operands)
        case ("NOT", (operand,)):
            text = f"NOT {_write(operand)}"
        case (_, (operand,)) if name in _POSTFIX:
            text = f"{_write(operand)} {name}"
        case (_, (left, right)) if name in _COMPARISONS:
            _check_comparable(left, right)
            text = f"{_write(left)} {name} {_write(right)}"
        case ("LIKE", (operand, Literal(value=str(pattern)))) if "\\" not in pattern:
            text = f"{_write(operand)} LIKE {quote_literal(pattern)}"
        case ("+" | "-" | "*" | "MOD", (left, right)) if _can_compute(left, right):
            text = f"{_write(left)} {_ARITHMETIC[name]} {_write(right)}"
        case ("-", (operand,)) if _can_compute(operand, operand):
            value = _write(operand)
            text = f"-({value})" if value.startswith("-") else f"-{value}"  # -- begins a comment
        case _:
            text = _write_function(call)
    return text


def _write_function(call: Call) -> str:
    name, operands = call.name, call.operands
    match name, operands:
        case ("CAST", (operand,)):
            text = _write_cast(operand, call.dtype)
        case ("CASE", (_, _, _, *_)) if len(operands) % 2:
            text = _write_case(call)
        case ("TO_TIMESTAMP_LTZ", (operand, Literal(value=int(precision)))) if precision in _EPOCH_FUNCTIONS:
            text = f"{_EPOCH_FUNCTIONS[precision]}({_write(operand)})"
        case (_, (_, *_)) if name in _FUNCTIONS:
            text = f"{_FUNCTIONS[name]}({', '.join(_write(operand) for operand in operands)})"
        case _:
            raise ImportRefusedError(f"calls {name}, which may differ in Spark SQL. Store its result as a column.")
    return text


def _write_case(call: Call) -> str:
    """Write CASE WHEN ... END, whose operands are conditions and values in turn, and the default.

    Raises:
        ImportRefusedError: The engines may convert a value to the type of the result differently, or a part differs.
    """
    *pairs, default = call.operands
    conditions = map(_write, pairs[::2])
    values = [_write_case_value(value, call.dtype) for value in (*pairs[1::2], default)]
    branches = [f"WHEN {condition} THEN {value}" for condition, value in zip(conditions, values[:-1], strict=True)]
    return f"CASE {' '.join(branches)} ELSE {values[-1]} END"


def _write_case_value(value: Expression, target: str) -> str:
    _check_padding(value)
    dtype = _get_dtype(value)
    roots = get_type_root(dtype), get_type_root(target)
    is_null = isinstance(value, Literal) and value.value is None
    if is_null or dtype == target or (roots[0] == roots[1] and roots[0] in _PLAIN) or _keeps_text(*roots):
        return _write(value)
    if _is_widening(*roots):
        return _write_cast(value, target)
    raise ImportRefusedError(f"has CASE with {dtype} as {target}, which engines may convert differently. Cast it.")


def _check_comparable(left: Expression, right: Expression) -> None:
    """Refuse comparisons whose operands the engines convert differently.

    Raises:
        ImportRefusedError: The types differ, and the engines convert them to different types.
    """
    for part in (left, right):
        _check_padding(part)
    roots = {get_type_root(_get_dtype(left)), get_type_root(_get_dtype(right))}
    if len(roots) > 1 and not any(roots <= group for group in _COMPARABLE):
        raise ImportRefusedError(
            f"compares {' with '.join(sorted(roots))}, which engines convert differently. Cast it."
        )


def _check_padding(operand: Expression) -> None:
    if isinstance(operand, Column) and get_type_root(operand.dtype) == "CHAR":
        raise ImportRefusedError("has a CHAR column, which Spark pads with spaces. Make it a STRING.")


def _can_compute(left: Expression, right: Expression) -> bool:
    """Return True if arithmetic has the same type in both engines. Where Flink's integers overflow, Spark fails."""
    roots = {get_type_root(_get_dtype(left)), get_type_root(_get_dtype(right))}
    return roots <= {"INTEGER", "BIGINT"} or roots == {"DOUBLE"}


def _get_dtype(expression: Expression) -> str:
    match expression:
        case Column(dtype=dtype) | Literal(dtype=dtype) | Call(dtype=dtype) | ValueRanges(dtype=dtype):
            return dtype
    return type(expression).__name__


def _write_cast(operand: Expression, dtype: str) -> str:
    """Write a cast that loses nothing. Other casts differ in rounding, overflow or text."""
    _check_padding(operand)
    source, target = get_type_root(_get_dtype(operand)), get_type_root(dtype)
    if source == target and (source in _PLAIN or _get_dtype(operand) == dtype):
        return _write(operand)
    if source == target and source in _TIMESTAMPS and get_length(dtype) >= get_length(_get_dtype(operand)):
        return _write(operand)
    if _keeps_text(source, target) and get_length(dtype) >= get_length(_get_dtype(operand)):
        return _write(operand)
    if _is_widening(source, target):
        return f"CAST({_write(operand)} AS {target})"
    if source in _INTEGERS and (target == "STRING" or get_length(dtype) == _UNBOUNDED):
        return f"CAST({_write(operand)} AS STRING)"
    raise ImportRefusedError(
        f"casts {_get_dtype(operand)} to {dtype}, which may differ in Spark SQL. Store the result as a column."
    )


def _is_widening(source: str, target: str) -> bool:
    """Return True if a whole number becomes a longer one, or a DOUBLE."""
    if source not in _INTEGERS:
        return False
    return target == "DOUBLE" or (target in _INTEGERS and _INTEGERS.index(source) < _INTEGERS.index(target))


def _keeps_text(source: str, target: str) -> bool:
    """Return True if a type of text takes a text as it is. A CHAR adds spaces."""
    return source in _TEXT and target in ("STRING", "VARCHAR")


def get_length(dtype: str) -> int:
    """Return the length or precision of a type."""
    match = re.search(r"\((\d+)\)", dtype)
    return int(match[1]) if match else 1


def _write_literal(value: Any, dtype: str) -> str:  # noqa: PLR0911 - a type each
    root = get_type_root(dtype)
    if value is None and root in _NULL_TYPES:
        return f"CAST(NULL AS {_NULL_TYPES[root]})"
    if isinstance(value, bool):
        return str(value).lower()
    if root in _TEXT and isinstance(value, str):
        return quote_literal(value)
    if root in _INTEGERS and isinstance(value, int):
        return str(value)
    if root == "DECIMAL" and re.fullmatch(r"-?\d+(\.\d+)?", str(value)):
        return str(value)
    if root == "DATE" and re.fullmatch(r"\d{4}-\d\d-\d\d", str(value)):
        return f"DATE '{value}'"
    if root == "TIMESTAMP" and re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,6})?", str(value)):
        return f"TIMESTAMP_NTZ '{value}'"  # as Flink's, which has no zone; Tidemark reads a TIMESTAMP in UTC
    if root == "DOUBLE" and isinstance(value, (int, float, str)):
        return f"{float(value)!r}" if "e" in f"{float(value)!r}" else f"{float(value)!r}E0"
    raise ImportRefusedError(f"has a constant of type {dtype}, {value}, which is not translated. Use another type.")


def _write_search(operand: Expression, ranges: ValueRanges) -> str:
    """Write a test for a set of values: IN for points, comparisons for ranges."""
    _check_comparable(operand, Literal(None, ranges.dtype))
    text = _write(operand)
    points = [lower[0] for lower, upper in ranges.ranges if lower and lower == upper and lower[1]]
    gaps = _find_gaps(ranges)
    if gaps or len(points) == len(ranges.ranges):
        values = ", ".join(_write_literal(point, ranges.dtype) for point in gaps or points)
        condition = f"{text} {'NOT IN' if gaps else 'IN'} ({values})"
        is_single = True
    else:
        parts = [_write_range(text, lower, upper, ranges.dtype) for lower, upper in ranges.ranges]
        condition = " OR ".join(f"({part})" if " AND " in part and len(parts) > 1 else part for part in parts)
        is_single = len(parts) == 1
    if ranges.null_as == "TRUE":
        return f"{condition} OR {text} IS NULL"
    if ranges.null_as == "FALSE":
        return f"{condition if is_single else f'({condition})'} AND {text} IS NOT NULL"
    return condition


def _find_gaps(ranges: ValueRanges) -> list[Any]:
    """Return the values that are missing from a set of all other values; empty for another set."""
    bounds = [bound for value_range in ranges.ranges for bound in value_range]
    first, *inner, last = bounds
    gaps = list(zip(inner[0::2], inner[1::2], strict=True))
    if first or last or not all(lower and lower == upper and not lower[1] for lower, upper in gaps):
        return []
    return [lower[0] for lower, _ in gaps if lower]


def _write_range(text: str, lower: tuple[Any, bool] | None, upper: tuple[Any, bool] | None, dtype: str) -> str:
    if lower and lower == upper:
        return f"{text} = {_write_literal(lower[0], dtype)}"
    bounds = ((lower, (">", ">=")), (upper, ("<", "<=")))
    parts = [f"{text} {signs[bound[1]]} {_write_literal(bound[0], dtype)}" for bound, signs in bounds if bound]
    if not parts:
        raise ImportRefusedError("tests for a set of all values, which is not translated. Simplify the query.")
    return " AND ".join(parts)
