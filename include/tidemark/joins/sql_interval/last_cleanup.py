"""Track the last cleanup of each side, which makes extremely late rows skip their lookup.

A cleanup removes expired rows of one side and key: of the other side at a lookup, of its own side when a timer fires.
The operator has a single field per side for the operator time of the last cleanup, shared by all keys. A row skips its
lookup if that field shows that all rows it could match have been removed.

This is a recurrence over rows of all keys, because a lookup that is skipped is no cleanup. It seldom matters. A row
that is not that late always looks up, and nearly always such a lookup before an extremely late row proves that it
skips. `LastCleanups` finds the rows for which there is no proof. Their lanes are replayed if such a row would find an
overdue row, or would be the last cleanup of its slice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce

import pandas as pd
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidemark.config.sides import OTHER
from tidemark.joins.keys import key_columns
from tidemark.spark.materialization import materialize
from tidemark.spark.tables import from_pandas
from tidemark.watermarks.job_watermarks import JobWatermarks
from tidemark.watermarks.lanes import Timeline
from tidemark.watermarks.values import NO_WATERMARK, Watermarks

_ARRIVAL = ("lane", "slice", "watermark")
_BUCKET = ("lane", "slice", "bucket_number")
_SideOfSlice = tuple[int, str, int]
"""Lane, side and slice."""


@dataclass(frozen=True)
class LastCleanups:
    """The last cleanups of a job, and the lanes without a closed form."""

    watermarks: JobWatermarks
    last_cleanups: dict[_SideOfSlice, int]
    """Operator time of a side's last cleanup by the end of a slice; wrong for `replayed_lanes`."""
    replayed_lanes: frozenset[int]
    """Lanes that must be replayed."""
    overdue_count: int
    """Number of overdue rows."""
    longest_overdue_ms: int
    """Longest time from expiry to cleanup of an overdue row, ms."""
    evicted_counts: Mapping[str, int]
    """Number of rows by side, in lanes with a closed form, that are not tracked."""

    @classmethod
    def from_rows(cls, rows: DataFrame, watermarks: JobWatermarks, filtered: DataFrame | None = None) -> LastCleanups:
        """Collect the cleanups of a job: in one aggregation, and two more queries if rows may skip their lookup.

        Args:
            rows: Rows with the labels of `SqlIntervalJoin`, and `bucket_number`, which is null for carried rows.
            watermarks: The watermarks of the job.
            filtered: Rows that take no part in the join, but advance watermarks, so that timers fire before them.
        """
        # Timers are set for rows that are removed when they expire. An overdue row is removed by the timer of another
        # row.
        is_removed_at_expiry = F.col("cleanup_time") == F.col("expires_at")
        aggregates = {
            "operator_time": F.max(F.when(~F.col("may_skip_lookup"), F.col("operator_time"))),
            "lookup_skipped_at": F.max(F.when(F.col("may_skip_lookup"), F.col("lookup_skipped_at"))),
            "last_timer": F.max(F.when(is_removed_at_expiry, F.col("cleanup_time"))),
            "requires_replay": F.max("requires_replay"),
            "overdue_count": F.count_if(~is_removed_at_expiry),
            "longest_overdue_ms": F.max(F.col("cleanup_time") - F.col("expires_at")),
            "evicted_count": F.count_if(~F.col("is_tracked")),
        }
        groups = rows.groupBy(*_BUCKET, "side", "eviction_slice")
        statistics = groups.agg(*(column.alias(name) for name, column in aggregates.items())).toPandas()
        new_rows = rows.where(F.col("slice") >= watermarks.first_slice)
        new_statistics = statistics[statistics["slice"] >= watermarks.first_slice]
        # Carried rows have no bucket number, so that the column is a double.
        new_statistics = new_statistics.astype({"bucket_number": "int64"})
        lookups = new_statistics.groupby([*_BUCKET, "side"], as_index=False).agg(
            {"operator_time": "max", "lookup_skipped_at": "max"}
        )
        pending = statistics[statistics["eviction_slice"] >= watermarks.first_slice]
        timers = pending.groupby(["lane", "side", "eviction_slice"], as_index=False).agg({"last_timer": "max"})
        overdue_count = int(statistics["overdue_count"].sum())
        arrivals = new_rows.select(*_ARRIVAL)
        if filtered is not None:
            arrivals = arrivals.unionByName(filtered.select(*_ARRIVAL))
        last_cleanups = _compute_last_cleanups(lookups, _find_timer_cleanups(arrivals, timers, watermarks), watermarks)
        row_by_row_lanes = statistics.loc[statistics["requires_replay"], "lane"]
        replayed_lanes = set(row_by_row_lanes).union(_find_restarted_lanes(watermarks))
        if lookups["lookup_skipped_at"].notna().any():
            replayed_lanes |= set(
                _find_undecided_lanes(
                    rows, new_rows, lookups, last_cleanups, watermarks, has_overdue_rows=bool(overdue_count)
                )
            )
        longest_overdue_ms = int(statistics["longest_overdue_ms"].max()) if overdue_count else 0
        counts = statistics[~statistics["lane"].isin(replayed_lanes)].groupby("side")["evicted_count"].sum()
        evicted_counts = {str(side): int(rows) for side, rows in counts.items()}
        return cls(
            watermarks,
            last_cleanups,
            frozenset(map(int, replayed_lanes)),
            overdue_count,
            longest_overdue_ms,
            evicted_counts,
        )

    @property
    def has_closed_form(self) -> Column:
        """True for a row of a lane with a closed form."""
        return ~F.col("lane").isin(*self.replayed_lanes)

    def to_timelines(self, replayed_cleanups: dict[_SideOfSlice, int]) -> list[Timeline]:
        """Return the timelines with the last cleanups by the end of each slice.

        Args:
            replayed_cleanups: Last cleanups of the replayed lanes.
        """
        last_cleanups = {**self.last_cleanups, **replayed_cleanups}

        def with_last_cleanups(lane: int, slice_number: int, watermarks: Watermarks) -> Watermarks:
            left, right = (last_cleanups[lane, side, slice_number] for side in OTHER)
            return replace(watermarks, left_last_cleanup=left, right_last_cleanup=right)

        return [
            replace(
                timeline,
                end_watermarks={
                    n: with_last_cleanups(lane, n, watermarks) for n, watermarks in timeline.end_watermarks.items()
                },
            )
            for lane, timeline in enumerate(self.watermarks.timelines)
        ]


