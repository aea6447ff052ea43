"""A range of slices replayed: rows and carried state in; pairs, late rows and the state to carry on out.

Nothing here reads or writes a table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import pandas as pd
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from tidemark.config.sides import SIDES
from tidemark.joins.base import JobRows, Join
from tidemark.joins.keys import key_columns
from tidemark.spark.materialization import computed_once
from tidemark.spark.tables import from_pandas
from tidemark.timegrid.time_columns import floor_div
from tidemark.watermarks.buckets import Buckets
from tidemark.watermarks.increments import WatermarkIncrements
from tidemark.watermarks.job_watermarks import JobWatermarks
from tidemark.watermarks.lanes import Lane, Timeline, join_bucket_watermarks
from tidemark.watermarks.late_positions import LatePositions
from tidemark.watermarks.row_status import is_filtered

STILL_IN = ("late_for_window", "behind_watermark", "no_event_time_for_window", "lost_at_end")
"""Reasons in the side output of rows that take part all the same: they are in the buffers until they are evicted."""
_COUNTED = [f"{side}_{name}" for side in SIDES for name in ("rows", "filtered")]
CACHED_ROWS = 1_000_000
"""A job of at most so many rows keeps them (`spark.materialization`): planning the scan of a Delta table takes longer
than reading a small one. More rows are scanned again for each output, which is faster than caching them."""
PICKED_SHARE = 0.25
"""Of the rows of a larger job so many at most are kept, where few of them matter to all outputs but the pairs."""
MANY_CARRIED = 0.1
"""Where more than such a share of the rows may be carried, each task that reads rows has enough of them for a file."""
ORDERED_SHARE = 0.25
"""Of the rows of a larger job so many at most are put in order where they may be late; of more their places are."""
RAISING_SHARE = 0.25
"""Where more than such a share of a larger job's rows raise a watermark, they are put in order as they are."""
STEPS_A_ROW = 32
"""Largest average number of watermark increments with which a row of a large job is compared."""
FEW_PLACES = 500_000
"""Places that go to all tasks (`watermarks.late_positions`): some 60 MB in each executor."""


@dataclass(frozen=True)
class Replay:
    """The named outputs of a replayed range of slices.

    | output | one row per |
    | --- | --- |
    | `joined` | emission: `joins.base.JoinResult.joined` |
    | `late` | late or rejected row: `side`, `slice`, `reason`, times, watermarks, `left` or `right` |
    | `carried` | row that outlives its slice: see below |
    | `counts` | slice of the job: `left_rows` and `right_rows` read, `left_filtered` and `right_filtered` left out by
                 `where`, event times `floored`, `late_arriving_rows` of earlier slices and the first of these slices,
                 `late_arriving_from` |

    A carried row has its `side`, `lane`, `slice` (of its arrival), `clock`, `tiebreak`, `event_time`, `watermark` (met
    on arrival), `key_*`, and `left` or `right`. It is in the buffers at the end of slices carried_from <= n <
    evicted_in (null: of all later ones).
    """

    joined: DataFrame
    late: DataFrame
    suspected: bool
    """Whether `late` may have rows."""
    carried: DataFrame
    many_carried: bool
    """Whether more than `MANY_CARRIED` of the rows may be carried, as far as a large job knows beforehand."""
    evicted_at_once: Counter[str]
    """How many rows of each side were seen to be on time and gone by the end of their slice, and were left out."""
    evicted_of_kept: Observation
    """Once `carried` is written: how many others the job's slices have evicted, by side."""
    counts: pd.DataFrame
    lines: list[Timeline]
    """The watermarks of each lane."""

    @property
    def read(self) -> int:
        """How many rows of both inputs the slices went through, those that `where` leaves out too."""
        return _read(self.counts)

    def evicted(self) -> Counter[str]:
        """How many rows of each side the job's slices have evicted; to be asked once `carried` is written."""
        return self.evicted_at_once + Counter(self.evicted_of_kept.get)


