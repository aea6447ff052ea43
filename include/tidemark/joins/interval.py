"""The interval join as a relational query over labelled rows."""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.joins.flink_datastream import IntervalRules
from tidemark.times import floor_div


def pairs(left: DataFrame, right: DataFrame, rules: IntervalRules) -> DataFrame:
    """All pairs of on-time rows that the join emits, each once.

    Takes rows with `slice`, `event_time`, `watermark`, `key_*` and `row`; gives `slice` (that of the later row),
    `left_event_time`, `right_event_time` (ms) and the rows as `left` and `right`.

    Event time is binned, because Spark crosses all rows of a key and filters afterwards. A bin is twice as wide as the
    interval, so that a right row reaches one bin or two.
    """
    size = max(2 * (rules.upper - rules.lower), 1)
    keys = [name for name in left.columns if name.startswith("key_")]
    left = _sided(left, "left", keys).withColumn("bin", floor_div(F.col("left_event_time"), size))
    reached = F.sequence(
        floor_div(F.col("right_event_time") - rules.upper, size),
        floor_div(F.col("right_event_time") - rules.lower, size),
    )
    right = _sided(right, "right", keys).withColumn("bin", F.explode(reached))
    times = F.col("left_event_time"), F.col("right_event_time")
    evicted = rules.evicted_before_match(times[0], F.col("left_watermark"), times[1], F.col("right_watermark"))
    met = [F.col("left.bin") == F.col("right.bin"), rules.within(*times), ~evicted]
    met += [F.col(f"left.{key}") == F.col(f"right.{key}") for key in keys]
    return (
        left.alias("left")
        .join(right.alias("right"), reduce(Column.__and__, met), "inner")
        .select(
            F.greatest("left_slice", "right_slice").alias("slice"),
            *times,
            F.col("left_row").alias("left"),
            F.col("right_row").alias("right"),
        )
    )


def _sided(rows: DataFrame, side: str, keys: list[str]) -> DataFrame:
    names = ("slice", "event_time", "watermark", "row")
    return rows.select(*(F.col(name).alias(f"{side}_{name}") for name in names), *keys)
