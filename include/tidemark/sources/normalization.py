"""Bring the rows of both inputs into common columns, with times, slices, keys and rejection reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.config import CheckpointArrival, CommitArrival, Input, Pipeline, TimeBounds, TimeColumn
from tidemark.config.allowed_functions import InputColumns
from tidemark.config.output_stream import EMISSION_ORDER, OUTPUT_WATERMARK, compute_order_factor
from tidemark.config.sides import SideName
from tidemark.config.types import to_micros
from tidemark.errors import InputError
from tidemark.formatting import quote_identifier
from tidemark.joins.keys import key_column, key_name
from tidemark.sources.char_keys import pad_chars
from tidemark.sources.streaming_checkpoint_source import ARRIVAL_COLUMN
from tidemark.spark.dataframe_utils import with_columns
from tidemark.spark.expression_sandbox import parse_user_expression
from tidemark.timegrid.slices import Grid
from tidemark.timegrid.time_columns import ResolvedTimeColumn
from tidemark.watermarks.exact import scale_tiebreak
from tidemark.watermarks.recorded_watermark_lane import RECORDED_WATERMARK
from tidemark.watermarks.row_status import AHEAD, FILTERED

_MILLISECOND = 1000
_FRACTIONS = (T.FloatType, T.DoubleType)


@dataclass(frozen=True)
class Side:
    """The time columns and keys of one input, checked against its schema.

    `normalize` returns one row per table row, in columns that both sides share:

    | column | meaning |
    | --- | --- |
    | `side` | `left` or `right` |
    | `slice` | number of the slice in which the row arrives, long |
    | `owning_slice` | number of the slice that its `slice_time` is in, long; 0 without one |
    | `clock` | the greater of `slice_time` and the start of the slices read, in microseconds UTC, long |
    | `tiebreak` | order among equal clocks, long; 0 without a tiebreak column, and -2^63 for a null |
    | `event_time` | UTC in whole ticks, floored, long; null if `rejected`, or if null event times are accepted;
                     null in rows that `where` filters out if any of their times is invalid |
    | `floored` | true if the event time was more precise than a tick |
    | `key_0`.. | the join keys, in the common type of both sides; floats as strings if zeros have signs |
    | `partition` | partition of the input, string; absent if neither input has partitions |
    | `recorded` | watermark of the input that the row has recorded, ms; absent if neither input has any |
    | `ahead` | time by which the event time is after the arrival, microseconds; null up to the allowed clock skew, and
                absent on the event-time clock |
    | `rejected` | reason why the row is rejected or filtered out (`watermarks.row_status`), else null |
    | `left` or `right` | the table's own columns, struct |
    """

    name: SideName
    settings: Input
    time_bounds: TimeBounds | None
    schema: T.StructType
    event_time: ResolvedTimeColumn
    clock: ResolvedTimeColumn
    keys: tuple[tuple[str, T.DataType], ...]
    """Column or expression, and common type, of each join key."""
    accepts_null_keys: bool
    """True if rows with a null key are not rejected; the join decides."""
    accepts_null_times: bool
    """True if rows with a null event time are not rejected."""
    distinguishes_signed_zeros: bool
    """True if -0.0 and 0.0 are different keys."""
    pads_char_keys: bool
    """True if keys of type CHAR are padded with blanks before they are compared."""
    tick_micros: int
    """Resolution in which the dialect compares event times, in microseconds."""
    filters_at_source: bool = False
    """True if rows that `where` filters out never reached the stream."""
    substitute_clock: ResolvedTimeColumn | None = None
    """Event time, which assigns rows without a usable arrival to slices; None if arrivals are no column."""
    first_substitute: int = 0
    """Start of the first slice in microseconds: an earlier event time is no substitute."""
    recorded_watermark: ResolvedTimeColumn | None = None
    """Column with the watermarks that the streaming job recorded."""
    allowed_skew: int | None = None
    """Time by which an event time may be after its arrival, in microseconds; None if no row can be ahead."""
    is_output_stream: bool = False
    """True if the table is the output stream of another pipeline, with its watermarks in rows of their own."""
    order_factor: int = 1
    """Factor of tiebreaks, in a chain of joins."""
    null_event_time: int | None = None
    """Event time that stands for null in the engine, in ticks; None if it has none."""
    excluded_predicates: tuple[str, ...] = ()
    """SQL predicates over the table's columns. Rows that match one were erased and are not read."""

    @property
    def emitted_columns(self) -> dict[str, str]:
        """Columns of the input by their names in emissions, without those that only the join reads."""
        hidden = EMISSION_ORDER if self.is_output_stream else None
        return {f"{self.name}_{name}": name for name in self.schema.names if name != hidden}

    def normalize(self, rows: DataFrame, grid: Grid, start: int) -> DataFrame:
        """Return the common columns of the rows that the stream received.

        Clocks before `start` (microseconds) count as `start`.
        """
        filters_rows = self.is_output_stream or (self.settings.where is not None and not self.filters_at_source)
        return self._add_common_columns(self.drop_rows_outside_source(rows), grid, start, filters_rows=filters_rows)

    def normalize_all(self, rows: DataFrame, grid: Grid, start: int) -> DataFrame:
        """Return the common columns of all rows, including those that `where` filters out at the source."""
        filters_rows = self.is_output_stream or self.settings.where is not None
        return self._add_common_columns(self._drop_erased_rows(rows), grid, start, filters_rows=filters_rows)

    def drop_rows_outside_source(self, rows: DataFrame) -> DataFrame:
        """Keep the table's rows that the stream received: drop erased rows and those filtered out at the source."""
        remaining = self._drop_erased_rows(rows)
        if not self.filters_at_source:
            return remaining
        return self._where_all(remaining, [self._where_column(rows.sparkSession)])

    def _drop_erased_rows(self, rows: DataFrame) -> DataFrame:
        columns, spark = InputColumns(tuple(self.schema.names)), rows.sparkSession
        erased = [parse_user_expression(spark, predicate, columns).column for predicate in self.excluded_predicates]
        if self.is_output_stream:  # watermarks are in rows of their own, whose other columns are null
            erased = [is_erased & is_emission() for is_erased in erased]
        return self._where_all(rows, [~F.coalesce(is_erased, F.lit(False)) for is_erased in erased])

    def _where_all(self, rows: DataFrame, conditions: Sequence[Column]) -> DataFrame:
        """Keep the rows that meet all conditions on the table's columns."""
        if not conditions:
            return rows
        # An earlier version of the table may have had fewer columns.
        missing = [field for field in self.schema if field.name not in rows.columns]
        padded = rows.transform(with_columns, {field.name: F.lit(None).cast(field.dataType) for field in missing})
        return padded.where(reduce(Column.__and__, conditions)).select(*map(quote_identifier, rows.columns))

    def _where_column(self, spark: SparkSession) -> Column:
        """Return the condition `where` unchanged, so that a scan can push it down."""
        assert self.settings.where is not None, "there is one"
        return parse_user_expression(spark, self.settings.where, InputColumns(tuple(self.schema.names))).column

    def _add_common_columns(self, rows: DataFrame, grid: Grid, start: int, *, filters_rows: bool) -> DataFrame:
        """Select the common columns. With `filters_rows`, `rejected` marks the rows that `where` filters out."""
        clock = F.greatest(self.slice_time, F.lit(start))  # `start` where the other is null
        # Without `time_bounds`, a time can be so early that its distance from the grid is no long.
        owning_slice = grid.number_column(F.greatest(self.slice_time, F.lit(grid.start)))
        tiebreak, event_time = F.lit(0).cast("long"), self.event_time.to_ticks(self.tick_micros)
        recorded = [self.recorded_watermark.to_ticks(_MILLISECOND)] if self.recorded_watermark else []
        rejected = self._rejection_reason
        if self.null_event_time is not None:
            event_time = F.coalesce(event_time, F.lit(self.null_event_time))
        if filters_rows:
            passes_filter = self._passes_filter(rows.sparkSession)
            is_time_valid = passes_filter | self._time_rejection_reason.isNull()
            event_time = F.when(is_time_valid, event_time)
            if not self.is_output_stream:
                recorded = [F.when(is_time_valid, watermark) for watermark in recorded]
            rejected = F.when(~passes_filter, F.lit(FILTERED)).otherwise(rejected)
        if self.settings.tiebreak:
            tiebreak = F.coalesce(F.col(quote_identifier(self.settings.tiebreak)).cast("long"), F.lit(-(2**63)))
        if self.order_factor > 1:
            tiebreak = scale_tiebreak(tiebreak, self.order_factor)
        return rows.select(
            F.lit(self.name).alias("side"),
            grid.nonnegative_number_column(clock).alias("slice"),
            owning_slice.alias("owning_slice"),
            clock.alias("clock"),
            tiebreak.alias("tiebreak"),
            event_time.alias("event_time"),
            (F.pmod(self.event_time.micros, F.lit(self.tick_micros)) != 0).alias("floored"),
            *(self._common_key(number).alias(key_name(number)) for number in range(len(self.keys))),
            *([self._partition] if self.settings.partition else []),
            *(watermark.alias(RECORDED_WATERMARK) for watermark in recorded),
            *([self._ahead.alias(AHEAD)] if self.settings.arrival else []),
            rejected.alias("rejected"),
            F.struct(*(F.col(quote_identifier(name)) for name in self.schema.names)).alias(self.name),
        )

    def _passes_filter(self, spark: SparkSession) -> Column:
        """Return True for rows that take part; never null."""
        conditions = [] if self.settings.where is None else [F.coalesce(self._where_column(spark), F.lit(False))]
        if self.is_output_stream:
            conditions.append(is_emission())
        return reduce(Column.__and__, conditions)

    def _common_key(self, number: int) -> Column:
        dtype, key = self.keys[number][1], self._raw_key(number)
        if isinstance(dtype, T.NumericType):  # other types are equal on both sides
            key = key.cast(dtype)
        if self.pads_char_keys:
            key = pad_chars(key, dtype)
        if not (self.distinguishes_signed_zeros and isinstance(dtype, _FRACTIONS)):
            return key
        # Flink distinguishes -0.0 from 0.0 and Spark's equality does not. Their strings differ, and NaN has one string.
        # Cast to double first: a column that is widened from float to double must keep its strings.
        return key.cast("double").cast("string")

    def _raw_key(self, number: int) -> Column:
        return key_column(self.schema, self.keys[number][0])

    @property
    def _partition(self) -> Column:
        name = quote_identifier(self.settings.partition or "")
        return F.coalesce(F.col(name).cast("string"), F.lit("null")).alias("partition")

    @property
    def _ahead(self) -> Column:
        """Time by which the event time is after the arrival, in microseconds; null up to the allowed clock skew."""
        if self.allowed_skew is None:
            return F.lit(None).cast("long")
        # Without `time_bounds`, times can be so far apart that their difference is no long.
        ahead = F.try_subtract(self.event_time.micros, self.clock.micros)
        return F.when(ahead > self.allowed_skew, ahead)

    @cached_property
    def has_unusable_time(self) -> Column:
        """True if the clock is null, overflows or is out of bounds; never null."""
        return _is_out_of_range(self.clock, self.time_bounds)

    @cached_property
    def slice_time(self) -> Column:
        """The time that assigns a row to a slice, in microseconds: its clock, or else its event time.

        Null if neither is usable. The event time decides in which slice a row is rejected, and nothing else.
        """
        if self.substitute_clock is None:
            return F.when(~self.has_unusable_time, self.clock.micros)
        substitute = F.when(self._has_usable_substitute, self.substitute_clock.micros)
        return F.when(self.has_unusable_time, substitute).otherwise(self.clock.micros)

    def has_substitute_between(self, start: int, end: int) -> Column:
        """Return True if a row has no usable clock, and a usable event time in [start, end) microseconds UTC.

        False for a null event time.
        """
        if self.substitute_clock is None:
            return F.lit(False)
        return self.substitute_clock.is_between(start, end) & self.has_unusable_time & self._has_usable_substitute

    @property
    def _has_usable_substitute(self) -> Column:
        assert self.substitute_clock is not None, "there is one"
        is_in_range = ~_is_out_of_range(self.substitute_clock, self.time_bounds)
        return is_in_range & (self.substitute_clock.micros >= F.lit(self.first_substitute))

    @cached_property
    def _rejection_reason(self) -> Column:
        if self.accepts_null_keys:
            return self._time_rejection_reason
        has_null_key = reduce(Column.__or__, (self._raw_key(number).isNull() for number in range(len(self.keys))))
        return F.coalesce(self._time_rejection_reason, F.when(has_null_key, F.lit("null_key")))

    @cached_property
    def _time_rejection_reason(self) -> Column:
        """The reason why one of a row's times is invalid, or null."""
        reasons: list[tuple[str, Column]] = []
        if self.settings.arrival:
            reasons += [("null_arrival", self.clock.raw.isNull()), ("arrival_out_of_range", self.has_unusable_time)]
        is_null_event_time = self.event_time.raw.isNull()
        reasons += [
            ("null_event_time", is_null_event_time & F.lit(not self.accepts_null_times)),
            ("event_time_out_of_range", ~is_null_event_time & _is_out_of_range(self.event_time, self.time_bounds)),
        ]
        # A window of an output stream may end after its emission, if the inputs have ended.
        if self.settings.arrival and self.time_bounds and not self.is_output_stream:
            lead_micros = self.event_time.micros - self.clock.micros
            reasons.append(
                ("event_time_ahead_of_arrival", lead_micros > F.lit(to_micros(self.time_bounds.max_ahead_of_arrival)))
            )
        return F.coalesce(*(F.when(condition, F.lit(reason)) for reason, condition in reasons))