def replay(rows: DataFrame, carried: DataFrame | None, lanes: Sequence[Lane], join: Join, buckets: Buckets) -> Replay:
    """Replay the slices of `buckets`.

    Args:
        rows: Rows of both inputs that arrive in these slices (`sources.normalization.Side.normalize`), with `lane`.
        carried: Rows carried by the slice before (`Replay.carried`), with their `lane`; None for empty buffers.
        lanes: The lanes, which share no keys.
        join: The join.
        buckets: The buckets of the slices.
    """
    found = _timelines(rows, lanes, join, buckets)
    exact = join.needs_exact_watermarks and (found.cacheable or not join.prefers_narrow_rows)
    if join.needs_exact_watermarks:
        found = _with_steps(found)
    if not exact:
        found = _with_places(found)
    in_order = found.split(exact=True)[1] if join.needs_exact_watermarks and not exact else None
    on_time, maybe_late = found.split(exact=exact)
    staying, left_out = on_time, Counter[str]()
    stays = _stays(found, join)
    share = 0.0 if stays is None else _most(found, stays) / found.read
    if stays is not None and (picked := _picked(found, stays, share)):
        staying, maybe_late, left_out = picked.staying, picked.maybe_late, picked.left_out
    suspected = exact or any(line.has_late_candidates for line in found.lines)
    if suspected:
        maybe_late = computed_once(maybe_late)
    passing = None
    if found.has_filtered and join.needs_exact_watermarks:
        passing = (maybe_late if in_order is None else in_order).where(is_filtered())
        maybe_late = maybe_late.where(~is_filtered())
    if carried is not None:
        carried = computed_once(carried)
    first = buckets.slices[0]
    if in_order is not None:
        in_order = in_order.where(F.col("rejected").isNull())
    horizon = JobWatermarks(found.lines, first, lanes, buckets.grid)
    came = JobRows(on_time, maybe_late, staying, suspected, carried, horizon, found.cacheable, passing, in_order)
    result = join.apply(came)
    outlives = F.col("evicted_in").isNull() | (F.col("evicted_in") > F.col("carried_from"))
    kept = _buffered(result.buffered, first, join.carried_columns)
    # The filter cannot move below the observation: without this, the columns of rows only counted would be made too.
    kept = kept.withColumns({side: F.when(outlives, F.col(side)) for side in SIDES})
    evicted = Observation()
    return Replay(
        joined=result.joined,
        late=_side_output(result.late, join.tick),
        suspected=suspected,
        carried=kept.observe(evicted, *_by_side(F.col("evicted_in").isNotNull())).where(outlives),
        many_carried=share > MANY_CARRIED,
        evicted_at_once=left_out + Counter(result.evicted_counts),
        evicted_of_kept=evicted,
        counts=_counts(found.maxima, found.buckets),
        lines=list(result.timelines) or found.lines,
    )


def with_exact_watermarks(rows: DataFrame, lane: Lane, join: Join, buckets: Buckets) -> DataFrame:
    """The rows of a replay of one lane, each with the exact watermarks that it met.

    Adds `watermark` (ms, long) and, but for dialect spark, `left_watermark` and `right_watermark`.
    """
    found = _timelines(rows.withColumn("lane", F.lit(0)), [lane], join, buckets)
    on_time, maybe_late = found.split(exact=True)
    return on_time.unionByName(maybe_late, allowMissingColumns=True)


