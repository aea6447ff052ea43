"""What a user writes in a pipeline file, as frozen settings validated at construction."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from tidemark.config.airflow import AirflowSettings
from tidemark.config.allowed_functions import check_column
from tidemark.config.base import Settings
from tidemark.config.cluster import Cluster
from tidemark.config.dialect_support import (
    TICK,
    check_join,
    check_restarts,
    check_time_zone,
    check_watermarks,
    defaults_of_flink,
    takes_null_keys,
)
from tidemark.config.expressions import check_expression
from tidemark.config.inputs import COMMIT, Commits, Input, Trace, landed_from_kafka
from tidemark.config.join import Join
from tidemark.config.local_days import local_day, odd_day, start_of_day
from tidemark.config.maintenance import Compact, Retention
from tidemark.config.notify import Receiver
from tidemark.config.quality import CompareSettings, Expectation
from tidemark.config.sides import SIDES, SideName
from tidemark.config.types import (
    Duration,
    Instant,
    PositiveDuration,
    TimeZone,
    Version,
    format_duration,
    format_instant,
    from_micros,
    micros,
)

Dialect = Literal["flink-datastream", "flink-sql", "spark"]
WatermarkKind = Literal["datastream", "sql"]
_DAY = timedelta(days=1)
Name = Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$", description="letters, digits, _ and -, first a letter")


class SparkSettings(Settings):
    """How the Spark query runs that the answer is that of; the defaults are Spark's own."""

    watermark_policy: Literal["min", "max"] = "min"
    """`spark.sql.streaming.multipleWatermarkPolicy`."""
    late_watermark: Literal["previous_batch", "current_batch"] = "previous_batch"
    """Which batch's watermark makes a row late: `current_batch` with `statefulOperator.allowMultiple` off."""
    batches: Literal["idle", "back_to_back"] = "idle"
    """Each slice with rows is a micro-batch. `idle`: no input waits when it ends, so that a batch without data may run;
    `back_to_back`: the next slice waits already, and such a batch runs only at the end, with `--drain`."""


class Slices(Settings):
    """How the pipeline's clock is cut: half-open intervals [start + n * every, start + (n + 1) * every)."""

    every: PositiveDuration
    start: Instant
    end: Instant | None = None
    """No slice begins then or after; by default there is no last one."""
    time_zone: TimeZone = "UTC"
    """With `every: 1 day`: whose days the slices are, those on which its clocks change included; they begin at local
    midnights, as `start` does. A name of the IANA database."""

    @model_validator(mode="after")
    def _days_of_a_zone(self) -> Self:
        if self.time_zone == "UTC":
            return self
        if self.every != _DAY:
            raise ValueError(
                f"every ({format_duration(self.every)}) goes with no time_zone, in which slices are whole days; write "
                "every: 1 day, or leave time_zone out"
            )
        if (before := self._boundary_before(self.start)) != self.start:
            raise ValueError(
                f"start ({format_instant(self.start)}) is no midnight in {self.time_zone}; the one before is "
                f"{format_instant(before)}"
            )
        if odd := odd_day(local_day(micros(self.start), self.time_zone), self.time_zone):
            raise ValueError(
                f"time_zone: {odd} is no whole day in {self.time_zone}, where the clocks were changed over midnight; "
                "let start be later, or leave time_zone out"
            )
        return self

    @model_validator(mode="after")
    def _whole_slices(self) -> Self:
        if self.end is None:
            return self
        if self.end <= self.start:
            raise ValueError(f"end ({format_instant(self.end)}) is not after start ({format_instant(self.start)})")
        if (before := self._boundary_before(self.end)) != self.end:
            raise ValueError(
                f"end ({format_instant(self.end)}) is no slice boundary; the one before is {format_instant(before)}"
            )
        return self

    def _boundary_before(self, instant: datetime) -> datetime:
        """The last boundary of slices up to an instant."""
        if self.time_zone == "UTC":
            return instant - (instant - self.start) % self.every
        try:
            return from_micros(start_of_day(local_day(micros(instant), self.time_zone), self.time_zone))
        except OverflowError:
            raise ValueError(f"{format_instant(instant)} lies in no year from 1 to 9999 of {self.time_zone}") from None

    @property
    def last(self) -> datetime | None:
        """When the last slice begins; None where there is none."""
        return self.end and self._boundary_before(self.end - timedelta(microseconds=1))


