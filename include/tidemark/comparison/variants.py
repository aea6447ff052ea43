"""What the pipeline would have emitted under other settings, replayed in memory; nothing is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from operator import gt, lt
from typing import get_args

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from tidemark.clock.slices import Grid
from tidemark.commits.outputs import emissions
from tidemark.commits.staleness import NOTHING_CONSUMED
from tidemark.comparison.align import BATCH
from tidemark.comparison.committed_view import CommittedView
from tidemark.errors import PipelineFileError
from tidemark.execution.replay import Replay, replay
from tidemark.inputs.stored import StoredInput, read_as, rows_of_slices, schemas_of, trace_of
from tidemark.joins import join_of, lane_of
from tidemark.settings import Pipeline, changed
from tidemark.settings.pipeline import Dialect
from tidemark.settings.sides import SIDES, SideName
from tidemark.settings.values import format_duration
from tidemark.watermarks.buckets import Buckets, Watermarks

_MS = timedelta(milliseconds=1)
Changes = Mapping[str, str]
"""Settings by their dotted names, as a pipeline file has them."""


@contextmanager
def replayed(
    pipeline: Pipeline, inputs: tuple[StoredInput, StoredInput], slices: range, *, drain: bool
) -> Iterator[Replay]:
    """A replay of slices from empty state; with `drain` the inputs end behind them.

    The inputs may have been found for a pipeline with other settings.
    """
    grid, inputs = Grid.of(pipeline.slices), read_as(inputs, pipeline)
    rows = rows_of_slices(inputs, grid, slices, (NOTHING_CONSUMED, NOTHING_CONSUMED)).withColumn("lane", F.lit(0))
    join = join_of(pipeline, rows.sparkSession, schemas_of(inputs))
    lane = lane_of(pipeline, Watermarks(), slices[-1] if drain else None, trace_of(inputs))
    result = replay(rows, None, [lane], join, Buckets.of(grid, slices, join.buckets_per_slice))
    try:
        yield result
    finally:
        result.release()


@contextmanager
def emissions_under(view: CommittedView, changes: Changes) -> Iterator[DataFrame]:
    """The emissions of a view's slices under other settings, from empty state; as the table has them."""
    pipeline = changed(view.pipeline, changes)
    slices = range(next(iter(view.ledger.entries)), view.end)
    with replayed(pipeline, view.inputs, slices, drain=view.last.drained) as result:
        yield emissions(result.joined, pipeline, view.grid)


def candidates(unexplained: DataFrame, view: CommittedView, stream: DataFrame) -> Iterator[Changes]:
    """Settings under which the stream may have come to rows that differ, the likeliest first."""
    pipeline, found = view.pipeline, _Extent.of(unexplained)
    yield from _bounds(pipeline, found, view, stream)
    delays = {side: getattr(pipeline, side).watermark_delay for side in SIDES}
    longer = {
        f"{side}.watermark_delay": format_duration(delay + _whole_minutes(found.behind[side]))
        for side, delay in delays.items()
        if delay is not None and found.behind[side]
    }
    if longer:
        yield longer
    # With more rows late an interval join lacks rows, where a window may fire again and an anti join emits more.
    shorter = delays if found.lacks or pipeline.join.window else {}
    for side, delay in shorter.items():
        if delay:
            for part in (0.75, 0.5, 0.25, 0):
                yield {f"{side}.watermark_delay": format_duration(delay * part // _MS * _MS)}
    for dialect in get_args(Dialect):
        if dialect != pipeline.dialect and _allowed(pipeline, {"dialect": dialect}):
            yield {"dialect": dialect}


@dataclass(frozen=True)
class _Extent:
    """What is known of rows without a cause."""

    behind: dict[SideName, timedelta]
    """How much longer a delay would have to be for rows that only the stream has, by the input that held the watermark.
    """
    apart: tuple[timedelta, timedelta] | None
    """How far apart the times of pairs are that only the stream has, at least and at most."""
    lacks: bool
    """Whether the stream lacks rows."""

    @classmethod
    def of(cls, rows: DataFrame) -> _Extent:
        mine = F.col("_missing_in") == BATCH
        labels = {side: F.col(f"_{side}_batch") for side in SIDES}
        behind = {
            side: F.greatest(
                *(F.max(F.when(mine & (of["held_by"] == side), of["behind_ms"])) for of in labels.values())
            )
            for side in SIDES
        }
        apart = F.when(
            mine & (F.col("_emission") == "matched"), labels["right"]["event_time"] - labels["left"]["event_time"]
        )
        extent = rows.agg(
            *(value.alias(side) for side, value in behind.items()),
            F.min(apart).alias("least"), F.max(apart).alias("most"), F.count_if(~mine).alias("lacks"),
        ).first()  # fmt: skip
        assert extent is not None, "an aggregate has one row"
        known = {
            side: timedelta(milliseconds=extent[side] + 1) if extent[side] is not None else timedelta()
            for side in SIDES
        }
        return cls(known, _spans(extent), extent["lacks"] > 0)


def _bounds(pipeline: Pipeline, found: _Extent, view: CommittedView, stream: DataFrame) -> Iterator[Changes]:
    """Bounds as wide as those of the rows that only the stream has; as narrow as those of all that it has."""
    interval = pipeline.join.interval
    if interval is None:
        return
    names = {"join.interval.lower": interval.lower, "join.interval.upper": interval.upper}
    if found.apart:
        wider = {
            name: format_duration(seen)
            for (name, bound), seen, beyond in zip(names.items(), found.apart, (lt, gt), strict=True)
            if bound is not None and beyond(seen, bound)
        }
        if wider:
            yield wider
    if found.lacks and (seen := _seen_apart(view, stream)):
        for (name, bound), span in zip(names.items(), seen, strict=True):
            if bound is not None and span != bound:
                yield {name: format_duration(span)}


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


def _whole_minutes(span: timedelta) -> timedelta:
    return -(-span // timedelta(minutes=1)) * timedelta(minutes=1)


def _allowed(pipeline: Pipeline, changes: Changes) -> bool:
    try:
        changed(pipeline, changes)
    except PipelineFileError:
        return False
    return True
