"""Find rows of an input by values that a user gives as text, or by the row of a join before that they contain."""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Mapping
from contextlib import suppress
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.comparison.committed_view import CommittedView
from tidemark.config.sides import SIDES, SideName
from tidemark.config.types import parse_instant
from tidemark.errors import UserError, suggest_name
from tidemark.formatting import format_value, quote_identifier
from tidemark.ledger.row_content import content_hash
from tidemark.sources.normalization import is_emission
from tidemark.sources.stored_input import StoredInput

_VALUE = re.compile(r"""\s*([^=,]+?)\s*=\s*(?:('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|([^,]*?))\s*(,|$)""")
"""Column, quoted or plain value, and the comma before the next column."""
_TYPES_WITHOUT_TEXT = (T.ArrayType, T.MapType, T.StructType, T.VariantType)
"""Types whose values have no text that a user could give."""
MAX_ROWS = 5
"""Largest number of rows that one lookup may find."""


RowValues = Mapping[str, str | None]
"""Values of a row as texts, by column; None for null."""


def is_scalar(value: object) -> bool:
    """Return True for a value that a row can be found by: no null, list, map or struct."""
    return isinstance(value, bool | int | float | str)


def parse_row(text: str) -> dict[str, str | None]:
    r"""Parse the values of a row. A value in quotes may have commas, blank ends, and escapes as in Python.

    `null` in any case, as in SQL, is no text but null.

    Raises:
        ValueError: Invalid syntax.

    >>> parse_row("carrier=UA, flight=1545, tailnum='N1 \t'")
    {'carrier': 'UA', 'flight': '1545', 'tailnum': 'N1 \t'}
    >>> parse_row("carrier=NULL, tailnum='null'")
    {'carrier': None, 'tailnum': 'null'}
    """
    values: dict[str, str | None] = {}
    position = 0
    while match := _VALUE.match(text, position):
        name, quoted, plain, separator = match.groups()
        try:
            values[name] = str(literal_eval(quoted)) if quoted else None if plain.lower() == "null" else plain
        except SyntaxError:
            raise ValueError(f"{quoted} is not a valid string. Write a backslash as two.") from None
        position = match.end()
        if not separator:
            return values
    raise ValueError(
        f"{text!r} is not a row. Write columns and values, such as 'carrier=UA,flight=1545', or 'carrier=null'."
    )


def is_nameable(column: str) -> bool:
    """Return True if `parse_row` can read the name of a column: it has no comma and no equals sign.

    >>> is_nameable("flight no."), is_nameable("a,b"), is_nameable("a=b")
    (True, False, False)
    """
    return not set(",=") & set(column)


def format_row(values: Mapping[str, Any]) -> str:
    """Format values of a row as `parse_row` reads them.

    >>> format_row({"carrier": "UA", "name": "a, b", "flight": 1545})
    "carrier=UA,name='a, b',flight=1545"
    >>> format_row({"carrier": None, "name": "null"})
    "carrier=null,name='null'"
    """
    return ",".join(f"{name}={'null' if value is None else _quote(str(value))}" for name, value in values.items())


def _quote(text: str) -> str:
    is_ambiguous = "," in text or text.startswith(("'", '"')) or text.lower() == "null"
    return repr(text) if is_ambiguous else format_value(text)


def find_rows(view: CommittedView, side: SideName, values: RowValues) -> list[Row]:
    """Find the rows of an input with these values, normalized and with their `_hash`.

    Raises:
        UserError: No such column, one without scalar values, no such row, or more than `MAX_ROWS` rows.
    """
    source = view.inputs[SIDES.index(side)]
    schema = source.side.schema
    for name in values:
        if name not in schema.names:
            hint = suggest_name(name, schema.names)
            raise UserError(f"--{side}: input {source.table.name} has no column {name}. {hint}")
        dtype = schema[name].dataType
        if values[name] is not None and isinstance(dtype, _TYPES_WITHOUT_TEXT):
            raise UserError(
                f"--{side}: column {name} is {dtype.simpleString()}, by which no row can be found. Name other columns."
            )
    has_values = reduce(Column.__and__, (has_value(source, name, value) for name, value in values.items()))
    collected = _read_rows(view, side, has_values).limit(MAX_ROWS + 1).collect()
    given = format_row(values)
    if not collected:
        types = ", ".join(f"{name} is {schema[name].dataType.simpleString()}" for name in values)
        raise UserError(f"--{side} {given}: input {source.table.name} has no such row. Check the values: {types}.")
    if len(collected) > MAX_ROWS:
        raise UserError(f"--{side} {given}: more than {MAX_ROWS} rows match. Add values of other columns.")
    return collected