@dataclass(frozen=True)
class _Placed:
    """Rows with what is known of their buckets, and the watermarks of their lanes."""

    placed: DataFrame
    kind: type[Lane]
    """The class of all lanes, which says how watermarks come about."""
    maxima: pd.DataFrame
    lines: list[Timeline]
    buckets: Buckets
    cacheable: bool
    places: LatePositions | None = None
    """Where rows are late, if they are told by that."""
    steps: WatermarkIncrements | None = None
    """Where watermarks rise, if all rows are told by that."""

    @property
    def read(self) -> int:
        """How many rows there are."""
        return _read(self.maxima)

    @cached_property
    def mostly_maybe_late(self) -> bool:
        """Whether many rows may be late: those of buckets of which the mean one may be."""
        if "mean" not in self.maxima:
            return False
        known = self._known_of_buckets
        return _read(known[known["mean"] <= known["combined_after"]]) > ORDERED_SHARE * self.read

    @cached_property
    def mostly_raising(self) -> bool:
        """Whether many rows raise a watermark: those of buckets of which the mean one is newer than all before."""
        known = self._known_of_buckets
        left, right = (known[f"{side}_before"] + known[f"{side}_lag"] for side in SIDES)
        return _read(known[known["mean"] > left.clip(upper=right)]) > RAISING_SHARE * self.read

    @cached_property
    def _known_of_buckets(self) -> pd.DataFrame:
        return self.maxima.merge(pd.concat([line.buckets for line in self.lines]), on="bucket")

    @property
    def has_filtered(self) -> bool:
        """Whether there are rows that `where` leaves out."""
        return bool(self.maxima[[f"{side}_filtered" for side in SIDES]].to_numpy().any())

    def split(self, *, exact: bool) -> tuple[DataFrame, DataFrame]:
        """`Lane.split` of these rows."""
        if exact and self.steps:
            return self.kind.split(self.placed, exact=True)[0], self.steps.with_watermarks(self.placed)
        if exact or self.places is None:
            return self.kind.split(self.placed, exact=exact)
        return self.places.select_on_time(self.placed), self.places.split_annotated(self.places.annotate(self.placed))[
            1
        ]

    def looked_at(self, stays: Column) -> DataFrame:
        """The rows that stay, and those that are looked at to find the ones maybe late: for `split_picked`."""
        if self.places is None:
            return self.placed.where(self.kind.is_ordered(exact=False) | stays)
        return self.places.annotate(self.placed).where(self.places.is_at_late_position() | stays)

    def split_picked(self, picked: DataFrame) -> tuple[DataFrame, DataFrame]:
        """`split` of the rows `looked_at`."""
        return self.kind.split(picked, exact=False) if self.places is None else self.places.split_annotated(picked)


@dataclass(frozen=True)
class _Picked:
    """The rows that matter to more than the pairs, kept."""

    staying: DataFrame
    """Those surely on time."""
    maybe_late: DataFrame
    left_out: Counter[str]
    """How many of each side are not among them: rows on time that are evicted when their slice ends."""


def _stays(found: _Placed, join: Join) -> Column | None:
    """Whether a row on time outlives its slice, in a large job; None where its own event time does not tell."""
    if found.cacheable or join.needs_exact_watermarks:
        return None
    leaves_at = join.eviction_watermark(F.col("combined_before"))
    return None if leaves_at is None else leaves_at > F.col("end_watermark")


def _picked(found: _Placed, stays: Column, share: float) -> _Picked | None:
    """Read a large job's rows once for all that asks for a few of them; None where that is not worth it."""
    if share > PICKED_SHARE or (found.mostly_maybe_late and found.places is None):
        return None
    counted = Observation()
    wanted = found.looked_at(stays)
    picked = computed_once(wanted.observe(counted, *_by_side(~is_filtered())), now=True)
    left_out = Counter[str]({side: int(found.maxima[f"{side}_rows"].sum()) for side in SIDES})
    left_out.subtract(counted.get)
    return _Picked(*found.split_picked(picked), left_out)


def _with_steps(found: _Placed) -> _Placed:
    """Find where watermarks rise, in a large job in which few rows raise one."""
    if found.cacheable or not found.kind.is_determined_by_position or found.mostly_raising:
        return found
    steps = WatermarkIncrements.collect(found.placed, found.kind.watermark_column)
    known = found.maxima.merge(steps.counts, on="bucket")
    compared = int((known[_COUNTED].sum(axis="columns") * known["increments"]).sum())
    return replace(found, steps=steps) if compared <= STEPS_A_ROW * found.read else found


def _with_places(found: _Placed) -> _Placed:
    """Find the places at which rows are late, in a large job in which too many may be late to put them in order."""
    if found.cacheable or not found.kind.is_determined_by_position or not found.mostly_maybe_late:
        return found
    places = LatePositions.find(found.placed, found.kind.watermark_column)
    return replace(found, places=places) if places.count <= FEW_PLACES else found


