"""Convert time columns of any type to whole microseconds since 1970-01-01T00:00Z, and back."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, localcontext
from fractions import Fraction
from math import floor, isfinite, log10
from typing import Any

from pyspark.sql import Column, Row
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.config import TimeColumn
from tidemark.config.types import format_instant, to_micros
from tidemark.errors import InputError
from tidemark.formatting import quote_identifier

_UNITS_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_MICROS_PER_SECOND = 1_000_000
_FRACTION_DIGITS = 9
"""Fractional digits of a number that count."""
_DIGITS_OF_DOUBLE = 400
"""More digits than any floating-point number has before and after the point, rounded to `_FRACTION_DIGITS`."""
_MICROSECOND_FORMATS = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Options of Spark's JSON. Its default formats drop microseconds."""
_WHOLE_MILLISECOND = re.compile(r"(\.\d{3})000(?=Z|[+-]|$)")
_HEX_PREFIX = "0x"
_HEX = re.compile("0x([0-9a-fA-F]{2})*")


@dataclass(frozen=True)
class ResolvedTimeColumn:
    """A time column of an input table, checked against the table's schema.

    Numbers finer than a microsecond are floored. Floating-point numbers are rounded to nine fractional digits before,
    so that 0.1 + 0.2 seconds are 300 ms. NaN and infinity count as null.
    """

    name: str
    units_per_second: int | None
    """Units per second of a numeric column; None for a column of times."""
    is_integral: bool = False
    """True for a numeric column of an integer type."""
    has_long_fractions: bool = False
    """True for a decimal column with more than `_FRACTION_DIGITS` fractional digits."""

    @classmethod
    def from_config(cls, column: TimeColumn, schema: T.StructType, table_label: str) -> ResolvedTimeColumn:
        """Check the column's type and unit against the table's schema.

        Raises:
            InputError: The column has no time type, is a number without a unit, or is a time with one.
        """
        dtype = schema[column.column].dataType
        if isinstance(dtype, T.NumericType):
            if column.unit is None:
                raise InputError(
                    f"{table_label}: column {column.column} is a number ({dtype.simpleString()}). "
                    f"Give its unit, such as {{column: {column.column}, unit: ms}}."
                )
            return cls(
                column.column,
                _UNITS_PER_SECOND[column.unit],
                is_integral=isinstance(dtype, T.IntegralType),
                has_long_fractions=isinstance(dtype, T.DecimalType) and dtype.scale > _FRACTION_DIGITS,
            )
        if not isinstance(dtype, T.TimestampType | T.TimestampNTZType | T.DateType):
            raise InputError(
                f"{table_label}: column {column.column} is {dtype.simpleString()}. "
                "Use a timestamp, timestamp_ntz or date column, or a number with its unit."
            )
        if column.unit is not None:
            raise InputError(f"{table_label}: column {column.column} is {dtype.simpleString()}. Remove its unit.")
        return cls(column.column, None)

    @property
    def raw(self) -> Column:
        """Column of the table, not converted."""
        return F.col(quote_identifier(self.name))

    @property
    def micros(self) -> Column:
        """Time in microseconds: a long, null if the time is null or out of range."""
        if self.units_per_second is None:
            return F.unix_micros(self.raw.try_cast("timestamp"))
        if self.is_integral:
            number = self.raw.cast("long")
            if self.units_per_second > _MICROS_PER_SECOND:
                return floor_div(number, self.units_per_second // _MICROS_PER_SECOND)
            return F.try_multiply(number, F.lit(_MICROS_PER_SECOND // self.units_per_second))
        return F.expr(self._micros_sql)

    def to_ticks(self, tick: int) -> Column:
        """Return the time in whole ticks of `tick` microseconds, floored."""
        if self.units_per_second is None and tick == 1000:  # noqa: PLR2004 - Spark has a function for milliseconds
            return F.unix_millis(self.raw.try_cast("timestamp"))
        return self.micros if tick == 1 else floor_div(self.micros, tick)

    def convert_value(self, value: Any) -> int | None:
        """Convert a Python value of the column to microseconds, as `micros` does."""
        match value:
            case datetime():
                return to_micros(value if value.tzinfo else value.replace(tzinfo=UTC))
            case date():
                return to_micros(datetime(value.year, value.month, value.day, tzinfo=UTC))
        if self.units_per_second is None or value is None or not isfinite(value):
            return None
        if isinstance(value, float):
            with localcontext(prec=_DIGITS_OF_DOUBLE):
                value = round(Decimal(repr(value)), _FRACTION_DIGITS)
        micros = floor(Fraction(value) * _MICROS_PER_SECOND / self.units_per_second)
        return micros if -(2**63) <= micros < 2**63 else None

    @property
    def sql_timestamp(self) -> str:
        """Spark SQL for the time as a timestamp, null if `micros` is."""
        column = quote_identifier(self.name)
        if self.units_per_second is None:
            return f"try_cast({column} AS TIMESTAMP)"
        return f"timestamp_micros({self._micros_sql})"

    @property
    def _micros_sql(self) -> str:
        """Spark SQL for the time of a numeric column in microseconds."""
        assert self.units_per_second is not None, "the column has numbers"
        number = quote_identifier(self.name)
        if self.has_long_fractions:  # a cast would round
            number = f"floor({number}, {_FRACTION_DIGITS})"
        number = f"try_cast({number} AS DECIMAL(38, {_FRACTION_DIGITS}))"
        # Arithmetic of decimals rounds: digits after the microsecond have to be gone before.
        if self.units_per_second > _MICROS_PER_SECOND:
            number = f"floor(floor({number}) / {self.units_per_second // _MICROS_PER_SECOND})"
        else:
            factor = _MICROS_PER_SECOND // self.units_per_second
            number = f"try_multiply(floor({number}, {int(log10(factor))}), {factor})"
        return f"try_cast({number} AS BIGINT)"

    def is_between(self, start: int, end: int) -> Column:
        """Return True if the time is in [start, end) microseconds.

        The condition contains a comparison of the raw column, so that files can be skipped by their statistics.
        """
        if self.units_per_second is None:
            low, high = (F.timestamp_micros(F.lit(bound)) for bound in (start, end))
            return (self.raw >= low) & (self.raw < high)
        lowest = start * self.units_per_second // _MICROS_PER_SECOND - 1  # a float may be rounded up to `start`
        highest = (end + _MICROS_PER_SECOND - 1) * self.units_per_second // _MICROS_PER_SECOND
        return (self.raw >= F.lit(lowest)) & (self.raw <= F.lit(highest)) & (self.micros >= start) & (self.micros < end)


def lit_long(number: int) -> Column:
    """Return a literal of type long. Sums of int literals could overflow."""
    return F.lit(number).cast("long")


def floor_div(value: Column, divisor: Column | int) -> Column:
    """Divide integers exactly, rounding towards minus infinity. The divisor is positive.

    The operator `/` would compute a double.
    """
    divisor = F.lit(divisor) if isinstance(divisor, int) else divisor
    return trunc_div(value, divisor) - (value % divisor < 0).cast("long")


def trunc_div(value: Column, divisor: Column | int) -> Column:
    """Divide integers exactly, rounding towards zero, in a third of the time of `floor_div`."""
    return F.call_function("div", value, F.lit(divisor) if isinstance(divisor, int) else divisor)


def clock_ms() -> Column:
    """Return a row's clock in ms, rounded so that a later clock never gives less."""
    return trunc_div(F.col("clock"), 1000)


def as_json(column: Column, dtype: T.DataType | None = None, *, has_null_fields: bool = True) -> Column:
    """Return JSON that differs for different values.

    Unlike Spark's default it has microseconds, null fields, and map keys of any type.

    Args:
        column: The struct to serialize.
        dtype: Its type; None if it contains no maps.
        has_null_fields: False to leave out fields that are null, so that a field may be added later.
    """
    if dtype is not None:
        column = _convert_map_keys_to_text(column, dtype)
    return F.to_json(column, {**_MICROSECOND_FORMATS, "ignoreNullFields": str(not has_null_fields).lower()})


def as_example_json(column: Column) -> Column:
    """Return JSON of a row to show, without null fields. Read it with `parse_example_json`."""
    return F.to_json(column, _MICROSECOND_FORMATS)


def parse_example_json(text: str, dtype: T.DataType) -> dict[str, Any]:
    """Parse a row to show. Its times have milliseconds, or microseconds if they are not whole milliseconds.

    >>> times = T.StructType([T.StructField(name, T.TimestampType()) for name in "ab"])
    >>> parse_example_json('{"a": "2024-01-01T00:00:00.120000Z", "b": "2024-01-01T00:00:00.120001Z"}', times)
    {'a': '2024-01-01T00:00:00.120Z', 'b': '2024-01-01T00:00:00.120001Z'}
    """
    assert isinstance(dtype, T.StructType), "a row is a struct"
    row: dict[str, Any] = json.loads(text)
    times = (field.name for field in dtype if isinstance(field.dataType, T.TimestampType | T.TimestampNTZType))
    return row | {name: _WHOLE_MILLISECOND.sub(r"\1", row[name]) for name in times if name in row}


def to_plain_row(row: Row | Mapping[str, Any], schema: T.StructType) -> dict[str, Any]:
    """Convert a collected row to JSON-ready values by column. Its times are ISO 8601: instants in UTC, with Z."""
    return {field.name: _to_plain_value(row[field.name], field.dataType) for field in schema}


def _to_plain_value(value: Any, dtype: T.DataType) -> Any:
    r"""Convert a collected value to JSON-ready values.

    >>> _to_plain_value(datetime(2013, 1, 1, 10, 15, tzinfo=UTC), T.TimestampType())
    '2013-01-01T10:15Z'
    >>> _to_plain_value({"times": [datetime(2013, 1, 1)]}, T.MapType(T.StringType(), T.ArrayType(T.TimestampNTZType())))
    {'times': ['2013-01-01T00:00']}
    >>> [_to_plain_value(value, T.BinaryType()) for value in (b"abc", b"\xff")]
    ['abc', '0xff']
    """
    if isinstance(value, bytes | bytearray):
        value = _format_binary(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    match dtype:
        case T.StructType():
            return to_plain_row(value, dtype)
        case T.ArrayType():
            return [_to_plain_value(element, dtype.elementType) for element in value]
        case T.MapType():
            pairs = value.items() if isinstance(value, dict) else value  # pairs as in Arrow
            types = dtype.keyType, dtype.valueType
            return {str(_to_plain_value(key, types[0])): _to_plain_value(item, types[1]) for key, item in pairs}
        case T.TimestampNTZType():
            return format_instant(value.replace(tzinfo=UTC)).removesuffix("Z")
    # Spark collects instants without a zone, in that of this process.
    return format_instant(value.astimezone(UTC)) if isinstance(value, datetime) else str(value)


def _format_binary(value: bytes | bytearray) -> str:
    """Return UTF-8 as text, and other bytes in hexadecimal digits."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = _HEX_PREFIX
    return f"{_HEX_PREFIX}{value.hex()}" if text.startswith(_HEX_PREFIX) else text


def parse_binary(text: str) -> bytes:
    r"""Return the bytes that `to_plain_row` has converted to text.

    >>> parse_binary("abc"), parse_binary("0xff")
    (b'abc', b'\xff')
    """
    return bytes.fromhex(text.removeprefix(_HEX_PREFIX)) if _HEX.fullmatch(text) else text.encode()


def _convert_map_keys_to_text(column: Column, dtype: T.DataType) -> Column:
    """Convert binary, array and struct keys of maps to text. Spark's JSON would contain only their object identity."""
    if not _has_complex_map_keys(dtype):
        return column
    match dtype:
        case T.StructType():
            fields = (
                _convert_map_keys_to_text(column.getField(field.name), field.dataType).alias(field.name)
                for field in dtype
            )
            return F.when(column.isNotNull(), F.struct(*fields))
        case T.ArrayType():
            return F.transform(column, lambda element: _convert_map_keys_to_text(element, dtype.elementType))
        case T.MapType():
            with_text_keys = F.transform_keys(column, lambda key, _: as_json(F.struct(key.alias("key"))))
            return F.transform_values(
                with_text_keys, lambda _, value: _convert_map_keys_to_text(value, dtype.valueType)
            )
    return column


def _has_complex_map_keys(dtype: T.DataType) -> bool:
    match dtype:
        case T.StructType():
            return any(_has_complex_map_keys(field.dataType) for field in dtype)
        case T.ArrayType():
            return _has_complex_map_keys(dtype.elementType)
        case T.MapType():
            is_complex_key = isinstance(dtype.keyType, T.BinaryType | T.ArrayType | T.StructType)
            return is_complex_key or _has_complex_map_keys(dtype.valueType)
    return False
