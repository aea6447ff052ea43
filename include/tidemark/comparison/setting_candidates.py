"""Suggest settings that may explain rows without a cause: round values, and few sets of several settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import product
from operator import gt, lt
from typing import get_args

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from tidemark.comparison.committed_view import CommittedView
from tidemark.comparison.multiset_diff import STREAM
from tidemark.comparison.round_durations import list_shorter, round_up
from tidemark.config import Pipeline, with_overrides
from tidemark.config.pipeline import Dialect
from tidemark.config.sides import SIDES
from tidemark.config.types import format_duration, format_micros, to_micros
from tidemark.errors import PipelineFileError

_UNITS = (timedelta(minutes=1), timedelta(seconds=1), timedelta(milliseconds=1))
_QUANTILES = (0.5, 0.9, 1.0)
"""Shares of the late rows in the stream only that longer delays are to include."""
WINDOW_OFFSET = "join.window.offset"
SettingChanges = Mapping[str, str | tuple[str, ...]]
"""Settings by dotted name, in the form of a pipeline file."""


def suggest_settings(unexplained: DataFrame, view: CommittedView, stream: DataFrame) -> Iterator[SettingChanges]:
    """Yield valid settings that may explain rows without a cause; those of the pipeline's dialect first."""
    pipeline = view.pipeline
    evidence = _Evidence.from_rows(unexplained)
    suggestions: list[SettingChanges] = [
        *_suggest_bounds(pipeline, evidence, view, stream),
        *_suggest_longer_delays(pipeline, evidence),
        *_suggest_window_offset(pipeline, stream),
    ]
    # More late rows mean missing pairs of an interval join, but further firings of a window or rows of an anti join.
    if evidence.stream_lacks_rows or pipeline.join.window:
        suggestions += _suggest_shorter_delays(pipeline)
    # In flink-sql a restart would force a simulation row by row.
    first_late = evidence.first_late_clock
    if first_late is not None and not pipeline.restarts and pipeline.dialect == "flink-datastream":
        suggestions.append({"restarts": (format_micros(first_late),)})
    suggestions += [{"dialect": dialect} for dialect in get_args(Dialect) if dialect != pipeline.dialect]
    unique = {tuple(changes.items()): changes for changes in suggestions}
    yield from (changes for changes in unique.values() if is_valid(pipeline, changes))


@dataclass(frozen=True)
class _Evidence:
    """Statistics of rows without a cause."""

    delay_increases: dict[str, tuple[timedelta, ...]]
    """Increase of a delay that makes each of `_QUANTILES` of the late rows in the stream only punctual. By the input
    that held the watermark, `left` or `right`, and `all`; empty if there are no such rows."""
    pair_distance: tuple[timedelta, timedelta] | None
    """Least and greatest distance (right - left) of the event times of pairs in the stream only."""
    stream_lacks_rows: bool
    first_late_clock: int | None
    """Clock in microseconds of the first late row with emissions in the stream only; None without one."""

    @classmethod
    def from_rows(cls, rows: DataFrame) -> _Evidence:
        """Compute the statistics in one query."""
        only_stream = F.col("_only_in") == STREAM
        labels = left, right = tuple(F.col(f"_{side}_batch") for side in SIDES)

        def lateness(*sides: str) -> Column:
            """Quantiles of the lateness (ms) of the later row of a pair, for watermarks that these inputs held."""
            by_row = (
                F.when(only_stream & label["limiting_side"].isin(*sides), label["lateness_ms"]) for label in labels
            )
            return F.percentile(F.greatest(*by_row), _QUANTILES)

        late_clocks = [F.when(only_stream & label["lateness_ms"].isNotNull(), label["clock"]) for label in labels]
        is_pair = only_stream & (F.col("_emission") == "matched")
        distance = F.when(is_pair, right["event_time"] - left["event_time"])
        statistics = rows.agg(
            *(lateness(side).alias(side) for side in SIDES), lateness(*SIDES).alias("all"),
            F.min(distance).alias("min"), F.max(distance).alias("max"), F.count_if(~only_stream).alias("lacking"),
            F.min(F.least(*late_clocks)).alias("first_late_clock"),
        ).first()  # fmt: skip
        assert statistics is not None, "an aggregate has one row"
        increases = {
            name: tuple(timedelta(milliseconds=int(ms) + 1) for ms in statistics[name] or ())
            for name in (*SIDES, "all")
        }
        return cls(increases, _read_distance(statistics), statistics["lacking"] > 0, statistics["first_late_clock"])


