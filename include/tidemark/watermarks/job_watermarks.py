"""Find the slice in which a lane's watermark or processing time reaches a level."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.timegrid.slices import Grid
from tidemark.watermarks.lanes import Lane, Timeline

_INF = float("inf")


@dataclass(frozen=True)
class JobWatermarks:
    """The watermarks of a job's lanes at the end of each slice."""

    timelines: Sequence[Timeline]
    """One for each lane."""
    first_slice: int
    """First slice of the job."""
    lanes: Sequence[Lane]
    grid: Grid

    @cached_property
    def end_processing_times_ms(self) -> Sequence[Mapping[int, int]]:
        """Processing time at the end of each slice, ms, by lane, from the slice before the job on."""
        return [
            {
                n: lane.end_processing_times_ms.get(n, (self.grid.start_of(n + 1) - 1) // 1000)
                for n in timeline.combined_at_end
            }
            for lane, timeline in zip(self.lanes, self.timelines, strict=True)
        ]

    @property
    def drain_slice(self) -> Column:
        """Slice of the job in which the input of a row's lane ends; null if it does not."""
        last = max(self.timelines[0].end_watermarks)
        drains = [lane.drain if lane.drain is not None and lane.drain <= last else None for lane in self.lanes]
        return lookup_by_lane(drains)

    def with_slice_reaching(self, rows: DataFrame, watermark: Column, name: str) -> DataFrame:
        """Add the first slice at whose end the lane's combined watermark is at least `watermark`.

        Args:
            rows: Rows with their `lane`.
            watermark: Watermark to reach, ms.
            name: Name of the new column. It is the slice before the job if that one had reached the watermark, and null
                if no slice of the job reaches it.
        """
        return _with_first_slice(
            [line.combined_at_end for line in self.timelines], rows, F.col("lane"), watermark, name
        )

    def is_reached_in_job(self, watermark: Column) -> Column:
        """Return True if `with_slice_reaching` finds a slice of the job for `watermark` (ms)."""
        before = [timeline.combined_at_end[self.first_slice - 1] for timeline in self.timelines]
        last = [max(timeline.combined_at_end.values()) for timeline in self.timelines]
        return (watermark > lookup_by_lane(before)) & (watermark <= lookup_by_lane(last))

    def first_epoch_reaching(self, watermark: Callable[[Column], Column]) -> Column:
        """Return the first epoch of a row's lane whose combined watermark reaches `watermark`, or else the last epoch.

        Args:
            watermark: Function from the epoch's number to the watermark to reach (ms), null to skip the epoch.
        """
        maxima = [[max(reached.values()) for reached in timeline.combined_by_epoch] for timeline in self.timelines]
        ends = lookup_by_lane(maxima, "array<bigint>")
        epochs = F.transform(ends, lambda end, epoch: F.when(end >= watermark(epoch), epoch))
        return F.coalesce(F.array_min(epochs), F.size(ends) - 1)

    def with_slice_reaching_in_epoch(self, rows: DataFrame, epoch: Column, watermark: Column, name: str) -> DataFrame:
        """Add the first slice at whose end the combined watermark of a row's `epoch` is at least `watermark` (ms)."""
        most = max(len(timeline.combined_by_epoch) for timeline in self.timelines)
        reached = [
            {} if n >= len(timeline.combined_by_epoch) else timeline.combined_by_epoch[n]
            for timeline in self.timelines
            for n in range(most)
        ]
        return _with_first_slice(reached, rows, F.col("lane") * most + epoch, watermark, name)

    def with_slice_at_processing_time(self, rows: DataFrame, processing_time: Column, name: str) -> DataFrame:
        """Add the first slice at whose end the lane's processing time is at least `processing_time` (ms)."""
        return _with_first_slice(self.end_processing_times_ms, rows, F.col("lane"), processing_time, name)


def _with_first_slice(
    reached_by_part: Sequence[Mapping[int, int]], rows: DataFrame, part: Column, level: Column, name: str
) -> DataFrame:
    """Add the first slice whose level in a part is at least `level`, which is never null, by binary search.

    A part is a lane, or an epoch of one. All parts share one sorted list of splits: part p has the numbers from
    p * 2 * half on. If slices 7 and 8 end at levels 100 and 250, a row of part 0 with level 180 is between the splits
    100 and 250, which is slice 8.

    `Bucketizer` searches in doubles. Each part has its own range of the integers that a double represents exactly. With
    one part the result is exact for times within 142,000 years of 1970, with 500 parts within 280.
    """
    from pyspark.ml.feature import Bucketizer  # noqa: PLC0415 - a fifth of the time that a command takes to start

    half = 2**52 // len(reached_by_part)
    slice_by_split: dict[int, int | None] = {}
    for part_number, reached in enumerate(reached_by_part):
        origin = part_number * 2 * half
        highest = -half
        for number, end_level in reached.items():
            highest = max(highest, min(end_level, half - 1))  # running maximum: a level, once reached, stays reached
            slice_by_split.setdefault(origin + highest, number)
        slice_by_split[origin + half] = None
    position = part * (2 * half) + F.greatest(F.least(level, F.lit(half - 1)), F.lit(1 - half))
    splits = [-_INF, *map(float, slice_by_split), _INF]
    search = Bucketizer(splits=splits, inputCol="_below", outputCol="_level")
    levels = search.transform(rows.withColumn("_below", (position - 1).cast("double")))
    slices = array_literal([*slice_by_split.values()], "bigint")
    return levels.withColumn(name, F.get(slices, F.col("_level").cast("int"))).drop("_level", "_below")


def array_literal(values: Sequence[object], dtype: str) -> Column:
    """Return an array as one literal, which Spark parses once; `F.array` would be one expression per value."""
    return F.from_json(F.lit(json.dumps(values)), f"array<{dtype}>")


def lookup_by_lane(values: Sequence[object], dtype: str = "bigint") -> Column:
    """Return the value of a row's lane, from one value per lane."""
    return F.get(array_literal(values, dtype), F.col("lane").cast("int"))
