"""A range of slices replayed: rows and carried state in; pairs, late rows and the state to carry on out.

Nothing here reads or writes a table.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.joins import interval
from tidemark.joins.flink_datastream import END_OF_INPUT, IntervalRules, WatermarkLag
from tidemark.watermarks import (
    TARGET_BUCKETS,
    Timeline,
    Watermarks,
    bucket_maxima,
    first_slice_reaching,
    label,
    timeline,
)

SIDES = ("left", "right")


@dataclass(frozen=True)
class Carry:
    """What the join carries from one slice to the next.

    `rows` has one row per buffered row: `side`, `slice` (of its arrival), `clock`, `tiebreak`, `event_time`,
    `watermark` (met on arrival), `key_*`, and `left` or `right` (struct); None for empty buffers.
    """

    watermarks: Watermarks = field(default_factory=Watermarks)
    rows: DataFrame | None = None


@dataclass(frozen=True)
class Replay:
    """The named outputs of a replayed range of slices.

    | output | one row per |
    | --- | --- |
    | `joined` | pair: `slice`, `left_event_time`, `right_event_time`, `left`, `right` |
    | `late` | late or rejected row: `side`, `slice`, `reason`, times, watermarks, `left` or `right` |
    | `carried` | row that outlives its slice: as `Carry.rows`, with `carried_from` and `evicted_in` |
    | `fates` | side, `slice`, `carried_from`, `evicted_in`: how many on-time `rows` |
    | `bucket_counts` | bucket: how many rows were read, and floored |

    A carried row is in the buffers at the end of slices carried_from <= n < evicted_in (null: of all later ones).
    """

    joined: DataFrame
    late: DataFrame
    carried: DataFrame
    fates: DataFrame
    bucket_counts: pd.DataFrame
    timeline: Timeline
    cached: tuple[DataFrame, ...]

    def release(self) -> None:
        """Free what the outputs are computed from, once they are written."""
        for rows in self.cached:
            rows.unpersist()


def replay(
    left: DataFrame,
    right: DataFrame,
    carry: Carry,
    slices: range,
    rules: IntervalRules,
    lag: WatermarkLag,
    *,
    bucket_width: int,
    drain: bool = False,
) -> Replay:
    """Replay `slices` over the rows of both inputs (`inputs.Side.rows`) that arrive in them.

    `drain` ends the input after the last slice: the watermark goes to infinity and every buffered row is evicted.
    """
    # Every scan of a Delta table costs a query over its log when planned, so inputs and state are scanned once.
    left, right = left.persist(), right.persist()
    carry = Carry(carry.watermarks, carry.rows.persist() if carry.rows else None)
    scratch = (left, right, carry.rows) if carry.rows else (left, right)
    maxima = bucket_maxima(left, right, bucket_width).toPandas()
    line = timeline(maxima, carry.watermarks, slices, lag, bucket_width)
    if drain:
        line.slice_ends[slices[-1]] = Watermarks(END_OF_INPUT, END_OF_INPUT)
    labelled = label(left, right, line)
    on_time, aside = {}, []
    for side, rows in (("left", labelled.left), ("right", labelled.right)):
        is_late = rules.late(F.col("event_time"), F.col("watermark"))
        accepted = rows.where(F.col("rejected").isNull())
        on_time[side] = _buffered(accepted.where(~is_late), carry, side)
        aside.append(_side_output(rows.where(F.col("rejected").isNotNull() | is_late), side))
    joined = interval.pairs(on_time["left"], on_time["right"], rules).where(F.col("slice") >= slices[0])
    kept = [_evictions(on_time["left"], "left", rules.left_wait, rules, line, slices[0])]
    kept += [_evictions(on_time["right"], "right", rules.right_wait, rules, line, slices[0])]
    buffered = kept[0].unionByName(kept[1], allowMissingColumns=True)
    return Replay(
        joined=joined,
        late=aside[0].unionByName(aside[1], allowMissingColumns=True),
        carried=buffered.where(F.col("evicted_in").isNull() | (F.col("evicted_in") > F.col("carried_from"))),
        fates=buffered.groupBy("side", "slice", "carried_from", "evicted_in").agg(F.count("*").alias("rows")),
        bucket_counts=maxima,
        timeline=line,
        cached=(*scratch, *labelled.cached),
    )


def bucket_width(clock_span: int) -> int:
    """Width of a bucket in microseconds, for a job whose slices span so much of the clock."""
    return max(1000, -(-clock_span // TARGET_BUCKETS))


def _buffered(rows: DataFrame, carry: Carry, side: str) -> DataFrame:
    """A side's on-time rows and those carried in, in the same columns."""
    if carry.rows is None:
        return rows
    carried = carry.rows.where(F.col("side") == side).withColumnRenamed(side, "row")
    shared = [name for name in rows.columns if name in carried.columns]
    return rows.select(shared).unionByName(carried.select(shared))


def _evictions(rows: DataFrame, side: str, wait: int, rules: IntervalRules, line: Timeline, first: int) -> DataFrame:
    level = rules.evicted_at(F.col("event_time"), F.col("watermark"), wait)
    keys = [name for name in rows.columns if name.startswith("key_")]
    found = first_slice_reaching(rows, level, line, "reached").withColumn(
        "carried_from", F.greatest("slice", F.lit(first))
    )
    return found.select(
        F.lit(side).alias("side"),
        "slice",
        "clock",
        "tiebreak",
        "event_time",
        "watermark",
        *keys,
        "carried_from",
        F.when(F.col("reached").isNotNull(), F.greatest("reached", "carried_from")).alias("evicted_in"),
        F.col("row").alias(side),
    )


def _side_output(rows: DataFrame, side: str) -> DataFrame:
    late = F.col("rejected").isNull()

    def if_late(value: Column) -> Column:
        return F.when(late, value)

    return rows.select(
        "slice",
        F.lit(side).alias("side"),
        F.coalesce("rejected", F.lit("late")).alias("reason"),
        "clock",
        "event_time",
        if_late(F.col("watermark")).alias("watermark"),
        if_late(F.col("watermark") - F.col("event_time")).alias("behind_ms"),
        if_late(F.when(F.col("left_watermark") <= F.col("right_watermark"), "left").otherwise("right")).alias(
            "held_by"
        ),
        F.col("row").alias(side),
    )
