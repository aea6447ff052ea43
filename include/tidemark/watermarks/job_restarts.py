"""A stream whose job failed and went on from its last checkpoint: state is recovered, watermarks begin anew.

An epoch is what lies between two restarts; the rows of one were read by one execution of the job. Buckets are cut at
restarts, so that inside each epoch watermarks come about as those of any stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from typing_extensions import override

from tidemark.timegrid.slices import Grid
from tidemark.watermarks.buckets import NO_WATERMARK, Buckets, Horizon, Lane, Timeline, Timelines, Watermarks, of_lane
from tidemark.watermarks.from_column import RecordedLane


@dataclass(frozen=True)
class RestartedLane(Lane):
    """A stream of one watermark for each input, whose job has restarted."""

    restarts: tuple[int, ...] = ()
    """The clocks (microseconds) from which on rows are of the next epoch, in order."""

    @classmethod
    @override
    def fitting(cls, lanes: Sequence[Self], buckets: Buckets) -> Buckets:
        """Each bucket may be cut into as many parts as a lane has epochs in the job."""
        start, end = _span(buckets.grid, buckets.slices)
        return replace(buckets, parts=max(len(lane.epochs(start, end)) for lane in lanes))

    @classmethod
    @override
    def timelines(cls, rows: DataFrame, lanes: Sequence[Self], buckets: Buckets) -> Timelines:
        epoch = _epoch(lanes, *_span(buckets.grid, buckets.slices))
        return super().timelines(rows.withColumn("bucket", F.col("bucket") + epoch), lanes, buckets)

    @override
    def timeline(self, maxima: pd.DataFrame, buckets: Buckets) -> Timeline:
        lines, slices = list(self._lines(maxima, buckets)), buckets.slices
        starts = self.epochs(*_span(buckets.grid, slices))
        last_in = {n: int(np.searchsorted(starts, buckets.grid.start_of(n + 1))) - 1 for n in slices}
        ends = {number: lines[last].ends[number] for number, last in last_in.items()}
        reached = {slices[0] - 1: self.before.combined, **{n: marks.combined for n, marks in ends.items()}}
        table = pd.concat(_met_by(lines[number:], buckets) for number in range(len(lines)))
        table = table.sort_values("bucket", ignore_index=True)
        maybe_late = any(line.maybe_late for line in lines)
        return Timeline(table, maybe_late, ends, reached, tuple(line.reached for line in lines), last_in)

    @override
    def newest(self, marks: Watermarks) -> None:
        """Rows of an earlier epoch may be newer than all that made these watermarks."""

    @override
    def least_in(self, slices: Sequence[int], grid: Grid, ends: Mapping[int, Watermarks]) -> list[int]:
        restarted = {grid.number_at(restart) for restart in self.restarts}
        least = super().least_in(slices, grid, ends)
        return [NO_WATERMARK if n in restarted else mark for n, mark in zip(slices, least, strict=True)]

    def epochs(self, start: int, end: int) -> tuple[int, ...]:
        """When the epochs began that a job over these clocks knows of: the one that it continues, and its own."""
        before = [NO_WATERMARK, *(restart for restart in self.restarts if restart < start)]
        return before[-1], *(restart for restart in self.restarts if start <= restart < end)

    def _lines(self, maxima: pd.DataFrame, buckets: Buckets) -> Iterator[Timeline]:
        """Each epoch's timeline, as if the epoch had the job for itself."""
        epochs = len(self.epochs(*_span(buckets.grid, buckets.slices)))
        of_bucket = maxima["bucket"] % buckets.parts
        for number in range(epochs):
            before = Watermarks() if number else self.before
            lane = replace(self, before=before, drain=self.drain if number == epochs - 1 else None)
            yield Lane.timeline(lane, maxima[of_bucket == number].reset_index(drop=True), buckets)


@dataclass(frozen=True)
class RestartedRecordedLane(RestartedLane, RecordedLane):
    """The same where inputs have recorded their watermarks, which may go down at a restart."""


def _met_by(lines: Sequence[Timeline], buckets: Buckets) -> pd.DataFrame:
    """The buckets of an epoch, with what their rows have met by the `end` of their slice, in it and in later epochs."""
    table = lines[0].buckets
    met = (max(line.reached[number] for line in lines) for number in buckets.slice_of(table["bucket"]))
    return table.assign(end=np.fromiter(met, dtype=np.int64))


def epoch_of_rows(horizon: Horizon) -> Column:
    """The number of the epoch in which a row came, by its clock: 0 is the one that the job continues, -1 any before.

    Where no lane can restart it is 0.
    """
    lanes = [lane for lane in horizon.lanes if isinstance(lane, RestartedLane)]
    return F.lit(0) if not lanes else _epoch(lanes, *_span(horizon.grid, list(horizon.lines[0].ends)))


def _epoch(lanes: Sequence[RestartedLane], start: int, end: int) -> Column:
    starts = of_lane([lane.epochs(start, end) for lane in lanes], "array<bigint>")
    return F.size(F.filter(starts, lambda began: began <= F.col("clock"))) - 1


def _span(grid: Grid, slices: Sequence[int]) -> tuple[int, int]:
    return grid.start_of(slices[0]), grid.start_of(slices[-1] + 1)
