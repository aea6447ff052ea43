"""An input of a pipeline file: its table, its times, and when it is complete."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, PrivateAttr, Tag, field_validator, model_validator
from pydantic.functional_validators import ModelWrapValidatorHandler

from tidemark.config.allowed_functions import ColumnsOf
from tidemark.config.base import Settings
from tidemark.config.expressions import check_expression
from tidemark.config.types import Duration, PositiveDuration

EpochUnit = Literal["s", "ms", "us", "ns"]


class TimeColumn(Settings):
    """A column that holds a time: a bare name, or `{column: ts, unit: ms}` for epoch numbers."""

    column: str
    """Name of the column: timestamp, timestamp_ntz (read as UTC), date, or a number with its unit."""
    unit: EpochUnit | None = None
    """What a number stands for, counted from 1970-01-01T00:00Z."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"column": value} if isinstance(value, str) else value


class Trace(Settings):
    """Dialect spark: the order in which a Structured Streaming query read the rows, from its checkpoint."""

    trace: str
    """The checkpoint's path, relative to the lake root, or absolute or a URI where the operator allows it
    (`TIDEMARK_ROOTS`): rows arrive in the micro-batch that read them, at its timestamp."""
    starting_version: int | None = Field(default=None, ge=0)
    """The `startingVersion` of the query's reader, which no checkpoint tells; by default it read all of the table."""
    file: str | None = None
    """The column that has the path of each row's file, for a query that read files; by default the table is made of the
    very files, as after CONVERT TO DELTA."""


