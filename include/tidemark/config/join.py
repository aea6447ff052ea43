"""Settings of the join: keys, time condition, windows, triggers and evictors."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from tidemark.config.base import Settings
from tidemark.config.dialect_support import TICK_MICROS, TRIGGERS
from tidemark.config.expressions import check_expression, is_column_path, list_columns
from tidemark.config.interval_bounds import bound_operators, to_closed_bounds
from tidemark.config.sides import SIDES, SideName
from tidemark.config.types import (
    CleanupInterval,
    Duration,
    NonNegativeDuration,
    PositiveDuration,
    format_duration,
    to_micros,
    to_millis,
)

JoinTypeName = Literal["inner", "left", "right", "full", "semi", "anti"]
_SIGNS = {">=": "≤", ">": "<", "<=": "≤", "<": "<"}
"""Signs of operators in `Join.describe`, which writes the lower bound on the left."""


class KeyPair(Settings):
    """One equality of the join: a bare name if the column has the same name on both sides."""

    left: str
    """Column, or struct field such as `customer.id`, or SQL expression over the input's columns such as
    `lower(email)`."""
    right: str
    """The same for the right input."""

    @model_validator(mode="before")
    @classmethod
    def _expand_name(cls, value: Any) -> Any:
        return {"left": value, "right": value} if isinstance(value, str) else value

    def list_column_candidates(self, side: SideName) -> set[str]:
        """Return names that may be columns of a side's key: the key, its struct, or the columns of its expression."""
        return {getattr(self, side).partition(".")[0], *self.list_source_names(side)}

    def list_source_names(self, side: SideName) -> list[str]:
        """Return a side's key and, if it may be an expression, the columns that the expression reads."""
        name: str = getattr(self, side)
        return [name, *([] if is_column_path(name) else list_columns(name))]


class Interval(Settings):
    """Time bounds of an interval join: lower <= right event time - left event time <= upper."""

    lower: Duration | None = None
    """Lower bound. Optional in dialect spark only: no lower bound."""
    upper: Duration | None = None
    """Upper bound. Optional in dialect spark only: no upper bound."""
    lower_inclusive: bool = True
    """Include the lower bound itself."""
    upper_inclusive: bool = True
    """Include the upper bound itself."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.lower is not None and self.upper is not None and self.lower > self.upper:
            raise ValueError(
                f"lower ({format_duration(self.lower)}) is above upper ({format_duration(self.upper)}). "
                "Bounds mean lower <= right time - left time <= upper: swap them or their signs."
            )
        return self

    def to_closed(self, tick: int) -> tuple[int | None, int | None]:
        """Return both bounds as inclusive numbers of ticks, None for no bound.

        Args:
            tick: Length of a tick in microseconds.
        """
        lower, upper = (None if bound is None else to_micros(bound) // tick for bound in (self.lower, self.upper))
        return to_closed_bounds(
            lower, upper, lower_inclusive=self.lower_inclusive, upper_inclusive=self.upper_inclusive
        )

    @property
    def operators(self) -> tuple[str, str]:
        """SQL operators of the lower and the upper bound: `right time OPERATOR left time + bound`."""
        return bound_operators(lower_inclusive=self.lower_inclusive, upper_inclusive=self.upper_inclusive)


class Sliding(Settings):
    """Sliding (hopping) windows."""

    size: PositiveDuration
    """Length of each window."""
    slide: PositiveDuration
    """Distance between the starts of consecutive windows."""


class Session(Settings):
    """Session windows: runs of rows, each at most the gap after the previous one."""

    gap: PositiveDuration
    """Maximum time between consecutive rows of a session."""


class Cumulate(Settings):
    """Cumulative windows: windows with a common start that grow by a step up to a size."""

    size: PositiveDuration
    """Maximum length of a window."""
    step: PositiveDuration
    """Increase of the length from window to window. The size is a multiple of it."""

    @model_validator(mode="after")
    def _check_steps(self) -> Self:
        if self.size % self.step:
            raise ValueError(
                f"size ({format_duration(self.size)}) is not a multiple of step ({format_duration(self.step)}). "
                "Change one of them."
            )
        return self


class WindowSettings(Settings):
    """Windows that both rows must share: exactly one of tumbling, sliding, session, cumulate."""

    tumbling: PositiveDuration | None = None
    """Length of consecutive windows without overlap."""
    sliding: Sliding | None = None
    """Sliding (hopping) windows."""
    session: Session | None = None
    """Session windows."""
    cumulate: Cumulate | None = None
    """Cumulative windows, in flink-sql only."""
    offset: Duration = timedelta()
    """Offset of window starts from whole multiples of the size (or slide) since 1970-01-01T00:00Z."""

    @model_validator(mode="after")
    def _check_shape(self) -> Self:
        shapes = ("tumbling", "sliding", "session", "cumulate")
        if sum(getattr(self, shape) is not None for shape in shapes) != 1:
            raise ValueError(f"set exactly one of {', '.join(shapes)}")
        slide = self.tumbling or (self.sliding and self.sliding.slide)
        if slide and abs(self.offset) >= slide:
            raise ValueError(
                f"offset ({format_duration(self.offset)}) is not less than {format_duration(slide)}. "
                "Subtract whole multiples."
            )
        if self.session and self.offset:
            raise ValueError("sessions have no offset. Remove offset.")
        return self

    @property
    def start_distance(self) -> timedelta | None:
        """Distance between the starts of consecutive windows; None for session windows."""
        if self.sliding:
            return self.sliding.slide
        return self.cumulate.size if self.cumulate else self.tumbling


class WindowInequality(Settings):
    """Comparison of the windows of both rows: by their starts, equal starts by their ends."""

    left: WindowSettings
    """Windows of the left rows."""
    right: WindowSettings
    """Windows of the right rows."""
    comparison: Literal["left < right", "left <= right", "left > right", "left >= right"]
    """Condition on the windows of a pair."""

    @property
    def operator(self) -> str:
        """SQL operator between the window of the left row and the window of the right row."""
        return self.comparison.split()[1]

    @property
    def lesser_side(self) -> SideName:
        """Side with the lesser window. Its rows wait for ever, because matching rows may always arrive."""
        return "left" if self.operator.startswith("<") else "right"

    @property
    def is_inclusive(self) -> bool:
        """True if equal windows match."""
        return self.operator.endswith("=")


class Trigger(Settings):
    """Flink trigger that fires windows: exactly one. `event_time` and `processing_time` may be bare words."""

    event_time: Literal[True] | None = None
    """Fire when the watermark reaches the window's end, and for each accepted late row. Default of event-time
    windows."""
    continuous_event_time: PositiveDuration | None = None
    """Fire also at multiples of this interval in event time."""
    processing_time: Literal[True] | None = None
    """Fire when the clock reaches the window's end. Default of processing-time windows."""
    continuous_processing_time: PositiveDuration | None = None
    """Fire at multiples of this interval on the clock. An event-time window then does not fire at its end."""
    count: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    """Number of rows of both sides after which to fire (1 or less: each row). No firing at the window's end."""
    delta: Duration | None = None
    """Fire at a row whose event time is more than this after that of the last row that fired, or of the first."""
    purging: bool = False
    """Enable purging: each firing removes the window's rows (`PurgingTrigger`)."""

    @model_validator(mode="before")
    @classmethod
    def _expand_word(cls, value: Any) -> Any:
        return {value: True} if value in ("event_time", "processing_time") else value

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        if len([name for name in TRIGGERS if getattr(self, name) is not None]) != 1:
            raise ValueError(f"set exactly one of {', '.join(TRIGGERS)}")
        return self

    @property
    def kind(self) -> str:
        """Name of the trigger."""
        return next(name for name in TRIGGERS if getattr(self, name) is not None)

    @property
    def amount(self) -> int:
        """Interval or threshold in ms, or the count; 0 for triggers without either."""
        value = getattr(self, self.kind)
        return to_millis(value) if isinstance(value, timedelta) else 0 if value is True else int(value)


