"""Which other settings rows without a cause suggest: few sets, each of one kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from operator import gt, lt
from typing import get_args

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from tidemark.comparison.committed_view import CommittedView
from tidemark.comparison.multiset_diff import BATCH
from tidemark.config import Pipeline, changed
from tidemark.config.pipeline import Dialect
from tidemark.config.sides import SIDES
from tidemark.config.types import format_duration, format_instant, from_micros
from tidemark.errors import PipelineFileError

_UNITS = (timedelta(minutes=1), timedelta(seconds=1), timedelta(milliseconds=1))
_LONGER = (0.5, 0.9, 1.0)
"""The shares of the late rows that only the stream has which longer delays are to keep."""
_SHORTER = (0.5, 0)
"""How much of a delay is tried where the stream lacks rows."""
Changes = Mapping[str, str | tuple[str, ...]]
"""Settings by their dotted names, as a pipeline file has them."""


def candidates(unexplained: DataFrame, view: CommittedView, stream: DataFrame) -> Iterator[Changes]:
    """Settings under which the stream may have come to rows that differ; those of the pipeline's dialect first."""
    pipeline, found = view.pipeline, _Extent.of(unexplained)
    wanted: list[Changes] = [*_bounds(pipeline, found, view, stream), *_longer_delays(pipeline, found)]
    # With more rows late an interval join lacks rows, where a window may fire again and an anti join emits more.
    if found.lacks or pipeline.join.window:
        wanted += _shorter_delays(pipeline)
    # Of flink-sql a restart would have all rows replayed one by one.
    if found.late_since is not None and not pipeline.restarts and pipeline.dialect == "flink-datastream":
        wanted.append({"restarts": (format_instant(from_micros(found.late_since)),)})
    wanted += [{"dialect": dialect} for dialect in get_args(Dialect) if dialect != pipeline.dialect]
    once = {tuple(changes.items()): changes for changes in wanted}
    yield from (changes for changes in once.values() if _allowed(pipeline, changes))


@dataclass(frozen=True)
class _Extent:
    """What is known of rows without a cause."""

    behind: dict[str, tuple[timedelta, ...]]
    """How much longer a delay would have to be for each of `_LONGER` of the rows that only the stream has: those for
    which the `left` or the `right` input held the watermark, and `all`; empty where there are none."""
    apart: tuple[timedelta, timedelta] | None
    """How far apart the times of pairs are that only the stream has, at least and at most."""
    lacks: bool
    """Whether the stream lacks rows."""
    late_since: int | None
    """The clock of the first late row, in microseconds, of which only the stream has something; None for none."""

    @classmethod
    def of(cls, rows: DataFrame) -> _Extent:
        mine = F.col("_missing_in") == BATCH
        left, right = (F.col(f"_{side}_batch") for side in SIDES)

        def asked(*held_by: str) -> Column:
            """How far behind a watermark held by these inputs the later row of a pair was."""
            lateness = [F.when(mine & of["held_by"].isin(*held_by), of["behind_ms"]) for of in (left, right)]
            return F.percentile(F.greatest(*lateness), _LONGER)

        late = [F.when(mine & of["behind_ms"].isNotNull(), of["clock"]) for of in (left, right)]
        apart = F.when(mine & (F.col("_emission") == "matched"), right["event_time"] - left["event_time"])
        extent = rows.agg(
            *(asked(side).alias(side) for side in SIDES), asked(*SIDES).alias("all"),
            F.min(apart).alias("least"), F.max(apart).alias("most"), F.count_if(~mine).alias("lacks"),
            F.min(F.least(*late)).alias("late_since"),
        ).first()  # fmt: skip
        assert extent is not None, "an aggregate has one row"
        behind = {
            held_by: tuple(timedelta(milliseconds=int(ms) + 1) for ms in extent[held_by] or ())
            for held_by in (*SIDES, "all")
        }
        return cls(behind, _spans(extent), extent["lacks"] > 0, extent["late_since"])


def _longer_delays(pipeline: Pipeline, found: _Extent) -> Iterator[Changes]:
    """Delays with which late rows that the stream has would have been on time: of both inputs, and of each alone."""
    delays = {side: getattr(pipeline, side).watermark_delay for side in SIDES if found.behind[side]}
    delays = {side: delay for side, delay in delays.items() if delay is not None}
    for number in range(len(_LONGER) if delays else 0):
        both = {side: found.behind[side][number] for side in delays}
        for more in [both, *({side: found.behind["all"][number]} for side in delays)]:
            yield {
                f"{side}.watermark_delay": format_duration(_widened(delays[side] + span, delays[side]))
                for side, span in more.items()
            }


def _shorter_delays(pipeline: Pipeline) -> Iterator[Changes]:
    for side in SIDES:
        if delay := getattr(pipeline, side).watermark_delay:
            for part in _SHORTER:
                yield {f"{side}.watermark_delay": format_duration(delay * part // _UNITS[-1] * _UNITS[-1])}


def _bounds(pipeline: Pipeline, found: _Extent, view: CommittedView, stream: DataFrame) -> Iterator[Changes]:
    """Bounds as wide as those of the rows that only the stream has; as narrow as those of all that it has."""
    interval = pipeline.join.interval
    if interval is None:
        return
    bounds = {"join.interval.lower": interval.lower, "join.interval.upper": interval.upper}
    given = {name: bound for name, bound in bounds.items() if bound is not None}
    beyond = {"join.interval.lower": lt, "join.interval.upper": gt}
    if found.apart:
        seen = dict(zip(bounds, found.apart, strict=True))
        wider = {name: _outward(name, seen[name], bound) for name, bound in given.items()}
        wider = {name: span for name, span in wider.items() if beyond[name](span, given[name])}
        if wider:
            yield {name: format_duration(span) for name, span in wider.items()}
    if found.lacks and (extent := _seen_apart(view, stream)):
        seen = dict(zip(bounds, extent, strict=True))
        narrower = {name: _outward(name, seen[name], bound) for name, bound in given.items()}
        narrower = {name: span for name, span in narrower.items() if beyond[name](given[name], span)}
        for chosen in [narrower, *({name: span} for name, span in narrower.items())]:
            if chosen:
                yield {name: format_duration(span) for name, span in chosen.items()}


def _outward(name: str, span: timedelta, bound: timedelta) -> timedelta:
    """A bound that just lets a span in, as round as the present one."""
    return -_widened(-span, bound) if name.endswith("lower") else _widened(span, bound)


def _widened(span: timedelta, like: timedelta) -> timedelta:
    """A span, up to the next whole minute, second or ms, in which `like` is whole."""
    unit = next(unit for unit in _UNITS if not like % unit)
    return -(-span // unit) * unit


def _seen_apart(view: CommittedView, stream: DataFrame) -> tuple[timedelta, timedelta] | None:
    sides = [source.side for source in view.inputs]
    clocks = [replace(side.event, name=f"{side.name}_{side.event.name}") for side in sides]
    if not {clock.name for clock in clocks} <= set(stream.columns):
        return None
    left, right = (clock.micros for clock in clocks)
    apart = F.when(F.col("_emission") == "matched", right - left)
    extent = stream.agg(F.min(apart).alias("least"), F.max(apart).alias("most")).first()
    return _spans(extent) if extent else None


def _spans(extent: Row) -> tuple[timedelta, timedelta] | None:
    if extent["least"] is None:
        return None
    return timedelta(microseconds=extent["least"]), timedelta(microseconds=extent["most"])


def _allowed(pipeline: Pipeline, changes: Changes) -> bool:
    try:
        changed(pipeline, changes)
    except PipelineFileError:
        return False
    return True
