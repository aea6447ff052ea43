"""What a user writes in a pipeline file, as frozen settings validated at construction."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from tidemark.spec.values import Duration, Instant, format_duration

Dialect = Literal["flink-datastream", "flink-sql", "spark"]
EpochUnit = Literal["s", "ms", "us", "ns"]
Severity = Literal["critical", "warning", "info"]
WatermarkKind = Literal["datastream", "sql"]
Name = Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$", description="letters, digits, _ and -, first a letter")


class Settings(BaseModel):
    """Base of all settings: frozen, and an unknown field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class TimeColumn(Settings):
    """A column that holds a time: a bare name, or `{column: ts, unit: ms}` for epoch numbers."""

    column: str
    """Name of the column: timestamp, timestamp_ntz (read as UTC), date, or a number with its unit."""
    unit: EpochUnit | None = None
    """For numbers: what one stands for, counted from 1970-01-01T00:00Z."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"column": value} if isinstance(value, str) else value


class Input(Settings):
    """One of the two streams, as a bounded Delta table."""

    table: str
    """A Delta path relative to the lake root, or a catalog name."""
    event_time: TimeColumn
    """When it happened."""
    arrival: TimeColumn | None = None
    """When the engine saw it; both inputs name one, or neither (then the clock is event time)."""
    tiebreak: str | None = None
    """An integer column that orders rows of equal arrival, such as a log offset."""
    watermark_delay: Duration
    """Bounded out-of-orderness: watermark = max event time so far - delay."""

    @field_validator("watermark_delay")
    @classmethod
    def _not_negative(cls, value: timedelta) -> timedelta:
        if value < timedelta():
            raise ValueError("must not be negative")
        return value


class KeyPair(Settings):
    """One equality of the join: a bare name where both sides call it the same."""

    left: str
    right: str

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"left": value, "right": value} if isinstance(value, str) else value


class Interval(Settings):
    """Time bounds of an interval join: lower <= right event time - left event time <= upper."""

    lower: Duration
    upper: Duration
    lower_inclusive: bool = True
    upper_inclusive: bool = True

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.lower > self.upper:
            raise ValueError(
                f"lower ({format_duration(self.lower)}) is above upper ({format_duration(self.upper)}); "
                "the bounds say lower <= right time - left time <= upper, so swap them or their signs"
            )
        return self


class Join(Settings):
    """Which rows belong together."""

    type: Literal["inner"] = "inner"
    keys: list[KeyPair] = Field(min_length=1)
    """Columns that must be equal: names, or {left: a, right: b}."""
    interval: Interval
    condition: str | None = None
    """SQL over left_* and right_* columns that a pair must meet as well: a filter behind the join."""


class Slices(Settings):
    """How the pipeline's clock is cut: half-open intervals [start + n * every, start + (n + 1) * every)."""

    every: Duration
    start: Instant

    @field_validator("every")
    @classmethod
    def _positive(cls, value: timedelta) -> timedelta:
        if value <= timedelta():
            raise ValueError("must be longer than nothing, such as '1 hour'")
        return value


class Guard(Settings):
    """Rows with absurd times go to the side output instead of dragging the watermark; `guard: off` for exact replay."""

    earliest: Instant = datetime(1970, 1, 1, tzinfo=UTC)
    """Times before this are rejected."""
    latest: Instant = datetime(2100, 1, 1, tzinfo=UTC)
    """Times at or after this are rejected."""
    ahead_of_arrival: Duration = timedelta(days=1)
    """On the arrival clock: event times further than this after their row's arrival are rejected."""


class Expectation(Settings):
    """An expectation by Great Expectations' own name and arguments, over the columns of `emissions`.

    Read from `{type: expect_..., severity: warning, column: c, ...}`, with the arguments flat or under `kwargs`.
    """

    type: str = Field(pattern=r"^expect_[a-z0-9_]+$")
    kwargs: dict[str, Any] = {}
    severity: Severity = "critical"
    """critical: nothing is published; warning and info: recorded."""

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if len(value) == 1 and "type" not in value:
            (name, arguments), *_ = value.items()
            value = {"type": name, **(arguments or {})}
        own = {k: v for k, v in value.items() if k in cls.model_fields}
        flat = {k: v for k, v in value.items() if k not in cls.model_fields}
        return {**own, "kwargs": {**own.get("kwargs", {}), **flat}}


class Pipeline(Settings):
    """One pipeline file."""

    name: str = Name
    dialect: Dialect
    """Whose rules decide what is late, kept and matched."""
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

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        value = {"output": value.get("name"), **value}
        if value.get("guard") is False:
            value["guard"] = None
        elif value.get("guard") is True:
            value["guard"] = {}
        return value

    @field_validator("dialect")
    @classmethod
    def _built(cls, value: Dialect) -> Dialect:
        if value != "flink-datastream":
            raise ValueError(f"{value} is not built yet; this version replays flink-datastream")
        return value

    @model_validator(mode="after")
    def _one_clock(self) -> Self:
        if (self.left.arrival is None) != (self.right.arrival is None):
            named, bare = ("left", "right") if self.left.arrival else ("right", "left")
            raise ValueError(
                f"{named} names an arrival column and {bare} does not; "
                "name one on both for the arrival clock, or on neither for the event-time clock"
            )
        return self

    @property
    def clock(self) -> Literal["arrival", "event-time"]:
        """Which time slices are cut on."""
        return "arrival" if self.left.arrival else "event-time"

    def clock_column(self, side: Input) -> TimeColumn:
        """The column of one input that the clock reads."""
        return side.arrival or side.event_time

    def semantic_settings(self) -> dict[str, Any]:
        """The settings that decide the answer; slices under different ones do not continue each other."""
        return self.model_dump(mode="json", exclude={"name", "output", "select", "quality"})
