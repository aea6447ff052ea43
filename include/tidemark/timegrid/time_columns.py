"""Time columns of any type as whole microseconds since 1970-01-01T00:00Z, and back."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from math import floor, isfinite
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.config import TimeColumn
from tidemark.config.types import to_micros
from tidemark.errors import InputError
from tidemark.formatting import quote_identifier

_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_MICROS = 1_000_000


@dataclass(frozen=True)
class ResolvedTimeColumn:
    """A time column of an input table, checked against the table's schema.

    Numbers finer than a microsecond are floored; values that are no number (NaN, infinity) count as null.
    """

    name: str
    per_second: int | None
    """Of a column of numbers, how many make a second; None for a column of times."""
    is_integral: bool = False
    """Whether its numbers have no fraction."""

    @classmethod
    def from_config(cls, column: TimeColumn, schema: T.StructType, table_label: str) -> ResolvedTimeColumn:
        """Check the column's type and unit against the table's schema.

        Raises:
            InputError: not a time type, or a number without its unit, or a unit without a number.
        """
        dtype = schema[column.column].dataType
        if isinstance(dtype, T.NumericType):
            if column.unit is None:
                raise InputError(
                    f"{table_label}: column {column.column} is a number ({dtype.simpleString()}); "
                    f"give its unit, such as {{column: {column.column}, unit: ms}}"
                )
            return cls(column.column, _PER_SECOND[column.unit], is_integral=isinstance(dtype, T.IntegralType))
        if not isinstance(dtype, T.TimestampType | T.TimestampNTZType | T.DateType):
            raise InputError(
                f"{table_label}: column {column.column} is {dtype.simpleString()}; "
                "use a timestamp, timestamp_ntz or date column, or a number with its unit"
            )
        if column.unit is not None:
            raise InputError(f"{table_label}: column {column.column} is {dtype.simpleString()}; remove its unit")
        return cls(column.column, None)

    @property
    def raw(self) -> Column:
        """The column as the table has it."""
        return F.col(quote_identifier(self.name))

    @property
    def micros(self) -> Column:
        """The time in microseconds: a long, null where the time is null or no long can hold it."""
        if self.per_second is None:
            return F.unix_micros(self.raw.try_cast("timestamp"))
        if self.is_integral:
            number = self.raw.cast("long")
            if self.per_second > _MICROS:
                return floor_div(number, self.per_second // _MICROS)
            return F.try_multiply(number, F.lit(_MICROS // self.per_second))
        number = self.raw.try_cast("decimal(38,9)")
        return F.floor(F.try_multiply(number, F.lit(_MICROS)) / F.lit(self.per_second)).try_cast("long")

    def to_ticks(self, tick: int) -> Column:
        """`micros` in whole ticks of so many microseconds, floored."""
        if self.per_second is None and tick == 1000:  # noqa: PLR2004 - what Spark has a function for
            return F.unix_millis(self.raw.try_cast("timestamp"))
        return self.micros if tick == 1 else floor_div(self.micros, tick)

    def convert_value(self, value: Any) -> int | None:
        """`micros` of one value, as Python has it."""
        match value:
            case datetime():
                return to_micros(value if value.tzinfo else value.replace(tzinfo=UTC))
            case date():
                return to_micros(datetime(value.year, value.month, value.day, tzinfo=UTC))
        if self.per_second is None or value is None or not isfinite(value):
            return None
        micros = floor(Decimal(value) * _MICROS / self.per_second)
        return micros if -(2**63) <= micros < 2**63 else None

    @property
    def sql_timestamp(self) -> str:
        """The time as a timestamp, in Spark's SQL; null as `micros`."""
        column = quote_identifier(self.name)
        if self.per_second is None:
            return f"try_cast({column} AS TIMESTAMP)"
        number = f"floor(try_multiply(try_cast({column} AS DECIMAL(38, 9)), {_MICROS}) / {self.per_second})"
        return f"timestamp_micros(try_cast({number} AS BIGINT))"

    def is_between(self, start: int, end: int) -> Column:
        """Whether the time lies in [start, end) microseconds, said so that files can be skipped by their statistics."""
        if self.per_second is None:
            low, high = (F.timestamp_micros(F.lit(bound)) for bound in (start, end))
            return (self.raw >= low) & (self.raw < high)
        low, high = (F.lit(bound * self.per_second // _MICROS) for bound in (start, end + _MICROS - 1))
        return (self.raw >= low) & (self.raw <= high) & (self.micros >= start) & (self.micros < end)


def lit_long(number: int) -> Column:
    """A number as a long whatever its size: as an int, sums of a few could overflow."""
    return F.lit(number).cast("long")


def floor_div(value: Column, divisor: Column | int) -> Column:
    """Exact integer division rounding towards minus infinity (`/` would go through a double); size > 0."""
    divisor = F.lit(divisor) if isinstance(divisor, int) else divisor
    return trunc_div(value, divisor) - (value % divisor < 0).cast("long")


def trunc_div(value: Column, divisor: Column | int) -> Column:
    """Exact integer division rounding towards zero, in a third of the time."""
    return F.call_function("div", value, F.lit(divisor) if isinstance(divisor, int) else divisor)


def as_json(column: Column, dtype: T.DataType | None = None) -> Column:
    """JSON that tells values apart: with the six digits of a second, where Spark's own has three, and with nulls.

    `kind` is the column's type, where that may have maps.
    """
    if dtype is not None:
        column = _with_told_keys(column, dtype)
    second = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
    formats = {"timestampFormat": f"{second}XXX", "timestampNTZFormat": second}
    return F.to_json(column, {**formats, "ignoreNullFields": "false"})


def _with_told_keys(column: Column, kind: T.DataType) -> Column:
    """A value whose maps have text for keys of which Spark's JSON has no more than their place in memory."""
    if not _has_untold_keys(kind):
        return column
    match kind:
        case T.StructType():
            fields = (_with_told_keys(column.getField(one.name), one.dataType).alias(one.name) for one in kind)
            return F.when(column.isNotNull(), F.struct(*fields))
        case T.ArrayType():
            return F.transform(column, lambda one: _with_told_keys(one, kind.elementType))
        case T.MapType():
            told = F.transform_keys(column, lambda key, _: as_json(F.struct(key.alias("key"))))
            return F.transform_values(told, lambda _, value: _with_told_keys(value, kind.valueType))
    return column


def _has_untold_keys(kind: T.DataType) -> bool:
    match kind:
        case T.StructType():
            return any(_has_untold_keys(one.dataType) for one in kind)
        case T.ArrayType():
            return _has_untold_keys(kind.elementType)
        case T.MapType():
            untold = isinstance(kind.keyType, T.BinaryType | T.ArrayType | T.StructType)
            return untold or _has_untold_keys(kind.valueType)
    return False