def _suggest_longer_delays(pipeline: Pipeline, evidence: _Evidence) -> Iterator[SettingChanges]:
    """Yield delays with which late rows of the stream would be punctual: of both inputs, then of each alone.

    Each is the next round duration, or exact to the unit of the present delay. Delays may also have been doubled.
    """
    increases = evidence.delay_increases
    delays = {side: getattr(pipeline, side).watermark_delay for side in SIDES}
    # A longer delay of either input holds the watermark back, whichever held it before.
    delays = {side: delay for side, delay in delays.items() if delay is not None and increases["all"]}
    for number, round_to in product(range(len(_QUANTILES) if delays else 0), (round_up, _round_to_unit)):
        both = {side: increases[side][number] for side in delays if increases[side]}
        for increase_by_side in [*([both] if both else []), *({side: increases["all"][number]} for side in delays)]:
            yield {
                f"{side}.watermark_delay": format_duration(round_to(delays[side] + increase, delays[side]))
                for side, increase in increase_by_side.items()
            }
    yield from ({f"{side}.watermark_delay": format_duration(2 * delay)} for side, delay in delays.items() if delay)


def _suggest_shorter_delays(pipeline: Pipeline) -> Iterator[SettingChanges]:
    for side in SIDES:
        if delay := getattr(pipeline, side).watermark_delay:
            for shorter in list_shorter(delay):
                yield {f"{side}.watermark_delay": format_duration(shorter)}


def _suggest_bounds(
    pipeline: Pipeline, evidence: _Evidence, view: CommittedView, stream: DataFrame
) -> Iterator[SettingChanges]:
    """Yield wider bounds that include the pairs in the stream only, and narrower ones that include just its pairs."""
    interval = pipeline.join.interval
    if interval is None:
        return
    bounds = {"join.interval.lower": interval.lower, "join.interval.upper": interval.upper}
    finite = {name: bound for name, bound in bounds.items() if bound is not None}
    is_wider = {"join.interval.lower": lt, "join.interval.upper": gt}
    if evidence.pair_distance:
        limits = dict(zip(bounds, evidence.pair_distance, strict=True))
        wider = {name: _round_outward(name, limits[name], bound) for name, bound in finite.items()}
        wider = {name: span for name, span in wider.items() if is_wider[name](span, finite[name])}
        yield from _list_bounds(wider)
    if evidence.stream_lacks_rows and (distance := _measure_pair_distance(view, stream)):
        limits = dict(zip(bounds, distance, strict=True))
        narrower = {name: _round_outward(name, limits[name], bound) for name, bound in finite.items()}
        narrower = {name: span for name, span in narrower.items() if is_wider[name](finite[name], span)}
        yield from _list_bounds(narrower)


def _suggest_window_offset(pipeline: Pipeline, stream: DataFrame) -> Iterator[SettingChanges]:
    """Yield the offset of the stream's windows, if they all begin at multiples of their distance plus the offset."""
    window = pipeline.join.window
    distance = window.start_distance if window else None
    if window is None or distance is None or pipeline.window_time_zone or "_window_start" not in stream.columns:
        return
    step = to_micros(distance)
    offset = F.pmod(F.unix_micros("_window_start"), F.lit(step))
    bounds = stream.agg(F.min(offset).alias("min"), F.max(offset).alias("max")).first()
    assert bounds is not None, "an aggregate has one row"
    if bounds["min"] is not None and bounds["min"] == bounds["max"] != to_micros(window.offset) % step:
        yield {WINDOW_OFFSET: format_duration(timedelta(microseconds=bounds["min"]))}


def _list_bounds(bounds: Mapping[str, timedelta]) -> Iterator[SettingChanges]:
    """Yield all bounds together, then each alone."""
    for changes in [bounds, *({name: span} for name, span in bounds.items())]:
        if changes:
            yield {name: format_duration(span) for name, span in changes.items()}


def _round_outward(name: str, span: timedelta, bound: timedelta) -> timedelta:
    """Return the tightest bound that includes a span, in the unit of the present bound."""
    return -_round_to_unit(-span, bound) if name.endswith("lower") else _round_to_unit(span, bound)


def _round_to_unit(span: timedelta, pattern: timedelta) -> timedelta:
    """Round a span up to the largest unit (minute, second or ms) of which `pattern` is a multiple."""
    unit = next(unit for unit in _UNITS if not pattern % unit)
    return -(-span // unit) * unit


def _measure_pair_distance(view: CommittedView, stream: DataFrame) -> tuple[timedelta, timedelta] | None:
    """Return least and greatest distance of the event times of the stream's pairs; None without event times."""
    sides = [source.side for source in view.inputs]
    times = [replace(side.event_time, name=f"{side.name}_{side.event_time.name}") for side in sides]
    if not {time.name for time in times} <= set(stream.columns):
        return None
    left, right = (time.micros for time in times)
    distance = F.when(F.col("_emission") == "matched", right - left)
    statistics = stream.agg(F.min(distance).alias("min"), F.max(distance).alias("max")).first()
    return _read_distance(statistics) if statistics else None


def _read_distance(statistics: Row) -> tuple[timedelta, timedelta] | None:
    if statistics["min"] is None:
        return None
    return timedelta(microseconds=statistics["min"]), timedelta(microseconds=statistics["max"])


def is_valid(pipeline: Pipeline, changes: SettingChanges) -> bool:
    """Return True if a pipeline file may have these settings."""
    try:
        with_overrides(pipeline, changes)
    except PipelineFileError:
        return False
    return True
