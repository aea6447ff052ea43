"""The rows that all peers read: two inputs over the same keys, in disorder, some of them late."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemark.config.sides import SIDES

START = datetime(2024, 1, 1, tzinfo=UTC)
COLUMNS = ("key", "at", "value", "id", "seen")
PARTNERS = 5 / 6
"""How many rows of the other input a row meets on average, whatever the shape: pairs are as many as rows, nearly."""
HOT_KEY = 0


@dataclass(frozen=True)
class Shape:
    """What the rows of an input are like."""

    rows: int
    """Of each of both inputs."""
    rows_per_key: int = 80
    days: int = 1
    late_share: float = 0.01
    """Rows that come ten minutes to an hour after their event time; the others come within 50 seconds."""
    hot_share: float = 0.0
    """Rows of one key, beside those that it has as one of all."""

    @property
    def keys(self) -> int:
        """How many keys there are."""
        return max(1, self.rows // self.rows_per_key)

    @property
    def span(self) -> timedelta:
        """The time over which the rows are spread."""
        return timedelta(days=self.days)

    @property
    def interval_ms(self) -> tuple[int, int]:
        """How much later than a left row its right rows are at least and at most, in ms, for `PARTNERS`."""
        others = self.rows * (1 - self.hot_share) ** 2 / self.keys
        of_its_key = self.rows * self.hot_share**2 + others
        third = max(1, round(PARTNERS * self.span / of_its_key / timedelta(milliseconds=3)))
        return -third, 2 * third

    @property
    def folder(self) -> str:
        """A name for its tables."""
        return f"rows{self.rows}_per_key{self.rows_per_key}_days{self.days}_late{self.late_share}_hot{self.hot_share}"


def write(spark: SparkSession, shape: Shape, folder: Path) -> None:
    """Write both inputs as Delta tables `left` and `right`, unless they are there."""
    for seed, side in enumerate(SIDES):
        if not (folder / side).exists():
            generate(spark, shape, 10 * seed).write.format("delta").save(str(folder / side))


def generate(spark: SparkSession, shape: Shape, seed: int) -> DataFrame:
    """Rows over the span and all keys, in disorder; those that would come after the end are left out.

    Event times are whole ms, of which every engine makes the same pairs.
    """
    start, end = (F.lit(instant) for instant in (START, START + shape.span))
    ms = shape.span // timedelta(milliseconds=1)
    straggles = F.rand(seed + 1) < shape.late_share
    delay = F.when(straggles, 600 + F.rand(seed + 2) * 3000).otherwise(F.rand(seed + 3) * 50)
    key = (F.rand(seed + 4) * shape.keys).cast("long")
    rows = spark.range(0, shape.rows, numPartitions=8).select(
        F.when(F.rand(seed + 6) < shape.hot_share, HOT_KEY).otherwise(key).alias("key"),
        F.timestamp_millis(F.unix_millis(start) + (F.rand(seed) * ms).cast("long")).alias("at"),
        F.rand(seed + 5).alias("value"),
        "id",
        (delay * 1e6).cast("long").alias("delay"),
    )
    seen = F.timestamp_micros(F.unix_micros("at") + F.col("delay"))
    return rows.withColumn("seen", seen).drop("delay").where(F.col("seen") < end)
