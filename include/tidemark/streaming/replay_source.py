"""The rows of both inputs once more, in the order of the pipeline's clock, cut into what each micro-batch reads."""

from __future__ import annotations

from typing import Literal

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from tidemark.config.sides import SIDES
from tidemark.delta.table import DeltaLog
from tidemark.errors import InputError
from tidemark.sources.stored_input import StoredInput
from tidemark.sources.streaming_checkpoint_source import FEED
from tidemark.timegrid.slices import Grid
from tidemark.timegrid.time_columns import floor_div

Rate = Literal["slice", "now"] | int
"""What a micro-batch takes: a slice, as many rows of both inputs together, or what Spark gives it."""


def parse_rate(text: str) -> Rate:
    """Read a rate such as `slice`, `500 rows` or `now`.

    Raises:
        ValueError: not a rate; the message shows the forms that are.

    >>> parse_rate("500 rows")
    500
    """
    number = text.removesuffix("rows").strip()
    if number.isdigit() and int(number) > 0:
        return int(number)
    match text:
        case "slice" | "now":
            return text
    raise ValueError(f"{text!r} is not a rate; write slice, now, or a number of rows such as '500 rows'")


def rows_in_slices(inputs: tuple[StoredInput, StoredInput], grid: Grid) -> DataFrame:
    """The rows of both inputs (`sources.stored_input.Side.normalized`), but for those that no slice has a place for."""
    for source in inputs:
        source.refuse_untold(grid, 0)
    left, right = (
        source.side.normalized(
            source.table.read().where(~source.side.unusable & (source.side.clock.micros >= grid.start)),
            grid,
            grid.start,
        )
        for source in inputs
    )
    return left.unionByName(right, allowMissingColumns=True)


def numbered(rows: DataFrame, name: str) -> DataFrame:
    """Rows of both sides with their numbers in the order of the clock, from 0; in that order.

    It takes one task. Rows of one instant are numbered as they come, differently perhaps when they are read again.
    """
    number = F.row_number().over(Window.orderBy("clock", "tiebreak", "side")).cast("long") - 1
    return rows.withColumn(name, number)


def write_feed(inputs: tuple[StoredInput, StoredInput], grid: Grid, path: str, rate: Rate, *, pauses: bool) -> int:
    """Write a Delta table of `traced_inputs.FEED`, a file for each batch, all in one commit; gives their number.

    Rows without a usable clock, or before the first slice, have no place in it. With `pauses` each file is followed by
    one with a row of neither side, so that the batch which reads it has no data.

    Raises:
        InputError: there is a table already, or no row.
    """
    left, right = (source.table for source in inputs)
    if DeltaLog.open(path):
        raise InputError(f"{path} is there already; remove its folder, which is that of the twin, to stream anew")
    rows = rows_in_slices(inputs, grid).select("side", "slice", "clock", "tiebreak", *SIDES)
    chunked, chunks = _by_slice(rows) if rate == "slice" else _by_count(rows, int(rate))
    if not chunks:
        raise InputError(f"{left.name} and {right.name} hold no rows to stream")
    step = 2 if pauses else 1
    fed = chunked.withColumn("chunk", F.col("chunk") * step).select(*FEED)
    if pauses:
        empty = left.spark.range(chunks).select((F.col("id") * step + 1).alias("chunk"))
        fed = fed.unionByName(empty, allowMissingColumns=True)
    files = fed.repartitionById(chunks * step, F.col("chunk").cast("int"))
    files.write.format("delta").mode("error").save(path)
    return chunks * step


def read_feed(spark: SparkSession, path: str, side: str) -> DataFrame:
    """The rows of one side as a stream, a file of the feed for each batch."""
    # As changes, because these alone are read in the order in which they were written.
    options = {"maxFilesPerTrigger": "1", "startingVersion": "0"}
    rows = spark.readStream.format("delta").options(**options).load(path)
    return rows.where(F.col("side") == side).select(f"{side}.*")


def _by_slice(rows: DataFrame) -> tuple[DataFrame, int]:
    """A chunk for each slice that has rows."""
    slices = sorted(row["slice"] for row in rows.select("slice").distinct().collect())
    numbered = [(number, chunk) for chunk, number in enumerate(slices)]
    table = rows.sparkSession.createDataFrame(numbered, "slice long, chunk long")
    return rows.join(F.broadcast(table), "slice"), len(slices)


def _by_count(rows: DataFrame, size: int) -> tuple[DataFrame, int]:
    """Chunks of as many rows."""
    chunked = numbered(rows, "chunk").withColumn("chunk", floor_div(F.col("chunk"), size))
    return chunked, -(-rows.count() // size)
