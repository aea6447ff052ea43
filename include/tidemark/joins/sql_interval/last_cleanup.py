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
from tidemark.spark.materialization import computed_once
from tidemark.spark.tables import from_pandas
from tidemark.watermarks.job_watermarks import JobWatermarks
from tidemark.watermarks.lanes import Timeline
from tidemark.watermarks.watermarks import NO_WATERMARK, Watermarks

_MET = ("lane", "slice", "watermark")
_BUCKET = ("lane", "slice", "bucket_number")
_Point = tuple[int, str, int]
"""Lane, side, slice."""


@dataclass(frozen=True)
class Cleanups:
    """The clean-ups of a job.

    Takes labelled rows: `waits` (whether cached), `now`, `expires_at`, `leaves_at`, `reached`, `asked`, `bucket_number`
    (null for carried ones), `off_the_path`, and `stale`, whether they skip their search if the other side was swept at
    `stale_at` or later. The others surely look.
    """

    horizon: JobWatermarks
    ends: dict[_Point, int]
    """The watermark of the last sweep of a side by the end of a slice."""
    undecided: frozenset[int]
    """Lanes that only a replay decides: their `ends` are not to be used."""
    overdue: int
    """How many rows outstay their time."""
    longest: int
    """For how long the longest of them does, ms."""
    gone: Mapping[str, int]
    """How many rows of each side, in other lanes than `undecided` ones, are not `asked`."""

    @classmethod
    def of(cls, rows: DataFrame, horizon: JobWatermarks, passing: DataFrame | None = None) -> Cleanups:
        """Collect what there is to know in a small query, and in two more where rows are stale.

        Rows that are `passing` take no part, and have met watermarks.
        """
        on_time = F.col("leaves_at") == F.col("expires_at")
        asked = {
            "now": F.max(F.when(~F.col("stale"), F.col("now"))),
            "stale_at": F.max(F.when(F.col("stale"), F.col("stale_at"))),
            "timer": F.max(F.when(on_time, F.col("leaves_at"))),
            "off_the_path": F.max("off_the_path"),
            "overdue": F.count_if(~on_time),
            "longest": F.max(F.col("leaves_at") - F.col("expires_at")),
            "gone": F.count_if(~F.col("asked")),
        }
        told = rows.groupBy(*_BUCKET, "side", "eviction_slice")
        known = told.agg(*(column.alias(name) for name, column in asked.items())).toPandas()
        new, of_job = rows.where(F.col("slice") >= horizon.first_slice), known[known["slice"] >= horizon.first_slice]
        of_job = of_job.astype({"bucket_number": "int64"})  # carried rows, which have none, made it a double
        looked = of_job.groupby([*_BUCKET, "side"], as_index=False).agg({"now": "max", "stale_at": "max"})
        reached = known[known["eviction_slice"] >= horizon.first_slice]
        timers = reached.groupby(["lane", "side", "eviction_slice"], as_index=False).agg({"timer": "max"})
        overdue = int(known["overdue"].sum())
        met = new.select(*_MET)
        if passing is not None:
            met = met.unionByName(passing.select(*_MET))
        ends = _ends(looked, _fired(met, timers, horizon), horizon)
        undecided = set(known.loc[known["off_the_path"], "lane"]).union(_restarted(horizon))
        if looked["stale_at"].notna().any():
            undecided |= set(_undecided(rows, new, looked, ends, horizon, overdue=bool(overdue)))
        longest = int(known["longest"].max()) if overdue else 0
        by_side = known[~known["lane"].isin(undecided)].groupby("side")["gone"].sum()
        gone = {str(side): int(rows) for side, rows in by_side.items()}
        return cls(horizon, ends, frozenset(map(int, undecided)), overdue, longest, gone)

    @property
    def decided(self) -> Column:
        """Whether a row is of a lane that a closed form decides."""
        return ~F.col("lane").isin(*self.undecided)

    def lines(self, replayed: dict[_Point, int]) -> list[Timeline]:
        """The timelines with the clean-ups known by each slice's end; `replayed` are those of undecided lanes."""
        known = {**self.ends, **replayed}

        def at_end(lane: int, number: int, marks: Watermarks) -> Watermarks:
            left, right = (known[lane, side, number] for side in OTHER)
            return replace(marks, left_last_cleanup=left, right_last_cleanup=right)

        return [
            replace(line, end_watermarks={n: at_end(lane, n, marks) for n, marks in line.end_watermarks.items()})
            for lane, line in enumerate(self.horizon.timelines)
        ]


def _restarted(horizon: JobWatermarks) -> Iterator[int]:
    """Lanes whose job restarts in these slices: rows that a timer removes by one watermark outlive a lower one."""
    yield from (lane for lane, line in enumerate(horizon.timelines) if len(line.combined_by_epoch) > 1)


