"""W(x): the watermark that each row met, without sorting the stream.

A running maximum is associative. Rows are grouped into buckets of the clock; the maxima of the buckets (a small
table) are accumulated on the driver, which gives the watermarks before and after each bucket. A row whose event time
is after its bucket's last watermark is on time whatever its place in the bucket; only the others are put in order,
inside their bucket.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import ClassVar, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.config.sides import SIDES
from tidemark.spark.struct_columns import unnested
from tidemark.spark.tables import from_pandas
from tidemark.timegrid.slices import Grid
from tidemark.timegrid.time_columns import div
from tidemark.watermarks.exact import (
    BUCKETS,
    in_order,
    is_maybe_late,
    raises,
    with_watermarks_before,
    with_watermarks_met,
)
from tidemark.watermarks.row_status import is_filtered, is_rejected, moves_watermark

NO_WATERMARK = -(2**63)
"""An input's watermark before its first row."""
END_OF_INPUT = 2**63 - 1
"""The watermark when a bounded input ends."""
EVENT_TIME = "event_time"
TARGET_BUCKETS = 1 << 15
"""How many buckets a job's slices are cut into, about: a table that is cheap to collect and to broadcast."""

_INF = float("inf")
LaneT = TypeVar("LaneT", bound="Lane")


@dataclass(frozen=True)
class WatermarkLag:
    """How far each input's watermark stays behind its greatest event time, in ms."""

    left: int
    right: int


@dataclass(frozen=True)
class Source:
    """One partition of an input that has partitions, or an input (`sources`)."""

    side: str
    partition: str | None
    watermark: int
    """The source's own watermark, ms."""
    last: int
    """Clock of its last row, microseconds."""


@dataclass(frozen=True)
class Watermarks:
    """Watermarks of both inputs at one instant, ms; `NO_WATERMARK` where an input has had no row."""

    left: int = NO_WATERMARK
    right: int = NO_WATERMARK
    batch: int | None = None
    """Dialect spark: the watermark of the last micro-batch, None before the first."""
    left_last_cleanup: int = NO_WATERMARK
    """Flink SQL's interval join: the watermark, at least 0, at which expired left rows of any key were last removed."""
    right_last_cleanup: int = NO_WATERMARK

    advanced: int | None = None
    """Where inputs can fall idle or have partitions: the combined watermark, which has a history of its own."""
    sources: tuple[Source, ...] = ()
    """Where they can: what holds the watermark back."""

    @property
    def combined(self) -> int:
        """The one that the join sees."""
        if self.batch is not None:
            return self.batch
        return min(self.left, self.right) if self.advanced is None else self.advanced

    def newest(self, lag: WatermarkLag) -> int:
        """The greatest event time of any row so far, ms."""
        marks = [("left", self.left), ("right", self.right), *((one.side, one.watermark) for one in self.sources)]
        return max(mark + int(getattr(lag, side)) for side, mark in marks)