def _find_restarted_lanes(watermarks: JobWatermarks) -> Iterator[int]:
    """Yield lanes that restart in the job.

    The watermark of the new epoch may be lower, so that rows are removed later than by the closed form.
    """
    yield from (lane for lane, timeline in enumerate(watermarks.timelines) if len(timeline.combined_by_epoch) > 1)


def _find_timer_cleanups(
    arrivals: DataFrame, timers: pd.DataFrame, watermarks: JobWatermarks
) -> dict[_SideOfSlice, int]:
    """Find the watermark at which a side's last timer fired in each slice with one.

    A timer fires at the first watermark that reaches its time: that of an arrival, or else of the slice's end.
    """
    timers = timers.dropna(subset="last_timer")
    if timers.empty:
        return {}
    timers = timers.rename(columns={"side": "timer_side", "eviction_slice": "slice"})
    last_timers = timers[["lane", "timer_side", "slice", "last_timer"]].astype(
        {"slice": "int64", "last_timer": "int64"}
    )
    schema = "lane long, timer_side string, slice long, last_timer long"
    timers_of_slices = from_pandas(arrivals.sparkSession, last_timers, schema)
    arrivals_after_timer = arrivals.join(F.broadcast(timers_of_slices), ["lane", "slice"]).where(
        F.col("watermark") >= F.col("last_timer")
    )
    first_watermarks = arrivals_after_timer.groupBy("lane", "timer_side", "slice").agg(F.min("watermark")).collect()
    first_watermark = {
        (lane, side, slice_number): watermark for lane, side, slice_number, watermark in first_watermarks
    }
    points = last_timers[["lane", "timer_side", "slice"]].itertuples(index=False, name=None)
    return {
        point: first_watermark.get(point, watermarks.timelines[point[0]].combined_at_end[point[2]]) for point in points
    }


def _compute_last_cleanups(
    lookups: pd.DataFrame, timer_cleanups: dict[_SideOfSlice, int], watermarks: JobWatermarks
) -> dict[_SideOfSlice, int]:
    latest_lookups = lookups.dropna(subset="operator_time").groupby(["lane", "side", "slice"])["operator_time"].max()
    last_lookups = {point: int(operator_time) for point, operator_time in latest_lookups.items()}
    last_cleanups = {}
    for lane, timeline in enumerate(watermarks.timelines):
        for side, initial_cleanup in _get_initial_cleanups(timeline):
            last_cleanup = initial_cleanup
            for slice_number in timeline.end_watermarks:
                last_lookup = last_lookups.get((lane, OTHER[side], slice_number), NO_WATERMARK)
                timer_cleanup = timer_cleanups.get((lane, side, slice_number), NO_WATERMARK)
                last_cleanup = max(last_cleanup, last_lookup, timer_cleanup)
                last_cleanups[lane, side, slice_number] = last_cleanup
    return last_cleanups


def _get_initial_cleanups(timeline: Timeline) -> Iterator[tuple[str, int]]:
    """Yield the last cleanup of each side before the job."""
    initial = timeline.end_watermarks[min(timeline.end_watermarks)]
    yield "left", initial.left_last_cleanup
    yield "right", initial.right_last_cleanup


