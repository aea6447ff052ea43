"""Settings of an input: its table, time columns, filter and completeness rule."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, PrivateAttr, Tag, field_validator, model_validator
from pydantic.functional_validators import ModelWrapValidatorHandler

from tidemark.config.allowed_functions import InputColumns
from tidemark.config.base import INTERNAL, Settings
from tidemark.config.expressions import check_expression
from tidemark.config.sides import SideName
from tidemark.config.types import Duration, NonNegativeDuration, PositiveDuration

EpochUnit = Literal["s", "ms", "us", "ns"]


class TimeColumn(Settings):
    """Column with a time: a bare name, or `{column: ts, unit: ms}` for epoch numbers."""

    column: str
    """Column name. Types: timestamp, timestamp_ntz (read as UTC), date, or a number with `unit`."""
    unit: EpochUnit | None = None
    """Unit of an epoch number, counted from 1970-01-01T00:00Z: s, ms, us or ns."""

    @model_validator(mode="before")
    @classmethod
    def _expand_name(cls, value: Any) -> Any:
        return {"column": value} if isinstance(value, str) else value


class CheckpointArrival(Settings):
    """Dialect spark: arrival order of a Structured Streaming query, read from its checkpoint."""

    streaming_checkpoint: str
    """Path of the query's checkpoint: relative to the lake root, or absolute or a URI where the installation allows it
    (`TIDEMARK_ALLOWED_ROOTS`). A row arrives in the micro-batch that read it, at the timestamp of the batch."""
    starting_version: int | None = Field(default=None, ge=0)
    """The option `startingVersion` of the query's reader, which no checkpoint records. Default: the query read the
    table from its beginning."""
    file_column: str | None = None
    """Column with the path of each row's source file, for a query that read files. Default: the table consists of these
    files, as after CONVERT TO DELTA."""


class CommitArrival(Settings):
    """Arrival by commit time: a row arrives when the table version that first contained it was committed.

    In a pipeline file also the bare word `commit`.
    """

    commit: Literal[True]
    """In-commit timestamps if the table has them, otherwise the commit times in its Delta log."""
    _is_bare_word: bool = PrivateAttr(default=False)

    @model_validator(mode="wrap")
    @classmethod
    def _expand_word(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        is_bare_word = value == COMMIT
        arrival = handler({COMMIT: True} if is_bare_word else value)
        arrival._is_bare_word = is_bare_word or arrival._is_bare_word  # noqa: SLF001 - its own class
        return arrival

    @property
    def is_bare_word(self) -> bool:
        """True if the file has the bare word `commit`, which may be meant as a column name."""
        return self._is_bare_word


COMMIT = "commit"


def _tag_arrival(value: Any) -> str:
    if isinstance(value, CheckpointArrival) or (isinstance(value, dict) and "streaming_checkpoint" in value):
        return "(checkpoint)"
    is_commit = value == COMMIT or (isinstance(value, dict) and COMMIT in value)
    return "(commit)" if is_commit or isinstance(value, CommitArrival) else "(column)"


ARRIVAL_TAGS = ("(column)", "(checkpoint)", "(commit)")
"""Union tags that pydantic adds to error locations."""
Arrival = Annotated[
    Annotated[TimeColumn, Tag("(column)")]
    | Annotated[CheckpointArrival, Tag("(checkpoint)")]
    | Annotated[CommitArrival, Tag("(commit)")],
    Discriminator(_tag_arrival),
]


class Completeness(Settings):
    """Rule for when an input is complete up to the end of a slice, so that the slice may run.

    The rules `row` and `commit` may be written as a bare word.
    """

    by: Literal["row", "commit", "asset", "marker"]
    """`row`: the input has a row whose clock is at or after the slice's end. `commit`: new rows were committed to the
    input at or after that time. `asset`: Airflow has an event of the asset at or after that time. `marker`: a marker
    table has an instant at or after that time."""
    grace_period: Duration = timedelta()
    """Delay that is added to the slice's end for the rules `row`, `commit` and `asset`."""
    asset: str | None = Field(default=None, pattern=r"^[\w.:/-]{1,200}$")
    """Name of the Airflow asset: at most 200 letters, digits and _, ., :, / and -."""
    partition: str | None = Field(default=None, min_length=1, max_length=100)
    """Format of the asset's partition keys, such as `%Y-%m-%d`. The input is complete for a slice if Airflow has an
    event with the key of the slice's start, in `slices.time_zone`. Default: events without regard to keys."""
    table: str | None = None
    """Marker table: a Delta path relative to the lake root, or a catalog name."""
    column: str | None = None
    """Column of instants in the marker table. The input is complete before its maximum."""
    where: dict[str, str] = {}
    """Rows of the marker table that describe this input, as {column: text}. Default: all rows."""

    @model_validator(mode="before")
    @classmethod
    def _expand_word(cls, value: Any) -> Any:
        return {"by": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_rule(self) -> Self:
        if self.grace_period < timedelta():
            raise ValueError("grace_period must not be negative")
        allowed = {
            "asset": {"asset", "partition"} if self.partition else {"asset", "grace_period"},
            "marker": {"table", "column", "where"},
        }.get(self.by, {"grace_period"})
        if extra := sorted(self.model_fields_set - {"by"} - allowed):
            rule = "partition" if self.by == "asset" and self.partition else f"by: {self.by}"
            raise ValueError(f"{', '.join(extra)}: has no effect with {rule}. Remove it.")
        required = {"asset": ("asset",), "marker": ("table", "column")}.get(self.by, ())
        if missing := [name for name in required if not getattr(self, name)]:
            raise ValueError(f"by: {self.by} needs {' and '.join(missing)}")
        return self


def expand_kafka_arrival(source: Any, *, has_partitions: bool) -> Any:
    """Expand an input's `arrival: {kafka: COLUMN}` to the standard columns of Kafka records.

    Args:
        source: The input's content in the pipeline file. Any other arrival is returned unchanged.
        has_partitions: True if the dialect has watermarks per partition.

    >>> expand_kafka_arrival({"table": "t", "arrival": {"kafka": "timestamp"}}, has_partitions=True)
    {'tiebreak': 'offset', 'partition': 'partition', 'table': 't', 'arrival': 'timestamp'}
    """
    match source:
        case {"arrival": {"kafka": column, **rest}} if not rest:
            # A recorded watermark already includes the effect of partitions.
            by_partition = has_partitions and source.get("recorded_watermark") is None
            columns = {"tiebreak": "offset"} | ({"partition": "partition"} if by_partition else {})
            return {**columns, **source, "arrival": column}
    return source


class Upstream(Settings):
    """Pipeline whose output stream an input is. The loader fills it in for an input that names a pipeline."""

    pipeline: str
    """Name of the pipeline."""
    dialect: str
    """Its dialect."""
    window: dict[str, Any] | None = None
    """Its windows; none for an interval join."""
    window_time_zone: str | None = None
    """Time zone of its windows, other than UTC."""
    slices: dict[str, Any] = {}
    """Its slices."""
    depth: int = 1
    """Number of joins between the first inputs and this input, in the longest chain."""
    selected: list[str] | None = None
    """Columns of its output that its `select` names; None without `select`."""


class PipelineInput(Settings):
    """An input that is the output of another pipeline, as a pipeline file has it."""

    pipeline: str
    """Name of the pipeline. Its output stream gives arrivals, order and watermarks."""
    event_time: SideName | None = None
    """flink-sql: side whose event time, or window, the rows keep: left or right. flink-datastream has one event time
    per row."""
    where: str | None = None
    """SQL condition over the output columns that selects the rows that take part."""


class Input(Settings):
    """One of the two joined streams, stored as a Delta table."""

    table: str
    """Delta path relative to the lake root, or a catalog name."""
    event_time: TimeColumn
    """Column with the event time."""
    arrival: Arrival | None = None
    """Time at which the streaming engine received a row: a column, `commit` for the commit time of the table version
    that first contained it, or {streaming_checkpoint: PATH} of a live query. Set it on both inputs, or on neither (then
    the clock is event time). Write a column named commit as {column: commit}. {kafka: COLUMN} is the column with the
    timestamps of Kafka records; it sets `tiebreak` to offset and, in Flink's dialects, `partition` to partition."""
    tiebreak: str | None = None
    """Integer column that orders rows of equal arrival time, such as a log offset."""
    watermark_delay: NonNegativeDuration | None = None
    """Bounded out-of-orderness: watermark = maximum event time so far - delay. Required in Flink's dialects, except
    with `recorded_watermark` and on Flink SQL's processing time."""
    recorded_watermark: TimeColumn | None = None
    """Flink's dialects, instead of `watermark_delay`: column with the input's watermark as the job recorded it for each
    row, such as `CURRENT_WATERMARK(rowtime)`. Null before the first watermark."""
    partition: str | None = None
    """Flink's dialects: column with the partition of the log (such as Kafka's). The input's watermark is the minimum of
    the partitions' watermarks."""
    idle_timeout: PositiveDuration | None = None
    """Flink's dialects: time on the clock without a row after which an input, or a partition of it, is idle. It then
    does not hold back the watermark until its next row. Default: never idle."""
    where: str | None = None
    """SQL condition over the input's columns that selects the rows that take part. It applies before all checks of a
    row. Columns, literals, operators and reviewed functions only."""
    filter: Literal["after_watermark", "before_watermark"] | None = None
    """Position of the filter `where` in the stream. `after_watermark`: filtered rows still advance the watermark and
    keep their input or partition from becoming idle. `before_watermark`: as if the table did not contain them.
    Default: `after_watermark` in Flink's dialects, `before_watermark` in dialect spark, which has no other."""
    allowed_clock_skew: PositiveDuration | None = None
    """Time by which an event time may be after its row's arrival. Rows beyond it give a warning (`left_rows_ahead`,
    `right_rows_ahead`), because they move the watermark ahead. Arrival clock only. Default: the greater of
    `slices.every` and ten times `watermark_delay`."""
    complete: Completeness | None = None
    """Rule for when a slice may run: `row`, `commit`, or {by: row, grace_period: 10 minutes}. Default: slices do not
    wait for the input."""
    upstream: Annotated[Upstream | None, INTERNAL] = None
    """Pipeline whose output this input is. Write {pipeline: NAME, event_time: left} for the input instead."""

    @field_validator("where")
    @classmethod
    def _check_condition(cls, value: str | None) -> str | None:
        if value is not None:
            check_expression(value, InputColumns())
        return value

    @model_validator(mode="after")
    def _check_watermark(self) -> Self:
        if self.recorded_watermark and self.watermark_delay is not None:
            raise ValueError("recorded_watermark: replaces watermark_delay. Remove one of them.")
        return self

    @model_validator(mode="after")
    def _check_filter(self) -> Self:
        if self.filter and self.where is None:
            raise ValueError("filter: needs where. Add where, or remove filter.")
        return self