def find_emissions(
    view: CommittedView, side: SideName, row: Row, reader: CommittedView, reading_side: SideName
) -> list[Row]:
    """Find the rows of an input that a pipeline has emitted for an input row of its own, in the order of emission.

    Args:
        view: The pipeline that emits the rows.
        side: Its input.
        row: The row of that input.
        reader: The pipeline that reads the output.
        reading_side: The input that is the output.

    Returns:
        At most `MAX_ROWS` + 1 rows, in the form of `find_rows`; none if the output has no column of the row.
    """
    columns = view.map_columns(side)
    if not columns:
        return []
    table = reader.inputs[SIDES.index(reading_side)].table.read()
    is_emission = content_hash(table, list(columns)) == F.lit(hash_row(view, side, row, columns))
    rows = _read_rows(reader, reading_side, is_emission)
    return rows.orderBy("clock", "tiebreak").limit(MAX_ROWS + 1).collect()


def hash_row(view: CommittedView, side: SideName, row: Row, columns: Mapping[str, str]) -> int:
    """Compute the hash of an input row over the columns of emissions that `CommittedView.map_columns` maps."""
    single = view.spark.createDataFrame([row[side]], view.inputs[SIDES.index(side)].side.schema)
    hashed = single.select(content_hash(single, columns.values()).alias("hash")).first()
    assert hashed is not None, "one row"
    return int(hashed["hash"])


def _read_rows(view: CommittedView, side: SideName, condition: Column) -> DataFrame:
    """Read the rows of an input that meet a condition on its columns, normalized and with their `_hash`."""
    source = view.inputs[SIDES.index(side)]
    table = source.table.read().where(condition)
    if source.side.is_output_stream:
        table = table.where(is_emission())
    rows = source.side.normalize_all(table, view.grid, view.grid.start)
    return rows.withColumn("_hash", content_hash(rows, [side]))


def find_minimal_key(view: CommittedView, side: SideName, row: Mapping[str, str]) -> dict[str, str] | None:
    """Find the fewest values that identify a row: key and event time, with one more column or all if necessary.

    Returns:
        None if the input contains no such row, because it was erased for example, or more than `MAX_ROWS`.
    """
    source, pipeline = view.inputs[SIDES.index(side)], view.pipeline
    keys = (pair.list_column_candidates(side) for pair in pipeline.join.keys)
    usual = {getattr(pipeline, side).event_time.column}.union(*keys)
    conditions = {name: has_value(source, name, value) for name, value in row.items()}
    base = {name: value for name, value in row.items() if name in usual}
    in_base = reduce(Column.__and__, (conditions[name] for name in base), F.lit(True))
    narrowed_counts = [F.count_if(in_base & condition) for condition in conditions.values()]
    is_equal = reduce(Column.__and__, conditions.values())
    rows = _read_rows(view, side, F.lit(True)).select(f"{side}.*")
    counts = rows.agg(F.count_if(in_base), F.count_if(is_equal), *narrowed_counts).first()
    assert counts is not None, "an aggregate has one row"
    base_count, equal_count, *narrowed = counts
    if not 0 < equal_count <= MAX_ROWS:
        return None
    if base_count == equal_count:
        return base
    best = min(range(len(narrowed)), key=narrowed.__getitem__)
    name, value = list(row.items())[best]
    return {**base, name: value} if narrowed[best] == equal_count else dict(row)


def has_value(source: StoredInput, name: str, value: str | None, column: Column | None = None) -> Column:
    """Return True for rows of an input with a value, given as text.

    Args:
        source: The input.
        name: Name of the column.
        value: The value; None for null.
        column: The column, if the rows have it under another name.
    """
    column = F.col(quote_identifier(name)) if column is None else column
    if value is None:
        return column.isNull()
    dtype = source.side.schema[name].dataType
    if isinstance(dtype, T.TimestampType | T.TimestampNTZType):
        with suppress(ValueError):
            # Spark reads no time without seconds, as Tidemark writes them.
            value = parse_instant(value, note_missing_zone=isinstance(dtype, T.TimestampType)).isoformat()
    return column == F.lit(value).try_cast(dtype)
