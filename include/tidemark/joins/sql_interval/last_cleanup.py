"""Track the last cleanup of each side, which makes extremely late rows skip their lookup.

A cleanup removes expired rows of one side and key: of the other side at a lookup, of its own side when a timer fires.
The operator has a single field per side for the operator time of the last cleanup, shared by all keys. A row skips its
lookup if all its possible partners have expired by that time, even if some of them are still cached.

This is a recurrence over rows of all keys, because a lookup that is skipped is no cleanup. It seldom matters. A row
that is not that late always looks up: its lookup is certain. Nearly always a certain lookup before an extremely late
row proves that it skips its own. `LastCleanups` finds the rows for which there is no proof, whose lookups are
undecided. Their lanes are simulated if such a row would find an overdue row, or would be the last cleanup of its slice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pandas as pd
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidemark.config.sides import OTHER, SIDES
from tidemark.joins.base import ExactRows, RowTransform
from tidemark.joins.keys import has_equal_columns, key_columns
from tidemark.joins.sql_interval.arrival_order import ARRIVAL_ORDER_OF_SIDE
from tidemark.joins.sql_interval.overdue_rows import OverdueRows, is_overdue
from tidemark.spark.materialization import materialize
from tidemark.spark.tables import from_pandas
from tidemark.timegrid.time_columns import trunc_div
from tidemark.watermarks.job_watermarks import JobWatermarks
from tidemark.watermarks.lanes import Timeline
from tidemark.watermarks.recorded_watermark_lane import PRECEDING_WATERMARK
from tidemark.watermarks.values import NO_WATERMARK, Watermarks

_ARRIVAL = ("lane", "slice", "watermark")
_BUCKET = ("lane", "slice", "bucket_number")
_MAX_SECONDS = 10_000
"""Maximum number of seconds in an IN list."""
_SideOfSlice = tuple[int, str, int]
"""Lane, side and slice."""


@dataclass(frozen=True)
class LastCleanups:
    """The last cleanups of a job, and the lanes without a closed form."""

    watermarks: JobWatermarks
    last_cleanups: dict[_SideOfSlice, int]
    """Operator time of a side's last cleanup by the end of a slice; wrong for `simulated_lanes`."""
    simulated_lanes: frozenset[int]
    """Lanes that must be simulated."""

    @classmethod
    def from_rows(
        cls, rows: DataFrame, watermarks: JobWatermarks, filtered: DataFrame | None
    ) -> tuple[LastCleanups, int]:
        """Collect the cleanups of a small job: in one aggregation, and two more queries if rows may skip their lookup.

        Args:
            rows: All rows with their labels, and `bucket_number`, which is null for carried rows.
            watermarks: The watermarks of the job.
            filtered: Rows that take no part in the join, but advance watermarks, so that timers fire before them.

        Returns:
            The cleanups, and the number of overdue rows.
        """
        # Timers are set for rows that are removed when they expire. An overdue row is removed by the timer of another
        # row.
        is_removed_at_expiry = F.col("cleanup_time") == F.col("expires_at")
        aggregates = {
            "operator_time": F.max(F.when(~F.col("may_skip_lookup"), F.col("operator_time"))),
            "lookup_skipped_at": F.max(F.when(F.col("may_skip_lookup"), F.col("lookup_skipped_at"))),
            "last_timer": F.max(F.when(is_removed_at_expiry, F.col("cleanup_time"))),
            "requires_simulation": F.max("requires_simulation"),
            "overdue_count": F.count_if(~is_removed_at_expiry),
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
        arrivals = _select_watermarks(new_rows)
        if filtered is not None:
            arrivals = arrivals.unionByName(_select_watermarks(filtered))
        last_cleanups = _compute_last_cleanups(lookups, _find_timer_cleanups(arrivals, timers, watermarks), watermarks)
        simulated_lanes = set(statistics.loc[statistics["requires_simulation"], "lane"])
        simulated_lanes |= _find_restarted_lanes(watermarks)
        overdue_count = int(statistics["overdue_count"].sum())
        undecided_buckets = _find_undecided_buckets(lookups, watermarks)
        if not undecided_buckets.empty:
            undecided_rows = _find_undecided_rows(new_rows, undecided_buckets)
            overdue_rows = rows.where(is_overdue()) if overdue_count else None
            simulated_lanes |= set(_find_undecided_lanes(undecided_rows, overdue_rows, last_cleanups))
        return cls(watermarks, last_cleanups, frozenset(map(int, simulated_lanes))), overdue_count

    @classmethod
    def from_selected_rows(
        cls,
        rows: DataFrame,
        late_rows: DataFrame,
        overdue_rows: OverdueRows | None,
        watermarks: JobWatermarks,
        exact_rows: ExactRows,
        label: RowTransform,
        simulated_lanes: set[int],
    ) -> LastCleanups:
        """Collect the cleanups of a large job from the watermarks of its buckets, and from the rows of some buckets.

        The watermark before a bucket is a lower bound of the operator time of its lookups. It proves for most late rows
        that they skip their lookup. Exact watermarks are needed for the rows of the other buckets, and of the buckets
        that end a slice.

        Args:
            rows: All rows with their labels. Those of rows on time may be computed from the watermark before their
                bucket.
            late_rows: The late rows, with exact watermarks.
            overdue_rows: Rows that are overdue, as far as it matters; None for none.
            watermarks: The watermarks of the job.
            exact_rows: Access to rows with exact watermarks.
            label: Function that adds the labels to rows with exact watermarks.
            simulated_lanes: Lanes with a row that requires a simulation.
        """
        lookups = _bound_lookups(late_rows, exact_rows.buckets)
        undecided_buckets = _find_undecided_buckets(lookups, watermarks)
        ordered_buckets = {*undecided_buckets["bucket_number"], *_find_last_lookups(lookups)["bucket_number"]}
        arrivals = materialize(_select_bucket_rows(exact_rows, ordered_buckets))
        bucket_rows = label(arrivals.where(F.col("rejected").isNull()))
        lookups = _with_exact_operator_times(lookups, bucket_rows)
        timers = _find_timers_after_last_lookup(
            rows, overdue_rows, _compute_last_cleanups(lookups, {}, watermarks), watermarks
        )
        if missing_buckets := _find_crossing_buckets(timers, exact_rows.buckets) - ordered_buckets:
            arrivals = arrivals.unionByName(_select_bucket_rows(exact_rows, missing_buckets))
        before_buckets = exact_rows.buckets.rename(columns={"combined_before": "watermark"})[list(_ARRIVAL)]
        first_arrivals = from_pandas(rows.sparkSession, before_buckets, "lane long, slice long, watermark long")
        timer_cleanups = _find_timer_cleanups(
            arrivals.select(*_ARRIVAL).unionByName(first_arrivals), timers, watermarks
        )
        last_cleanups = _compute_last_cleanups(lookups, timer_cleanups, watermarks)
        simulated_lanes = simulated_lanes.union(_find_restarted_lanes(watermarks))
        if not undecided_buckets.empty:
            undecided_rows = _find_undecided_rows(bucket_rows, undecided_buckets)
            all_overdue = None if overdue_rows is None else overdue_rows.rows
            simulated_lanes |= set(_find_undecided_lanes(undecided_rows, all_overdue, last_cleanups))
        return cls(watermarks, last_cleanups, frozenset(map(int, simulated_lanes)))

    @property
    def has_closed_form(self) -> Column:
        """True for a row of a lane with a closed form."""
        return ~F.col("lane").isin(*self.simulated_lanes)

    def to_timelines(self, simulated_cleanups: dict[_SideOfSlice, int]) -> list[Timeline]:
        """Return the timelines with the last cleanups by the end of each slice.

        Args:
            simulated_cleanups: Last cleanups of the simulated lanes.
        """
        last_cleanups = {**self.last_cleanups, **simulated_cleanups}

        def with_last_cleanups(lane: int, slice_number: int, watermarks: Watermarks) -> Watermarks:
            left, right = (last_cleanups[lane, side, slice_number] for side in SIDES)
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


def _select_watermarks(rows: DataFrame) -> DataFrame:
    """Select the watermarks at the arrival of rows, and right before these raised them by records of their own."""
    if PRECEDING_WATERMARK not in rows.columns:
        return rows.select(*_ARRIVAL)
    watermarks = F.explode(F.array_distinct(F.array("watermark", PRECEDING_WATERMARK)))
    return rows.select("lane", "slice", watermarks.alias("watermark"))


def _find_restarted_lanes(watermarks: JobWatermarks) -> set[int]:
    """Find lanes that restart in the job.

    The watermark of the new epoch may be lower, so that rows are removed later than by the closed form.
    """
    return {lane for lane, timeline in enumerate(watermarks.timelines) if len(timeline.combined_by_epoch) > 1}


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
    for number, (lane, timeline) in enumerate(zip(watermarks.lanes, watermarks.timelines, strict=True)):
        for side, initial_cleanup in lane.initial_watermarks.last_cleanups.items():
            last_cleanup = initial_cleanup
            for slice_number in timeline.end_watermarks:
                last_lookup = last_lookups.get((number, OTHER[side], slice_number), NO_WATERMARK)
                timer_cleanup = timer_cleanups.get((number, side, slice_number), NO_WATERMARK)
                last_cleanup = max(last_cleanup, last_lookup, timer_cleanup)
                last_cleanups[number, side, slice_number] = last_cleanup
    return last_cleanups


def _find_undecided_lanes(
    undecided_rows: DataFrame, overdue_rows: DataFrame | None, last_cleanups: dict[_SideOfSlice, int]
) -> Iterator[int]:
    """Yield lanes with an undecided lookup that would find an overdue row or be the last cleanup of its slice.

    Args:
        undecided_rows: Rows of which it is not certain that they skip their lookup.
        overdue_rows: The overdue rows; None for none.
        last_cleanups: Last cleanups by the end of each slice, without undecided lookups.
    """
    undecided_rows = materialize(undecided_rows)
    latest_lookups = undecided_rows.groupBy("lane", "side", "slice").agg(F.max("operator_time")).collect()
    yield from (
        lane
        for lane, side, slice_number, operator_time in latest_lookups
        if operator_time > last_cleanups[lane, OTHER[side], slice_number]
    )
    if latest_lookups and overdue_rows is not None:
        keys = key_columns(undecided_rows)
        overdue_columns = overdue_rows.select("side", "expires_at", "cleanup_time", *keys).withColumnsRenamed(
            {name: f"_{name}" for name in ("side", *keys)}
        )
        is_in_cache = (F.col("operator_time") >= F.col("expires_at")) & (F.col("operator_time") < F.col("cleanup_time"))
        finding_rows = undecided_rows.select("lane", "side", "operator_time", *keys).join(
            overdue_columns, has_equal_columns(keys) & (F.col("side") != F.col("_side")) & is_in_cache, "semi"
        )
        yield from (row["lane"] for row in finding_rows.select("lane").distinct().collect())


def _find_undecided_buckets(lookups: pd.DataFrame, watermarks: JobWatermarks) -> pd.DataFrame:
    """Find the buckets with rows for which the lookups of earlier buckets do not prove that they skip their own.

    A row certainly skips if an earlier row of its side, which looks up in any case, did so at `lookup_skipped_at` or
    later. The running maximum over buckets proves this for nearly all rows.

    Args:
        lookups: By bucket and side: the latest `operator_time` of rows that look up in any case, or a lower bound of
            it, and the greatest `lookup_skipped_at` of those that may skip.
        watermarks: The watermarks of the job.

    Returns:
        Columns `bucket_number`, `side`, and `cleanup_before`: the last cleanup of the other side before the bucket.
    """
    lookups = lookups.sort_values("bucket_number")
    lane_and_side = [lookups["lane"], lookups["side"]]
    initial_cleanups = {
        (number, OTHER[side]): initial_cleanup
        for number, lane in enumerate(watermarks.lanes)
        for side, initial_cleanup in lane.initial_watermarks.last_cleanups.items()
    }
    initial_cleanup = pd.Series(initial_cleanups).reindex(pd.MultiIndex.from_arrays(lane_and_side)).to_numpy()
    last_lookup = lookups["operator_time"].astype("Int64").fillna(NO_WATERMARK).groupby(lane_and_side).cummax()
    cleanup_before = (
        last_lookup.groupby(lane_and_side).shift(fill_value=NO_WATERMARK).clip(lower=initial_cleanup).astype("int64")
    )
    lookups = lookups.assign(cleanup_before=cleanup_before)
    return lookups.loc[lookups["lookup_skipped_at"] > cleanup_before, ["bucket_number", "side", "cleanup_before"]]


def _find_undecided_rows(rows: DataFrame, undecided_buckets: pd.DataFrame) -> DataFrame:
    """Find the rows of undecided buckets of which it is not certain that they skip their lookup.

    Args:
        rows: Rows with exact watermarks and their labels: at least those of the undecided buckets and sides.
        undecided_buckets: Result of `_find_undecided_buckets`.
    """
    bucket_cleanups = from_pandas(
        rows.sparkSession, undecided_buckets, "bucket_number long, side string, cleanup_before long"
    )
    arrival_window = Window.partitionBy("bucket_number", "side").orderBy(*ARRIVAL_ORDER_OF_SIDE)
    earlier_rows = arrival_window.rowsBetween(Window.unboundedPreceding, -1)
    last_cleanup = F.greatest(
        "cleanup_before", F.max(F.when(~F.col("may_skip_lookup"), F.col("operator_time"))).over(earlier_rows)
    )
    labels = (
        "lane",
        "slice",
        "bucket_number",
        "side",
        *ARRIVAL_ORDER_OF_SIDE,
        "operator_time",
        "may_skip_lookup",
        "lookup_skipped_at",
    )
    bucket_rows = rows.select(*labels, *key_columns(rows)).join(F.broadcast(bucket_cleanups), ["bucket_number", "side"])
    return bucket_rows.withColumn("last_cleanup", last_cleanup).where(
        F.col("may_skip_lookup") & (F.col("last_cleanup") < F.col("lookup_skipped_at"))
    )


def _bound_lookups(late_rows: DataFrame, buckets: pd.DataFrame) -> pd.DataFrame:
    """Return by bucket and side the least operator time of lookups, and their greatest `lookup_skipped_at`."""
    skipping = (
        late_rows.where("may_skip_lookup")
        .groupBy("bucket_number", "side")
        .agg(F.max("lookup_skipped_at").alias("lookup_skipped_at"), F.count("*").alias("may_skip"))
    )
    operator_time = buckets["combined_before"].clip(lower=0)
    columns = [*_BUCKET, "rows", "operator_time", "side"]
    by_side = [
        buckets.assign(side=side, rows=buckets[f"{side}_participating"], operator_time=operator_time)[columns]
        for side in SIDES
    ]
    lookups = pd.concat(by_side).merge(skipping.toPandas(), how="left", on=["bucket_number", "side"])
    has_certain_lookup = lookups["rows"] > lookups["may_skip"].fillna(0)
    lookups["operator_time"] = lookups["operator_time"].astype("Int64").where(has_certain_lookup)
    return lookups[lookups["rows"] > 0]


def _find_last_lookups(lookups: pd.DataFrame) -> pd.DataFrame:
    """Find the bucket with the last certain lookup of each side and slice."""
    certain = lookups.dropna(subset="operator_time")
    return certain.groupby(["lane", "side", "slice"], as_index=False).agg({"bucket_number": "max"})


def _select_bucket_rows(exact_rows: ExactRows, bucket_numbers: set[int]) -> DataFrame:
    """Select all rows of some buckets, without their content, with exact watermarks."""
    numbers = pd.DataFrame({"bucket_number": sorted(map(int, bucket_numbers))}, dtype="int64")

    def select_buckets(rows: DataFrame) -> DataFrame:
        buckets = F.broadcast(from_pandas(rows.sparkSession, numbers, "bucket_number long"))
        return rows.join(buckets, "bucket_number", "left_semi")

    return exact_rows.select(lambda rows: rows.drop("left", "right"), select_buckets)


def _with_exact_operator_times(lookups: pd.DataFrame, bucket_rows: DataFrame) -> pd.DataFrame:
    """Replace the lower bounds of some buckets by the exact operator time of their last certain lookup."""
    certain = bucket_rows.where(~F.col("may_skip_lookup"))
    exact = certain.groupBy("bucket_number", "side").agg(F.max("operator_time").alias("exact")).toPandas()
    lookups = lookups.merge(exact, how="left", on=["bucket_number", "side"])
    return lookups.assign(operator_time=lookups["exact"].astype("Int64").fillna(lookups["operator_time"]))


def _find_timers_after_last_lookup(
    rows: DataFrame,
    overdue_rows: OverdueRows | None,
    lookup_cleanups: dict[_SideOfSlice, int],
    watermarks: JobWatermarks,
) -> pd.DataFrame:
    """Find the last timer of each side and slice that fires after the last lookup of the other side in the slice.

    No other timer can be the last cleanup.

    Returns:
        Columns `lane`, `side`, `eviction_slice` and `last_timer`.
    """
    limits = pd.DataFrame(
        [
            (lane, side, slice_number, after)
            for (lane, side, slice_number), after in lookup_cleanups.items()
            if watermarks.timelines[lane].combined_at_end[slice_number] > after
        ],
        columns=["lane", "side", "eviction_slice", "last_cleanup"],
    )
    names = ["lane", "side", "eviction_slice", "last_timer"]
    if limits.empty:
        return pd.DataFrame(columns=names)
    schema = "lane long, side string, eviction_slice long, last_cleanup long"
    by_slice = ["lane", "side", "eviction_slice"]
    near_slice_ends = rows.where(F.col("is_cached") & _expires_between(limits, watermarks))
    cached = watermarks.with_slice_reaching(near_slice_ends, F.col("expires_at"), "eviction_slice")
    timers = cached.join(F.broadcast(from_pandas(rows.sparkSession, limits, schema)), by_slice)
    timers = timers.where(F.col("expires_at") > F.col("last_cleanup"))
    if overdue_rows is not None:
        timers = overdue_rows.annotate(timers, ["cleanup_time"]).where(~is_overdue())
    return timers.groupBy(*by_slice).agg(F.max("expires_at").alias("last_timer")).toPandas()[names]


def _expires_between(limits: pd.DataFrame, watermarks: JobWatermarks) -> Column:
    """Return True for at least the rows that expire after the last lookup of a slice and by its end.

    The periods in between are short, so that a list of their seconds excludes most rows.
    """
    second = 1000
    periods = [
        range(last_cleanup // second, watermarks.timelines[lane].combined_at_end[slice_number] // second + 1)
        for lane, _, slice_number, last_cleanup in limits.itertuples(index=False)
    ]
    if sum(map(len, periods)) > _MAX_SECONDS:
        return F.lit(True)
    return trunc_div(F.col("expires_at"), second).isin(*{second for period in periods for second in period})


def _find_crossing_buckets(timers: pd.DataFrame, buckets: pd.DataFrame) -> set[int]:
    """Find for each timer the bucket in which the watermark reaches it.

    The first arrival of a bucket sees the watermark before it. So only in these buckets do other arrivals matter.
    """
    by_timer = timers.merge(buckets, left_on=["lane", "eviction_slice"], right_on=["lane", "slice"])
    is_before = by_timer["combined_before"] < by_timer["last_timer"]
    return set(by_timer[is_before].groupby(["lane", "side", "slice"])["bucket_number"].max())
