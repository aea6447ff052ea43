"""What a user writes in a pipeline file, as frozen settings validated at construction."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, field_validator, model_validator

from tidemark.settings.bounds import closed_bounds, comparisons
from tidemark.settings.cluster import Cluster
from tidemark.settings.dialects import TICK, TRIGGERS, check_join, check_watermarks, takes_null_keys
from tidemark.settings.expectations import ARGUMENTS, check_expectation
from tidemark.settings.expressions import check_expression
from tidemark.settings.functions import check_column
from tidemark.settings.sides import SideName
from tidemark.settings.values import (
    Cleanup,
    Duration,
    Instant,
    PositiveDuration,
    Rows,
    format_duration,
    format_instant,
    micros,
    millis,
)

Dialect = Literal["flink-datastream", "flink-sql", "spark"]
EpochUnit = Literal["s", "ms", "us", "ns"]
JoinTypeName = Literal["inner", "left", "right", "full", "semi", "anti"]
Severity = Literal["critical", "warning", "info"]
WatermarkKind = Literal["datastream", "sql"]
Name = Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$", description="letters, digits, _ and -, first a letter")


_SIGNS = {">=": "≤", ">": "<", "<=": "≤", "<": "<"}
"""How `describe` writes an operator, with the bound on the left of the lower one."""


class Settings(BaseModel):
    """Base of all settings: frozen, and an unknown field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


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


ARRIVAL_TAGS = ("(column)", "(trace)")
Arrival = Annotated[
    Annotated[TimeColumn, Tag("(column)")] | Annotated[Trace, Tag("(trace)")],
    Discriminator(
        lambda given: ARRIVAL_TAGS[isinstance(given, Trace) or (isinstance(given, dict) and "trace" in given)]
    ),
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
    asset: str | None = None
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


class Input(Settings):
    """One of the two streams, as a bounded Delta table."""

    table: str
    """A Delta path relative to the lake root, or a catalog name."""
    event_time: TimeColumn
    """When it happened."""
    arrival: Arrival | None = None
    """When the engine saw it: a column, or {trace: CHECKPOINT} of a live query. Both inputs name one, or neither (then
    the clock is event time)."""
    tiebreak: str | None = None
    """An integer column that orders rows of equal arrival, such as a log offset."""
    watermark_delay: Duration | None = None
    """Bounded out-of-orderness: watermark = max event time so far - delay. Dialect spark has inputs without one."""
    partition: str | None = None
    """A column that tells the log's partitions apart: the input's watermark is the least of those of its partitions."""
    idle_after: PositiveDuration | None = None
    """An input, or a partition of it, without a row for longer than this on the clock does not hold the watermark back
    until its next row; by default it always does."""
    complete: Completeness | None = None
    """When a slice may run: `row`, `commit`, or {by: row, settle: 10 minutes}; by default no slice waits."""

    @field_validator("watermark_delay")
    @classmethod
    def _not_negative(cls, value: timedelta | None) -> timedelta | None:
        if value is not None and value < timedelta():
            raise ValueError("must not be negative")
        return value


class KeyPair(Settings):
    """One equality of the join: a bare name where both sides call it the same."""

    left: str
    """A column, or a field of a struct: `customer.id`."""
    right: str

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"left": value, "right": value} if isinstance(value, str) else value

    def columns(self, side: SideName) -> set[str]:
        """What may be the column of a side's key: that of its name, or the one whose field dots in it lead to."""
        name: str = getattr(self, side)
        return {name, name.partition(".")[0]}


