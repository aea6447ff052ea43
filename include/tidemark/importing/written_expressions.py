"""Write settings that consist of expressions. The engines differ only in how they write an expression as SQL."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, count

from tidemark.config.expressions import list_columns
from tidemark.config.loader import PLACEHOLDER
from tidemark.config.sides import SideName
from tidemark.errors import ImportRefusedError
from tidemark.formatting import quote_identifier
from tidemark.importing.draft import Omission, Section, Setting
from tidemark.importing.expressions import Column, Expression

_NAME = re.compile(r"[A-Za-z_]\w*")
SqlWriter = Callable[[Expression], str]
"""Function that writes an expression as SQL, or raises `ImportRefusedError`."""


@dataclass(frozen=True)
class OutputColumn:
    """A column of a query's result."""

    name: str
    expression: Expression
    origin: str


def write_column(column: Column, *, has_side: bool) -> str:
    """Write a column or a field of it as SQL.

    >>> write_column(Column(("order line", "id"), "BIGINT", "left"), has_side=True)
    '`left_order line`.id'
    """
    name, *fields = column.path
    parts = (f"{column.side}_{name}" if has_side else name, *fields)
    return ".".join(_quote_if_needed(part) for part in parts)


@cache
def _quote_if_needed(name: str) -> str:
    """Quote a name that SQL reads as something else than a column, such as null or from."""
    is_plain = _NAME.fullmatch(name) and list_columns(f"{name} IS NULL OR {name} <> 1") == [name]
    return name if is_plain else quote_identifier(name)


def write_conjunction(conditions: Iterable[Expression], to_sql: SqlWriter, location: str) -> str:
    """Write conditions that all must hold as one.

    Args:
        conditions: The conditions.
        to_sql: Writes each of them.
        location: Place of the conditions in the job, with which a refusal begins.

    Raises:
        ImportRefusedError: One of them cannot be written.
    """
    try:
        return join_conjuncts([to_sql(condition) for condition in conditions])
    except ImportRefusedError as error:
        raise ImportRefusedError(f"{location} {error}") from None


def join_conjuncts(parts: Sequence[str]) -> str:
    """Combine conditions by AND.

    >>> join_conjuncts(["a = 1 OR b = 2", "c = 3"])
    '(a = 1 OR b = 2) AND c = 3'
    """
    return " AND ".join(f"({part})" if " OR " in part and len(parts) > 1 else part for part in parts)


def write_key(key: Expression, side: SideName, to_sql: SqlWriter) -> str:
    """Write a key of one side: the name of its column, or an expression.

    Raises:
        ImportRefusedError: It cannot be written.
    """
    if isinstance(key, Column) and len(key.path) == 1:
        return key.path[0]
    return write_conjunction([key], to_sql, f"a {side} key of the join")


def write_select(columns: Iterable[OutputColumn], to_sql: SqlWriter) -> Section:
    """Write the output columns. An expression that cannot be written is left to the user.

    A name that begins with an underscore, or that another column has already, is changed.
    """
    columns = list(columns)
    unchanged = {column.name.lower(): column for column in reversed(columns) if not column.name.startswith("_")}
    taken = set(unchanged)
    select: Section = {}
    for column in columns:
        if unchanged.get(column.name.lower()) is column:
            select[column.name] = _write_output_column(column, to_sql)
            continue
        name = _choose_name(column.name, taken)
        taken.add(name.lower())
        origin = f"{column.origin}, a name that begins with _ or is not unique"
        select[name] = _write_output_column(replace(column, origin=origin), to_sql)
    return select


def _choose_name(name: str, taken: Collection[str]) -> str:
    """Return a name without leading underscores, and with a number if it is taken, whatever its case.

    >>> _choose_name("_id", {"id"}), _choose_name("__", ())
    ('id_2', 'column')
    """
    stem = name.lstrip("_") or "column"
    candidates = chain([stem], (f"{stem}_{number}" for number in count(2)))
    return next(candidate for candidate in candidates if candidate.lower() not in taken)


def omit_window_expression(name: str) -> Omission:
    """Return the omission of an output column that is computed from a window."""
    reason = "It reads a window, which `select` has no name for. The emissions have _window_start and _window_end."
    return Omission(f"output column {name}", reason)


def _write_output_column(column: OutputColumn, to_sql: SqlWriter) -> Setting:
    try:
        return Setting(to_sql(column.expression), column.origin)
    except ImportRefusedError as error:
        reason = str(error).removesuffix(".")
        return Setting(PLACEHOLDER, f"{column.origin}: it {reason}, or write its SQL here")
