"""Find late rows that would have matched had they been on time."""

from __future__ import annotations

from collections.abc import Sequence
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

MAX_BROADCAST_ROWS = 100_000
"""Maximum number of late rows of a side that are broadcast. With more of them, both inputs are shuffled."""
_POSITION_COLUMNS = ("clock", "tiebreak", "event_time")


def add_would_match(
    late: DataFrame, join: Join, pipeline: Pipeline, inputs: Sequence[StoredInput], grid: Grid, last: int
) -> DataFrame:
    """Add `would_match` to late rows; null for rejected rows.

    True if the other input has a row with the same keys and a matching event time that arrived before the late row or
    at the same instant, even if it was late itself. The join's condition is not evaluated.

    Args:
        late: Rows of `ReplayResult.late`, numbered in `row`. The result lacks this column.
        inputs: Left and right input.
        last: Last slice of the other input that is read.
    """
    late_rows = late.where(F.col("watermark").isNotNull())
    times = F.min("event_time").alias("oldest"), F.max("event_time").alias("newest")
    matched_by_side = []
    for summary in late_rows.groupBy("side").agg(*times, F.count("*").alias("rows")).collect():
        side, other_input = summary["side"], inputs[SIDES.index(OTHER[summary["side"]])]
        other_rows = other_input.read_accepted_rows(grid, last, *_compute_partner_bounds(summary, pipeline))
        max_ticks, is_small = _compute_max_tick_distance(pipeline), summary["rows"] <= MAX_BROADCAST_ROWS
        matched_by_side.append(_select_matched(late_rows, side, join, max_ticks, other_rows, is_small=is_small))
    if not matched_by_side:
        return late.withColumn("would_match", F.lit(None).cast("boolean")).drop("row")
    matched_rows = reduce(DataFrame.unionByName, matched_by_side).distinct().withColumn("hit", F.lit(True))
    would_match = F.when(F.col("watermark").isNotNull(), F.coalesce("hit", F.lit(False)))
    return late.join(matched_rows, "row", "left").withColumn("would_match", would_match).drop("row", "hit")


def _select_matched(
    late_rows: DataFrame, side: str, join: Join, max_ticks: int | None, other_rows: DataFrame, *, is_small: bool
) -> DataFrame:
    """Select `row` of each late row of a side that a row of the other input would have matched."""
    keys = key_columns(late_rows)
    late_columns = [F.col(name).alias(f"late_{name}") for name in _POSITION_COLUMNS]
    late_rows = late_rows.where(F.col("side") == side).select("row", *keys, *late_columns)
    late_time, time = F.col("late_event_time"), F.col("event_time")
    times_match = join.times_match(late_time, time) if side == "left" else join.times_match(time, late_time)
    arrived_in_time = F.struct("clock", "tiebreak") <= F.struct("late_clock", "late_tiebreak")
    other_rows = other_rows.select(*keys, *_POSITION_COLUMNS)
    if max_ticks is not None:
        # Equi-join on bins of event time, as in `joins.datastream_interval`. Late rows, which are few, are exploded.
        size = 2 * max_ticks + 1
        bins = F.sequence(trunc_div(late_time - max_ticks, size), trunc_div(late_time + max_ticks, size))
        late_rows = late_rows.withColumn("bin", F.explode(bins))
        other_rows, keys = other_rows.withColumn("bin", trunc_div(time, size)), [*keys, "bin"]
    late_rows = F.broadcast(late_rows) if is_small else late_rows
    return other_rows.join(late_rows, keys).where(times_match & arrived_in_time).select("row")


def _compute_max_tick_distance(pipeline: Pipeline) -> int | None:
    """Compute an upper bound of the distance of a pair's event times, in ticks; None if it is unbounded."""
    max_distance = pipeline.max_time_distance
    return None if max_distance is None else to_micros(max_distance) // pipeline.tick_micros + 1


def _compute_partner_bounds(late_summary: Row, pipeline: Pipeline) -> tuple[int | None, int | None]:
    """Compute bounds of the event times of late rows' partners: [start, end) in microseconds; None for no bound."""
    if pipeline.max_time_distance is None:
        return None, None
    max_distance, tick = to_micros(pipeline.max_time_distance), pipeline.tick_micros
    return late_summary["oldest"] * tick - max_distance, (late_summary["newest"] + 1) * tick + max_distance