@dataclass(frozen=True)
class Buckets:
    """Equal parts of the clock, none across two slices, with a number that is unique among slices and lanes."""

    grid: Grid
    slices: range
    width: int
    """Microseconds."""
    parts: int = 1
    """Into how many a bucket may have been cut (`sources`)."""

    @classmethod
    def of(cls, grid: Grid, slices: range, per_slice: int | None = None) -> Buckets:
        """Buckets for a job of so many slices; of equal width where a slice can be cut so."""
        per_slice = per_slice or max(1, min(TARGET_BUCKETS // len(slices), grid.every // 1000))
        if per_slice == 1:
            return cls(grid, slices, max(grid.lengths(slices)))
        equal = (count for count in range(per_slice, per_slice // 2, -1) if grid.every % count == 0)
        return cls(grid, slices, -(-grid.every // next(equal, per_slice)))

    @cached_property
    def lengths(self) -> frozenset[int]:
        """How long the job's slices are, in microseconds."""
        return self.grid.lengths(self.slices)

    @property
    def per_slice(self) -> int:
        """How many buckets a slice has, or at least a number for each."""
        return -(-max(self.lengths) // self.width) * self.parts

    def number(self, lane: Column, number: Column, clock: Column) -> Column:
        """The bucket of a row in a slice of the job: a long, so that a broadcast join finds it by index."""
        if len(self.lengths) == 1 and max(self.lengths) % self.width == 0:
            # Of the clock alone: what is used twice Spark computes apart from the rest, and would make structs there.
            since = div(clock - self.grid.start_of(self.slices[0]), self.width)
            return lane * (len(self.slices) * self.per_slice) + since * self.parts
        within = div(self.grid.within_column(clock, number), self.width)
        return (lane * len(self.slices) + number - self.slices[0]) * self.per_slice + within * self.parts

    def number_of(self, lane: int, clock: int) -> int:
        """`number` of one clock in a slice of the job."""
        number = self.grid.number_at(clock)
        within = clock - self.grid.start_of(number)
        return (lane * len(self.slices) + number - self.slices[0]) * self.per_slice + within // self.width * self.parts

    def holds(self, clock: int) -> bool:
        """Whether a clock lies in a slice of the job."""
        return self.grid.number_at(clock) in self.slices

    def slice_of(self, bucket: pd.Series[int]) -> npt.NDArray[np.int64]:
        """The slices of buckets."""
        found = bucket.to_numpy(dtype=np.int64) // self.per_slice % len(self.slices) + self.slices[0]
        return found.astype(np.int64)


@dataclass(frozen=True)
class Timeline:
    """The watermarks of one lane over the slices of a job."""

    buckets: pd.DataFrame
    """What is known of each bucket, by its number: of `BUCKETS` the watermarks before and after it, ms (the combined
    ones without a side); whether an input's watermark moves in it (`moving`), and whether the combined one does, or
    which input holds it back, while it holds a row that may be late (`unsettled`); which inputs count; and the combined
    watermark at the `end` of its slice."""
    maybe_late: bool
    """Whether there are rows that may be late, or that are rejected."""
    ends: dict[int, Watermarks]
    """Watermarks after each slice of the job, in order."""
    reached: dict[int, int]
    """What fires and evicts: the combined watermark at the end of each slice, from the one before the job on."""
    epochs: tuple[Mapping[int, int], ...] = ()
    """Where the stream's job restarts (`restarted`): `reached` of each epoch by itself, as if it had gone on."""
    epoch_after: Mapping[int, int] = field(default_factory=dict)
    """Of each slice then the number of the epoch at its end."""


@dataclass(frozen=True)
class Timelines:
    """The watermarks of all lanes of a job."""

    rows: DataFrame
    """The job's rows, in buckets that may have been cut."""
    buckets: Buckets
    maxima: pd.DataFrame
    """One row per bucket that holds rows: how many there are and the newest, as `bucket_maxima` has them."""
    lines: list[Timeline]


@dataclass(frozen=True)
class Lane:
    """A stream with watermarks of its own. `run` replays one; `conformance` hundreds side by side in one job.

    Its class says how watermarks come about: here each row may raise the one of its input.
    """

    lag: WatermarkLag
    before: Watermarks = field(default_factory=Watermarks)
    """Watermarks when the first slice starts."""
    drain: int | None = None
    """The slice after which the input ends: the watermark goes to infinity, and every buffered row out."""

    clocks: Mapping[int, int] = field(default_factory=dict)
    """The processing time at the end of slices, ms, where it is not their end."""

    known_of_buckets: ClassVar[str] = BUCKETS
    """What `Timeline.buckets` says of each bucket: names and types."""
    raising: ClassVar[str] = EVENT_TIME
    """The column of rows that raises the watermark of their input: to so much, less the lag."""
    told_by_place: ClassVar[bool] = True
    """Whether the watermark that a row meets follows from where it is in the stream, and what was raised before."""

    @classmethod
    def fitting(cls, lanes: Sequence[Self], buckets: Buckets) -> Buckets:  # noqa: ARG003
        """Buckets in which the watermarks of these lanes follow from greatest event times: these, or finer ones."""
        return buckets

    @classmethod
    def timelines(cls, rows: DataFrame, lanes: Sequence[Self], buckets: Buckets) -> Timelines:
        """The watermarks that lanes of this class have over the slices of a job. Reads the rows once."""
        maxima = bucket_maxima(rows, cls.raising).toPandas()
        lines = [lane.timeline(part, buckets) for lane, part in by_lane(maxima, lanes, buckets)]
        return Timelines(rows, buckets, maxima, lines)

    def timeline(self, maxima: pd.DataFrame, buckets: Buckets) -> Timeline:
        """The watermarks of this lane, whose buckets have these greatest event times."""
        return _timeline(maxima, self, buckets)

    @classmethod
    def split(cls, rows: DataFrame, *, exact: bool) -> tuple[DataFrame, DataFrame]:
        """The rows that are surely on time, and those maybe late: rejected, behind their bucket, or all if `exact`.

        Takes rows `with_buckets`. Rows that `where` leaves out are among the second if `exact`, else in neither. Adds
        `left_watermark`, `right_watermark` and the combined `watermark` (ms, long) that each row met. Exact for the
        second; for the first those from before their bucket, which like the exact ones lie before the row's event time.
        """
        on_time = rows.where(~is_maybe_late(exact=exact) & ~is_filtered())
        return with_watermarks_before(on_time), with_watermarks_met(in_order(rows, cls.raising, exact=exact))

    @classmethod
    def places(cls, *, exact: bool) -> Column:
        """Which rows `split` looks at to find the second of what it gives."""
        return is_maybe_late(exact=exact) | raises(cls.raising, exact=exact)

    def newest(self, marks: Watermarks) -> int | None:
        """The greatest event time of any row so far, ms; None where watermarks do not tell."""
        return marks.newest(self.lag)

    def least_in(self, slices: Sequence[int], grid: Grid, ends: Mapping[int, Watermarks]) -> list[int]:  # noqa: ARG002
        """The least combined watermark of each slice of a job, by those at the slices' ends."""
        return [marks.combined for marks in [self.before, *ends.values()]][: len(slices)]


@dataclass(frozen=True)
class Horizon:
    """How far the watermarks of a job's lanes have come, slice by slice."""

    lines: Sequence[Timeline]
    first: int
    """First slice of the job."""
    lanes: Sequence[Lane]
    grid: Grid

    @cached_property
    def clocks(self) -> Sequence[Mapping[int, int]]:
        """The processing time at the end of each slice, ms, lane by lane, from the one before the job on."""
        return [
            {n: lane.clocks.get(n, (self.grid.start_of(n + 1) - 1) // 1000) for n in line.reached}
            for lane, line in zip(self.lanes, self.lines, strict=True)
        ]

    @property
    def drained_in(self) -> Column:
        """The slice of the job in which the input of a row's lane ends; null for none."""
        last = max(self.lines[0].ends)
        drains = [lane.drain if lane.drain is not None and lane.drain <= last else None for lane in self.lanes]
        return of_lane(drains)

    def first_slice_reaching(self, rows: DataFrame, watermark: Column, name: str) -> DataFrame:
        """Add column `name`: the first slice at whose end the lane's combined watermark is at least `watermark` (ms).

        The slice before the job for one that was reached by then, null for one that no slice of the job reaches.
        """
        return _first_slice([line.reached for line in self.lines], rows, F.col("lane"), watermark, name)

    def epoch_reaching(self, watermark: Callable[[Column], Column]) -> Column:
        """Of a row's lane the first epoch whose combined watermark comes to what it has to; the last one for none.

        `watermark` (ms) is asked of each epoch's number, null where it does not count.
        """
        ends = of_lane([[max(reached.values()) for reached in line.epochs] for line in self.lines], "array<bigint>")
        found = F.transform(ends, lambda end, epoch: F.when(end >= watermark(epoch), epoch))
        return F.coalesce(F.array_min(found), F.size(ends) - 1)

    def first_slice_reaching_in(self, rows: DataFrame, epoch: Column, watermark: Column, name: str) -> DataFrame:
        """`first_slice_reaching` where the watermark of one epoch counts, which is told beside each row."""
        most = max(len(line.epochs) for line in self.lines)
        reached = [{} if n >= len(line.epochs) else line.epochs[n] for line in self.lines for n in range(most)]
        return _first_slice(reached, rows, F.col("lane") * most + epoch, watermark, name)

    def first_slice_at(self, rows: DataFrame, clock: Column, name: str) -> DataFrame:
        """The same of the processing time, ms."""
        return _first_slice(self.clocks, rows, F.col("lane"), clock, name)


def _first_slice(
    reached_by_part: Sequence[Mapping[int, int]], rows: DataFrame, part: Column, level: Column, name: str
) -> DataFrame:
    """A binary search (`Bucketizer`) in doubles, each part having its own of the whole numbers that one holds.

    With one part exact for times within 142,000 years of 1970, with 500 parts within 280.
    """
    from pyspark.ml.feature import Bucketizer  # noqa: PLC0415 - a fifth of the time that a command takes to start

    half = 2**52 // len(reached_by_part)
    levels: dict[int, int | None] = {}
    for number_of_part, reached_in in enumerate(reached_by_part):
        of_part, highest = number_of_part * 2 * half, -half
        for number, reached in reached_in.items():
            highest = max(highest, min(reached, half - 1))  # a level that was reached, whatever comes after it
            levels.setdefault(of_part + highest, number)
        levels[of_part + half] = None
    place = part * (2 * half) + F.greatest(F.least(level, F.lit(half - 1)), F.lit(1 - half))
    splits = [-_INF, *map(float, levels), _INF]
    search = Bucketizer(splits=splits, inputCol="_below", outputCol="_level")
    found = search.transform(rows.withColumn("_below", (place - 1).cast("double")))
    slices = _literal([*levels.values()], "bigint")
    return found.withColumn(name, F.get(slices, F.col("_level").cast("int"))).drop("_level", "_below")


def _literal(values: Sequence[object], kind: str) -> Column:
    """One literal, which Spark parses once; an array of literals would be as many expressions."""
    return F.from_json(F.lit(json.dumps(values)), f"array<{kind}>")


def of_lane(values: Sequence[object], kind: str = "bigint") -> Column:
    """Of values of a kind, by default whole numbers, one for each lane, that of a row's."""
    return F.get(_literal(values, kind), F.col("lane").cast("int"))


def bucket_maxima(rows: DataFrame, raising: str = EVENT_TIME) -> DataFrame:
    """Greatest, least and mean event time of each bucket, and row counts: one row per bucket that holds rows.

    Rows that `where` leaves out count apart, in `left_filtered` and `right_filtered`; `oldest`, `mean` are not of them.
    `landed` counts the rows of earlier slices, `landed_from` is the earliest of those. What raises watermarks has
    its maxima in `left_raising` and `right_raising`, if it is not the event time.
    """
    is_left, moving = F.col("side") == "left", F.when(moves_watermark(), F.col("event_time"))
    raised = F.when(moves_watermark(), F.col(raising))
    by_others = {"left_raising": F.when(is_left, raised), "right_raising": F.when(~is_left, raised)}
    takes_part, read = F.col("rejected").isNull(), ~is_filtered()
    # A projection of its own is pushed into both inputs, where the side is known.
    split = rows.select(
        "bucket",
        F.when(is_left, moving).alias("left_newest"),
        F.when(~is_left, moving).alias("right_newest"),
        F.when(takes_part, F.col("event_time")).alias("oldest"),
        F.when(takes_part, F.col("event_time")).alias("mean"),
        (is_left & read).cast("int").alias("left_rows"),
        (~is_left & read).cast("int").alias("right_rows"),
        (is_left & ~read).cast("int").alias("left_filtered"),
        (~is_left & ~read).cast("int").alias("right_filtered"),
        is_rejected().cast("int").alias("rejected"),
        (F.col("floored") & takes_part).cast("int").alias("floored"),
        (F.col("owning_slice") < F.col("slice")).cast("int").alias("landed"),
        F.when(F.col("owning_slice") < F.col("slice"), F.col("owning_slice")).alias("landed_from"),
        *(value.alias(name) for name, value in by_others.items() if raising != EVENT_TIME),
    )
    combined = {"left_newest": F.max, "right_newest": F.max, "oldest": F.min, "mean": F.avg, "landed_from": F.min}
    combined |= dict.fromkeys(by_others, F.max)
    return split.groupBy("bucket").agg(
        *(combined.get(name, F.sum)(name).alias(name) for name in split.columns if name != "bucket")
    )


def by_lane(maxima: pd.DataFrame, lanes: Sequence[LaneT], buckets: Buckets) -> Iterator[tuple[LaneT, pd.DataFrame]]:
    """The buckets of each lane in turn, in order."""
    maxima = maxima.sort_values("bucket", ignore_index=True)
    per_lane = len(buckets.slices) * buckets.per_slice
    starts = np.searchsorted(maxima["bucket"], per_lane * np.arange(len(lanes) + 1))
    for lane, first, end in zip(lanes, starts, starts[1:], strict=False):
        yield lane, maxima.iloc[first:end]


def with_buckets(
    rows: DataFrame, lines: Sequence[Timeline], kinds: str = BUCKETS, *, by_side: bool = False
) -> DataFrame:
    """Set beside each row what is known of its bucket: `Timeline.buckets`, in columns of these kinds.

    `by_side` for many rows: Spark moves what later steps drop below a union of both sides, but not below a join.
    """
    table = pd.concat([line.buckets for line in lines], ignore_index=True)
    known = F.broadcast(from_pandas(rows.sparkSession, table, kinds))
    if not by_side:
        return rows.join(known, "bucket", "left")
    return reduce(DataFrame.unionByName, (_joined(rows, known, side) for side in SIDES))


def _joined(rows: DataFrame, known: DataFrame, side: str) -> DataFrame:
    """The rows of one side with what is known of their buckets."""
    fields, struct = unnested(rows, side)
    others = [name for name in rows.columns if name not in SIDES]
    flat = rows.where(F.col("side") == side).select(*others, *fields).join(known, "bucket", "left")
    told = [name for name in known.columns if name != "bucket"]
    structs = {one: F.lit(None).cast(rows.schema[one].dataType).alias(one) for one in SIDES} | {side: struct}
    return flat.select(*others, *told, *structs.values())


def _timeline(maxima: pd.DataFrame, lane: Lane, buckets: Buckets) -> Timeline:
    raised = "newest" if lane.raising == EVENT_TIME else "raising"
    left_before, left_after = _running(maxima[f"left_{raised}"], lane.lag.left, lane.before.left)
    right_before, right_after = _running(maxima[f"right_{raised}"], lane.lag.right, lane.before.right)
    before, after = np.minimum(left_before, right_before), np.minimum(left_after, right_after)
    moving = (left_before < left_after) | (right_before < right_after)
    oldest = maxima["oldest"].fillna(np.inf).to_numpy()
    table = pd.DataFrame(
        {
            "bucket": maxima["bucket"].to_numpy(),
            "left_before": left_before,
            "right_before": right_before,
            "before": before,
            "after": after,
            "moving": moving,
            "unsettled": ((before < after) | (moving & (left_before == right_before))) & (oldest <= after),
            "left_counts": True,
            "right_counts": True,
            "left_lag": lane.lag.left,
            "right_lag": lane.lag.right,
        }
    )
    slice_of = buckets.slice_of(maxima["bucket"])
    last_bucket = np.searchsorted(slice_of, np.asarray(buckets.slices), side="right")
    lefts, rights = np.append(lane.before.left, left_after), np.append(lane.before.right, right_after)
    marks = (replace(lane.before, left=int(lefts[i]), right=int(rights[i])) for i in last_bucket)
    ends = dict(zip(buckets.slices, marks, strict=True))
    if lane.drain is not None:
        ended = replace(lane.before, left=END_OF_INPUT, right=END_OF_INPUT)
        ends |= {number: ended for number in buckets.slices if number >= lane.drain}
    reached = {buckets.slices[0] - 1: lane.before.combined, **{n: marks.combined for n, marks in ends.items()}}
    table["end"] = np.array([reached[number] for number in slice_of], dtype=np.int64)
    return Timeline(table, bool((oldest <= after).any() or maxima["rejected"].any()), ends, reached)


def _running(raised: pd.Series[float], lag: int, start: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The watermark of one input before and after each bucket."""
    known = raised.notna().to_numpy()
    marks = np.full(len(raised), NO_WATERMARK, dtype=np.int64)
    marks[known] = raised.to_numpy()[known].astype(np.int64) - lag
    running = np.maximum.accumulate(np.append(np.int64(start), marks))
    return running[:-1], running[1:]
