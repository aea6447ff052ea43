"""Inputs that fall idle, and inputs of several partitions: what holds the watermark back changes with the clock.

A source is one partition of an input, or an input without partitions. An input's watermark is the least of those of its
sources that count, and never goes down. A source counts when the clock of its first row has passed, until it has had no
row for longer than `idle_after`, and again after its next row; an input of which no source counts does not hold the
join back.

Buckets are cut where a source begins or ceases to count, so that inside a bucket the same sources do: then the
watermarks before and after each bucket follow from the sources' greatest event times in it, whatever their order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import pandas as pd
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from typing_extensions import override

from tidemark.config.sides import SIDES
from tidemark.spark.dataframe_utils import with_columns
from tidemark.watermarks.buckets import (
    END_OF_INPUT,
    NO_WATERMARK,
    Buckets,
    Lane,
    Source,
    Timeline,
    Timelines,
    Watermarks,
    by_lane,
)
from tidemark.watermarks.exact import (
    BUCKET_COLUMNS,
    BUCKETS,
    PLACE,
    is_maybe_late,
    with_watermarks_before,
    with_watermarks_met,
)
from tidemark.watermarks.row_status import is_filtered, is_rejected, moves_watermark

COLUMN = "sources array<struct<side: string, partition: string, mark: long>>"
_Key = tuple[str, str | None]
_WHOLE = None
"""The partition of an input that has none, or no row yet."""


@dataclass(frozen=True)
class SourceLane(Lane):
    """A stream whose inputs may fall idle, or have partitions."""

    idle_after: dict[str, int | None] = field(default_factory=dict)
    """How many microseconds of the clock without a row make a source not count, by side; None for never."""

    known_of_buckets = f"{BUCKETS}, {COLUMN}"
    told_by_place = False

    @classmethod
    @override
    def fitting(cls, lanes: Sequence[Self], buckets: Buckets) -> Buckets:
        """No bucket is so wide that a source could fall idle between two rows of it."""
        spans = [span for lane in lanes for span in lane.idle_after.values() if span is not None]
        return replace(buckets, width=min([buckets.width, *spans]))

    @classmethod
    @override
    def timelines(cls, rows: DataFrame, lanes: Sequence[Self], buckets: Buckets) -> Timelines:
        """The rows are in buckets cut where sources begin or cease to count; a bucket that is cut is read once more."""
        if "partition" not in rows.columns:
            rows = rows.withColumn("partition", F.lit(_WHOLE).cast("string"))
        maxima = _maxima(rows)
        changes = [list(_changes(part, lane, buckets)) for lane, part in by_lane(maxima, lanes, buckets)]
        if cuts := _cuts(maxima, changes, buckets):
            rows, buckets = _cut(rows, cuts, buckets)
            maxima = _maxima(rows)
        parts = by_lane(maxima, lanes, buckets)
        lines = [_timeline(part, lane, its, buckets) for (lane, part), its in zip(parts, changes, strict=True)]
        counted = {
            f"{side}_{name}": maxima[name].where(maxima["side"] == side, 0)
            for side in SIDES
            for name in ("rows", "filtered")
        }
        newest = {f"{side}_newest": maxima["newest"].where(maxima["side"] == side) for side in SIDES}
        by_bucket = maxima.assign(**counted, **newest).groupby("bucket", as_index=False)
        combined = {**dict.fromkeys([*counted, "floored", "landed"], "sum"), "landed_from": "min"}
        combined |= dict.fromkeys(newest, "max")
        return Timelines(rows, buckets, by_bucket.agg(combined), lines)

    @classmethod
    @override
    def split(cls, rows: DataFrame, *, exact: bool) -> tuple[DataFrame, DataFrame]:
        """In an unsettled bucket the marks of each source are accumulated by themselves, up to each place asked for."""
        maybe_late, unsettled, where = is_maybe_late(exact=exact), _unsettled(exact=exact), list(PLACE)
        asked = rows.where(maybe_late & unsettled).dropDuplicates(where).select(*where, F.inline("sources"))
        raised = rows.where(_raises(exact=exact)).select(*where, "side", "partition", _mark().alias("mark"))
        marks = asked.withColumn("role", F.lit(0)).unionByName(raised.withColumn("role", F.lit(1)))
        earlier = Window.partitionBy("bucket", "side", "partition").orderBy("clock", "tiebreak", "role")
        so_far = earlier.rowsBetween(Window.unboundedPreceding, Window.currentRow)
        met = marks.withColumn("mark", F.max("mark").over(so_far)).where("role = 0")
        least = met.groupBy(*where).agg(
            *(F.min(F.when(F.col("side") == side, F.col("mark"))).alias(f"{side}_met") for side in SIDES)
        )
        held = {f"{side}_before": F.greatest(f"{side}_before", f"{side}_met") for side in SIDES}
        in_order = rows.where(maybe_late).join(least, where, "left").transform(with_columns, held)
        in_order = in_order.drop("left_met", "right_met")
        on_time = rows.where(~maybe_late & ~is_filtered()).drop("partition", "sources")
        return with_watermarks_before(on_time), with_watermarks_met(in_order.drop("partition", "sources"))

    @classmethod
    @override
    def places(cls, *, exact: bool) -> Column:
        return is_maybe_late(exact=exact) | _raises(exact=exact)


def _unsettled(*, exact: bool) -> Column:
    return F.col("moving" if exact else "unsettled") & moves_watermark()


def _raises(*, exact: bool) -> Column:
    """Whether a row's mark is above its input's watermark, in a bucket in which that is asked for."""
    held_at = F.when(F.col("side") == "left", F.col("left_before")).otherwise(F.col("right_before"))
    return _unsettled(exact=exact) & (_mark() > held_at)


def _mark() -> Column:
    lag = F.when(F.col("side") == "left", F.col("left_lag")).otherwise(F.col("right_lag"))
    return F.col("event_time") - lag


@dataclass(frozen=True)
class _Change:
    """A source ceases to count for rows at this clock or later, or counts for rows after it."""

    clock: int
    source: _Key
    counts: bool

    @property
    def since(self) -> int:
        """The first clock at which rows see it."""
        return self.clock + self.counts


def _maxima(rows: DataFrame) -> pd.DataFrame:
    """Greatest and least event time, first and last clock, and row counts of each bucket and source."""
    takes_part = F.col("rejected").isNull()
    # Of what `where` leaves out a row with bad times is as good as none.
    seen = takes_part | (is_filtered() & F.col("event_time").isNotNull())
    time, clock = (F.when(seen, F.col(name)) for name in ("event_time", "clock"))
    landed = F.col("owning_slice") < F.col("slice")
    found = rows.groupBy("bucket", "side", "partition").agg(
        F.max(time).alias("newest"),
        F.min(F.when(takes_part, time)).alias("oldest"),
        F.min(clock).alias("first"),
        F.max(clock).alias("last"),
        F.count_if(~is_filtered()).alias("rows"),
        F.count_if(is_filtered()).alias("filtered"),
        F.count_if(is_rejected()).alias("rejected"),
        F.count_if(takes_part & F.col("floored")).alias("floored"),
        F.count_if(landed).alias("landed"),
        F.min(F.when(landed, F.col("owning_slice"))).alias("landed_from"),
    )
    maxima: pd.DataFrame = found.toPandas().astype(dict.fromkeys(("newest", "oldest", "first", "last"), "Int64"))
    named = maxima["partition"].astype(object)
    return maxima.assign(partition=named.where(named.notna(), _WHOLE))


def _sources(lane: SourceLane, buckets: Buckets) -> dict[_Key, Source]:
    """The sources that the lane has had when the job starts; an input without a row yet has been silent since then."""
    start = buckets.grid.start_of(buckets.slices[0])
    known = {(one.side, one.partition): one for one in lane.before.sources}
    missing = [side for side in SIDES if side not in {one.side for one in lane.before.sources}]
    return {**{(side, _WHOLE): Source(side, _WHOLE, NO_WATERMARK, start) for side in missing}, **known}


def _changes(maxima: pd.DataFrame, lane: SourceLane, buckets: Buckets) -> Iterator[_Change]:
    """When each source of a lane begins and ceases to count."""
    lasts = {key: one.last for key, one in _sources(lane, buckets).items()}
    seen = maxima[maxima["first"].notna()]
    rows: dict[_Key, list[tuple[int, int]]] = defaultdict(list)
    for side, partition, first, last in zip(seen["side"], seen["partition"], seen["first"], seen["last"], strict=True):
        rows[side, partition].append((int(first), int(last)))
    for key in {**lasts, **rows}:
        idle, last = lane.idle_after.get(key[0]), lasts.get(key)
        if last is None:
            yield _Change(rows[key][0][0], key, counts=True)
            last = rows[key][0][0]
        for first, then in rows[key]:
            if idle is not None and first - last > idle:
                yield _Change(last + idle + 1, key, counts=False)
                yield _Change(first, key, counts=True)
            last = then
        if idle is not None:
            yield _Change(last + idle + 1, key, counts=False)


def _cuts(maxima: pd.DataFrame, changes: Sequence[list[_Change]], buckets: Buckets) -> dict[int, list[int]]:
    """The clocks at which buckets have to be cut: after their first row, and not after their last."""
    spans = maxima.groupby("bucket").agg({"first": "min", "last": "max"}).dropna()
    first, last = spans["first"].to_dict(), spans["last"].to_dict()
    found = defaultdict(set)
    for lane, its in enumerate(changes):
        for change in its:
            bucket = buckets.number_of(lane, change.since) if buckets.holds(change.since) else -1
            if bucket in first and first[bucket] < change.since <= last[bucket]:
                found[bucket].add(change.since)
    return {bucket: sorted(clocks) for bucket, clocks in found.items()}


def _cut(rows: DataFrame, cuts: dict[int, list[int]], buckets: Buckets) -> tuple[DataFrame, Buckets]:
    finer = replace(buckets, parts=1 + max(map(len, cuts.values())))
    table = rows.sparkSession.createDataFrame(list(cuts.items()), "bucket long, cuts array<long>")
    passed = F.size(F.filter("cuts", lambda cut: cut <= F.col("clock")))
    part = F.when(F.col("cuts").isNull(), 0).otherwise(passed)
    cut = rows.join(F.broadcast(table), "bucket", "left")
    return cut.withColumn("bucket", F.col("bucket") * finer.parts + part).drop("cuts"), finer


class _Passage:
    """The watermarks of a lane while its buckets pass by."""

    def __init__(self, lane: SourceLane, buckets: Buckets) -> None:
        self.marks = _sources(lane, buckets)
        self.counting = set(self.marks)
        self.inputs = {"left": lane.before.left, "right": lane.before.right}
        self.combined = lane.before.combined

    def apply(self, changes: Iterable[_Change]) -> None:
        """Sources begin or cease to count."""
        for change in changes:
            if change.counts:
                self.counting.discard((change.source[0], _WHOLE))  # stood for the input while it had no row
                self.counting.add(change.source)
            else:
                self.counting.discard(change.source)
        self.settle()

    def settle(self) -> None:
        """Let the watermarks advance as far as the sources that count allow."""
        holding = []
        for side in SIDES:
            marks = [self.marks[key].watermark for key in self.counting if key[0] == side]
            if marks:
                self.inputs[side] = max(self.inputs[side], min(marks))
                holding.append(self.inputs[side])
        self.combined = max(self.combined, min(holding, default=NO_WATERMARK))

    def watermarks(self) -> Watermarks:
        """The watermarks as they stand, with the sources: those of a partitioned input only."""
        partitioned = {side for side, partition in self.marks if partition is not _WHOLE}
        kept = [one for (side, part), one in self.marks.items() if part is not _WHOLE or side not in partitioned]
        kept.sort(key=lambda one: (one.side, one.partition or ""))
        return Watermarks(self.inputs["left"], self.inputs["right"], advanced=self.combined, sources=tuple(kept))


def _timeline(maxima: pd.DataFrame, lane: SourceLane, changes: list[_Change], buckets: Buckets) -> Timeline:
    state, passed, ends, maybe_late = _Passage(lane, buckets), [], {}, bool(maxima["rejected"].any())
    lag = {"left": lane.lag.left, "right": lane.lag.right}
    marks = maxima.assign(mark=maxima["newest"] - maxima["side"].map(lag).astype("Int64"), clock=maxima["first"])
    clocks = marks.groupby("bucket")["clock"].min()
    contents = {clocks[bucket]: rows for bucket, rows in marks.groupby("bucket") if not pd.isna(clocks[bucket])}
    end_clocks = {buckets.grid.start_of(number + 1): number for number in buckets.slices}
    changes_at: dict[int, list[_Change]] = defaultdict(list)
    for change in changes:
        changes_at[change.clock].append(change)
    for clock in sorted({*contents, *end_clocks, *changes_at}):
        if clock in end_clocks:
            ends[end_clocks[clock]] = state.watermarks()
        state.apply(change for change in changes_at.get(clock, []) if not change.counts)
        if clock in contents:
            passed.append(_passed(contents[clock], state, lag))
            oldest = contents[clock]["oldest"].min()
            maybe_late = maybe_late or (not pd.isna(oldest) and oldest <= state.combined)
        state.apply(change for change in changes_at.get(clock, []) if change.counts)
    if lane.drain is not None:
        ended = Watermarks(END_OF_INPUT, END_OF_INPUT, advanced=END_OF_INPUT)
        ends |= {number: ended for number in buckets.slices if number >= lane.drain}
    reached = {buckets.slices[0] - 1: lane.before.combined, **{n: ends[n].combined for n in buckets.slices}}
    table = pd.DataFrame(passed, columns=[*BUCKET_COLUMNS, "sources"])
    table["end"] = np.array([reached[number] for number in buckets.slice_of(table["bucket"])], dtype=np.int64)
    return Timeline(table, maybe_late, {n: ends[n] for n in buckets.slices}, reached)


def _passed(rows: pd.DataFrame, state: _Passage, lag: dict[str, int]) -> dict[str, object]:
    """What is known of a bucket, whose rows the state then has seen."""
    before, combined, counting = state.watermarks(), state.combined, sorted(state.counting, key=str)
    sources = [(*key, state.marks[key].watermark) for key in counting]
    seen = rows[rows["first"].notna()]
    for side, partition, mark, last in zip(seen["side"], seen["partition"], seen["mark"], seen["last"], strict=True):
        known = state.marks.get((side, partition), Source(side, partition, NO_WATERMARK, int(last)))
        state.marks[side, partition] = replace(
            known, watermark=known.watermark if pd.isna(mark) else max(known.watermark, int(mark)), last=int(last)
        )
    state.settle()
    after = state.watermarks()
    moving = (before.left, before.right, combined) != (after.left, after.right, state.combined)
    left_holds = before.left == after.left == combined
    right_holds = before.right == after.right == combined and not before.left <= combined <= after.left
    turns = combined < state.combined or (moving and not left_holds and not right_holds)
    oldest = rows["oldest"].min()
    return {
        "bucket": int(rows["bucket"].iloc[0]),
        "left_before": before.left,
        "right_before": before.right,
        "before": combined,
        "after": state.combined,
        "moving": moving,
        "unsettled": turns and not pd.isna(oldest) and oldest <= state.combined,
        "left_counts": any(side == "left" for side, _ in counting),
        "right_counts": any(side == "right" for side, _ in counting),
        "left_lag": lag["left"],
        "right_lag": lag["right"],
        "sources": sources if moving else [],
    }