def _find_undecided_lanes(
    rows: DataFrame,
    new_rows: DataFrame,
    lookups: pd.DataFrame,
    last_cleanups: dict[_SideOfSlice, int],
    watermarks: JobWatermarks,
    *,
    has_overdue_rows: bool,
) -> Iterator[int]:
    """Yield lanes with a doubtful lookup that would find an overdue row or be the last cleanup of its slice.

    Args:
        rows: All labelled rows.
        new_rows: Those of the job's slices.
        lookups: By bucket and side: the latest `operator_time` of rows that look up in any case, and the greatest
            `lookup_skipped_at` of those that may skip.
        last_cleanups: Last cleanups by the end of each slice, without doubtful lookups.
        watermarks: The watermarks of the job.
        has_overdue_rows: False if no row is overdue.
    """
    doubtful_rows = _find_doubtful_rows(new_rows, lookups, watermarks)
    if doubtful_rows is None:
        return
    doubtful_rows = materialize(doubtful_rows)
    latest_lookups = doubtful_rows.groupBy("lane", "side", "slice").agg(F.max("operator_time")).collect()
    yield from (
        lane
        for lane, side, slice_number, operator_time in latest_lookups
        if operator_time > last_cleanups[lane, OTHER[side], slice_number]
    )
    if latest_lookups and has_overdue_rows:
        keys = key_columns(rows)
        overdue_rows = rows.where(F.col("cleanup_time") > F.col("expires_at"))
        overdue_columns = overdue_rows.select("side", "expires_at", "cleanup_time", *keys).withColumnsRenamed(
            {name: f"_{name}" for name in ("side", *keys)}
        )
        is_same_key: Column = reduce(Column.__and__, (F.col(key).eqNullSafe(F.col(f"_{key}")) for key in keys))
        is_in_cache = (F.col("operator_time") >= F.col("expires_at")) & (F.col("operator_time") < F.col("cleanup_time"))
        undecided_rows = doubtful_rows.select("lane", "side", "operator_time", *keys).join(
            overdue_columns, is_same_key & (F.col("side") != F.col("_side")) & is_in_cache, "semi"
        )
        yield from (row["lane"] for row in undecided_rows.select("lane").distinct().collect())


def _find_doubtful_rows(new_rows: DataFrame, lookups: pd.DataFrame, watermarks: JobWatermarks) -> DataFrame | None:
    """Find rows of which it is not certain that they skip their lookup; None if there are none.

    A row certainly skips if an earlier row of its side, which looks up in any case, did so at `lookup_skipped_at` or
    later. A running maximum over buckets, in pandas, proves this for nearly all rows. Rows of the remaining buckets are
    sorted by arrival, in Spark.
    """
    lookups = lookups.sort_values("bucket_number")
    lane_and_side = [lookups["lane"], lookups["side"]]
    initial_cleanups = {
        (lane, OTHER[side]): initial_cleanup
        for lane, timeline in enumerate(watermarks.timelines)
        for side, initial_cleanup in _get_initial_cleanups(timeline)
    }
    initial_cleanup = pd.Series(initial_cleanups).reindex(pd.MultiIndex.from_arrays(lane_and_side)).to_numpy()
    last_lookup = lookups["operator_time"].astype("Int64").fillna(NO_WATERMARK).groupby(lane_and_side).cummax()
    cleanup_before = (
        last_lookup.groupby(lane_and_side).shift(fill_value=NO_WATERMARK).clip(lower=initial_cleanup).astype("int64")
    )
    lookups = lookups.assign(cleanup_before=cleanup_before)
    undecided_buckets = lookups.loc[
        lookups["lookup_skipped_at"] > cleanup_before, ["bucket_number", "side", "cleanup_before"]
    ]
    if undecided_buckets.empty:
        return None
    bucket_cleanups = from_pandas(
        new_rows.sparkSession, undecided_buckets, "bucket_number long, side string, cleanup_before long"
    )
    arrival_window = Window.partitionBy("bucket_number", "side").orderBy(
        "clock", "tiebreak", "operator_time", "event_time"
    )
    earlier_rows = arrival_window.rowsBetween(Window.unboundedPreceding, -1)
    last_cleanup = F.greatest(
        "cleanup_before", F.max(F.when(~F.col("may_skip_lookup"), F.col("operator_time"))).over(earlier_rows)
    )
    keys = key_columns(new_rows)
    labels = (
        "lane",
        "slice",
        "bucket_number",
        "side",
        "clock",
        "tiebreak",
        "event_time",
        "operator_time",
        "may_skip_lookup",
        "lookup_skipped_at",
    )
    bucket_rows = new_rows.select(*labels, *keys).join(F.broadcast(bucket_cleanups), ["bucket_number", "side"])
    return bucket_rows.withColumn("last_cleanup", last_cleanup).where(
        F.col("may_skip_lookup") & (F.col("last_cleanup") < F.col("lookup_skipped_at"))
    )
