"""The interval join as a relational query over labelled rows."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.joins.flink_datastream import IntervalRules
from tidemark.times import floor_div, quoted

_LABELS = ("slice", "event_time", "watermark")


def pairs(rows: DataFrame, rules: IntervalRules, first: int) -> DataFrame:
    """All pairs of on-time rows that the join emits from slice `first` on, each once.

    Takes rows of both sides, with those carried in, by `side`, `slice`, `event_time`, `watermark`, `key_*` and `left`
    or `right`; gives `slice` (that of the later row), `left_event_time`, `right_event_time` (ms), `left` and `right`.

    Event time is binned, because Spark crosses all rows of a key and filters afterwards. A bin is twice as wide as the
    interval, so that a right row reaches one bin or two.
    """
    size = F.greatest(2 * (rules.upper - rules.lower), F.lit(1))
    keys = [name for name in rows.columns if name.startswith("key_")]
    left, left_row = _one_side(rows, "left", keys)
    right, right_row = _one_side(rows, "right", keys)
    times = F.col("left_event_time"), F.col("right_event_time")
    reached = F.sequence(floor_div(times[1] - rules.upper, size), floor_div(times[1] - rules.lower, size))
    later = F.greatest("left_slice", "right_slice")
    evicted = rules.evicted_before_match(times[0], F.col("left_watermark"), times[1], F.col("right_watermark"))
    return (
        left.withColumn("bin", floor_div(times[0], size))
        .join(right.withColumn("bin", F.explode(reached)), [*keys, "bin"])
        .where(rules.within(*times) & ~evicted & (later >= first))
        .select(later.alias("slice"), *times, left_row, right_row)
    )


def _one_side(rows: DataFrame, side: str, keys: list[str]) -> tuple[DataFrame, Column]:
    """One side's rows in flat columns, which shuffle and hash faster than a struct, and the struct made of them."""
    kind = rows.schema[side].dataType
    assert isinstance(kind, T.StructType)
    flat = {name: f"{side}_column_{number}" for number, name in enumerate(kind.names)}
    chosen = rows.where(F.col("side") == side).select(
        *keys,
        *(F.col(name).alias(f"{side}_{name}") for name in _LABELS),
        *(F.col(f"{side}.{quoted(name)}").alias(column) for name, column in flat.items()),
    )
    return chosen, F.struct(*(F.col(column).alias(name) for name, column in flat.items())).alias(side)
