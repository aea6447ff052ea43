"""A range of slices replayed: rows and carried state in; pairs, late rows and the state to carry on out.

Nothing here reads or writes a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from tidemark.clock.times import floor_div
from tidemark.joins.base import JobRows, Join
from tidemark.joins.keys import key_columns
from tidemark.settings.sides import SIDES
from tidemark.watermarks.buckets import Buckets, Horizon, Lane, Timeline, with_buckets

STILL_IN = ("late_for_window", "behind_watermark")
"""Reasons in the side output of rows that take part all the same."""
CACHED_ROWS = 1_000_000
"""A job of at most so many rows keeps them in Spark's cache: planning the scan of a Delta table takes longer
than reading a small one. More rows are scanned again for each output, which is faster than caching them."""


@dataclass(frozen=True)
class Replay:
    """The named outputs of a replayed range of slices.

    | output | one row per |
    | --- | --- |
    | `joined` | emission: `joins.base.JoinResult.joined` |
    | `late` | late or rejected row: `side`, `slice`, `reason`, times, watermarks, `left` or `right` |
    | `carried` | row that outlives its slice: see below |
    | `counts` | slice of the job: `left_rows` and `right_rows` read, event times `floored`, rows of earlier slices that
                 had `landed` and the earliest of those, `landed_from` |

    A carried row has its `side`, `lane`, `slice` (of its arrival), `clock`, `tiebreak`, `event_time`, `watermark` (met
    on arrival), `key_*`, and `left` or `right`. It is in the buffers at the end of slices carried_from <= n <
    evicted_in (null: of all later ones).
    """

    joined: DataFrame
    late: DataFrame
    suspected: bool
    """Whether `late` may have rows."""
    carried: DataFrame
    evicted: Observation
    """Once `carried` is written: how many rows of `left` and `right` the job's slices have evicted."""
    counts: pd.DataFrame
    lines: list[Timeline]
    """The watermarks of each lane."""
    cached: tuple[DataFrame, ...]

    @property
    def read(self) -> int:
        """How many rows of both inputs the slices read."""
        return int(self.counts[["left_rows", "right_rows"]].to_numpy().sum())

    def release(self) -> None:
        """Free what the outputs are computed from, once they are written."""
        for rows in self.cached:
            rows.unpersist()


def replay(rows: DataFrame, carried: DataFrame | None, lanes: Sequence[Lane], join: Join, buckets: Buckets) -> Replay:
    """Replay the slices of `buckets`.

    Takes the rows of both inputs that arrive in these slices (`inputs.stored.Side.normalized`), and those that the
    slice before has carried (`Replay.carried`; None for empty buffers), both with the number of their `lane`. Lanes
    share no keys.
    """
    found = _timelines(rows, lanes, join, buckets)
    placed, cached = found.placed, []
    if found.cacheable:
        cached += [placed.persist()]
    on_time, maybe_late = found.kind.split(placed, exact=join.exact_watermarks)
    suspected = join.exact_watermarks or any(line.maybe_late for line in found.lines)
    if suspected:
        cached += [maybe_late.persist()]
    if carried is not None:
        cached += [carried.persist()]
    first = buckets.slices[0]
    result = join.apply(JobRows(on_time, maybe_late, suspected, carried, Horizon(found.lines, first), found.cacheable))
    outlives = F.col("evicted_in").isNull() | (F.col("evicted_in") > F.col("carried_from"))
    kept = _buffered(result.kept, first, join.carries)
    # The filter cannot move below the observation: without this, the columns of rows only counted would be made too.
    kept = kept.withColumns({side: F.when(outlives, F.col(side)) for side in SIDES})
    evicted, gone = Observation(), F.col("evicted_in").isNotNull()
    counted = (F.count_if(gone & (F.col("side") == side)).alias(side) for side in SIDES)
    return Replay(
        joined=result.joined,
        late=_side_output(result.late, join.tick),
        suspected=suspected,
        carried=kept.observe(evicted, *counted).where(outlives),
        evicted=evicted,
        counts=_counts(found.maxima, found.buckets),
        lines=list(result.lines) or found.lines,
        cached=(*cached, *result.cached),
    )


def with_exact_watermarks(rows: DataFrame, lane: Lane, join: Join, buckets: Buckets) -> DataFrame:
    """The rows of a replay of one lane, each with the exact watermarks that it met.

    Adds `watermark` (ms, long) and, but for dialect spark, `left_watermark` and `right_watermark`.
    """
    found = _timelines(rows.withColumn("lane", F.lit(0)), [lane], join, buckets)
    on_time, maybe_late = found.kind.split(found.placed, exact=True)
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


def _timelines(rows: DataFrame, lanes: Sequence[Lane], join: Join, buckets: Buckets) -> _Placed:
    kind, *others = {type(lane) for lane in lanes}
    assert not others, "lanes of one job are of one kind"
    buckets = kind.fitting(lanes, buckets)
    rows = join.admitted(rows).withColumn("bucket", buckets.number(F.col("lane"), F.col("slice"), F.col("clock")))
    found = kind.timelines(rows, lanes, buckets)
    few = bool(found.maxima[["left_rows", "right_rows"]].to_numpy().sum() <= CACHED_ROWS)
    placed = with_buckets(found.rows.drop("owning_slice"), found.lines, kind.known_of_buckets, by_side=not few)
    if join.knows_buckets:
        placed = placed.withColumn("of_bucket", F.col("bucket"))
    return _Placed(placed, kind, found.maxima, found.lines, found.buckets, few)


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
        F.when(F.col("reached").isNotNull(), F.greatest("reached", "carried_from")).alias("evicted_in"),
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
        F.when(late, held_by).alias("held_by"),
        F.col("fate") if "fate" in rows.columns else F.lit(None).cast("string").alias("fate"),
        *SIDES,
    )


def _counts(maxima: pd.DataFrame, buckets: Buckets) -> pd.DataFrame:
    by_slice = maxima.groupby(buckets.slice_of(maxima["bucket"]))
    counted: pd.DataFrame = by_slice[["left_rows", "right_rows", "floored", "landed"]].sum()
    counted = counted.reindex(buckets.slices, fill_value=0)
    return counted.assign(landed_from=by_slice["landed_from"].min().reindex(buckets.slices))
