"""Types and values of the input columns of test cases."""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Context, Decimal, InvalidOperation
from difflib import get_close_matches
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from tidemark.config import Input, Pipeline, TimeColumn
from tidemark.config.read_columns import list_read_columns, strip_prefix
from tidemark.config.sides import SideName
from tidemark.config.types import parse_instant, to_micros
from tidemark.errors import PipelineFileError, suggest_name
from tidemark.pipeline_tests.case_file import Case, CaseFile, GivenRow
from tidemark.pipeline_tests.chain import Chain, split_name
from tidemark.timegrid.time_columns import parse_binary

Schemas = Mapping[str, T.StructType]
"""Schemas of the inputs that are tables, by the names of the inputs."""
_UNITS = {"s": 1_000_000, "ms": 1_000, "us": 1}
"""Microseconds of each unit that is not finer."""
_SIMILARITY = 0.75
"""Similarity from which a column counts as a misspelt one (`difflib.get_close_matches`)."""
_INSTANT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)")
"""Complete instant of ISO 8601, with a zone."""
_WIDE = Context(prec=100)
"""Context with more digits than any decimal of Spark."""
_BITS = {T.ByteType: 8, T.ShortType: 16, T.IntegerType: 32, T.LongType: 64}


def create_schemas(spark: SparkSession, file: CaseFile, case: Case) -> Schemas:
    """Create the schemas of the inputs.

    A column's type is the declared one, else that of its role in the pipeline, else that of its values in the file.

    Args:
        spark: Session that parses declared types.
        file: The test file.
        case: A case of the file, which may have columns of its own.

    Raises:
        PipelineFileError: A type is invalid, a column has values of different types, or nothing reads a column.
    """
    schemas: dict[str, T.StructType] = {}
    for source in file.chain.inputs:
        declared = _parse_declared(spark, file, case, source.name)
        types = list_role_types(source.pipeline, source.side) | declared
        rows = [row for other in file.cases for row in other.given if row.input_name == source.name]
        expected = _list_expected_columns(file, source.join, source.side)
        existing = dict.fromkeys([*(name for row in rows for name in row.values), *declared, *expected])
        read = list_columns_read_in_chain(file.chain, source.join, source.side, existing)
        names = [*types, *read, *expected]
        names += _list_unjudged_columns(file, source.name, names)
        _check_names(case, source.name, names)
        given = [name for name in dict.fromkeys(names) if name in types or name in read or _has_values(rows, name)]
        fields = [(name, types.get(name) or _infer_type(rows, source.name, name)) for name in given]
        schemas[source.name] = T.StructType([T.StructField(name, dtype) for name, dtype in fields])
    return schemas


def _list_unjudged_columns(file: CaseFile, input_name: str, names: Sequence[str]) -> list[str]:
    """List further columns of cases whose expected rows name none yet, unless they resemble another column."""
    return [
        name
        for case in file.cases
        if not any(row.values for rows in case.expected.values() for row in rows)
        for row in case.given
        if row.input_name == input_name
        for name in row.values
        if not get_close_matches(name, names, n=1, cutoff=_SIMILARITY)
    ]


def _check_names(case: Case, input_name: str, names: Sequence[str]) -> None:
    """Check that the given rows of a case have no column that nothing reads.

    Raises:
        PipelineFileError: Names file, line and column.
    """
    for row in case.given:
        for name in row.values if row.input_name == input_name else ():
            if name not in names:
                raise PipelineFileError(
                    f"{row.locate(name)}: neither the pipeline nor an expected row reads {input_name} column {name}. "
                    f"{suggest_name(name, dict.fromkeys(names))}"
                )


def convert_row(row: GivenRow, schema: T.StructType, units: Mapping[str, str | None]) -> dict[str, Any]:
    """Convert the values of a row to the types of a schema. Columns that are not given are null.

    Args:
        row: The row.
        schema: The schema.
        units: Units of the time columns that are numbers. Their values may be written as instants.

    Raises:
        PipelineFileError: A value does not fit its type. The message has file and line.
    """
    converted = {}
    for field in schema:
        value = row.values.get(field.name)
        if value is not None and isinstance(field.dataType, T.StringType | T.DecimalType):
            value = row.cells.get(field.name, value)
        try:
            if (unit := units.get(field.name)) and isinstance(value, str | date):
                value = _to_epoch(value, unit)
            converted[field.name] = convert_value(value, field.dataType)
        except (ValueError, TypeError, OverflowError) as error:
            raise PipelineFileError(
                f"{row.locate(field.name)}: {row.input_name} column {field.name}: {error}"
            ) from None
    return converted