def _fired(met: DataFrame, timers: pd.DataFrame, horizon: JobWatermarks) -> dict[_Point, int]:
    """The watermark at which the last timer of a side fired in a slice, where one did."""
    timers = timers.dropna(subset="timer")
    if timers.empty:
        return {}
    timers = timers.rename(columns={"side": "timer_side", "eviction_slice": "slice"})
    table = timers[["lane", "timer_side", "slice", "timer"]].astype({"slice": "int64", "timer": "int64"})
    schema = "lane long, timer_side string, slice long, timer long"
    asked = from_pandas(met.sparkSession, table, schema)
    since = met.join(F.broadcast(asked), ["lane", "slice"]).where(F.col("watermark") >= F.col("timer"))
    least = since.groupBy("lane", "timer_side", "slice").agg(F.min("watermark")).collect()
    met_by = {(lane, side, number): watermark for lane, side, number, watermark in least}
    points = table[["lane", "timer_side", "slice"]].itertuples(index=False, name=None)
    return {point: met_by.get(point, horizon.timelines[point[0]].combined_at_end[point[2]]) for point in points}


def _ends(looked: pd.DataFrame, fired: dict[_Point, int], horizon: JobWatermarks) -> dict[_Point, int]:
    by_slice = looked.dropna(subset="now").groupby(["lane", "side", "slice"])["now"].max()
    searches = {point: int(now) for point, now in by_slice.items()}
    found = {}
    for lane, line in enumerate(horizon.timelines):
        for side, last in _before(line):
            for number in line.end_watermarks:
                by_rows = searches.get((lane, OTHER[side], number), NO_WATERMARK)
                last = max(last, by_rows, fired.get((lane, side, number), NO_WATERMARK))  # noqa: PLW2901
                found[lane, side, number] = last
    return found


def _before(line: Timeline) -> Iterator[tuple[str, int]]:
    """The last sweep of each side before the job."""
    begin = line.end_watermarks[min(line.end_watermarks)]
    yield "left", begin.left_last_cleanup
    yield "right", begin.right_last_cleanup


def _undecided(
    rows: DataFrame,
    new: DataFrame,
    looked: pd.DataFrame,
    ends: dict[_Point, int],
    horizon: JobWatermarks,
    *,
    overdue: bool,
) -> Iterator[int]:
    """Lanes with a stale row that may look, if that could find something, or be a slice's last sweep."""
    doubtful = _doubtful(new, looked, horizon)
    if doubtful is None:
        return
    doubtful = computed_once(doubtful)
    latest = doubtful.groupBy("lane", "side", "slice").agg(F.max("now")).collect()
    yield from (lane for lane, side, number, now in latest if now > ends[lane, OTHER[side], number])
    if latest and overdue:
        keys = key_columns(rows)
        stays = rows.where(F.col("leaves_at") > F.col("expires_at"))
        theirs = stays.select("side", "expires_at", "leaves_at", *keys).withColumnsRenamed(
            {name: f"_{name}" for name in ("side", *keys)}
        )
        same: Column = reduce(Column.__and__, (F.col(key).eqNullSafe(F.col(f"_{key}")) for key in keys))
        reach = (F.col("now") >= F.col("expires_at")) & (F.col("now") < F.col("leaves_at"))
        found = doubtful.select("lane", "side", "now", *keys).join(
            theirs, same & (F.col("side") != F.col("_side")) & reach, "semi"
        )
        yield from (row["lane"] for row in found.select("lane").distinct().collect())


def _doubtful(new: DataFrame, looked: pd.DataFrame, horizon: JobWatermarks) -> DataFrame | None:
    """Stale rows before which no row that surely looks has swept the other side late enough; None for none.

    Buckets are accumulated here. That tells of nearly all; where it does not, a bucket's rows are put in order.
    """
    looked = looked.sort_values("bucket_number")
    of_side = [looked["lane"], looked["side"]]
    begin = {(lane, OTHER[side]): swept for lane, line in enumerate(horizon.timelines) for side, swept in _before(line)}
    swept = pd.Series(begin).reindex(pd.MultiIndex.from_arrays(of_side)).to_numpy()
    so_far = looked["now"].astype("Int64").fillna(NO_WATERMARK).groupby(of_side).cummax()
    before = so_far.groupby(of_side).shift(fill_value=NO_WATERMARK).clip(lower=swept).astype("int64")
    looked = looked.assign(cleanup_before=before)
    stale = looked.loc[looked["stale_at"] > before, ["bucket_number", "side", "cleanup_before"]]
    if stale.empty:
        return None
    known = from_pandas(new.sparkSession, stale, "bucket_number long, side string, cleanup_before long")
    in_order = Window.partitionBy("bucket_number", "side").orderBy("clock", "tiebreak", "now", "event_time")
    earlier = in_order.rowsBetween(Window.unboundedPreceding, -1)
    latest = F.greatest("cleanup_before", F.max(F.when(~F.col("stale"), F.col("now"))).over(earlier))
    keys = key_columns(new)
    labels = ("lane", "slice", "bucket_number", "side", "clock", "tiebreak", "event_time", "now", "stale", "stale_at")
    placed = new.select(*labels, *keys).join(F.broadcast(known), ["bucket_number", "side"])
    return placed.withColumn("swept", latest).where(F.col("stale") & (F.col("swept") < F.col("stale_at")))