class Evictor(Settings):
    """Flink evictor, which removes rows of a window when it fires: exactly one of count, time."""

    count: int | None = Field(default=None, ge=0, lt=2**63)
    """Number of rows to keep, of both sides together, those that arrived last."""
    time: Duration | None = None
    """Maximum age, before the newest event time in the window, of rows to keep (exclusive)."""
    evict_after: bool = False
    """Enable eviction after the window function instead of before it, so that rows are missing from the next firing."""

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        if (self.count is None) == (self.time is None):
            raise ValueError("set exactly one of count, time")
        if self.time is not None and self.time < timedelta():
            raise ValueError("time must not be negative")
        return self

    @property
    def kind(self) -> Literal["count", "time"]:
        """Name of the evictor."""
        return "time" if self.count is None else "count"

    @property
    def amount(self) -> int:
        """Number of rows, or time in ms."""
        return self.count if self.count is not None else to_millis(self.time or timedelta())


class Join(Settings):
    """Join condition: equal keys, and one of interval, window, event_time_equality, window_inequality."""

    type: JoinTypeName = "inner"
    """Join type. flink-datastream: inner. flink-sql: inner, left, right, full, for windows also semi and anti. spark:
    all but anti."""
    keys: list[KeyPair] = Field(min_length=1)
    """Columns that must be equal: names, or {left: a, right: b}."""
    interval: Interval | None = None
    """Bounds on the difference of event times (interval join)."""
    window: WindowSettings | None = None
    """Windows that both rows must share (window join)."""
    event_time_equality: bool = False
    """Require equal event times. Dialect flink-sql treats it as an interval from 0 to 0, as Flink does."""
    window_inequality: WindowInequality | None = None
    """spark: each side's own windows, compared by `<`, `<=`, `>` or `>=`. Rows of one side are never evicted."""
    condition: str | None = None
    """SQL condition over left_* and right_* columns that pairs must also meet. It is part of the match, so it decides
    about padding; in flink-datastream it is a filter after the join. Columns, literals, operators and reviewed
    functions only."""
    api: Literal["join", "cogroup"] = "join"
    """flink-datastream windows: output of pairs (`join`), or of the arrays of left and right rows of each firing
    (`cogroup`)."""
    allowed_lateness: NonNegativeDuration = timedelta()
    """flink-datastream windows: time that a window accepts late rows, each of which fires it again."""
    trigger: Trigger | None = None
    """flink-datastream windows: trigger that replaces firing at the window's end."""
    evictor: Evictor | None = None
    """flink-datastream windows: evictor that removes rows when a window fires."""
    time: Literal["event", "processing"] = "event"
    """flink-datastream windows and flink-sql intervals: time of a row. `event`: its event time. `processing`: its
    arrival time; then no row is late, and timers that are pending when the input ends do not fire."""
    emit: Literal["every-pane", "latest"] = "every-pane"
    """Windows: firings that are emitted. `every-pane`: each firing, whose output is a pane of the window, as the engine
    does. `latest`: one firing per window, when the window accepts no more rows."""
    min_cleanup_interval: CleanupInterval = timedelta()
    """flink-sql intervals: `table.exec.interval-join.min-cleanup-interval`. `half` means half the distance of the
    bounds, which was Flink's fixed value before 1.18."""

    @field_validator("condition")
    @classmethod
    def _check_condition(cls, value: str | None) -> str | None:
        if value:
            check_expression(value)
        return value

    @property
    def output_keys(self) -> list[str]:
        """Names of the key columns of both sides in the join's output; expression keys have none."""
        return [f"{side}_{name}" for pair in self.keys for side, name in (("left", pair.left), ("right", pair.right))]

    @property
    def expression_keys(self) -> list[str]:
        """Keys that are expressions, or columns whose names look like one."""
        return [name for pair in self.keys for name in (pair.left, pair.right) if not is_column_path(name)]

    @property
    def key_output_columns(self) -> list[str]:
        """Output columns that identify the keys: the keys themselves, and the columns of expression keys."""
        names = (f"{side}_{name}" for pair in self.keys for side in SIDES for name in pair.list_source_names(side))
        return list(dict.fromkeys(names))

    @property
    def has_default_firing(self) -> bool:
        """True if event-time windows fire at their end and for late rows, and keep all rows until they are purged."""
        default = self.trigger is None or (self.trigger.kind == "event_time" and not self.trigger.purging)
        return default and self.evictor is None and self.time == "event"

    @property
    def effective_trigger(self) -> Trigger:
        """Trigger of the windows, including the default one."""
        return self.trigger or Trigger.model_validate(f"{self.time}_time")

    @property
    def min_cleanup_interval_ms(self) -> int:
        """Minimum time in ms that Flink SQL's interval join keeps expired rows; `half` is rounded down."""
        if isinstance(self.min_cleanup_interval, timedelta):
            return to_millis(self.min_cleanup_interval)
        assert self.interval, "dialect_support requires it"
        lower, upper = self.interval.to_closed(TICK_MICROS["flink-sql"])
        assert lower is not None and upper is not None, "dialect_support requires both"  # noqa: PT018
        return max(upper - lower, 0) // 2

    @property
    def max_time_distance(self) -> timedelta | None:
        """Maximum distance between the event times of a pair; None if unlimited."""
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
        """Describe the time condition in one line.

        >>> Join(keys=["k"], interval={"lower": "-5 minutes", "upper": "0 s"}).describe()
        'bounds: -5 minutes ≤ right time - left time ≤ 0 seconds'
        """
        parts = []
        if self.interval:
            lower_operator, upper_operator = self.interval.operators
            lower_sign, upper_sign = _SIGNS[lower_operator], _SIGNS[upper_operator]
            lower = f"{format_duration(self.interval.lower)} {lower_sign} " if self.interval.lower is not None else ""
            upper = f" {upper_sign} {format_duration(self.interval.upper)}" if self.interval.upper is not None else ""
            parts.append(f"bounds: {lower}right time - left time{upper}")
        if self.window:
            parts.append(f"windows: {_format_value(_to_json(self.window))}")
        if self.window and not self.has_default_firing:
            firing = {name: getattr(self, name) for name in ("trigger", "evictor", "time")}
            changed = {name: value for name, value in firing.items() if value not in (None, "event")}
            parts += [f"{name}: {_format_value(_to_json(value))}" for name, value in changed.items()]
        if self.event_time_equality:
            parts.append("event times are equal")
        if self.window_inequality:
            sides = (_format_value(_to_json(getattr(self.window_inequality, side))) for side in SIDES)
            parts.append(f"windows: {self.window_inequality.comparison}; left {' and right '.join(sides)}")
        return "; ".join(parts)


def _to_json(value: Any) -> Any:
    return value.model_dump(mode="json", exclude_defaults=True) if isinstance(value, Settings) else value


def _format_value(value: Any) -> str:
    return ", ".join(f"{k} {_format_value(v)}" for k, v in value.items()) if isinstance(value, dict) else str(value)
