"""Batch joins of Spark, which ignore lateness: as commonly written, and optimised."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from benchmarks.data import COLUMNS
from benchmarks.peers.peer import Peer, Work
from tidemark.config.sides import SIDES
from tidemark.config.types import parse_duration, to_millis
from tidemark.spark.session import get_spark_session

SAME_KEY, SAME_BIN = "left_key = right_key", "left_bin = right_bin"
NUMBERED = (*COLUMNS, "bin")
RESULT = [f"{side}_{column}" for side in SIDES for column in COLUMNS]


class ReadAndShuffle(Peer):
    """The minimum work of a join that shuffles."""

    name = "floor"
    description = "Spark reads both inputs, shuffles them by key and writes them"

    def run(self, work: Work) -> None:
        """Shuffle and write both inputs, one after the other."""
        for side in SIDES:
            rows = get_spark_session("benchmark").read.format("delta").load(work.get_input_path(side))
            rows.repartition("key").write.format("delta").save(f"{work.output_path}/{side}")

    def count_output(self, work: Work) -> dict[str, float]:
        """Count the rows of both tables."""
        return {"rows": sum(DeltaTable(f"{work.output_path}/{side}").count() for side in SIDES)}


class IntervalJoin(Peer):
    """A range join as in tutorials."""

    name = "as written"
    description = "Spark's batch join on the key and a range of timestamps, with INTERVALs"

    def run(self, work: Work) -> None:
        """Run an inner join by interval."""
        low, high = (f"left_at + INTERVAL {ms} MILLISECONDS" for ms in work.case.shape.interval_ms)
        left, right = (read_side(work, side) for side in SIDES)
        save(left.join(right, F.expr(f"{SAME_KEY} AND right_at BETWEEN {low} AND {high}")), work)


class IntegerJoin(Peer):
    """The same join on integers, which has a cheaper plan."""

    name = "integers"
    description = "the same in whole milliseconds"

    def run(self, work: Work) -> None:
        """Run an inner join by interval."""
        left, right = (read_side(work, side) for side in SIDES)
        save(left.join(right, F.expr(SAME_KEY) & is_in_interval(work)), work)


class BinnedJoin(Peer):
    """A fast plain join by time bins."""

    name = "binned"
    description = "Spark's batch join on the key and a bin of time, or a window"

    def run(self, work: Work) -> None:
        """Run a join of any type."""
        left, right = (read_side(work, side) for side in SIDES)
        if work.case.window:
            left, right = add_windows(work.case.window, left, right)
            save(left.join(right, F.expr(f"{SAME_KEY} AND {SAME_BIN}")), work)
            return
        low, high = work.case.shape.interval_ms
        width, on = 2 * (high - low), F.expr(f"{SAME_KEY} AND {SAME_BIN}") & is_in_interval(work)
        how = "inner" if work.case.join_type == "inner" else "left"
        joined = add_bins(left, width).join(add_bins(right, width, -high, -low), on, how)
        if work.case.join_type == "full":
            alone = add_bins(right, width).join(add_bins(left, width, low, high), on, "left_anti")
            joined = joined.unionByName(alone, allowMissingColumns=True)
        save(joined, work)


def read_side(work: Work, side: str) -> DataFrame:
    """Read an input's columns as `left_NAME`, and their times in ms as `left_ms`."""
    columns = (F.col(column).alias(f"{side}_{column}") for column in COLUMNS)
    rows = get_spark_session("benchmark").read.format("delta").load(work.get_input_path(side))
    return rows.select(*columns, F.unix_millis("at").alias(f"{side}_ms"))


def save(rows: DataFrame, work: Work) -> None:
    """Write the columns of both sides."""
    rows.select(*RESULT).write.format("delta").save(work.output_path)


def is_in_interval(work: Work) -> Column:
    """Return True if the times of a pair are within the interval."""
    return (F.col("right_ms") - F.col("left_ms")).between(*work.case.shape.interval_ms)


def add_bins(rows: DataFrame, width: int, low: int = 0, high: int = 0) -> DataFrame:
    """Repeat rows in every bin with a time from `low` to `high` after the row's; in ms, both inclusive."""
    side = next(side for side in SIDES if f"{side}_ms" in rows.columns)
    first, last = (F.floor((F.col(f"{side}_ms") + ms) / width) for ms in (low, high))
    return rows.withColumn(f"{side}_bin", first if low == high else F.explode(F.sequence(first, last)))


def add_windows(window: Mapping[str, Any], left: DataFrame, right: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Repeat the rows of both sides in each of their windows."""
    match window:
        case {"tumbling": size}:
            return add_bins(left, parse_millis(size)), add_bins(right, parse_millis(size))
        case {"sliding": {"size": size, "slide": slide}}:
            # A window is identified by its last slide: a row is in the windows that end with its own slide, or later.
            remainder = parse_millis(size) - parse_millis(slide)
            return add_bins(left, parse_millis(slide), 0, remainder), add_bins(right, parse_millis(slide), 0, remainder)
        case {"session": {"gap": gap}}:
            return add_sessions(left, right, parse_millis(gap))
    raise ValueError(f"no plain join supports {window}. Choose other windows.")


def add_sessions(left: DataFrame, right: DataFrame, gap: int) -> tuple[DataFrame, DataFrame]:
    """Assign the rows of both sides to common sessions; rows `gap` ms apart are in one session."""
    sides = [rows.toDF(*(name.removeprefix(f"{side}_") for name in rows.columns)).withColumn("side", F.lit(side))
             for side, rows in zip(SIDES, (left, right), strict=True)]  # fmt: skip
    by_time = Window.partitionBy("key").orderBy("ms")
    begins = F.coalesce(F.col("ms") - F.lag("ms").over(by_time) > gap, F.lit(True)).cast("int")
    union = sides[0].unionByName(sides[1]).withColumn("begins", begins)
    numbered = union.withColumn("bin", F.sum("begins").over(by_time.rangeBetween(Window.unboundedPreceding, 0)))
    both = (
        numbered.where(F.col("side") == side).select(*(F.col(name).alias(f"{side}_{name}") for name in NUMBERED))
        for side in SIDES
    )
    return next(both), next(both)


def parse_millis(text: str) -> int:
    """Parse a duration in the form of pipeline files to ms."""
    return to_millis(parse_duration(text))
