"""A range of slices replayed: rows and carried state in; pairs, late rows and the state to carry on out.

Nothing here reads or writes a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import pandas as pd
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from tidemark.clock.times import floor_div
from tidemark.joins.base import Join, Labelled
from tidemark.joins.keys import key_columns
from tidemark.settings.sides import SIDES
from tidemark.watermarks import sources
from tidemark.watermarks.buckets import Buckets, Horizon, Lane, Timeline, bucket_maxima, place
from tidemark.watermarks.sources import SourceLane

STILL_IN = ("late_for_window", "behind_watermark")
"""Reasons in the side output of rows that take part all the same."""
CACHED_ROWS = 1_000_000
"""Up to so many rows a job keeps its labelled rows in Spark's cache: planning the scan of a Delta table takes longer
than reading a small one. More rows are scanned again for each output, which is faster than caching them."""


class Label(Protocol):
    """Sets beside rows the watermarks that they met: the rows that are surely on time, and the suspects."""

    def __call__(self, placed: DataFrame, *, exact: bool) -> tuple[DataFrame, DataFrame]:
        """With `exact`, exact for all rows, and not only for suspects."""
        ...


@dataclass(frozen=True)
class Replay:
    """The named outputs of a replayed range of slices.

    | output | one row per |
    | --- | --- |
    | `joined` | emission: `joins.base.Answer.joined` |
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

    Takes the rows of both inputs (`inputs.Side.labelled`) that arrive in these slices, and those that the slice before
    has carried (`Replay.carried`; None for empty buffers), both with the number of their `lane`. Lanes share no keys.
    """
    placed, label, maxima, lines, buckets = _placed(rows, lanes, join, buckets)
    cached = []
    if cacheable := _cacheable(maxima):
        cached += [placed.persist()]
    settled, suspects = label(placed, exact=join.exact_watermarks)
    suspected = join.exact_watermarks or any(line.suspects for line in lines)
    if suspected:
        cached += [suspects.persist()]
    if carried is not None:
        cached += [carried.persist()]
    first = buckets.slices[0]
    answer = join.answer(Labelled(settled, suspects, suspected, carried, Horizon(lines, first), cacheable))
    outlives = F.col("evicted_in").isNull() | (F.col("evicted_in") > F.col("carried_from"))
    kept = _buffered(answer.kept, first, join.carries)
    # The filter cannot move below the observation: without this, the columns of rows only counted would be made too.
    kept = kept.withColumns({side: F.when(outlives, F.col(side)) for side in SIDES})
    evicted, gone = Observation(), F.col("evicted_in").isNotNull()
    counted = (F.count_if(gone & (F.col("side") == side)).alias(side) for side in SIDES)
    return Replay(
        joined=answer.joined,
        late=_side_output(answer.late, join.tick),
        suspected=suspected,
        carried=kept.observe(evicted, *counted).where(outlives),
        evicted=evicted,
        counts=_counts(maxima, buckets),
        lines=list(answer.lines) or lines,
        cached=(*cached, *answer.cached),
    )


def labelled(rows: DataFrame, lane: Lane, join: Join, buckets: Buckets) -> DataFrame:
    """The rows of a replay of one lane, each with the exact watermarks that it met.

    Adds `watermark` (ms, long) and, but for dialect spark, `left_watermark` and `right_watermark`.
    """
    placed, label, *_ = _placed(rows.withColumn("lane", F.lit(0)), [lane], join, buckets)
    settled, suspects = label(placed, exact=True)
    return settled.unionByName(suspects, allowMissingColumns=True)


def _placed(
    rows: DataFrame, lanes: Sequence[Lane], join: Join, buckets: Buckets
) -> tuple[DataFrame, Label, pd.DataFrame, list[Timeline], Buckets]:
    """Rows with what is known of their buckets, how to label them, the buckets' maxima, and the watermarks."""
    rows = join.admitted(rows).withColumn("bucket", buckets.number(F.col("lane"), F.col("slice"), F.col("clock")))
    label: Label = join.label
    kinds = join.bucket_columns
    if with_sources := [lane for lane in lanes if isinstance(lane, SourceLane)]:
        rows, buckets, maxima, lines = sources.timelines(rows, with_sources, buckets)
        label, kinds = sources.label, f"{kinds}, {sources.COLUMN}"
    else:
        maxima = bucket_maxima(rows).toPandas()
        lines = join.timelines(maxima, lanes, buckets)
    placed = place(rows.drop("home"), lines, kinds, by_side=not _cacheable(maxima))
    return placed, label, maxima, lines, buckets


def _cacheable(maxima: pd.DataFrame) -> bool:
    return bool(maxima[["left_rows", "right_rows"]].to_numpy().sum() <= CACHED_ROWS)


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
