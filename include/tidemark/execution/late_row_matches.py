"""Find late rows that would have matched had they been on time."""

from __future__ import annotations

from functools import reduce

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from tidemark.config import Pipeline
from tidemark.config.sides import OTHER, SIDES
from tidemark.config.types import to_micros
from tidemark.joins.base import Join
from tidemark.joins.keys import key_columns
from tidemark.sources.stored_input import StoredInput
from tidemark.timegrid.slices import Grid
from tidemark.timegrid.time_columns import trunc_div

FEW = 100_000
"""Late rows of a side up to which each task gets all of them, where the other input would be shuffled to meet them."""
_PLACE = ("clock", "tiebreak", "event_time")


def with_would_match(
    late: DataFrame, join: Join, pipeline: Pipeline, inputs: tuple[StoredInput, StoredInput], grid: Grid, last: int
) -> DataFrame:
    """Add `would_match` to the rows of `ReplayResult.late`, with a number in `row`: null for rejected rows.

    True where a row of the other input had arrived by then (at the same instant counts), with the same keys and an
    event time that the join looks for. Where that row was itself late it counts too. A join's condition is not asked.
    """
    behind = late.where(F.col("watermark").isNotNull())
    times = F.min("event_time").alias("oldest"), F.max("event_time").alias("newest")
    hits = [
        _hits(
            behind,
            extent["side"],
            join,
            _reach(pipeline),
            inputs[SIDES.index(OTHER[extent["side"]])].read_accepted_rows(grid, last, *_around(extent, pipeline)),
            few=extent["rows"] <= FEW,
        )
        for extent in behind.groupBy("side").agg(*times, F.count("*").alias("rows")).collect()
    ]
    if not hits:
        return late.withColumn("would_match", F.lit(None).cast("boolean")).drop("row")
    matched_rows = reduce(DataFrame.unionByName, hits).distinct().withColumn("hit", F.lit(True))
    would_match = F.when(F.col("watermark").isNotNull(), F.coalesce("hit", F.lit(False)))
    return late.join(matched_rows, "row", "left").withColumn("would_match", would_match).drop("row", "hit")


def _hits(behind: DataFrame, side: str, join: Join, reach: int | None, others: DataFrame, *, few: bool) -> DataFrame:
    """`row` of each row of a side that a row of the other input matches.

    Event time is binned, as in `joins.datastream_interval`. Here the late rows, which are few, reach several bins.
    """
    keys = key_columns(behind)
    late = behind.where(F.col("side") == side)
    its = late.select("row", *keys, *(F.col(name).alias(f"late_{name}") for name in _PLACE))
    times = F.col("late_event_time"), F.col("event_time")
    met = join.times_match(*times) if side == "left" else join.times_match(*reversed(times))
    before = F.struct("clock", "tiebreak") <= F.struct("late_clock", "late_tiebreak")
    others = others.select(*keys, *_PLACE)
    if reach is not None:
        size = 2 * reach + 1
        reached = F.sequence(trunc_div(times[0] - reach, size), trunc_div(times[0] + reach, size))
        its, others = its.withColumn("bin", F.explode(reached)), others.withColumn("bin", trunc_div(times[1], size))
        keys = [*keys, "bin"]
    return others.join(F.broadcast(its) if few else its, keys).where(met & before).select("row")


def _reach(pipeline: Pipeline) -> int | None:
    """How many ticks the event times of a pair are apart at most; None for any number."""
    reach = pipeline.max_time_distance
    return None if reach is None else to_micros(reach) // pipeline.tick_micros + 1


def _around(extent: Row, pipeline: Pipeline) -> tuple[int | None, int | None]:
    """Where partners of late rows may lie in event time: [start, end) in microseconds; None for anywhere."""
    if pipeline.max_time_distance is None:
        return None, None
    reach, tick = to_micros(pipeline.max_time_distance), pipeline.tick_micros
    return extent["oldest"] * tick - reach, (extent["newest"] + 1) * tick + reach
