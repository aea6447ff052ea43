"""Watermarks of a stream whose job restarted from its last checkpoint, which recovers state but not watermarks.

An epoch is the time between two restarts. One execution of the job read its rows. Buckets are cut at restarts, so
within an epoch watermarks are computed as for any stream.
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
from tidemark.watermarks.buckets import Buckets
from tidemark.watermarks.job_watermarks import JobWatermarks, lookup_by_lane
from tidemark.watermarks.lanes import Lane, Timeline, Timelines
from tidemark.watermarks.recorded_watermark_lane import RecordedWatermarkLane
from tidemark.watermarks.values import NO_WATERMARK, Watermarks


@dataclass(frozen=True)
class RestartedLane(Lane):
    """A stream with one watermark per input, whose job has restarted."""

    restarts: tuple[int, ...] = ()
    """Clocks (microseconds, inclusive) from which rows are of the next epoch, in order."""

    @classmethod
    @override
    def refine_buckets(cls, lanes: Sequence[Self], buckets: Buckets) -> Buckets:
        """Allow each bucket to be cut into as many parts as a lane has epochs in the job."""
        start, end = _clock_range(buckets.grid, buckets.slices)
        return replace(buckets, parts=max(len(lane.epoch_starts(start, end)) for lane in lanes))

    @classmethod
    @override
    def compute_timelines(cls, rows: DataFrame, lanes: Sequence[Self], buckets: Buckets) -> Timelines:
        epoch = _lane_epoch_column(lanes, *_clock_range(buckets.grid, buckets.slices))
        return super().compute_timelines(rows.withColumn("bucket", F.col("bucket") + epoch), lanes, buckets)

    @override
    def compute_timeline(self, statistics: pd.DataFrame, buckets: Buckets) -> Timeline:
        epochs = list(self._epoch_timelines(statistics, buckets))
        slices = buckets.slices
        starts = self.epoch_starts(*_clock_range(buckets.grid, slices))
        epoch_at_end = {n: int(np.searchsorted(starts, buckets.grid.start_of(n + 1))) - 1 for n in slices}
        end_watermarks = {number: epochs[epoch].end_watermarks[number] for number, epoch in epoch_at_end.items()}
        combined_at_end = {slices[0] - 1: self.initial_watermarks.combined}
        combined_at_end |= {number: watermarks.combined for number, watermarks in end_watermarks.items()}
        table = pd.concat(_with_end_watermarks(epochs[number:], buckets) for number in range(len(epochs)))
        return Timeline(
            table.sort_values("bucket", ignore_index=True),
            any(epoch.has_late_candidates for epoch in epochs),
            end_watermarks,
            combined_at_end,
            tuple(epoch.combined_at_end for epoch in epochs),
            epoch_at_end,
        )

    @override
    def newest_event_time(self, watermarks: Watermarks) -> None:
        """Return None: rows of an earlier epoch may be newer than all rows that raised these watermarks."""

    @override
    def least_combined_watermarks(
        self, slices: Sequence[int], grid: Grid, end_watermarks: Mapping[int, Watermarks]
    ) -> list[int]:
        restarted = {grid.number_at(restart) for restart in self.restarts}
        least = super().least_combined_watermarks(slices, grid, end_watermarks)
        return [NO_WATERMARK if n in restarted else watermark for n, watermark in zip(slices, least, strict=True)]

    def epoch_starts(self, start: int, end: int) -> tuple[int, ...]:
        """Return the starts of the epochs of a job over clocks [start, end). The first epoch began before the job."""
        before = [NO_WATERMARK, *(restart for restart in self.restarts if restart < start)]
        return before[-1], *(restart for restart in self.restarts if start <= restart < end)

    def _epoch_timelines(self, statistics: pd.DataFrame, buckets: Buckets) -> Iterator[Timeline]:
        """Yield the timeline of each epoch, as if the job had no other epoch."""
        count = len(self.epoch_starts(*_clock_range(buckets.grid, buckets.slices)))
        epochs = statistics["bucket"] % buckets.parts
        for number in range(count):
            initial = Watermarks() if number else self.initial_watermarks
            lane = replace(self, initial_watermarks=initial, drain=self.drain if number == count - 1 else None)
            yield Lane.compute_timeline(lane, statistics[epochs == number].reset_index(drop=True), buckets)


@dataclass(frozen=True)
class RestartedRecordedWatermarkLane(RestartedLane, RecordedWatermarkLane):
    """A restarted stream with recorded watermarks, which may go down at a restart.

    The order of the base classes matters: `RestartedLane.compute_timelines` cuts the buckets and then calls
    `RecordedWatermarkLane.compute_timelines`, and `split` is that of `RecordedWatermarkLane`.
    """


def _with_end_watermarks(epochs: Sequence[Timeline], buckets: Buckets) -> pd.DataFrame:
    """Return the buckets of the first epoch, with the greatest watermark of it and later epochs as `end_watermark`."""
    table = epochs[0].buckets
    slices = buckets.find_slices(table["bucket"])
    reached = (max(epoch.combined_at_end[number] for epoch in epochs) for number in slices)
    return table.assign(end_watermark=np.fromiter(reached, dtype=np.int64))


def epoch_column(job: JobWatermarks) -> Column:
    """Return the number of a row's epoch, from its clock.

    0 is the epoch that the job continues, -1 any epoch before it. Always 0 if no lane can restart.
    """
    lanes = [lane for lane in job.lanes if isinstance(lane, RestartedLane)]
    if not lanes:
        return F.lit(0)
    return _lane_epoch_column(lanes, *_clock_range(job.grid, list(job.timelines[0].end_watermarks)))


def _lane_epoch_column(lanes: Sequence[RestartedLane], start: int, end: int) -> Column:
    starts = lookup_by_lane([lane.epoch_starts(start, end) for lane in lanes], "array<bigint>")
    return F.size(F.filter(starts, lambda epoch_start: epoch_start <= F.col("clock"))) - 1


def _clock_range(grid: Grid, slices: Sequence[int]) -> tuple[int, int]:
    return grid.start_of(slices[0]), grid.start_of(slices[-1] + 1)
