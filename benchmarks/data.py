"""Generate the rows that all peers read: two inputs over the same keys, out of order, some late."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemark.config.sides import SIDES

START = datetime(2024, 1, 1, tzinfo=UTC)
COLUMNS = ("key", "at", "value", "id", "seen")
PARTNERS_PER_ROW = 5 / 6
"""Mean number of partners of a row, in every shape: there are nearly as many pairs as rows."""
HOT_KEY = 0


@dataclass(frozen=True)
class Shape:
    """Distribution of the rows of an input."""

    rows: int
    """Rows per input."""
    rows_per_key: int = 80
    days: int = 1
    late_share: float = 0.01
    """Share of rows that arrive ten minutes to an hour after their event time; others arrive within 50 seconds."""
    hot_share: float = 0.0
    """Share of rows added to one key."""

    @property
    def keys(self) -> int:
        """Number of keys."""
        return max(1, self.rows // self.rows_per_key)

    @property
    def span(self) -> timedelta:
        """The time over which the rows are spread."""
        return timedelta(days=self.days)

    @property
    def interval_ms(self) -> tuple[int, int]:
        """Bounds of right time minus left time, in ms, that give `PARTNERS_PER_ROW`."""
        background_rows = self.rows * (1 - self.hot_share) ** 2 / self.keys
        rows_of_key = self.rows * self.hot_share**2 + background_rows
        third = max(1, round(PARTNERS_PER_ROW * self.span / rows_of_key / timedelta(milliseconds=3)))
        return -third, 2 * third

    @property
    def folder(self) -> str:
        """Name of the folder with its tables."""
        return f"rows{self.rows}_per_key{self.rows_per_key}_days{self.days}_late{self.late_share}_hot{self.hot_share}"


def write_inputs(spark: SparkSession, shape: Shape, folder: Path) -> None:
    """Write both inputs as Delta tables `left` and `right`, unless they exist."""
    for seed, side in enumerate(SIDES):
        if not (folder / side).exists():
            generate_rows(spark, shape, 10 * seed).write.format("delta").save(str(folder / side))


def generate_rows(spark: SparkSession, shape: Shape, seed: int) -> DataFrame:
    """Generate rows over the span and all keys, out of order, without rows that arrive after the end.

    Event times are whole ms, for which every engine emits the same pairs.
    """
    start, end = (F.lit(instant) for instant in (START, START + shape.span))
    ms = shape.span // timedelta(milliseconds=1)
    is_late = F.rand(seed + 1) < shape.late_share
    delay = F.when(is_late, 600 + F.rand(seed + 2) * 3000).otherwise(F.rand(seed + 3) * 50)
    key = (F.rand(seed + 4) * shape.keys).cast("long")
    rows = spark.range(0, shape.rows, numPartitions=8).select(
        F.when(F.rand(seed + 6) < shape.hot_share, HOT_KEY).otherwise(key).alias("key"),
        F.timestamp_millis(F.unix_millis(start) + (F.rand(seed) * ms).cast("long")).alias("at"),
        F.rand(seed + 5).alias("value"),
        "id",
        (delay * 1e6).cast("long").alias("delay"),
    )
    arrival = F.timestamp_micros(F.unix_micros("at") + F.col("delay"))
    return rows.withColumn("seen", arrival).drop("delay").where(F.col("seen") < end)
