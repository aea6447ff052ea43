"""Replay the rows of both inputs in the order of the clock, cut into micro-batches."""

from __future__ import annotations

from typing import Literal

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from tidemark.config.sides import SIDES
from tidemark.delta.table import DeltaTableHandle
from tidemark.errors import InputError
from tidemark.sources.stored_input import StoredInput
from tidemark.sources.streaming_checkpoint_source import FEED_COLUMNS
from tidemark.spark.temporary_settings import list_column_mapping_settings, override_settings
from tidemark.timegrid.slices import Grid
from tidemark.timegrid.time_columns import floor_div

Rate = Literal["slice", "now"] | int
"""Content of a micro-batch: a slice, a number of rows of both inputs together, or what Spark reads at once (`now`)."""


def parse_rate(text: str) -> Rate:
    """Parse a rate such as `slice`, `500 rows` or `now`.

    Raises:
        ValueError: Not a rate.

    >>> parse_rate("500 rows")
    500
    """
    number = text.removesuffix("rows").strip()
    if number.isdigit() and int(number) > 0:
        return int(number)
    match text:
        case "slice" | "now":
            return text
    raise ValueError(f"{text!r} is not a rate. Write slice, now, or a number of rows such as '500 rows'.")


def read_rows_in_slices(inputs: tuple[StoredInput, StoredInput], grid: Grid) -> DataFrame:
    """Read the normalized rows of both inputs that belong to a slice.

    Raises:
        InputError: Arrivals are not exact.
    """
    left, right = (read_side_in_slices(source, grid) for source in inputs)
    return left.unionByName(right, allowMissingColumns=True)


def read_side_in_slices(source: StoredInput, grid: Grid) -> DataFrame:
    """Read the normalized rows of an input that belong to a slice.

    Raises:
        InputError: Arrivals are not exact.
    """
    source.changes.require_exact_arrivals(grid, 0)
    side = source.side
    rows = source.table.read()
    return side.normalize(rows.where(~side.has_unusable_time & (side.clock.micros >= grid.start)), grid, grid.start)


def number_rows(rows: DataFrame, name: str) -> DataFrame:
    """Sort rows of both sides by the clock, and add a column with their number, from 0.

    It takes a single task. Numbers of simultaneous rows may differ when they are computed again.
    """
    number = F.row_number().over(Window.orderBy("clock", "tiebreak", "side")).cast("long") - 1
    return rows.withColumn(name, number)


def write_feed(inputs: tuple[StoredInput, StoredInput], grid: Grid, path: str, rate: Rate, *, pauses: bool) -> int:
    """Write a Delta table with `FEED_COLUMNS` in one commit, with a file per micro-batch.

    Rows without a usable clock, or before the first slice, are left out.

    Args:
        pauses: True to write after each file another one without rows of either side, for a batch without data.

    Returns:
        The number of files.

    Raises:
        InputError: The table exists, or there are no rows.
    """
    left, right = (source.table for source in inputs)
    if DeltaTableHandle.open(path):
        raise InputError(f"{path} exists already. Remove the folder of this live query to run it again.")
    rows = read_rows_in_slices(inputs, grid).select("side", "slice", "clock", "tiebreak", *SIDES)
    chunked, chunks = _chunk_by_slice(rows) if rate == "slice" else _chunk_by_count(rows, int(rate))
    if not chunks:
        raise InputError(f"{left.name} and {right.name} contain no rows to stream. Check both inputs.")
    step = 2 if pauses else 1
    feed = chunked.withColumn("chunk", F.col("chunk") * step).select(*FEED_COLUMNS)
    if pauses:
        empty = left.spark.range(chunks).select((F.col("id") * step + 1).alias("chunk"))
        feed = feed.unionByName(empty, allowMissingColumns=True)
    files = feed.repartitionById(chunks * step, F.col("chunk").cast("int"))
    with override_settings(files.sparkSession, list_column_mapping_settings(files.schema)):
        files.write.format("delta").mode("error").save(path)
    return chunks * step


def read_feed(spark: SparkSession, path: str, side: str) -> DataFrame:
    """Read the rows of one side as a stream, with a file of the feed per batch."""
    # As changes, because only these are read in the order in which they were written.
    options = {"maxFilesPerTrigger": "1", "startingVersion": "0"}
    rows = spark.readStream.format("delta").options(**options).load(path)
    return rows.where(F.col("side") == side).select(f"{side}.*")


def _chunk_by_slice(rows: DataFrame) -> tuple[DataFrame, int]:
    """Add the `chunk` of each row, one for each slice with rows; return the number of chunks too."""
    slices = sorted(row["slice"] for row in rows.select("slice").distinct().collect())
    chunks = [(number, chunk) for chunk, number in enumerate(slices)]
    table = rows.sparkSession.createDataFrame(chunks, "slice long, chunk long")
    return rows.join(F.broadcast(table), "slice"), len(slices)


def _chunk_by_count(rows: DataFrame, size: int) -> tuple[DataFrame, int]:
    """Add the `chunk` of each row, with so many rows in each; return the number of chunks too."""
    chunked = number_rows(rows, "chunk").withColumn("chunk", floor_div(F.col("chunk"), size))
    return chunked, -(-rows.count() // size)