def list_units(source: Input) -> dict[str, str | None]:
    """Return the units of an input's time columns by name."""
    times = (source.event_time, source.arrival, source.recorded_watermark)
    return {time.column: time.unit for time in times if isinstance(time, TimeColumn)}


def convert_value(value: Any, dtype: T.DataType) -> Any:
    """Convert a value of YAML to the Python value of a Spark type. Times may be text in ISO 8601.

    Raises:
        ValueError: The value does not fit the type.

    >>> convert_value("2013-01-01T05:00Z", T.TimestampType()), convert_value("1.50", T.DecimalType(4, 2))
    (datetime.datetime(2013, 1, 1, 5, 0, tzinfo=datetime.timezone.utc), Decimal('1.50'))
    """
    if value is None:
        return None
    if isinstance(dtype, T.StructType | T.ArrayType | T.MapType):
        return _convert_nested(value, dtype)
    if isinstance(dtype, T.DatetimeType) and isinstance(value, str | date):
        return _convert_time(value, dtype)
    if isinstance(dtype, T.NumericType) and isinstance(value, int | float | str) and not isinstance(value, bool):
        return _convert_number(value, dtype)
    if isinstance(dtype, T.BinaryType) and isinstance(value, str):
        return parse_binary(value)
    if isinstance(value, bool if isinstance(dtype, T.BooleanType) else str):
        return value
    hint = ". Write it in quotes." if isinstance(dtype, T.StringType) else ""
    raise ValueError(f"{_describe_mismatch(value, dtype)}{hint}")


def _convert_nested(value: Any, dtype: T.DataType) -> Any:
    match dtype, value:
        case T.StructType(), dict():
            if unknown := [name for name in value if name not in dtype.names]:
                raise ValueError(f"has no field {unknown[0]}. {suggest_name(str(unknown[0]), dtype.names)}")
            return {field.name: convert_value(value.get(field.name), field.dataType) for field in dtype}
        case T.ArrayType(), list():
            return [convert_value(item, dtype.elementType) for item in value]
        case T.MapType(), dict():
            types = dtype.keyType, dtype.valueType
            return [(convert_value(key, types[0]), convert_value(item, types[1])) for key, item in value.items()]
    raise ValueError(_describe_mismatch(value, dtype))


def _describe_mismatch(value: Any, dtype: T.DataType) -> str:
    return f"{value!r} is not a value of type {dtype.simpleString()}"


def _convert_time(value: str | date, dtype: T.DataType) -> date:
    instant = _to_datetime(value)
    if isinstance(dtype, T.TimestampType):
        return instant
    return instant.date() if isinstance(dtype, T.DateType) else instant.replace(tzinfo=None)


def _convert_number(value: str | float, dtype: T.DataType) -> Any:
    match dtype:
        case T.DecimalType():
            return _to_decimal(value, dtype)
        case T.FloatType() if not isinstance(value, str):
            return _to_float32(value)
        case T.FractionalType() if not isinstance(value, str):
            return float(value)
        case T.IntegralType() if isinstance(value, int):
            limit = 2 ** (_BITS[type(dtype)] - 1)
            if not -limit <= value < limit:
                raise ValueError(f"{value} is out of the range of {dtype.simpleString()}")
            return value
    raise ValueError(_describe_mismatch(value, dtype))


def _to_float32(value: float) -> float:
    """Round a number to the nearest one of 32 bits, as Spark stores it."""
    try:
        [rounded] = struct.unpack("<f", struct.pack("<f", float(value)))
    except OverflowError:
        raise ValueError(f"{value} is out of the range of float") from None
    return float(rounded)


def _to_datetime(value: str | date) -> datetime:
    if isinstance(value, date) and not isinstance(value, datetime):
        value = value.isoformat()
    return parse_instant(value, note_missing_zone=False)


def _to_epoch(value: str | date, unit: str) -> int:
    micros = to_micros(_to_datetime(value))
    return micros * 1000 if unit == "ns" else micros // _UNITS[unit]


def _to_decimal(value: str | float, dtype: T.DecimalType) -> Decimal:
    try:
        number = Decimal(str(value))
        scaled = number.quantize(Decimal(1).scaleb(-dtype.scale), context=_WIDE)
    except InvalidOperation:
        raise ValueError(f"{value!r} is not a value of type {dtype.simpleString()}") from None
    if scaled != number or len(scaled.as_tuple().digits) > dtype.precision:
        raise ValueError(f"{value!r} has more digits than {dtype.simpleString()}")
    return scaled


