"""Parse the expressions of a compiled plan, over the columns of its source tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tidemark.importing.expressions import Call, Column, Expression, Interval, Literal, ValueRanges

_INTERNAL_NAME = re.compile(r"\$(.+)\$\d+")
_FIELD = re.compile(r"`((?:[^`]|``)+)` ")
_NO_EFFECT = ("REINTERPRET",)
"""Calls that only change the type which the planner sees."""


def parse_expression(node: Any, inputs: Sequence[Expression]) -> Expression:  # noqa: PLR0911 - a kind each
    """Parse an expression of a plan.

    An unknown expression becomes a call of its kind, so that it is refused only where it is used.

    Args:
        node: The expression's JSON.
        inputs: Expressions that input references stand for.
    """
    dtype = format_type(node.get("type"))
    match node:
        case {"kind": "INPUT_REF", "inputIndex": int(index)} if 0 <= index < len(inputs):
            return inputs[index]
        case {"kind": "LITERAL", "sarg": {"ranges": ranges, "nullAs": null_as}}:
            return ValueRanges(
                tuple((_parse_bound(r, "lower"), _parse_bound(r, "upper")) for r in ranges), dtype, null_as
            )
        case {"kind": "LITERAL", "value": value} if dtype.startswith("INTERVAL") and not _is_months(dtype):
            return Interval(int(value))
        case {"kind": "LITERAL", "value": value}:
            return Literal(value, dtype)
        case {"kind": "FIELD_ACCESS", "name": str(name), "expr": inner}:
            parent = parse_expression(inner, inputs)
            if isinstance(parent, Column):
                return Column((*parent.path, name), dtype, parent.side)
        case {"kind": "CALL"}:
            operands = tuple(parse_expression(operand, inputs) for operand in node.get("operands") or ())
            name = _get_function(node)
            return operands[0] if name in _NO_EFFECT else Call(name, operands, dtype)
    return Call(str(node.get("kind")), (), dtype)


def format_type(dtype: Any) -> str:
    """Return a type of the plan's JSON as SQL.

    >>> format_type({"type": "TIMESTAMP_WITHOUT_TIME_ZONE", "precision": 3, "kind": "ROWTIME"})
    'TIMESTAMP(3)'
    """
    match dtype:
        case str():
            return dtype.removesuffix(" NOT NULL")
        case {"type": "TIMESTAMP_WITHOUT_TIME_ZONE", "precision": precision}:
            return f"TIMESTAMP({precision})"
        case {"type": "TIMESTAMP_WITH_LOCAL_TIME_ZONE", "precision": precision}:
            return f"TIMESTAMP({precision}) WITH LOCAL TIME ZONE"
        case {"type": name}:
            return format_type(name)
    return "unknown"


def list_fields(row_type: Any) -> list[tuple[str, str]]:
    """List names and types of the fields of a row type.

    >>> list_fields("ROW<`id` BIGINT, `r` ROW<`x` INT>, `a b` DECIMAL(1, 0) NOT NULL> NOT NULL")
    [('id', 'BIGINT'), ('r', 'ROW<`x` INT>'), ('a b', 'DECIMAL(1, 0)')]
    """
    if isinstance(row_type, dict):
        return [(str(field["name"]), format_type(field["fieldType"])) for field in row_type["fields"]]
    inner = row_type[row_type.index("<") + 1 : row_type.rindex(">")]
    return [
        (match[1].replace("``", "`"), format_type(part[match.end() :]))
        for part in _split(inner)
        if (match := _FIELD.match(part))
    ]


def _split(text: str) -> list[str]:
    """Split a list of fields at the commas outside of brackets and names."""
    depth, is_name, parts = 0, False, [""]
    for character in text:
        is_name ^= character == "`"
        depth += 0 if is_name else (character in "<(") - (character in ">)")
        if character == "," and depth == 0 and not is_name:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def _get_function(node: dict[str, Any]) -> str:
    match = _INTERNAL_NAME.fullmatch(str(node.get("internalName", "")))
    if match:
        return match[1].upper()
    return str(node.get("internalName") or node.get("systemName") or node.get("catalogName") or node.get("class"))


def _is_months(dtype: str) -> bool:
    return any(unit in dtype for unit in ("YEAR", "MONTH"))


def _parse_bound(value_range: Any, name: str) -> tuple[Any, bool] | None:
    bound = value_range.get(name)
    return (bound["value"], bound["boundType"] == "CLOSED") if bound else None
