"""Arrival times of the rows of a test case, which are in order of arrival."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, cast

from pyspark.sql import types as T

from tidemark.config import Pipeline, TimeBounds, TimeColumn
from tidemark.config.sides import SideName
from tidemark.config.types import format_instant, from_micros, to_micros
from tidemark.errors import PipelineFileError, SliceOrderError
from tidemark.pipeline_tests.case_file import Case, GivenRow
from tidemark.pipeline_tests.chain import Chain
from tidemark.pipeline_tests.columns import Schemas, convert_row, list_units
from tidemark.sources.streaming_checkpoint_source import ARRIVAL_COLUMN
from tidemark.timegrid.slices import Grid
from tidemark.timegrid.time_columns import ResolvedTimeColumn

_MILLISECOND, _SECOND = 1_000, 1_000_000
_FIRST_TIME, _LAST_TIME = to_micros(datetime.min.replace(tzinfo=UTC)), to_micros(datetime.max.replace(tzinfo=UTC))


@dataclass(frozen=True)
class InputRow:
    """A row of an input table."""

    input_name: str
    values: dict[str, Any]
    clock: int | None
    """Arrival, or event time without arrivals, in microseconds; None if it is null or out of bounds."""


@dataclass(frozen=True)
class CaseRows:
    """The rows of a case, with arrival times."""

    rows: tuple[InputRow, ...]
    last_start: int | None
    """Start of the last slice that the case names, in microseconds; None if it names none."""


def assign_arrivals(chain: Chain, grid: Grid, case: Case, schemas: Schemas) -> CaseRows:
    """Convert the rows of a case, and give an arrival time to rows without one.

    A row arrives a millisecond after the row before it, and not before its event time. After the start of a slice,
    rows arrive in that slice.

    Raises:
        PipelineFileError: A value or a slice is invalid, or rows are not in order of arrival. Names file and line.
    """
    times = {
        source.name: _InputTimes.create(source.pipeline, source.side, schemas[source.name]) for source in chain.inputs
    }
    rows: list[InputRow] = []
    clock = grid.start - _SECOND
    slice_start = None
    for given in case.given:
        if given.input_name is None:
            slice_start = _parse_start(chain.pipeline, grid, given)
            if slice_start <= clock:
                raise PipelineFileError(
                    f"{given.place}: slice {format_instant(from_micros(slice_start))} starts before the row above "
                    f"arrives, at {format_instant(from_micros(clock))}. Move it up, or use a later slice."
                )
            clock = slice_start - 1
            continue
        source = times[given.input_name]
        values = convert_row(given, schemas[given.input_name], source.units)
        event = source.read_time(source.event_time, values, given)
        if source.needs_arrival(given):
            if case.settings.is_by_time:
                raise PipelineFileError(
                    f"{given.place}: the row has no {source.arrival_name}. Write it, or write given as a list in order "
                    "of arrival."
                )
            earliest = event if event is not None and slice_start is None else grid.start
            clock = max(source.next_after(clock), source.round_up(earliest), source.round_up(grid.start))
            values[source.arrival_name] = source.to_value(clock, given)
        else:
            clock = _check_order(source, given, values, clock, case, grid)
        rows.append(InputRow(given.input_name, values, source.read_time(source.clock, values, given)))
    return CaseRows(tuple(rows), slice_start)


def _check_order(
    source: _InputTimes, given: GivenRow, values: Mapping[str, Any], clock: int, case: Case, grid: Grid
) -> int:
    """Return the clock after a row that has its own; a list must be in order of arrival."""
    own = source.read_time(source.clock, values, given)
    if own is None:
        return clock
    if own < grid.start:
        raise PipelineFileError(
            f"{given.locate(source.clock.name)}: {format_instant(from_micros(own))} is before the pipeline's first "
            f"slice, {grid.label(0)}, so no run would read the row. Use a later time."
        )
    if not source.has_arrival or case.settings.is_by_time:
        return max(own, clock)
    if own < clock:
        raise PipelineFileError(
            f"{given.locate(source.clock.name)}: the row arrives before the row above, at "
            f"{format_instant(from_micros(clock))}. Write rows in order of arrival."
        )
    return own


def _parse_start(pipeline: Pipeline, grid: Grid, given: GivenRow) -> int:
    assert given.slice_start, "an entry without an input is a slice"
    if pipeline.clock != "arrival":
        raise PipelineFileError(
            f"{given.place}: slices follow event time, as the inputs have no arrival. Remove the slice."
        )
    try:
        grid.parse_boundary(given.slice_start, "slice")
    except SliceOrderError as error:
        raise PipelineFileError(f"{given.place}: {error}") from None
    return to_micros(given.slice_start)


@dataclass(frozen=True)
class _InputTimes:
    """Time columns of an input."""

    event_time: ResolvedTimeColumn
    clock: ResolvedTimeColumn
    dtype: T.DataType
    """Type of the clock's column."""
    units: Mapping[str, str | None]
    time_bounds: TimeBounds | None
    has_arrival: bool
    has_column: bool
    """True if the arrival is a column of the input."""

    @classmethod
    def create(cls, pipeline: Pipeline, side: SideName, schema: T.StructType) -> _InputTimes:
        source = getattr(pipeline, side)
        label = f"input {source.table}"
        event_time = ResolvedTimeColumn.from_config(source.event_time, schema, label)
        clock, dtype = ResolvedTimeColumn(ARRIVAL_COLUMN, None), cast("T.DataType", T.TimestampType())
        if isinstance(source.arrival, TimeColumn | None):
            clock = ResolvedTimeColumn.from_config(source.arrival or source.event_time, schema, label)
            dtype = schema[clock.name].dataType
        return cls(
            event_time,
            clock,
            dtype,
            list_units(source),
            pipeline.time_bounds,
            has_arrival=source.arrival is not None,
            has_column=isinstance(source.arrival, TimeColumn),
        )

    def read_time(self, column: ResolvedTimeColumn, values: Mapping[str, Any], row: GivenRow) -> int | None:
        """Return a time of a row in microseconds; None if it is null, or so far out of bounds that it is rejected.

        Raises:
            PipelineFileError: There are no bounds, and Python cannot represent the time. Names file and line.
        """
        micros = column.convert_value(values[column.name])
        if micros is None:
            return None
        if self.time_bounds:
            earliest, latest = to_micros(self.time_bounds.earliest), to_micros(self.time_bounds.latest)
            return micros if earliest <= micros < latest else None
        if not _FIRST_TIME <= micros < _LAST_TIME:
            raise PipelineFileError(
                f"{row.locate(column.name)}: {row.input_name} column {column.name}: {values[column.name]} is outside "
                "the years 1 to 9999. Check the unit of the column."
            )
        return micros

    @property
    def arrival_name(self) -> str:
        return self.clock.name

    def needs_arrival(self, row: GivenRow) -> bool:
        """Return True if a row has an arrival and does not give it."""
        return self.has_arrival and not (self.has_column and self.arrival_name in row.values)

    @property
    def _step(self) -> int:
        """Precision of the clock in microseconds, at least a millisecond."""
        return _SECOND if self.clock.units_per_second == 1 else _MILLISECOND

    def next_after(self, clock: int) -> int:
        """Return the arrival after another one, in microseconds."""
        return self.round_up(clock + 1)

    def round_up(self, micros: int) -> int:
        """Round up to the precision of the clock."""
        return -(-micros // self._step) * self._step

    def to_value(self, micros: int, row: GivenRow) -> Any:
        """Convert an arrival in microseconds to a value of its column.

        Raises:
            PipelineFileError: The column has dates.
        """
        instant: datetime = from_micros(micros)
        match self.dtype:
            case T.TimestampType():
                return instant.astimezone(UTC)
            case T.TimestampNTZType():
                return instant.replace(tzinfo=None)
            case T.NumericType():
                assert self.clock.units_per_second, "a number has a unit"
                number = micros * self.clock.units_per_second // _SECOND
                convert = Decimal if isinstance(self.dtype, T.DecimalType) else float
                return number if isinstance(self.dtype, T.IntegralType) else convert(number)
        raise PipelineFileError(
            f"{row.place}: the row has no {self.arrival_name}, and dates have no order within a day. Write it."
        )