class Commits(Settings):
    """A row arrives when the version of the table that first had it was committed; also the bare word `commit`."""

    commit: Literal[True]
    """By in-commit timestamps where the table has them, else by the times that writers have put into its log."""
    _by_word: bool = PrivateAttr(default=False)

    @model_validator(mode="wrap")
    @classmethod
    def _from_word(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        by_word = value == COMMIT
        one = handler({COMMIT: True} if by_word else value)
        one._by_word = by_word or one._by_word  # noqa: SLF001 - its own
        return one

    @property
    def by_word(self) -> bool:
        """Whether the bare word stood there, which could be meant for a column of that name."""
        return self._by_word


COMMIT = "commit"


def _kind_of_arrival(given: Any) -> str:
    if isinstance(given, Trace) or (isinstance(given, dict) and "trace" in given):
        return "(trace)"
    named = given == COMMIT or (isinstance(given, dict) and COMMIT in given)
    return "(commit)" if named or isinstance(given, Commits) else "(column)"


ARRIVAL_TAGS = ("(column)", "(trace)", "(commit)")
Arrival = Annotated[
    Annotated[TimeColumn, Tag("(column)")] | Annotated[Trace, Tag("(trace)")] | Annotated[Commits, Tag("(commit)")],
    Discriminator(_kind_of_arrival),
]


class Completeness(Settings):
    """When an input holds all that it will have up to the end of a slice, so that the slice may run.

    Exactly one rule: `row`, `commit`, `asset` or `marker`; the first two may be written as a bare name.
    """

    by: Literal["row", "commit", "asset", "marker"]
    """`row`: it has a row whose clock is at or past that time; `commit`: rows were committed to it then or later;
    `asset`: Airflow has an event of it from then or later; `marker`: a table says up to when it is complete."""
    settle: Duration = timedelta()
    """How much later the row, the commit or the event has to be."""
    asset: str | None = Field(default=None, pattern=r"^[\w.:/-]{1,200}$")
    """The name of Airflow's asset."""
    table: str | None = None
    """The marker table: a Delta path, as that of an input."""
    column: str | None = None
    """Its column of instants, the greatest of which counts: the input is complete before it."""
    where: dict[str, str] = {}
    """Which of its rows tell of this input, by the texts of columns; by default all."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"by": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one_rule(self) -> Self:
        if self.settle < timedelta():
            raise ValueError("settle must not be negative")
        wanted = {"asset": {"asset", "settle"}, "marker": {"table", "column", "where"}}.get(self.by, {"settle"})
        if extra := sorted(self.model_fields_set - {"by"} - wanted):
            raise ValueError(f"{', '.join(extra)}: means nothing with by: {self.by}; leave it out")
        needed = {"asset": ("asset",), "marker": ("table", "column")}.get(self.by, ())
        if missing := [name for name in needed if not getattr(self, name)]:
            raise ValueError(f"by: {self.by} needs {' and '.join(missing)}")
        return self


def landed_from_kafka(source: Any, *, partitions: bool) -> Any:
    """What an input means whose arrival is `{kafka: COLUMN}`, by the columns of Kafka's records; any other as it is.

    >>> landed_from_kafka({"table": "t", "arrival": {"kafka": "timestamp"}}, partitions=True)
    {'tiebreak': 'offset', 'partition': 'partition', 'table': 't', 'arrival': 'timestamp'}
    """
    match source:
        case {"arrival": {"kafka": column, **others}} if not others:
            # What the job recorded knows of the partitions already.
            by_partition = partitions and source.get("watermark") is None
            columns = {"tiebreak": "offset"} | ({"partition": "partition"} if by_partition else {})
            return {**columns, **source, "arrival": column}
    return source


class Input(Settings):
    """One of the two streams, as a bounded Delta table."""

    table: str
    """A Delta path relative to the lake root, or a catalog name."""
    event_time: TimeColumn
    """When it happened."""
    arrival: Arrival | None = None
    """When the engine saw it: a column, `commit` for when the table's version that first had it was committed, or
    {trace: CHECKPOINT} of a live query. Both inputs name one, or neither (then the clock is event time). A column that
    is called commit is written {column: commit}. {kafka: COLUMN} is the column with the timestamps of Kafka's records,
    and says that `tiebreak` is offset and, in Flink's dialects, `partition` is partition."""
    tiebreak: str | None = None
    """An integer column that orders rows of equal arrival, such as a log offset."""
    watermark_delay: Duration | None = None
    """Bounded out-of-orderness: watermark = max event time so far - delay. Dialect spark has inputs without one."""
    watermark: TimeColumn | None = None
    """In place of `watermark_delay`, in Flink's dialects: the column with the input's watermark as the job recorded it
    beside each row, such as `CURRENT_WATERMARK(rowtime)`; null where there was none yet."""
    partition: str | None = None
    """A column that tells the log's partitions apart: the input's watermark is the least of those of its partitions."""
    idle_after: PositiveDuration | None = None
    """An input, or a partition of it, without a row for longer than this on the clock does not hold the watermark back
    until its next row; by default it always does."""
    where: str | None = None
    """SQL over the input's own columns that is true of the rows which take part: it leaves out the others, and says so
    before anything else is asked of them. Columns, literals, operators and reviewed functions."""
    where_at: Literal["watermark", "source"] | None = None
    """Where the stream filters. `watermark`: behind where the watermark is made, so that rows left out move it, and
    keep their input or partition from falling idle; `source`: before, as if the table did not have them. By default
    `watermark` in Flink's dialects, and `source` in dialect spark, which has no other."""
    complete: Completeness | None = None
    """When a slice may run: `row`, `commit`, or {by: row, settle: 10 minutes}; by default no slice waits."""

    @field_validator("watermark_delay")
    @classmethod
    def _not_negative(cls, value: timedelta | None) -> timedelta | None:
        if value is not None and value < timedelta():
            raise ValueError("must not be negative")
        return value

    @field_validator("where")
    @classmethod
    def _confined(cls, value: str | None) -> str | None:
        if value is not None:
            check_expression(value, ColumnsOf())
        return value

    @model_validator(mode="after")
    def _one_watermark(self) -> Self:
        if self.watermark and self.watermark_delay is not None:
            raise ValueError("watermark: is what the job recorded, in place of watermark_delay; leave one of them out")
        return self

    @model_validator(mode="after")
    def _filters_something(self) -> Self:
        if self.where_at and self.where is None:
            raise ValueError("where_at: means nothing without where; leave it out")
        return self
