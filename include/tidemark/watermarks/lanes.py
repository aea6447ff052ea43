"""Compute the watermarks of a lane over the slices of a job, bucket by bucket."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import ClassVar, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.config.sides import SIDES
from tidemark.spark.struct_columns import flatten_struct
from tidemark.spark.tables import from_pandas
from tidemark.timegrid.slices import Grid
from tidemark.watermarks.buckets import EVENT_TIME, Buckets, compute_bucket_statistics
from tidemark.watermarks.exact import (
    BUCKET_SCHEMA,
    advances_watermark,
    is_late_candidate,
    order_late_candidates,
    with_bucket_watermarks,
    with_exact_watermarks,
)
from tidemark.watermarks.row_status import is_filtered
from tidemark.watermarks.values import END_OF_INPUT, NO_WATERMARK, WatermarkLag, Watermarks

REJECTED_COLUMNS = [f"{side}_rejected" for side in SIDES]
"""Columns of bucket statistics that count invalid rows."""
LaneT = TypeVar("LaneT", bound="Lane")


@dataclass(frozen=True)
class Timeline:
    """The watermarks of one lane over the slices of a job."""

    buckets: pd.DataFrame
    """One row per bucket, in the columns of `exact.BUCKET_SCHEMA` (or the lane's `bucket_schema`)."""
    has_late_candidates: bool
    """True if there are rows that may be late, or that are rejected."""
    end_watermarks: dict[int, Watermarks]
    """Watermarks at the end of each slice of the job, in order."""
    combined_at_end: dict[int, int]
    """Combined watermark at the end of each slice, ms, from the slice before the job on. It fires windows and
    evicts rows. In dialect spark it is the watermark of the last batch."""
    combined_by_epoch: tuple[Mapping[int, int], ...] = ()
    """`combined_at_end` of each epoch of a restarted job (`restarted_lane`), as if the epoch had gone on."""
    epoch_at_end: Mapping[int, int] = field(default_factory=dict)
    """Number of the epoch at the end of each slice, of a restarted job."""
    before_drain: Watermarks | None = None
    """Watermarks after the last row, if the input ends in the job."""


@dataclass(frozen=True)
class Timelines:
    """The watermarks of all lanes of a job."""

    rows: DataFrame
    """The job's rows, with the numbers of `buckets`."""
    buckets: Buckets
    """The job's buckets, which may have been cut."""
    bucket_statistics: pd.DataFrame
    """One row per non-empty bucket, as from `compute_bucket_statistics`."""
    timelines: list[Timeline]


@dataclass(frozen=True)
class Lane:
    """A stream with its own watermarks. A pipeline is one lane; the conformance tests replay hundreds in one job.

    The class decides how watermarks are computed, and all lanes of a job are of one class. `joins.factory.create_lane`
    chooses it. In this base class, a row's event time less the lag may raise the watermark of its input.
    """

    lag: WatermarkLag
    initial_watermarks: Watermarks = field(default_factory=Watermarks)
    """Watermarks when the first slice starts."""
    drain: int | None = None
    """Last slice of the input; None if the input goes on. In Flink's dialects the watermark then becomes infinite and
    evicts every row."""

    end_processing_times_ms: Mapping[int, int] = field(default_factory=dict)
    """Processing time at the end of slices, ms, where it differs from the slice's end."""
    late_margin: int = 0
    """Time above the watermark up to which rows need exact watermarks, ms. It is positive if the join treats some rows
    above the watermark like late ones."""

    bucket_schema: ClassVar[str] = BUCKET_SCHEMA
    """Schema of `Timeline.buckets`."""
    watermark_column: ClassVar[str] = EVENT_TIME
    """Column that, less the lag, raises the watermark of a row's input."""
    is_determined_by_position: ClassVar[bool] = True
    """True if a row's position and the earlier increments determine the watermark at its arrival."""
    applies_to_own_row: ClassVar[bool] = False
    """True if a row meets the watermark that it has recorded, and rows at one position may meet different ones. False
    if a row raises the watermark only after its position."""

    def with_earlier_drains(self, slices: Iterable[int]) -> Self:  # noqa: ARG002
        """Return the lane with the slices after which the input has ended in an earlier run.

        Only a Spark query can continue then. In Flink's dialects, `drain` is enough.
        """
        return self

    def is_drained(self, number: int) -> bool:
        """Return True if the input ends after a slice."""
        return number == self.drain

    @classmethod
    def refine_buckets(cls, lanes: Sequence[Self], buckets: Buckets) -> Buckets:  # noqa: ARG003
        """Return buckets in which the greatest event times determine the watermarks of these lanes."""
        return buckets

    @classmethod
    def compute_timelines(cls, rows: DataFrame, lanes: Sequence[Self], buckets: Buckets) -> Timelines:
        """Compute the watermarks of the job's lanes. Reads the rows once."""
        statistics = compute_bucket_statistics(rows, cls.watermark_column).toPandas()
        timelines = [lane.compute_timeline(part, buckets) for lane, part in split_by_lane(statistics, lanes, buckets)]
        return Timelines(rows, buckets, statistics, timelines)

    def compute_timeline(self, statistics: pd.DataFrame, buckets: Buckets) -> Timeline:
        """Compute the watermarks of this lane from the statistics of its buckets."""
        return _compute_timeline(statistics, self, buckets)

    @classmethod
    def split(cls, rows: DataFrame, *, includes_all_rows: bool) -> tuple[DataFrame, DataFrame]:
        """Split rows into those surely on time and the late candidates.

        Late candidates are rejected rows and rows that may not be later than the watermark at their arrival
        (`exact.is_late_candidate`); with `includes_all_rows` all rows. Adds `left_watermark`, `right_watermark` and the
        combined `watermark` at each row's arrival (ms, long). They are exact for late candidates. Rows on time have the
        watermarks before their bucket, which like the exact ones are below the event time.

        Args:
            rows: Rows from `join_bucket_watermarks`.
            includes_all_rows: True to compute exact watermarks for every row; False only for rows that may be late. The
                rows that `where` filters are in the result only if it is True.
        """
        on_time = rows.where(~is_late_candidate(includes_all_rows=includes_all_rows) & ~is_filtered())
        candidates = order_late_candidates(rows, cls.watermark_column, includes_all_rows=includes_all_rows)
        return with_bucket_watermarks(on_time), with_exact_watermarks(candidates)

    @classmethod
    def is_ordered(cls, *, includes_all_rows: bool) -> Column:
        """Return True for the rows that `split` reads to compute exact watermarks."""
        is_candidate = is_late_candidate(includes_all_rows=includes_all_rows)
        return is_candidate | advances_watermark(cls.watermark_column, includes_all_rows=includes_all_rows)

    def newest_event_time(self, watermarks: Watermarks) -> int | None:
        """Return the greatest event time of any row so far, ms; None if watermarks do not determine it."""
        return watermarks.newest_event_time(self.lag)

    def least_combined_watermarks(
        self,
        slices: Sequence[int],
        grid: Grid,  # noqa: ARG002
        end_watermarks: Mapping[int, Watermarks],
    ) -> list[int]:
        """Return the least combined watermark within each slice of a job, from the watermarks at the slices' ends."""
        return [watermarks.combined for watermarks in [self.initial_watermarks, *end_watermarks.values()]][
            : len(slices)
        ]


def split_by_lane(
    statistics: pd.DataFrame, lanes: Sequence[LaneT], buckets: Buckets
) -> Iterator[tuple[LaneT, pd.DataFrame]]:
    """Yield each lane with the statistics of its buckets, ordered by bucket."""
    statistics = statistics.sort_values("bucket", ignore_index=True)
    per_lane = len(buckets.slices) * buckets.per_slice
    starts = np.searchsorted(statistics["bucket"], per_lane * np.arange(len(lanes) + 1))
    for lane, first, end in zip(lanes, starts, starts[1:], strict=False):
        yield lane, statistics.iloc[first:end]


def join_bucket_watermarks(
    rows: DataFrame, timelines: Sequence[Timeline], schema: str = BUCKET_SCHEMA, *, by_side: bool = False
) -> DataFrame:
    """Join rows with the watermarks of their buckets (broadcast join).

    Args:
        rows: Rows with their `bucket`.
        timelines: Timelines of all lanes.
        schema: Schema of `Timeline.buckets`.
        by_side: Join each side separately, for many rows: Spark pushes projections below a union of both sides, but not
            below a join.
    """
    table = pd.concat([timeline.buckets for timeline in timelines], ignore_index=True)
    buckets = F.broadcast(from_pandas(rows.sparkSession, table, schema))
    if not by_side:
        return rows.join(buckets, "bucket", "left")
    return reduce(DataFrame.unionByName, (_join_side(rows, buckets, side) for side in SIDES))


def _join_side(rows: DataFrame, buckets: DataFrame, side: str) -> DataFrame:
    """Join the rows of one side with the watermarks of their buckets."""
    fields, struct = flatten_struct(rows, side)
    row_columns = [name for name in rows.columns if name not in SIDES]
    flat = rows.where(F.col("side") == side).select(*row_columns, *fields).join(buckets, "bucket", "left")
    bucket_columns = [name for name in buckets.columns if name != "bucket"]
    structs = {name: F.lit(None).cast(rows.schema[name].dataType).alias(name) for name in SIDES} | {side: struct}
    return flat.select(*row_columns, *bucket_columns, *structs.values())


def _compute_timeline(statistics: pd.DataFrame, lane: Lane, buckets: Buckets) -> Timeline:
    initial = lane.initial_watermarks
    newest = "newest" if lane.watermark_column == EVENT_TIME else "newest_value"
    left_before, left_after = _running_maximum(statistics[f"left_{newest}"], lane.lag.left, initial.left)
    right_before, right_after = _running_maximum(statistics[f"right_{newest}"], lane.lag.right, initial.right)
    before, after = np.minimum(left_before, right_before), np.minimum(left_after, right_after)
    has_increment = (left_before < left_after) | (right_before < right_after)
    oldest = statistics["oldest"].fillna(np.inf).to_numpy()
    is_candidate = oldest <= after + lane.late_margin
    # Also where both inputs had the same watermark: the input that holds the combined one back may change.
    needs_order = ((before < after) | (has_increment & (left_before == right_before))) & is_candidate
    table = pd.DataFrame(
        {
            "bucket": statistics["bucket"].to_numpy(),
            "left_before": left_before,
            "right_before": right_before,
            "combined_before": before,
            "combined_after": after,
            "has_increment": has_increment,
            "needs_order": needs_order,
            "left_is_aligned": True,
            "right_is_aligned": True,
            "left_lag": lane.lag.left,
            "right_lag": lane.lag.right,
            "late_margin": lane.late_margin,
            "watermark_lead": np.maximum(
                *(statistics[f"{side}_lead"].to_numpy(dtype=np.int64) - getattr(lane.lag, side) for side in SIDES)
            ),
        }
    )
    slice_numbers = buckets.find_slices(statistics["bucket"])
    last_buckets = np.searchsorted(slice_numbers, np.asarray(buckets.slices), side="right")
    lefts, rights = np.append(initial.left, left_after), np.append(initial.right, right_after)
    watermarks = (replace(initial, left=int(lefts[i]), right=int(rights[i])) for i in last_buckets)
    end_watermarks = dict(zip(buckets.slices, watermarks, strict=True))
    before_drain = None if lane.drain is None else end_watermarks.get(lane.drain)
    if lane.drain is not None:
        at_end_of_input = replace(initial, left=END_OF_INPUT, right=END_OF_INPUT)
        end_watermarks |= {number: at_end_of_input for number in buckets.slices if number >= lane.drain}
    combined_at_end = {buckets.slices[0] - 1: initial.combined}
    combined_at_end |= {number: watermarks.combined for number, watermarks in end_watermarks.items()}
    table["end_watermark"] = np.array([combined_at_end[number] for number in slice_numbers], dtype=np.int64)
    has_late_candidates = bool(is_candidate.any() or statistics[REJECTED_COLUMNS].any(axis=None))
    return Timeline(table, has_late_candidates, end_watermarks, combined_at_end, before_drain=before_drain)


def _running_maximum(
    newest: pd.Series[float], lag: int, initial: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the watermark of one input before and after each bucket."""
    has_value = newest.notna().to_numpy()
    watermarks = np.full(len(newest), NO_WATERMARK, dtype=np.int64)
    watermarks[has_value] = newest.to_numpy()[has_value].astype(np.int64) - lag
    running = np.maximum.accumulate(np.append(np.int64(initial), watermarks))
    return running[:-1], running[1:]
