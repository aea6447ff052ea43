"""The join of a pipeline file: which rows belong together."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from tidemark.config.base import Settings
from tidemark.config.dialect_support import TICK, TRIGGERS
from tidemark.config.expressions import check_expression, columns_of, is_name
from tidemark.config.interval_bounds import closed_bounds, comparisons
from tidemark.config.sides import SIDES, SideName
from tidemark.config.types import Cleanup, Duration, PositiveDuration, format_duration, micros, millis

JoinTypeName = Literal["inner", "left", "right", "full", "semi", "anti"]
_SIGNS = {">=": "≤", ">": "<", "<=": "≤", "<": "<"}
"""How `describe` writes an operator, with the bound on the left of the lower one."""


class KeyPair(Settings):
    """One equality of the join: a bare name where both sides call it the same."""

    left: str
    """A column, or a field of a struct: `customer.id`; what is neither is SQL over the input's own columns, as in
    `lower(email)`."""
    right: str

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"left": value, "right": value} if isinstance(value, str) else value

    def columns(self, side: SideName) -> set[str]:
        """What may be the column of a side's key: that of its name, or what it takes a field of, or is made of."""
        return {getattr(self, side).partition(".")[0], *self.told_by(side)}

    def told_by(self, side: SideName) -> list[str]:
        """A side's key by its name, and then, where it may be an expression, the columns that this reads."""
        name: str = getattr(self, side)
        return [name, *([] if is_name(name) else columns_of(name))]


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


class WindowInequality(Settings):
    """Windows that each side makes of its own rows, compared: by their starts, equal ones by their ends."""

    left: WindowSettings
    right: WindowSettings
    holds: Literal["left < right", "left <= right", "left > right", "left >= right"]
    """What is true of the windows of a pair."""

    @property
    def operator(self) -> str:
        """SQL's operator, between the window of the left row and that of the right one."""
        return self.holds.split()[1]

    @property
    def lesser(self) -> SideName:
        """The side with the lesser window, whose rows wait for partners that may always come."""
        return "left" if self.operator.startswith("<") else "right"

    @property
    def inclusive(self) -> bool:
        """Whether windows may be equal."""
        return self.operator.endswith("=")


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
    """Which rows belong together: equal keys, and one of interval, window, equal event times, or windows compared."""

    type: JoinTypeName = "inner"
    """flink-datastream: inner; flink-sql: inner, left, right, full, on windows semi and anti too; spark: not anti."""
    keys: list[KeyPair] = Field(min_length=1)
    """Columns that must be equal: names, or {left: a, right: b}."""
    interval: Interval | None = None
    window: WindowSettings | None = None
    event_time_equality: bool = False
    """Event times must be equal; dialect flink-sql takes it as an interval of 0 to 0, as Flink does."""
    window_inequality: WindowInequality | None = None
    """spark: windows of each side's own, compared by `<`, `<=`, `>` or `>=`; rows of one side are never evicted."""
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
    def output_keys(self) -> list[str]:
        """The names of both sides' keys in the output, as the join gives it; of one that is made, none."""
        return [f"{side}_{name}" for pair in self.keys for side, name in (("left", pair.left), ("right", pair.right))]

    @property
    def made_keys(self) -> list[str]:
        """The keys that can only be expressions, or columns with names that look like one."""
        return [name for pair in self.keys for name in (pair.left, pair.right) if not is_name(name)]

    @property
    def telling_columns(self) -> list[str]:
        """What in the output tells the keys: they themselves, and the columns of which others are made."""
        found = (f"{side}_{name}" for pair in self.keys for side in SIDES for name in pair.told_by(side))
        return list(dict.fromkeys(found))

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
        if self.window_inequality:
            return None
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
            parts.append(f"windows: {_plain(_dumped(self.window))}")
        if self.window and not self.fires_by_default:
            told = {name: getattr(self, name) for name in ("trigger", "evictor", "time")}
            given = {name: value for name, value in told.items() if value not in (None, "event")}
            parts += [f"{name}: {_plain(_dumped(value))}" for name, value in given.items()]
        if self.event_time_equality:
            parts.append("event times are equal")
        if self.window_inequality:
            sides = (_plain(_dumped(getattr(self.window_inequality, side))) for side in SIDES)
            parts.append(f"windows: {self.window_inequality.holds}; left {' and right '.join(sides)}")
        return "; ".join(parts)


def _dumped(value: Any) -> Any:
    return value.model_dump(mode="json", exclude_defaults=True) if isinstance(value, Settings) else value


def _plain(value: Any) -> str:
    return ", ".join(f"{k} {_plain(v)}" for k, v in value.items()) if isinstance(value, dict) else str(value)
