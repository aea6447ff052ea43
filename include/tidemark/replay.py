"""A range of slices replayed: rows and carried state in; pairs, late rows and the state to carry on out.

Nothing here reads or writes a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from tidemark.joins import interval
from tidemark.joins.flink_datastream import IntervalRules
from tidemark.watermarks import Buckets, Lane, Timeline, bucket_maxima, first_slice_reaching, label, place, timelines

SIDES = ("left", "right")
CACHED_ROWS = 1_000_000
"""Up to so many rows a job keeps its labelled rows in Spark's cache: planning the scan of a Delta table takes longer
than reading a small one. More rows are scanned again for each output, which is faster than caching them."""


@dataclass(frozen=True)
class Replay:
    """The named outputs of a replayed range of slices.

    | output | one row per |
    | --- | --- |
    | `joined` | pair: `slice`, `left_event_time`, `right_event_time`, `left`, `right` |
    | `late` | late or rejected row: `side`, `slice`, `reason`, times, watermarks, `left` or `right` |
    | `carried` | row that outlives its slice: see below |
    | `counts` | slice of the job: `left_rows` and `right_rows` read, and event times `floored` |

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

    def release(self) -> None:
        """Free what the outputs are computed from, once they are written."""
        for rows in self.cached:
            rows.unpersist()


def replay(
    rows: DataFrame, carried: DataFrame | None, lanes: Sequence[Lane], rules: IntervalRules, buckets: Buckets
) -> Replay:
    """Replay the slices of `buckets`.

    Takes the rows of both inputs (`inputs.Side.labelled`) that arrive in these slices, and those that the slice before
    has carried (`Replay.carried`; None for empty buffers), both with the number of their `lane`. Lanes share no keys.
    """
    rows = rows.withColumn("bucket", buckets.number(F.col("lane"), F.col("slice"), F.col("clock")))
    maxima = bucket_maxima(rows).toPandas()
    lines = timelines(maxima, lanes, buckets)
    placed, cached = place(rows, lines), []
    if maxima[["left_rows", "right_rows"]].to_numpy().sum() <= CACHED_ROWS:
        cached += [placed.persist()]
    settled, suspects = label(placed)
    is_late = rules.late(F.col("event_time"), F.col("watermark"))
    on_time = settled
    suspected = any(line.suspects for line in lines)
    if suspected:
        cached += [suspects.persist()]
        on_time = settled.unionByName(suspects.where(F.col("rejected").isNull() & ~is_late))
    if carried is not None:
        cached += [carried.persist()]
        on_time = on_time.unionByName(carried, allowMissingColumns=True)
    first = buckets.slices[0]
    kept = _evictions(on_time, rules, lines, first)
    outlives = F.col("evicted_in").isNull() | (F.col("evicted_in") > F.col("carried_from"))
    evicted, gone = Observation(), F.col("evicted_in").isNotNull()
    counted = (F.count_if(gone & (F.col("side") == side)).alias(side) for side in SIDES)
    return Replay(
        joined=interval.pairs(on_time, rules, first),
        late=_side_output(suspects.where(F.col("rejected").isNotNull() | is_late)),
        suspected=suspected,
        carried=kept.observe(evicted, *counted).where(outlives),
        evicted=evicted,
        counts=_counts(maxima, buckets),
        lines=lines,
        cached=tuple(cached),
    )


def _evictions(rows: DataFrame, rules: IntervalRules, lines: Sequence[Timeline], first: int) -> DataFrame:
    wait = F.when(F.col("side") == "left", rules.left_wait).otherwise(rules.right_wait)
    level = rules.evicted_at(F.col("event_time"), F.col("watermark"), wait)
    found = first_slice_reaching(rows, level, lines, "reached").withColumn(
        "carried_from", F.greatest("slice", F.lit(first))
    )
    return found.select(
        "side",
        "lane",
        "slice",
        "clock",
        "tiebreak",
        "event_time",
        "watermark",
        *(name for name in rows.columns if name.startswith("key_")),
        "carried_from",
        F.when(F.col("reached").isNotNull(), F.greatest("reached", "carried_from")).alias("evicted_in"),
        *SIDES,
    )


def _side_output(rows: DataFrame) -> DataFrame:
    late = F.col("rejected").isNull()
    behind = F.col("watermark") - F.col("event_time")
    held_by = F.when(F.col("left_watermark") <= F.col("right_watermark"), "left").otherwise("right")
    return rows.select(
        "slice",
        "side",
        F.coalesce("rejected", F.lit("late")).alias("reason"),
        "clock",
        "event_time",
        F.when(late, F.col("watermark")).alias("watermark"),
        F.when(late, behind).alias("behind_ms"),
        F.when(late, held_by).alias("held_by"),
        *SIDES,
    )


def _counts(maxima: pd.DataFrame, buckets: Buckets) -> pd.DataFrame:
    counted = maxima[["left_rows", "right_rows", "floored"]]
    found: pd.DataFrame = counted.groupby(buckets.slice_of(maxima["bucket"])).sum()
    return found.reindex(buckets.slices, fill_value=0)