class Guard(Settings):
    """Rows with absurd times go to the side output instead of dragging the watermark; `guard: off` for exact replay."""

    earliest: Instant = datetime(1970, 1, 1, tzinfo=UTC)
    """Times before this are rejected."""
    latest: Instant = datetime(2100, 1, 1, tzinfo=UTC)
    """Times at or after this are rejected."""
    ahead_of_arrival: Duration = timedelta(days=1)
    """Event times further than this after their row's arrival are rejected, on the arrival clock."""


_MOST_TURNED_BACK = timedelta(days=1)
"""By how much clocks of a time zone have ever been turned back at the most."""
_FILTERS_AT = {"flink-datastream": "watermark", "flink-sql": "watermark", "spark": "source"}
_CHECKS = ("quality", "quality_defaults", "suite", "notify", "show_rows", "compare")
_RUNS = ("late_landing", "input_deletes", "compact", "retention", "airflow", "cluster")
_OF_NO_ROW = ("name", "output", "engine", "select", *_CHECKS, *_RUNS)
_NOT_SEMANTIC: dict[str, Any] = {
    **dict.fromkeys(_OF_NO_ROW, True),
    "left": {"complete"},
    "right": {"complete"},
    "slices": {"end"},
}


class Pipeline(Settings):
    """One pipeline file."""

    name: str = Name
    dialect: Dialect
    """The engine whose rules decide what is late, kept and matched."""
    engine: Version | None = None
    """The version of Flink that the streaming job runs on, in quotes: settings that are left out are as it has them."""
    left: Input
    right: Input
    join: Join
    slices: Slices
    time_zone: TimeZone = "UTC"
    """Windows of flink-sql: the zone in whose local time they begin and end, `table.local-time-zone` of the streaming
    job where its event time is TIMESTAMP_LTZ; a name of the IANA database."""
    restarts: list[Instant] = []
    """Intervals of Flink's dialects, and tumbling windows of flink-datastream: when the streaming job went on from a
    checkpoint after a failure, with its state and without a watermark. Rows with that arrival, or a later one, were
    read by the job that had restarted."""
    output: str = ""
    """Folder of the pipeline's own tables, relative to the lake root; the pipeline's name by default."""
    select: list[str] | dict[str, str] | None = None
    """Output columns: names such as left_carrier, or {name: SQL expression over left_* and right_* columns}."""
    flatten: str | None = None
    """In place of a row per pair: SQL over left_* and right_* columns, or a coGroup's arrays left and right, that gives
    an array of structs. Each is a row, its fields are the output columns; null or an empty array is none."""
    quality: list[Expectation] = []
    """Expectations on the inputs and the output, beside those derived from the join itself."""
    quality_defaults: bool = True
    """Whether it is told, as warnings, where a slice has less than half or more than twice the rows or the match rate
    that are usual at its time of day, or more than three times the share of late rows; `off` for not."""
    suite: str | None = None
    """A suite that a project of Great Expectations has stored, whose expectations come behind those of `quality`: a
    .json file in this one's folder, in that of pipelines, or where the operator allows it (`TIDEMARK_ROOTS`)."""
    notify: list[Receiver] = []
    """Who is told of a job's verdict."""
    guard: Guard | None = Guard()
    """Bounds on believable times; `off` for exact replay."""
    watermark_kind: WatermarkKind | None = None
    """`datastream`: max - delay - 1 ms; `sql`: max - delay. The dialect's own by default."""
    spark: SparkSettings = SparkSettings()
    """Dialect spark: settings of the query."""
    late_landing: Literal["append", "reprocess"] = "append"
    """What becomes of rows that land in an input after their slice was committed. `append`: they arrive at the start of
    the next slice that runs; `reprocess`: they wait, and `tidemark plan` proposes the slices to run again."""
    input_deletes: Literal["refuse", "ignore", "reprocess"] = "refuse"
    """What becomes of a run where rows that slices have read were deleted since. `refuse`: it stops, and says from
    which slice to reprocess; `ignore`: what they gave stays, as in a stream that has read them, and no slice that read
    some runs again; `reprocess`: it was a correction, and the run begins with the slices that have read them. A row
    that was updated is one that is gone, and one that has landed."""
    show_rows: bool = False
    """Whether some values that fail an expectation stand in logs, the ledger and Data Docs, and some rows that differ
    in the log of a comparison that is recorded."""
    compare: CompareSettings | None = None
    """What a stream wrote of the same join, and how far it may differ."""
    compact: Compact | None = None
    """Which small files `tidemark compact` merges; by default none."""
    retention: Retention = Retention()
    """How long is kept what nothing needs that is committed."""
    airflow: AirflowSettings = AirflowSettings()
    """How Airflow runs it."""
    cluster: Cluster = Cluster()
    """What a job takes of a cluster, where it runs on one."""

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        has_partitions = value.get("dialect") != "spark"
        inputs = {side: landed_from_kafka(value[side], partitions=has_partitions) for side in SIDES if side in value}
        value = {"output": value.get("name"), **value, **inputs}
        if value.get("guard") in (False, "off"):
            value["guard"] = None
        elif value.get("guard") in (True, "on"):
            value["guard"] = {}
        match value:
            case {"dialect": "flink-sql", "join": {"event_time_equality": True} as join}:
                if not join.get("interval") and not join.get("window"):
                    interval = {"lower": timedelta(), "upper": timedelta()}
                    value["join"] = {**join, "event_time_equality": False, "interval": interval}
        match value:
            case {"dialect": "flink-sql", "engine": str(version), "join": {"interval": {}} as join}:
                value["join"] = defaults_of_flink(version) | join
        return value

    @field_validator("restarts")
    @classmethod
    def _in_order(cls, value: list[datetime]) -> list[datetime]:
        return sorted(set(value))

    @field_validator("select")
    @classmethod
    def _confined(cls, value: list[str] | dict[str, str] | None) -> list[str] | dict[str, str] | None:
        match value:
            case list(names):
                for name in names:
                    check_column(name)
            case dict(expressions):
                for name, text in expressions.items():
                    try:
                        check_expression(text)
                    except ValueError as error:
                        raise ValueError(f"{name}: {error}") from None
        return value

    @field_validator("flatten")
    @classmethod
    def _an_expression(cls, value: str | None) -> str | None:
        if value is not None:
            check_expression(value)
        return value

    @model_validator(mode="after")
    def _columns_in_one_place(self) -> Self:
        if self.flatten is not None and self.select is not None:
            raise ValueError(
                "flatten: the fields of its structs are the output columns; name them there, without select"
            )
        return self

    @model_validator(mode="after")
    def _one_clock(self) -> Self:
        if (self.left.arrival is None) != (self.right.arrival is None):
            named, bare = ("left", "right") if self.left.arrival else ("right", "left")
            raise ValueError(
                f"{named} names an arrival column and {bare} does not; "
                "name one on both for the arrival clock, or on neither for the event-time clock"
            )
        traces = {source.arrival.trace for source in (self.left, self.right) if isinstance(source.arrival, Trace)}
        others = [source for source in (self.left, self.right) if not isinstance(source.arrival, Trace)]
        if len(traces) > 1 or (traces and others):
            raise ValueError("arrival: a trace tells of both inputs; name the same checkpoint on both")
        for side, source in (("left", self.left), ("right", self.right)):
            if traces and source.complete:
                raise ValueError(f"{side}.complete: a trace ends with the batches that have run; leave it out")
        if traces and self.dialect != "spark":
            raise ValueError(f"arrival: a trace is that of a Spark query; {self.dialect} needs a column")
        return self

    @property
    def trace(self) -> Trace | None:
        """The trace that tells when rows arrived, None where a column or the event time does."""
        return self.left.arrival if isinstance(self.left.arrival, Trace) else None

    @property
    def clock(self) -> Literal["arrival", "event-time"]:
        """Which time slices are cut on."""
        return "arrival" if self.left.arrival else "event-time"

    @property
    def recorded(self) -> tuple[SideName, ...]:
        """The inputs whose watermarks are as the job recorded them."""
        return tuple(side for side in SIDES if getattr(self, side).watermark)

    def clock_of(self, side: Input) -> str:
        """What the clock of one input is read from: a column, a checkpoint, or the word for a table's own commits."""
        match side.arrival or side.event_time:
            case Trace(trace=checkpoint):
                return checkpoint
            case Commits():
                return COMMIT
            case clock:
                return clock.column

    @model_validator(mode="after")
    def _compares_whole_slices(self) -> Self:
        every = self.compare and self.compare.every
        if every and self.slices.time_zone != "UTC" and every != _DAY:
            raise ValueError(
                f"compare.every ({format_duration(every)}) has to be 1 day, as slices are days of "
                f"{self.slices.time_zone}"
            )
        if every and every % self.slices.every:
            raise ValueError(
                f"compare.every ({format_duration(every)}) has to be a multiple of "
                f"slices.every ({format_duration(self.slices.every)})"
            )
        return self

    @model_validator(mode="after")
    def _compacts_whole_slices(self) -> Self:
        if self.compact:
            self.compact.check(self.slices.every)
        return self

    @model_validator(mode="after")
    def _as_the_dialect_allows(self) -> Self:
        if self.engine and self.dialect == "spark":
            raise ValueError("engine: is a version of Flink; leave it out with dialect spark")
        check_join(self.dialect, self.join)
        check_watermarks(self)
        check_time_zone(self)
        check_restarts(self)
        return self

    @property
    def tick(self) -> int:
        """Microseconds: what the dialect compares event times in."""
        return TICK[self.dialect]

    @property
    def takes_null_times(self) -> bool:
        """Whether a row may take part though its event time is null; the clock has to place it."""
        if self.dialect == "flink-datastream":
            reads_times = {"delta", "continuous_event_time"}
            return self.join.time == "processing" and self.join.triggered_by.kind not in reads_times
        return self.dialect == "spark" and self.clock == "arrival"

    @property
    def zone_of_windows(self) -> str | None:
        """The time zone in which windows begin and end; None for UTC."""
        return self.time_zone if self.join.window and self.time_zone != "UTC" else None

    @property
    def reach(self) -> timedelta | None:
        """How far the event times of a pair can be apart, at most; None for any distance."""
        reach = self.join.reach
        return reach + _MOST_TURNED_BACK if reach is not None and self.zone_of_windows else reach

    def filters_at_source(self, side: Input) -> bool:
        """Whether rows that `where` of an input leaves out are as if its table did not have them."""
        return side.where is not None and (side.where_at or _FILTERS_AT[self.dialect]) == "source"

    @property
    def takes_null_keys(self) -> bool:
        """Whether a row may take part though its key is null."""
        return takes_null_keys(self.dialect)

    @property
    def by_clock_alone(self) -> bool:
        """Whether rows have no other time than that of arrival: on Flink SQL's processing time."""
        return self.dialect == "flink-sql" and self.join.time == "processing"

    def semantic_settings(self) -> dict[str, Any]:
        """The settings that decide the answer; slices under different ones do not continue each other."""
        return self.model_dump(mode="json", exclude_defaults=True, exclude=_NOT_SEMANTIC)

    def deciding_settings(self) -> dict[str, Any]:
        """The same with defaults, by the names of the pipeline file."""
        return self.model_dump(mode="json", by_alias=True, exclude=_NOT_SEMANTIC)