def _most(found: _Placed, stays: Column) -> int:
    """How many rows stay at most, if each was as new as the newest of its side in its bucket."""
    if len(found.lines) > 1:  # rules differ from lane to lane
        return found.read
    known = found.maxima.merge(found.lines[0].buckets[["bucket", "combined_before", "end_watermark"]], on="bucket")
    newest = [
        known[["combined_before", "end_watermark"]].assign(
            side=side, event_time=known[f"{side}_newest"], rows=known[f"{side}_rows"]
        )
        for side in SIDES
    ]
    table = pd.concat(newest, ignore_index=True).dropna()
    kinds = "combined_before long, end_watermark long, side string, event_time long, rows long"
    might = from_pandas(found.placed.sparkSession, table.astype({"event_time": "int64"}), kinds).where(stays)
    return sum(row["rows"] for row in might.select("rows").collect())


def _by_side(condition: Column) -> list[Column]:
    """How many rows of each side meet a condition."""
    return [F.count_if(condition & (F.col("side") == side)).alias(side) for side in SIDES]


def _timelines(rows: DataFrame, lanes: Sequence[Lane], join: Join, buckets: Buckets) -> _Placed:
    kind, *others = {type(lane) for lane in lanes}
    assert not others, "lanes of one job are of one kind"
    buckets = kind.refine_buckets(lanes, buckets)
    rows = join.reject_invalid(rows).withColumn(
        "bucket", buckets.bucket_column(F.col("lane"), F.col("slice"), F.col("clock"))
    )
    found = kind.compute_timelines(rows, lanes, buckets)
    few = _read(found.bucket_statistics) <= CACHED_ROWS
    placed = join_bucket_watermarks(
        found.rows.drop("owning_slice"), found.timelines, kind.bucket_schema, by_side=not few
    )
    if join.needs_bucket_number:
        placed = placed.withColumn("bucket_number", F.col("bucket"))
    if few:
        placed = computed_once(placed)
    return _Placed(placed, kind, found.bucket_statistics, found.timelines, found.buckets, few)


def _buffered(kept: DataFrame, first: int, labels: Sequence[str]) -> DataFrame:
    """Rows that entered the buffers, with the slices at whose end they are in them."""
    found = kept.withColumn("carried_from", F.greatest("slice", F.lit(first)))
    return found.select(
        "side",
        "lane",
        "slice",
        "clock",
        "tiebreak",
        "event_time",
        *labels,
        *key_columns(kept),
        "carried_from",
        F.when(F.col("eviction_slice").isNotNull(), F.greatest("eviction_slice", "carried_from")).alias("evicted_in"),
        *SIDES,
    )


def _side_output(rows: DataFrame, tick: int) -> DataFrame:
    late = F.col("rejected").isNull()
    behind = F.col("watermark") - floor_div(F.col("event_time") * tick, 1000)
    holds = [F.when(F.col(f"{side}_watermark") == F.col("watermark"), side) for side in SIDES]
    lesser = F.when(F.col("left_watermark") <= F.col("right_watermark"), "left").otherwise("right")
    held_by = F.coalesce(*holds, lesser)
    return rows.select(
        "slice",
        "side",
        "reason",
        "window_start",
        "window_end",
        "clock",
        "tiebreak",
        "event_time",
        *key_columns(rows),
        F.when(late, F.col("watermark")).alias("watermark"),
        F.when(late, behind).alias("behind_ms"),
        F.when(late & F.col("watermark").isNotNull(), held_by).alias("held_by"),
        F.col("fate") if "fate" in rows.columns else F.lit(None).cast("string").alias("fate"),
        *SIDES,
    )


def _read(counted: pd.DataFrame) -> int:
    return int(counted[_COUNTED].to_numpy().sum())


def _counts(maxima: pd.DataFrame, buckets: Buckets) -> pd.DataFrame:
    by_slice = maxima.groupby(buckets.find_slices(maxima["bucket"]))
    counted: pd.DataFrame = by_slice[[*_COUNTED, "floored", "late_arriving_rows"]].sum()
    counted = counted.reindex(buckets.slices, fill_value=0)
    return counted.assign(late_arriving_from=by_slice["late_arriving_from"].min().reindex(buckets.slices))