def is_emission() -> Column:
    """Return the condition for a row of an output stream to be an emission, and not a watermark."""
    return F.col(OUTPUT_WATERMARK).isNull()


def create_side(pipeline: Pipeline, name: SideName, schema: T.StructType, key_types: list[T.DataType]) -> Side:
    """Create one side of a pipeline over rows of this schema, with keys cast to `key_types`.

    Raises:
        InputError: The type of a time column is unsupported.
    """
    settings: Input = getattr(pipeline, name)
    input_name = f"input {settings.table}"
    if pipeline.dialect == "spark":
        _require_no_window(schema[settings.event_time.column], input_name)
    event_time = ResolvedTimeColumn.from_config(settings.event_time, schema, input_name)
    match settings.arrival:
        case None:
            clock = event_time
        case CheckpointArrival() | CommitArrival():
            clock = ResolvedTimeColumn(ARRIVAL_COLUMN, None)
        case column:
            clock = ResolvedTimeColumn.from_config(column, schema, input_name)
    keys = [getattr(pair, name) for pair in pipeline.join.keys]
    allowed_skew, null_event_time = pipeline.get_allowed_clock_skew(name), _find_null_event_time(pipeline, settings)
    return Side(
        name,
        settings,
        pipeline.time_bounds,
        schema,
        event_time,
        clock,
        tuple(zip(keys, key_types, strict=True)),
        accepts_null_keys=pipeline.can_join_null_keys,
        accepts_null_times=pipeline.can_join_null_times or null_event_time is not None,
        distinguishes_signed_zeros=pipeline.dialect != "spark",
        pads_char_keys=pipeline.dialect == "spark",
        tick_micros=pipeline.tick_micros,
        substitute_clock=event_time if isinstance(settings.arrival, TimeColumn) else None,
        first_substitute=Grid.from_config(pipeline.slices).start,
        recorded_watermark=ResolvedTimeColumn.from_config(settings.recorded_watermark, schema, input_name)
        if settings.recorded_watermark
        else None,
        filters_at_source=pipeline.has_filter_before_watermark(settings),
        allowed_skew=None if allowed_skew is None else to_micros(allowed_skew),
        is_output_stream=settings.upstream is not None,
        order_factor=compute_order_factor(pipeline, name),
        null_event_time=null_event_time,
    )


