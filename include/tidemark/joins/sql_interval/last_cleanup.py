"""When Flink SQL's interval join last removed expired rows of a side, of any key: what makes very late rows skip.

The operator remembers one such time per side and shares it among all keys. A row sweeps the other side when it looks
for partners, a timer its own side. A row that comes so late that all it could find has expired looks only if no sweep
has come to the same conclusion since: nearly always one has, and which one does not matter. `Cleanups` says what does,
and which lanes have a row of which it cannot say whether it looks.
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
from tidemark.watermarks.watermarks import NO_WATERMARK, Watermarks

_ARRIVAL = ("lane", "slice", "watermark")
_BUCKET = ("lane", "slice", "bucket_number")
_SideOfSlice = tuple[int, str, int]
"""Lane, side, slice."""


@dataclass(frozen=True)
class LastCleanups:
    """The clean-ups of a job.

    Takes labelled rows: `waits` (whether cached), `now`, `expires_at`, `leaves_at`, `reached`, `asked`, `bucket_number`
    (null for carried ones), `off_the_path`, and `stale`, whether they skip their search if the other side was swept at
    `stale_at` or later. The others surely look.
    """

    watermarks: JobWatermarks
    last_cleanups: dict[_SideOfSlice, int]
    """The watermark of the last sweep of a side by the end of a slice."""
    replayed_lanes: frozenset[int]
    """Lanes that only a replay decides: their `ends` are not to be used."""
    overdue_count: int
    """How many rows outstay their time."""
    longest_overdue_ms: int
    """For how long the longest of them does, ms."""
    evicted_counts: Mapping[str, int]
    """How many rows of each side, in other lanes than `undecided` ones, are not `asked`."""

    @classmethod
    def from_rows(cls, rows: DataFrame, watermarks: JobWatermarks, filtered: DataFrame | None = None) -> LastCleanups:
        """Collect what there is to know in a small query, and in two more where rows are stale.

        Rows that are `passing` take no part, and have met watermarks.
        """
        is_removed_at_expiry = F.col("leaves_at") == F.col("expires_at")
        aggregates = {
            "now": F.max(F.when(~F.col("stale"), F.col("now"))),
            "stale_at": F.max(F.when(F.col("stale"), F.col("stale_at"))),
            "timer": F.max(F.when(is_removed_at_expiry, F.col("leaves_at"))),
            "off_the_path": F.max("off_the_path"),
            "overdue": F.count_if(~is_removed_at_expiry),
            "longest": F.max(F.col("leaves_at") - F.col("expires_at")),
            "gone": F.count_if(~F.col("asked")),
        }
        groups = rows.groupBy(*_BUCKET, "side", "eviction_slice")
        statistics = groups.agg(*(column.alias(name) for name, column in aggregates.items())).toPandas()
        new_rows, new_statistics = (
            rows.where(F.col("slice") >= watermarks.first_slice),
            statistics[statistics["slice"] >= watermarks.first_slice],
        )
        new_statistics = new_statistics.astype(
            {"bucket_number": "int64"}
        )  # carried rows, which have none, made it a double
        lookups = new_statistics.groupby([*_BUCKET, "side"], as_index=False).agg({"now": "max", "stale_at": "max"})
        pending = statistics[statistics["eviction_slice"] >= watermarks.first_slice]
        timers = pending.groupby(["lane", "side", "eviction_slice"], as_index=False).agg({"timer": "max"})
        overdue_count = int(statistics["overdue"].sum())
        arrivals = new_rows.select(*_ARRIVAL)
        if filtered is not None:
            arrivals = arrivals.unionByName(filtered.select(*_ARRIVAL))
        last_cleanups = _compute_last_cleanups(lookups, _find_timer_cleanups(arrivals, timers, watermarks), watermarks)
        replayed_lanes = set(statistics.loc[statistics["off_the_path"], "lane"]).union(
            _find_restarted_lanes(watermarks)
        )
        if lookups["stale_at"].notna().any():
            replayed_lanes |= set(
                _find_undecided_lanes(
                    rows, new_rows, lookups, last_cleanups, watermarks, has_overdue_rows=bool(overdue_count)
                )
            )
        longest_overdue_ms = int(statistics["longest"].max()) if overdue_count else 0
        counts = statistics[~statistics["lane"].isin(replayed_lanes)].groupby("side")["gone"].sum()
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
        """Whether a row is of a lane that a closed form decides."""
        return ~F.col("lane").isin(*self.replayed_lanes)

    def to_timelines(self, replayed_cleanups: dict[_SideOfSlice, int]) -> list[Timeline]:
        """The timelines with the clean-ups known by each slice's end; `replayed` are those of undecided lanes."""
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
    """Lanes whose job restarts in these slices: rows that a timer removes by one watermark outlive a lower one."""
    yield from (lane for lane, timeline in enumerate(watermarks.timelines) if len(timeline.combined_by_epoch) > 1)


