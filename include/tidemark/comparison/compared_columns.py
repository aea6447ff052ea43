"""Choose the columns of a comparison, and cast a stream's rows to the types of the emissions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.comparison.committed_view import CommittedView
from tidemark.comparison.multiset_diff import INEXACT
from tidemark.comparison.result import ComparisonRequest
from tidemark.comparison.setting_search import PROVENANCE_COLUMNS
from tidemark.comparison.window_shift import WINDOW_COLUMNS
from tidemark.config.output_stream import OUTPUT_STREAM_COLUMNS
from tidemark.config.sides import SIDES
from tidemark.errors import InputError, UserError, suggest_name
from tidemark.formatting import quote_identifier
from tidemark.joins.join_type import SEMI_ANTI_TYPES

NOT_COMPARED = ("_slice", "_pane", "_result_time")
"""Columns of emissions that only Tidemark can provide."""
_TIME_TYPES = (T.TimestampType, T.TimestampNTZType, T.DateType)


@dataclass(frozen=True)
class ComparedColumns:
    """The columns of a comparison."""

    names: Sequence[str]
    keys: Sequence[str]
    """Columns that identify a row."""
    tolerances: Mapping[str, float]
    """Columns that may differ, with the largest accepted difference."""

    @property
    def exact(self) -> list[str]:
        """The columns without a tolerance, by which equal rows are found."""
        return [name for name in self.names if name not in self.tolerances]


def align_columns(
    stream: DataFrame, batch: DataFrame, view: CommittedView, request: ComparisonRequest
) -> tuple[DataFrame, list[str], list[str]]:
    """Cast the stream's rows to the types of the batch.

    Returns:
        The rows, the columns to compare, and notes for the user. If types differ, the rows also have the column
        `multiset_diff.INEXACT`: True if the batch's type cannot hold a value. Such a value is null, unless the column
        has a tolerance. A derived `_emission` is a further column, which follows from the others and is not compared.

    Raises:
        UserError: A column to ignore does not exist.
        InputError: A column is missing or has an incompatible type.
    """
    ignored = {*_find_columns(view, (*NOT_COMPARED, *OUTPUT_STREAM_COLUMNS)), *request.ignore_columns}
    optional = _find_columns(view, PROVENANCE_COLUMNS)
    notes = []
    setting = "select" if view.pipeline.explode is None else "explode"
    for name in request.ignore_columns:
        if name not in batch.columns:
            raise UserError(f"ignore_columns: {_describe_missing('emissions', name, batch.columns)}")
    names = [name for name in batch.columns if name not in ignored]
    derived = None if "_emission" in names and "_emission" in stream.columns else derive_emission(stream, view)
    if derived is not None:
        names = [name for name in names if name != "_emission"]
    for name in [name for name in names if name not in stream.columns]:
        if name not in optional:
            missing = _describe_missing(f"table {request.table}", name, stream.columns)
            raise InputError(f"{missing} Or pass --set ignore_columns={name}, or leave it out of `{setting}`.")
        names.remove(name)
        notes.append(f"{name} is not compared: {request.table} does not contain it")
    extra = sorted(set(stream.columns) - set(batch.columns))
    if extra:
        notes.append(f"not compared, because only {request.table} contains it: {', '.join(extra)}")
    types = {name: batch.schema[name].dataType for name in names}
    cast_columns = [name for name in names if stream.schema[name].dataType.simpleString() != types[name].simpleString()]
    casts = {name: _cast(stream, name, types[name], request) for name in cast_columns}
    columns = [casts[name][0].alias(name) if name in casts else F.col(quote_identifier(name)) for name in names]
    if derived is not None:
        columns.append(derived.alias("_emission"))
    if casts:
        columns.append(reduce(or_, (is_inexact for _, is_inexact in casts.values())).alias(INEXACT))
    return stream.select(*columns), names, notes


def _find_columns(view: CommittedView, names: Iterable[str]) -> set[str]:
    """Return `names`, and the columns of emissions that copy such a column from a pipeline before."""
    columns = set(names)
    for side, upstream in view.upstreams.items():
        sources = _find_columns(upstream, names)
        columns |= {name for name, source in view.map_columns(side).items() if source in sources}
    return columns


def derive_emission(stream: DataFrame, view: CommittedView) -> Column | None:
    """Derive `_emission` from null columns; None if the stream's columns do not allow it."""
    join_type = view.pipeline.join.type
    if join_type in SEMI_ANTI_TYPES:
        return F.lit(join_type)
    emission = F.lit("matched")
    for side, other in zip(SIDES, reversed(SIDES), strict=True):
        columns = [name for name in view.map_columns(other) if name in stream.columns]
        if join_type in {side, "full"}:
            if not columns:
                return None
            is_absent = F.coalesce(*(F.col(quote_identifier(name)).cast("string") for name in columns)).isNull()
            emission = F.when(is_absent, F.lit(f"padded_{side}")).otherwise(emission)
    return emission


def _cast(stream: DataFrame, name: str, dtype: T.DataType, request: ComparisonRequest) -> tuple[Column, Column]:
    """Cast a column of the stream to the type of the emissions.

    Returns:
        The column, and True if the type cannot hold its value.

    Raises:
        InputError: The types are neither both numbers nor both times.
    """
    given = stream.schema[name].dataType
    column = F.col(quote_identifier(name))
    are_numbers = isinstance(given, T.NumericType) and isinstance(dtype, T.NumericType)
    if not are_numbers and not (isinstance(given, _TIME_TYPES) and isinstance(dtype, _TIME_TYPES)):
        raise InputError(
            f"column {name} is {given.simpleString()} in table {request.table} and {dtype.simpleString()} in the "
            f"emissions. Cast it in either, or pass --set ignore_columns={name}."
        )
    cast = column.try_cast(dtype)
    if request.float_tolerance and isinstance(dtype, T.FractionalType):
        return cast, column.isNotNull() & cast.isNull()
    is_exact = cast.try_cast(given).eqNullSafe(column)
    return F.when(is_exact, cast), ~is_exact


def find_leading_columns(view: CommittedView, names: Sequence[str]) -> tuple[str, ...]:
    """Select from `names` the keys, event times and window bounds of a join, and of the joins before it."""
    pipeline = view.pipeline
    leading = list[str]()
    for side in SIDES:
        columns, upstream = view.map_columns(side), view.upstreams.get(side)
        keys = (pair.list_column_candidates(side) for pair in pipeline.join.keys)
        sources = {getattr(pipeline, side).event_time.column}.union(*keys)
        if upstream:
            sources.update(find_leading_columns(upstream, list(columns.values())))
        leading += [name for name, column in columns.items() if column in sources]
    return tuple(name for name in (*leading, *WINDOW_COLUMNS) if name in names)


def find_key_columns(leading: Sequence[str], names: list[str], request: ComparisonRequest) -> list[str]:
    """Return the columns that identify a row.

    Raises:
        UserError: A requested one is not compared.
    """
    for name in request.key_columns:
        if name not in names:
            raise UserError(f"key_columns: {_describe_missing('the comparison', name, names)}")
    if request.key_columns:
        return list(request.key_columns)
    # Without keys and event times any row could be another one with changed values.
    is_identifying = any(name not in WINDOW_COLUMNS for name in leading)
    return [name for name in names if name in leading or name in PROVENANCE_COLUMNS] if is_identifying else names


def _describe_missing(table: str, name: str, columns: list[str]) -> str:
    return f"{table} has no column {name}. {suggest_name(name, columns)}"