def _find_null_event_time(pipeline: Pipeline, settings: Input) -> int | None:
    """Return the event time, ms, as which Flink SQL reads the null of a row that the previous join has padded.

    An interval join reads it as 1970. A window join on windows of the previous one reads the end of the window as 1970.
    """
    if settings.upstream is None or pipeline.dialect != "flink-sql":
        return None
    if pipeline.join.interval:
        return 0
    return -1 if settings.upstream.window else None


def _require_no_window(field: T.StructField, input_name: str) -> None:
    """Require that the event time is not a window struct: Spark accepts a watermark on one, with wrong values.

    Raises:
        InputError: The event time is a window.
    """
    dtype = field.dataType
    if isinstance(dtype, T.StructType) and dtype.names == ["start", "end"]:
        raise InputError(
            f"{input_name}: event_time {field.name} is a window ({dtype.simpleString()}). Spark's withWatermark reads "
            "such a struct as an instant of 1970, whatever its values. Name the timestamp behind the windows, and use "
            "join.window or join.window_inequality, which compare window ends with the watermark."
        )


def _is_out_of_range(time: ResolvedTimeColumn, time_bounds: TimeBounds | None) -> Column:
    """Return True if a time is null, overflows a long of microseconds, or is outside the bounds; never null."""
    is_invalid = time.micros.isNull()
    if time_bounds:
        is_invalid = is_invalid | (time.micros < F.lit(to_micros(time_bounds.earliest)))
        is_invalid = is_invalid | (time.micros >= F.lit(to_micros(time_bounds.latest)))
    return F.coalesce(is_invalid, F.lit(True))
