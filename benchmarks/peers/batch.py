"""Spark's batch joins, which know nothing of lateness: as people write them, and as they write them in the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from benchmarks.data import COLUMNS
from benchmarks.peers.peer import Peer, Work
from tidemark.config.sides import SIDES
from tidemark.config.types import millis, parse_duration
from tidemark.spark.session import spark_session

SAME_KEY, SAME_BIN = "left_key = right_key", "left_bin = right_bin"
NUMBERED = (*COLUMNS, "bin")
RESULT = [f"{side}_{column}" for side in SIDES for column in COLUMNS]


class Floor(Peer):
    """The least that any join does that shuffles."""

    name = "floor"
    told = "Spark reads both inputs, shuffles them by key and writes them"

    def run(self, work: Work) -> None:
        """Both inputs, one after the other."""
        for side in SIDES:
            rows = spark_session("benchmark").read.format("delta").load(work.input(side))
            rows.repartition("key").write.format("delta").save(f"{work.out}/{side}")

    def counted(self, work: Work) -> dict[str, float]:
        """The rows of both."""
        return {"rows": sum(DeltaTable(f"{work.out}/{side}").count() for side in SIDES)}


class AsWritten(Peer):
    """The range join of every tutorial."""

    name = "as written"
    told = "Spark's batch join on the key and a range of timestamps, with INTERVALs"

    def run(self, work: Work) -> None:
        """Inner joins by interval."""
        low, high = (f"left_at + INTERVAL {ms} MILLISECONDS" for ms in work.case.shape.interval_ms)
        left, right = (side_rows(work, side) for side in SIDES)
        save(left.join(right, F.expr(f"{SAME_KEY} AND right_at BETWEEN {low} AND {high}")), work)


class Integers(Peer):
    """The same, where somebody has looked at the plan."""

    name = "integers"
    told = "the same in whole milliseconds"

    def run(self, work: Work) -> None:
        """Inner joins by interval."""
        left, right = (side_rows(work, side) for side in SIDES)
        save(left.join(right, F.expr(SAME_KEY) & near(work)), work)


class Binned(Peer):
    """The plain join that is fast."""

    name = "binned"
    told = "Spark's batch join on the key and a bin of time, or a window"

    def run(self, work: Work) -> None:
        """All joins."""
        left, right = (side_rows(work, side) for side in SIDES)
        if work.case.window:
            left, right = windowed(work.case.window, left, right)
            save(left.join(right, F.expr(f"{SAME_KEY} AND {SAME_BIN}")), work)
            return
        low, high = work.case.shape.interval_ms
        width, on = 2 * (high - low), F.expr(f"{SAME_KEY} AND {SAME_BIN}") & near(work)
        how = "inner" if work.case.how == "inner" else "left"
        joined = in_bins(left, width).join(in_bins(right, width, -high, -low), on, how)
        if work.case.how == "full":
            alone = in_bins(right, width).join(in_bins(left, width, low, high), on, "left_anti")
            joined = joined.unionByName(alone, allowMissingColumns=True)
        save(joined, work)


def side_rows(work: Work, side: str) -> DataFrame:
    """An input's rows as `left_NAME`, and their times in ms as `left_ms`."""
    own = (F.col(column).alias(f"{side}_{column}") for column in COLUMNS)
    rows = spark_session("benchmark").read.format("delta").load(work.input(side))
    return rows.select(*own, F.unix_millis("at").alias(f"{side}_ms"))


def save(rows: DataFrame, work: Work) -> None:
    """Write the columns of both sides."""
    rows.select(*RESULT).write.format("delta").save(work.out)


def near(work: Work) -> Column:
    """Whether the times of a pair are as near as the interval wants them."""
    return (F.col("right_ms") - F.col("left_ms")).between(*work.case.shape.interval_ms)


def in_bins(rows: DataFrame, width: int, low: int = 0, high: int = 0) -> DataFrame:
    """Rows, each once in every bin that has a time from `low` to `high` after the row's; in ms, both inclusive."""
    side = next(side for side in SIDES if f"{side}_ms" in rows.columns)
    first, last = (F.floor((F.col(f"{side}_ms") + ms) / width) for ms in (low, high))
    return rows.withColumn(f"{side}_bin", first if low == high else F.explode(F.sequence(first, last)))


def windowed(window: Mapping[str, Any], left: DataFrame, right: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Both sides, each row once in every window that it is in."""
    match window:
        case {"tumbling": size}:
            return in_bins(left, ms(size)), in_bins(right, ms(size))
        case {"sliding": {"size": size, "slide": slide}}:
            # A window is known by its last slide: a row is in the windows that end with its own slide, or later.
            rest = ms(size) - ms(slide)
            return in_bins(left, ms(slide), 0, rest), in_bins(right, ms(slide), 0, rest)
        case {"session": {"gap": gap}}:
            return in_sessions(left, right, ms(gap))
    raise ValueError(f"there is no plain join for {window}")


def in_sessions(left: DataFrame, right: DataFrame, gap: int) -> tuple[DataFrame, DataFrame]:
    """Both sides in the sessions that the rows of both make; rows that are `gap` ms apart are of one session."""
    plain = [rows.toDF(*(name.removeprefix(f"{side}_") for name in rows.columns)).withColumn("side", F.lit(side))
             for side, rows in zip(SIDES, (left, right), strict=True)]  # fmt: skip
    ordered = Window.partitionBy("key").orderBy("ms")
    begins = F.coalesce(F.col("ms") - F.lag("ms").over(ordered) > gap, F.lit(True)).cast("int")
    known = plain[0].unionByName(plain[1]).withColumn("begins", begins)
    numbered = known.withColumn("bin", F.sum("begins").over(ordered.rangeBetween(Window.unboundedPreceding, 0)))
    both = (
        numbered.where(F.col("side") == side).select(*(F.col(name).alias(f"{side}_{name}") for name in NUMBERED))
        for side in SIDES
    )
    return next(both), next(both)


def ms(text: str) -> int:
    """A duration as a pipeline file has it, in ms."""
    return millis(parse_duration(text))