def _parse_declared(spark: SparkSession, file: CaseFile, case: Case, input_name: str) -> dict[str, T.DataType]:
    """Parse the types under `columns` of the file and of a case."""
    sources: list[tuple[tuple[str, ...], Mapping[str, str]]] = [
        (("columns", input_name), file.settings.columns.get(input_name, {}))
    ]
    sources.append((("cases", case.name, "columns", input_name), case.settings.columns.get(input_name, {})))
    types = {}
    for path, declared in sources:
        for name, text in declared.items():
            try:
                schema = spark.createDataFrame([], f"`c` {text}").schema
                [field] = schema
            except (PySparkException, ValueError):
                place = file.document.locate(*path, name)
                raise PipelineFileError(
                    f"{place}: {input_name} column {name}: {text!r} is not a type of Spark SQL. Write one such as "
                    "bigint."
                ) from None
            types[name] = field.dataType
    return types


def list_role_types(pipeline: Pipeline, side: SideName) -> dict[str, T.DataType]:
    """Return the types of the columns that are times or the tiebreak."""
    source: Input = getattr(pipeline, side)
    units = list_units(source)
    types: dict[str, T.DataType] = {name: T.LongType() if unit else T.TimestampType() for name, unit in units.items()}
    return types | ({source.tiebreak: T.LongType()} if source.tiebreak else {})


def list_columns_read_in_chain(chain: Chain, join: str, side: SideName, existing: Collection[str]) -> list[str]:
    """List the other columns of an input that the settings of a join, and of those that read its output, read.

    Args:
        chain: The chain of the join.
        join: Name of the join.
        side: Side of the input.
        existing: Columns of the input. A key can have any name among them, and SQL ignores the case of letters.
    """
    pipeline = chain.joins[join]
    names = list_read_columns(pipeline, side, existing)
    if not isinstance(pipeline.select, dict):  # else the next join reads other columns
        output = [f"{side}_{name}" for name in existing]
        for reader, reader_side in chain.list_readers(join):
            names += strip_prefix(list_columns_read_in_chain(chain, reader, reader_side, output), side)
    return names


def _list_expected_columns(file: CaseFile, join: str, side: SideName) -> list[str]:
    """List the columns of an input that expected rows name, of this join or of those that read its output."""
    pipeline = file.chain.joins[join]
    has_own_columns = pipeline.select is not None or pipeline.explode is not None
    names = []
    for case in file.cases:
        for output, rows in case.expected.items():
            output_join, section = split_name(output)
            if output_join == join and not (has_own_columns and section in ("emissions", "padded")):
                names += [name for row in rows for name in row.values]
    if not has_own_columns:
        for reader, reader_side in file.chain.list_readers(join):
            names += _list_expected_columns(file, reader, reader_side)
    return strip_prefix(names, side)


def _has_values(rows: Iterable[GivenRow], name: str) -> bool:
    return any(name in row.values for row in rows)


def _infer_type(rows: Sequence[GivenRow], input_name: str, name: str) -> T.DataType:
    """Return the type of a column by its values; a string if it has none."""
    dtype: T.DataType | None = None
    for row in rows:
        if (value := row.values.get(name)) is None:
            continue
        value_type = _find_type(value)
        widened = value_type if dtype in (None, value_type) else _widen(dtype, value_type)
        if widened is None:
            raise PipelineFileError(
                f"{row.locate(name)}: the type of {input_name} column {name} does not follow from its values. Write it "
                "under columns."
            )
        dtype = widened
    return dtype or T.StringType()


def _widen(first: T.DataType | None, second: T.DataType | None) -> T.DataType | None:
    types = {type(first), type(second)}
    return T.DoubleType() if types == {T.LongType, T.DoubleType} else None


_TYPES: tuple[tuple[type, T.DataType], ...] = (
    (bool, T.BooleanType()),
    (int, T.LongType()),
    (float, T.DoubleType()),
    (datetime, T.TimestampType()),
    (date, T.DateType()),
    (str, T.StringType()),
)
"""Types of the values of YAML; a value has the first that fits."""


def _find_type(value: Any) -> T.DataType | None:
    """Return the type of a single value of YAML; None for nested values, whose type must be declared."""
    if isinstance(value, str) and _INSTANT.fullmatch(value):  # YAML reads an instant without seconds as text
        return T.TimestampType()
    return next((dtype for python_type, dtype in _TYPES if isinstance(value, python_type)), None)
