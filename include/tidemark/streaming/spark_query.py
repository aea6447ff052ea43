"""Translate a pipeline's join into the SQL of a Structured Streaming query, which `resume_query` runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tidemark.config import Interval, Pipeline, WindowSettings
from tidemark.config.sides import OTHER, SIDES
from tidemark.config.types import to_millis
from tidemark.formatting import quote_identifier
from tidemark.joins.join_type import PADDING_TYPES, SEMI_ANTI_TYPES
from tidemark.joins.keys import key_sql_over_pair
from tidemark.sources.stored_input import StoredInput
from tidemark.spark.temporary_settings import FILTER_INFERENCE_SETTINGS


@dataclass(frozen=True)
class SideQuery:
    """SQL of one side. `time` and `source` refer to the input's columns, other expressions to rows of `select_side`."""

    columns: list[str]
    """Names of the input's columns."""
    time: str
    delay: str | None
    """Delay of the watermark; None without one."""
    window: str | None
    accepts: str | None = None
    """Condition for rows that take part; None for all."""
    source: str | None = None
    """Filter below the watermark; None for all rows."""


@dataclass(frozen=True)
class SparkQuery:
    """A query in SQL, over the columns of `resume_query.select_side`."""

    left: SideQuery
    right: SideQuery
    how: str
    on: str
    wide: list[str]
    """Columns of `emissions` that an engine can provide: the inputs', `_emission` and the window's bounds."""
    select: list[str]
    """Selected expressions over these, or `explode`; empty for all columns."""
    settings: dict[str, str]
    """Session settings for the start of the query."""
    where: str | None = None
    """Condition for rows of the join to emit; None for all."""
    already_emitted_type: str = "BOOLEAN"
    """Type of `_left_already_emitted` and `_right_already_emitted`, if the query resumes from a state."""


def create_spark_query(pipeline: Pipeline, inputs: tuple[StoredInput, StoredInput]) -> SparkQuery:
    """Translate a pipeline of dialect spark over these inputs."""
    left, right = (_create_side_query(pipeline, source) for source in inputs)
    join, uses_previous_watermark = pipeline.join, pipeline.spark.late_watermark == "previous_batch"
    sides = {"left": left} if join.type in SEMI_ANTI_TYPES else {"left": left, "right": right}
    own = [quote_identifier(f"{side}_{name}") for side, query in sides.items() for name in query.columns]
    provenance = dict(_list_provenance(pipeline, tuple(sides)))
    return SparkQuery(
        left,
        right,
        how="leftsemi" if join.type == "semi" else join.type,
        on=" AND ".join(f"({condition})" for condition in _list_conditions(pipeline, inputs)),
        wide=[*own, *(f"{expression} AS {name}" for name, expression in provenance.items())],
        select=_list_selected(pipeline, list(provenance)),
        settings={
            "spark.sql.session.timeZone": "UTC",
            **FILTER_INFERENCE_SETTINGS,  # Spark would push filters of null keys below the watermarks
            "spark.sql.streaming.multipleWatermarkPolicy": pipeline.spark.multiple_watermark_policy,
            "spark.sql.streaming.statefulOperator.allowMultiple": str(uses_previous_watermark).lower(),
        },
    )


def _create_side_query(pipeline: Pipeline, source: StoredInput) -> SideQuery:
    side, join = source.side, pipeline.join
    window = getattr(join.window_inequality, side.name) if join.window_inequality else join.window
    delay = side.settings.watermark_delay
    return SideQuery(
        list(side.schema.names),
        side.event_time.sql_timestamp,
        None if delay is None else f"{to_millis(delay)} milliseconds",
        _format_window(window, f"_{side.name}_time") if window else None,
        source=side.settings.where,
    )


def _list_conditions(pipeline: Pipeline, inputs: tuple[StoredInput, StoredInput]) -> Iterator[str]:
    join = pipeline.join
    for keys in zip(*(source.side.keys for source in inputs), strict=True):
        left, right = (
            key_sql_over_pair(source.side.schema, source.side.name, name)
            for source, (name, _) in zip(inputs, keys, strict=True)
        )
        yield f"{left} = {right}"
    if join.window:
        yield "_left_window = _right_window"
    if join.window_inequality:
        yield f"_left_window {join.window_inequality.operator} _right_window"
    if join.event_time_equality:
        yield "_left_time = _right_time"
    yield from _list_bounds(join.interval)
    if join.condition:
        yield join.condition


def _list_bounds(interval: Interval | None) -> Iterator[str]:
    """Yield the range condition, in the form from which Spark derives when to evict rows."""
    if interval is None:
        return
    for bound, operator in zip((interval.lower, interval.upper), interval.operators, strict=True):
        if bound is not None:
            yield f"_right_time {operator} _left_time + INTERVAL {to_millis(bound)} MILLISECONDS"


def _format_window(settings: WindowSettings, column: str) -> str:
    size, slide = settings.tumbling, settings.tumbling
    if settings.sliding:
        size, slide = settings.sliding.size, settings.sliding.slide
    assert size, "the pipeline file has one shape of windows"
    assert slide, "as for the size"
    spans = (f"'{to_millis(part)} milliseconds'" for part in (size, slide, settings.offset))
    return f"window({column}, {', '.join(spans)})"


def _list_provenance(pipeline: Pipeline, sides: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    join = pipeline.join
    padded = (f"WHEN _{OTHER[side]} IS NULL THEN 'padded_{side}'" for side in SIDES if join.type in PADDING_TYPES[side])
    plain = "'semi'" if join.type in SEMI_ANTI_TYPES else "'matched'"
    cases = " ".join(padded)
    yield "_emission", f"CASE {cases} ELSE {plain} END" if cases else plain
    if join.window:
        for end in ("start", "end"):
            yield f"_window_{end}", f"coalesce({', '.join(f'_{side}_window.{end}' for side in sides)})"
    if join.window_inequality:
        for side, prefix in zip(sides, ("", "_right"), strict=False):
            yield from ((f"{prefix}_window_{end}", f"_{side}_window.{end}") for end in ("start", "end"))


def _list_selected(pipeline: Pipeline, provenance: list[str]) -> list[str]:
    if pipeline.explode is not None:
        return [f"inline({pipeline.explode})", *provenance]
    match pipeline.select:
        case None:
            return []
        case list(names):
            return [*map(quote_identifier, names), *provenance]
        case dict(expressions):
            return [
                *(f"{expression} AS {quote_identifier(name)}" for name, expression in expressions.items()),
                *provenance,
            ]
