"""A pipeline's join as the text of a Structured Streaming query, which `state.continued` makes a query of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tidemark.config import Interval, Pipeline, WindowSettings
from tidemark.config.sides import OTHER, SIDES
from tidemark.config.types import millis
from tidemark.formatting import quoted
from tidemark.joins.keys import key_over_pair
from tidemark.joins.window_output import HALVES, PADDING
from tidemark.sources.stored_input import StoredInput
from tidemark.spark.temporary_settings import INFERRED_FILTERS


@dataclass(frozen=True)
class SideText:
    """How one side is read. `time` and `source` are SQL over the input's columns, the others over labelled rows."""

    columns: list[str]
    """The names of the input's columns."""
    time: str
    delay: str | None
    """The delay of its watermark, None without one."""
    window: str | None
    accepts: str | None = None
    """Which rows take part; None for all."""
    source: str | None = None
    """Which rows the query reads: a filter below its watermark; None for all."""


@dataclass(frozen=True)
class QueryText:
    """A query in SQL, over the columns of `streaming.resume_query.side_rows`."""

    left: SideText
    right: SideText
    how: str
    on: str
    wide: list[str]
    """The columns of `emissions` that an engine can tell: the inputs', `_emission`, and the window's bounds."""
    select: list[str]
    """What the user wants of these, or the rows made of them; empty for all."""
    settings: dict[str, str]
    """What the session has to be set to when the query starts."""
    where: str | None = None
    """Which of the join's rows are emitted; None for all."""
    told: str = "BOOLEAN"
    """Type of `_left_told` and `_right_told`, where the query goes on from a state."""


def query_text(pipeline: Pipeline, inputs: tuple[StoredInput, StoredInput]) -> QueryText:
    """The query of a pipeline of dialect spark over these inputs."""
    left, right = (_side(pipeline, source) for source in inputs)
    join, lagging = pipeline.join, pipeline.spark.late_watermark == "previous_batch"
    sides = {"left": left} if join.type in HALVES else {"left": left, "right": right}
    own = [quoted(f"{side}_{name}") for side, text in sides.items() for name in text.columns]
    provenance = dict(_provenance(pipeline, tuple(sides)))
    return QueryText(
        left,
        right,
        how="leftsemi" if join.type == "semi" else join.type,
        on=" AND ".join(f"({part})" for part in _conditions(pipeline, inputs)),
        wide=[*own, *(f"{text} AS {name}" for name, text in provenance.items())],
        select=_select(pipeline, list(provenance)),
        settings={
            "spark.sql.session.timeZone": "UTC",
            **INFERRED_FILTERS,  # those for null keys move below its watermarks
            "spark.sql.streaming.multipleWatermarkPolicy": pipeline.spark.watermark_policy,
            "spark.sql.streaming.statefulOperator.allowMultiple": str(lagging).lower(),
        },
    )


def _side(pipeline: Pipeline, source: StoredInput) -> SideText:
    side, join = source.side, pipeline.join
    window = getattr(join.window_inequality, side.name) if join.window_inequality else join.window
    delay = side.settings.watermark_delay
    return SideText(
        list(side.schema.names),
        side.event.sql,
        None if delay is None else f"{millis(delay)} milliseconds",
        _window(window, f"_{side.name}_time") if window else None,
        source=side.settings.where,
    )


def _conditions(pipeline: Pipeline, inputs: tuple[StoredInput, StoredInput]) -> Iterator[str]:
    join = pipeline.join
    for keys in zip(*(source.side.keys for source in inputs), strict=True):
        left, right = (
            key_over_pair(source.side.schema, source.side.name, name)
            for source, (name, _) in zip(inputs, keys, strict=True)
        )
        yield f"{left} = {right}"
    if join.window:
        yield "_left_window = _right_window"
    if join.window_inequality:
        yield f"_left_window {join.window_inequality.operator} _right_window"
    if join.event_time_equality:
        yield "_left_time = _right_time"
    yield from _bounds(join.interval)
    if join.condition:
        yield join.condition


def _bounds(interval: Interval | None) -> Iterator[str]:
    """The range condition, in the form from which Spark derives what it may evict."""
    if interval is None:
        return
    for bound, operator in zip((interval.lower, interval.upper), interval.comparisons, strict=True):
        if bound is not None:
            yield f"_right_time {operator} _left_time + INTERVAL {millis(bound)} MILLISECONDS"


def _window(settings: WindowSettings, column: str) -> str:
    size, slide = settings.tumbling, settings.tumbling
    if settings.sliding:
        size, slide = settings.sliding.size, settings.sliding.slide
    assert size, "settings.dialects sees to it"
    assert slide, "as for the size"
    spans = (f"'{millis(part)} milliseconds'" for part in (size, slide, settings.offset))
    return f"window({column}, {', '.join(spans)})"


def _provenance(pipeline: Pipeline, sides: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    join = pipeline.join
    padded = (f"WHEN _{OTHER[side]} IS NULL THEN 'padded_{side}'" for side in SIDES if join.type in PADDING[side])
    plain = "'semi'" if join.type in HALVES else "'matched'"
    cases = " ".join(padded)
    yield "_emission", f"CASE {cases} ELSE {plain} END" if cases else plain
    if join.window:
        for end in ("start", "end"):
            yield f"_window_{end}", f"coalesce({', '.join(f'_{side}_window.{end}' for side in sides)})"
    if join.window_inequality:
        for side, of in zip(sides, ("", "_right"), strict=False):
            yield from ((f"{of}_window_{end}", f"_{side}_window.{end}") for end in ("start", "end"))


def _select(pipeline: Pipeline, provenance: list[str]) -> list[str]:
    if pipeline.flatten is not None:
        return [f"inline({pipeline.flatten})", *provenance]
    match pipeline.select:
        case None:
            return []
        case list(names):
            return [*map(quoted, names), *provenance]
        case dict(expressions):
            return [*(f"{text} AS {quoted(name)}" for name, text in expressions.items()), *provenance]