def _find_timer_cleanups(
    arrivals: DataFrame, timers: pd.DataFrame, watermarks: JobWatermarks
) -> dict[_SideOfSlice, int]:
    """The watermark at which the last timer of a side fired in a slice, where one did."""
    timers = timers.dropna(subset="timer")
    if timers.empty:
        return {}
    timers = timers.rename(columns={"side": "timer_side", "eviction_slice": "slice"})
    last_timers = timers[["lane", "timer_side", "slice", "timer"]].astype({"slice": "int64", "timer": "int64"})
    schema = "lane long, timer_side string, slice long, timer long"
    timers_of_slices = from_pandas(arrivals.sparkSession, last_timers, schema)
    arrivals_after_timer = arrivals.join(F.broadcast(timers_of_slices), ["lane", "slice"]).where(
        F.col("watermark") >= F.col("timer")
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
    latest = lookups.dropna(subset="now").groupby(["lane", "side", "slice"])["now"].max()
    last_lookups = {point: int(now) for point, now in latest.items()}
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
    """The last sweep of each side before the job."""
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
    """Lanes with a stale row that may look, if that could find something, or be a slice's last sweep."""
    doubtful = _find_doubtful_rows(new_rows, lookups, watermarks)
    if doubtful is None:
        return
    doubtful = materialize(doubtful)
    latest = doubtful.groupBy("lane", "side", "slice").agg(F.max("now")).collect()
    yield from (
        lane for lane, side, slice_number, now in latest if now > last_cleanups[lane, OTHER[side], slice_number]
    )
    if latest and has_overdue_rows:
        keys = key_columns(rows)
        overdue_rows = rows.where(F.col("leaves_at") > F.col("expires_at"))
        overdue_columns = overdue_rows.select("side", "expires_at", "leaves_at", *keys).withColumnsRenamed(
            {name: f"_{name}" for name in ("side", *keys)}
        )
        is_same_key: Column = reduce(Column.__and__, (F.col(key).eqNullSafe(F.col(f"_{key}")) for key in keys))
        is_in_cache = (F.col("now") >= F.col("expires_at")) & (F.col("now") < F.col("leaves_at"))
        undecided_rows = doubtful.select("lane", "side", "now", *keys).join(
            overdue_columns, is_same_key & (F.col("side") != F.col("_side")) & is_in_cache, "semi"
        )
        yield from (row["lane"] for row in undecided_rows.select("lane").distinct().collect())


def _find_doubtful_rows(new_rows: DataFrame, lookups: pd.DataFrame, watermarks: JobWatermarks) -> DataFrame | None:
    """Stale rows before which no row that surely looks has swept the other side late enough; None for none.

    Buckets are accumulated here. That tells of nearly all; where it does not, a bucket's rows are put in order.
    """
    lookups = lookups.sort_values("bucket_number")
    by_side = [lookups["lane"], lookups["side"]]
    initial_cleanups = {
        (lane, OTHER[side]): initial_cleanup
        for lane, timeline in enumerate(watermarks.timelines)
        for side, initial_cleanup in _get_initial_cleanups(timeline)
    }
    initial_cleanup = pd.Series(initial_cleanups).reindex(pd.MultiIndex.from_arrays(by_side)).to_numpy()
    last_lookup = lookups["now"].astype("Int64").fillna(NO_WATERMARK).groupby(by_side).cummax()
    cleanup_before = (
        last_lookup.groupby(by_side).shift(fill_value=NO_WATERMARK).clip(lower=initial_cleanup).astype("int64")
    )
    lookups = lookups.assign(cleanup_before=cleanup_before)
    stale_buckets = lookups.loc[lookups["stale_at"] > cleanup_before, ["bucket_number", "side", "cleanup_before"]]
    if stale_buckets.empty:
        return None
    bucket_cleanups = from_pandas(
        new_rows.sparkSession, stale_buckets, "bucket_number long, side string, cleanup_before long"
    )
    arrival_window = Window.partitionBy("bucket_number", "side").orderBy("clock", "tiebreak", "now", "event_time")
    earlier_rows = arrival_window.rowsBetween(Window.unboundedPreceding, -1)
    last_cleanup = F.greatest("cleanup_before", F.max(F.when(~F.col("stale"), F.col("now"))).over(earlier_rows))
    keys = key_columns(new_rows)
    labels = ("lane", "slice", "bucket_number", "side", "clock", "tiebreak", "event_time", "now", "stale", "stale_at")
    stale_bucket_rows = new_rows.select(*labels, *keys).join(F.broadcast(bucket_cleanups), ["bucket_number", "side"])
    return stale_bucket_rows.withColumn("swept", last_cleanup).where(
        F.col("stale") & (F.col("swept") < F.col("stale_at"))
    )