class Interval(Settings):
    """Time bounds of an interval join: lower <= right event time - left event time <= upper."""

    lower: Duration | None = None
    """Absent only in dialect spark: no lower bound."""
    upper: Duration | None = None
    """Absent only in dialect spark: no upper bound."""
    lower_inclusive: bool = True
    upper_inclusive: bool = True

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.lower is not None and self.upper is not None and self.lower > self.upper:
            raise ValueError(
                f"lower ({format_duration(self.lower)}) is above upper ({format_duration(self.upper)}); "
                "the bounds say lower <= right time - left time <= upper, so swap them or their signs"
            )
        return self

    def closed(self, tick: int) -> tuple[int | None, int | None]:
        """Both bounds in ticks of so many microseconds, inclusive; None for no bound."""
        lower, upper = (None if bound is None else micros(bound) // tick for bound in (self.lower, self.upper))
        return closed_bounds(lower, upper, lower_inclusive=self.lower_inclusive, upper_inclusive=self.upper_inclusive)

    @property
    def comparisons(self) -> tuple[str, str]:
        """SQL's operators of both bounds: `right time OPERATOR left time + bound`."""
        return comparisons(lower_inclusive=self.lower_inclusive, upper_inclusive=self.upper_inclusive)


class Sliding(Settings):
    """Windows of one size that begin every slide."""

    size: PositiveDuration
    slide: PositiveDuration


class Session(Settings):
    """Runs of rows, each at most the gap after the one before."""

    gap: PositiveDuration


class Cumulate(Settings):
    """Windows with a common start that grow by a step up to a size."""

    size: PositiveDuration
    step: PositiveDuration

    @model_validator(mode="after")
    def _whole_steps(self) -> Self:
        if self.size % self.step:
            raise ValueError(
                f"size ({format_duration(self.size)}) has to be a multiple of step ({format_duration(self.step)})"
            )
        return self


class WindowSettings(Settings):
    """Windows that both rows have to be in: exactly one of tumbling, sliding, session, cumulate."""

    tumbling: PositiveDuration | None = None
    """Windows of this size, one after another."""
    sliding: Sliding | None = None
    session: Session | None = None
    cumulate: Cumulate | None = None
    offset: Duration = timedelta()
    """How far windows begin after whole multiples of their size (or slide) since 1970-01-01T00:00Z."""

    @model_validator(mode="after")
    def _one_shape(self) -> Self:
        shapes = ("tumbling", "sliding", "session", "cumulate")
        if sum(getattr(self, shape) is not None for shape in shapes) != 1:
            raise ValueError(f"give exactly one of {', '.join(shapes)}")
        slide = self.tumbling or (self.sliding and self.sliding.slide)
        if slide and abs(self.offset) >= slide:
            raise ValueError(f"offset ({format_duration(self.offset)}) has to be less than {format_duration(slide)}")
        if self.session and self.offset:
            raise ValueError("sessions have no offset")
        return self


class Trigger(Settings):
    """When a window fires: exactly one of Flink's triggers, `event_time` and `processing_time` by their bare names."""

    event_time: Literal[True] | None = None
    """When the watermark reaches its end, and for each late row that it takes: the default of windows of event time."""
    continuous_event_time: PositiveDuration | None = None
    """At multiples of this in event time as well."""
    processing_time: Literal[True] | None = None
    """When the clock reaches its end: the default of windows of processing time."""
    continuous_processing_time: PositiveDuration | None = None
    """At multiples of this on the clock; a window of event time does not fire at its end then."""
    count: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    """At every so many-th row of both sides together (1 or less: at each row), and not at its end."""
    delta: Duration | None = None
    """At a row whose event time is more than this after that of the row that fired last, at first the first row."""
    purging: bool = False
    """Whether each firing takes the window's rows away (`PurgingTrigger`)."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {value: True} if value in ("event_time", "processing_time") else value

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = [name for name in TRIGGERS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of {', '.join(TRIGGERS)}")
        return self

    @property
    def kind(self) -> str:
        """Which one it is."""
        return next(name for name in TRIGGERS if getattr(self, name) is not None)

    @property
    def amount(self) -> int:
        """Its interval or threshold in ms, or its count; 0 where it has none."""
        value = getattr(self, self.kind)
        return millis(value) if isinstance(value, timedelta) else 0 if value is True else int(value)


class Evictor(Settings):
    """What a firing takes out of its window for good: exactly one of Flink's evictors."""

    count: int | None = Field(default=None, ge=0, lt=2**63)
    """Leaves so many rows of both sides together, those that arrived last."""
    time: Duration | None = None
    """Leaves the rows whose event time is less than this before the newest in the window."""
    after: bool = False
    """Whether rows go after they were emitted, so that the next firing does without them."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.count is None) == (self.time is None):
            raise ValueError("give exactly one of count, time")
        if self.time is not None and self.time < timedelta():
            raise ValueError("time must not be negative")
        return self

    @property
    def kind(self) -> Literal["count", "time"]:
        """Which one it is."""
        return "time" if self.count is None else "count"

    @property
    def amount(self) -> int:
        """How many rows it leaves, or of how many ms."""
        return self.count if self.count is not None else millis(self.time or timedelta())


class Join(Settings):
    """Which rows belong together: equal keys, and one of interval, window, or equal event times."""

    type: JoinTypeName = "inner"
    """flink-datastream: inner; flink-sql: inner, left, right, full, on windows semi and anti too; spark: not anti."""
    keys: list[KeyPair] = Field(min_length=1)
    """Columns that must be equal: names, or {left: a, right: b}."""
    interval: Interval | None = None
    window: WindowSettings | None = None
    event_time_equality: bool = False
    """Event times must be equal; dialect flink-sql takes it as an interval of 0 to 0, as Flink does."""
    condition: str | None = None
    """SQL over left_* and right_* columns that a pair must meet as well: part of the match, so that it decides padding;
    in flink-datastream a filter behind the join. Columns, literals, operators and reviewed functions."""
    api: Literal["join", "cogroup"] = "join"
    """flink-datastream windows: pairs, or for each firing the arrays of its left and right rows."""
    allowed_lateness: Duration = timedelta()
    """flink-datastream windows: how long a window takes late rows, each of which fires it again."""
    trigger: Trigger | None = None
    """flink-datastream windows: what fires them, in place of their end."""
    evictor: Evictor | None = None
    """flink-datastream windows: which rows a firing takes out of its window for good."""
    time: Literal["event", "processing"] = "event"
    """flink-datastream windows and flink-sql intervals: whether a row's time is its event time, or that of its
    arrival: then no row is late, and what waits for the clock when the input ends is lost."""
    emit: Literal["every-pane", "latest"] = "every-pane"
    """Windows: what the engine emits, a pane per firing; or each window once, when it takes no more rows."""
    min_cleanup: Cleanup = timedelta()
    """flink-sql intervals: `table.exec.interval-join.min-cleanup-interval`; or `half` of what both bounds reach over
    together, which is what Flink had before 1.18, without that option."""

    @field_validator("condition")
    @classmethod
    def _confined(cls, value: str | None) -> str | None:
        if value:
            check_expression(value)
        return value

    @property
    def fires_by_default(self) -> bool:
        """Whether windows are of event time, fire at their end and for late rows, and keep all rows until they go."""
        default = self.trigger is None or (self.trigger.kind == "event_time" and not self.trigger.purging)
        return default and self.evictor is None and self.time == "event"

    @property
    def triggered_by(self) -> Trigger:
        """The trigger of its windows, the default one too."""
        return self.trigger or Trigger.model_validate(f"{self.time}_time")

    @property
    def min_cleanup_ms(self) -> int:
        """How long Flink SQL's interval join keeps expired rows at least, in ms: `half` is rounded down."""
        if isinstance(self.min_cleanup, timedelta):
            return millis(self.min_cleanup)
        assert self.interval, "settings.dialects sees to it"
        lower, upper = self.interval.closed(TICK["flink-sql"])
        assert lower is not None and upper is not None, "settings.dialects sees to it"  # noqa: PT018
        return max(upper - lower, 0) // 2

    @property
    def reach(self) -> timedelta | None:
        """How far the event times of a pair can be apart, at most; None for any distance."""
        if self.interval:
            bounds = self.interval.lower, self.interval.upper
            return None if None in bounds else max(abs(bound) for bound in bounds if bound is not None)
        match self.window:
            case WindowSettings(session=Session(gap=gap)):
                return gap
            case WindowSettings(sliding=Sliding(size=size)) | WindowSettings(cumulate=Cumulate(size=size)):
                return size
            case WindowSettings(tumbling=size):
                return size
        return timedelta()

    def describe(self) -> str:
        """Which times match, in one line.

        >>> Join(keys=["k"], interval={"lower": "-5 minutes", "upper": "0 s"}).describe()
        'bounds: -5 minutes ≤ right time - left time ≤ 0 seconds'
        """
        parts = []
        if self.interval:
            at_least, at_most = self.interval.comparisons
            above, below = _SIGNS[at_least], _SIGNS[at_most]
            lower = f"{format_duration(self.interval.lower)} {above} " if self.interval.lower is not None else ""
            upper = f" {below} {format_duration(self.interval.upper)}" if self.interval.upper is not None else ""
            parts.append(f"bounds: {lower}right time - left time{upper}")
        if self.window:
            windows = self.window.model_dump(mode="json", exclude_defaults=True)
            parts.append(f"windows: {', '.join(f'{name} {_plain(value)}' for name, value in windows.items())}")
        if self.window and not self.fires_by_default:
            told = {name: getattr(self, name) for name in ("trigger", "evictor", "time")}
            given = {name: value for name, value in told.items() if value not in (None, "event")}
            parts += [f"{name}: {_plain(_dumped(value))}" for name, value in given.items()]
        if self.event_time_equality:
            parts.append("event times are equal")
        return "; ".join(parts)


def _dumped(value: Any) -> Any:
    return value.model_dump(mode="json", exclude_defaults=True) if isinstance(value, Settings) else value


def _plain(value: Any) -> str:
    return ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else str(value)


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

    @model_validator(mode="after")
    def _whole_slices(self) -> Self:
        if self.end is None:
            return self
        if self.end <= self.start:
            raise ValueError(f"end ({format_instant(self.end)}) is not after start ({format_instant(self.start)})")
        if off := (self.end - self.start) % self.every:
            before = format_instant(self.end - off)
            raise ValueError(f"end ({format_instant(self.end)}) is no slice boundary; the one before is {before}")
        return self


class Guard(Settings):
    """Rows with absurd times go to the side output instead of dragging the watermark; `guard: off` for exact replay."""

    earliest: Instant = datetime(1970, 1, 1, tzinfo=UTC)
    """Times before this are rejected."""
    latest: Instant = datetime(2100, 1, 1, tzinfo=UTC)
    """Times at or after this are rejected."""
    ahead_of_arrival: Duration = timedelta(days=1)
    """Event times further than this after their row's arrival are rejected, on the arrival clock."""


class Expectation(Settings):
    """An expectation by Great Expectations' own name and arguments, over the columns of `emissions`.

    Read from `{type: expect_..., severity: warning, column: c, ...}`, with the arguments flat or under `kwargs`.
    It holds for what one Spark job publishes: about single rows that is each slice, about many (row counts, means,
    `mostly`) as many slices as the job takes.
    """

    type: str = Field(json_schema_extra={"enum": list(ARGUMENTS)})
    kwargs: dict[str, Any] = {}
    severity: Severity = "critical"
    """critical: the first slice that fails, and those after it, are not published; warning and info: recorded."""

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        match value:
            case {"type": _}:
                pass
            case _ if len(value) == 1:
                [(name, arguments)] = value.items()
                value = {**arguments, "type": name} if isinstance(arguments, dict) else {"type": name}
        own = {k: v for k, v in value.items() if k in cls.model_fields}
        flat = {k: v for k, v in value.items() if k not in cls.model_fields}
        given = own.get("kwargs", {})
        return {**own, "kwargs": {**given, **flat} if isinstance(given, dict) else given}

    @model_validator(mode="after")
    def _confined(self) -> Self:
        check_expectation(self.type, self.kwargs)
        return self


class Budget(Settings):
    """How many rows may differ before a comparison fails: a number, or a share of the rows compared such as 0.1 %."""

    unexplained: Rows = Field(default=0, validate_default=True)
    """Rows that differ without a cause."""
    differing: Rows | None = None
    """All rows that differ, but for those not due yet; by default any number."""


class CompareSettings(Settings):
    """What `tidemark compare` does by default; its options come before these."""

    table: str = Field(alias="with")
    """What the stream wrote: a Delta path relative to the lake root, or a catalog name."""
    told_by: str | None = None
    """A pipeline that has replayed how the stream ran: its name, or its file in this one's folder or that of
    pipelines."""
    on: list[str] = []
    """Columns that tell rows apart, but for a changed value; by default keys, event times and windows."""
    ignore: list[str] = []
    """Columns that are not compared."""
    within: float = Field(default=0.0, ge=0)
    """How much fractions may differ."""
    every: PositiveDuration | None = None
    """Airflow: how often to compare, whole slices from `slices.start`; by default whenever slices are committed."""
    lag: PositiveDuration | None = None
    """How much the stream may be behind this machine's clock: what was due after that is pending, not lost."""
    budget: Budget = Budget()


class AirflowSettings(Settings):
    """How Airflow runs the pipeline; no row depends on it."""

    owner: str = Field(default="tidemark", pattern=r"^[\w.@-]+$")
    """Whose DAGs they are, as Airflow's list shows it: letters, digits, _, -, . and @."""
    retries: int = Field(default=2, ge=0, le=100)
    """How often a fault is tried again; mistakes and failed checks are not."""
    retry_delay: PositiveDuration = timedelta(minutes=1)
    execution_timeout: PositiveDuration | None = None
    """A job that takes longer is ended, and tried again."""
    poll: PositiveDuration = timedelta(minutes=1)
    """How often a waiting slice looks whether its inputs are complete."""
    wait_at_most: PositiveDuration | None = None
    """A slice that has waited longer fails; by default it waits on."""
    deadline: PositiveDuration | None = None
    """A run that is not over so long after it was queued is told of, by a call back; it goes on."""
    pool: str | None = Field(default=None, pattern=r"^[\w.-]+$")
    """The pool of its jobs; by default one of the pipeline's own, where the project makes them (`TIDEMARK_POOLS`)."""
    connection: str = Field(default="spark_default", pattern=r"^[\w.-]+$")
    """The connection that names the Spark to submit to."""


_OF_NO_ROW = ("name", "output", "select", "quality", "show_rows", "late_landing", "compare", "airflow", "cluster")
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
    left: Input
    right: Input
    join: Join
    slices: Slices
    output: str = ""
    """Folder of the pipeline's own tables, relative to the lake root; the pipeline's name by default."""
    select: list[str] | dict[str, str] | None = None
    """Output columns: names such as left_carrier, or {name: SQL expression over left_* and right_* columns}."""
    quality: list[Expectation] = []
    """Expectations on the output, beside those derived from the join itself."""
    guard: Guard | None = Guard()
    """Bounds on believable times; `off` for exact replay."""
    watermark_kind: WatermarkKind | None = None
    """`datastream`: max - delay - 1 ms; `sql`: max - delay. The dialect's own by default."""
    spark: SparkSettings = SparkSettings()
    """Dialect spark: settings of the query."""
    late_landing: Literal["append", "reprocess"] = "append"
    """What becomes of rows that land in an input after their slice was committed. `append`: they arrive at the start of
    the next slice that runs; `reprocess`: they wait, and `tidemark plan` proposes the slices to run again."""
    show_rows: bool = False
    """Whether some values that fail an expectation stand in logs, the ledger and Data Docs, and some rows that differ
    in the log of a comparison that is recorded."""
    compare: CompareSettings | None = None
    """What a stream wrote of the same join, and how far it may differ."""
    airflow: AirflowSettings = AirflowSettings()
    """How Airflow runs it."""
    cluster: Cluster = Cluster()
    """What a job takes of a cluster, where it runs on one."""

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        value = {"output": value.get("name"), **value}
        if value.get("guard") in (False, "off"):
            value["guard"] = None
        elif value.get("guard") in (True, "on"):
            value["guard"] = {}
        match value:
            case {"dialect": "flink-sql", "join": {"event_time_equality": True} as join}:
                if not join.get("interval") and not join.get("window"):
                    interval = {"lower": timedelta(), "upper": timedelta()}
                    value["join"] = {**join, "event_time_equality": False, "interval": interval}
        return value

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

    @model_validator(mode="after")
    def _one_clock(self) -> Self:
        if (self.left.arrival is None) != (self.right.arrival is None):
            named, bare = ("left", "right") if self.left.arrival else ("right", "left")
            raise ValueError(
                f"{named} names an arrival column and {bare} does not; "
                "name one on both for the arrival clock, or on neither for the event-time clock"
            )
        traces = {source.arrival.trace for source in (self.left, self.right) if isinstance(source.arrival, Trace)}
        columns = [source for source in (self.left, self.right) if isinstance(source.arrival, TimeColumn)]
        if len(traces) > 1 or (traces and columns):
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

    def clock_of(self, side: Input) -> str:
        """What the clock of one input is read from: a column, or a checkpoint."""
        clock = side.arrival or side.event_time
        return clock.trace if isinstance(clock, Trace) else clock.column

    @model_validator(mode="after")
    def _compares_whole_slices(self) -> Self:
        every = self.compare and self.compare.every
        if every and every % self.slices.every:
            raise ValueError(
                f"compare.every ({format_duration(every)}) has to be a multiple of "
                f"slices.every ({format_duration(self.slices.every)})"
            )
        return self

    @model_validator(mode="after")
    def _as_the_dialect_allows(self) -> Self:
        check_join(self.dialect, self.join)
        check_watermarks(self)
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
