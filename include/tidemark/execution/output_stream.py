"""Order a join's emissions and watermarks as its operator emits them, for the join that reads them next.

An operator emits rows while it processes an event, and then the watermark of that event. So the next join meets a row
with the watermarks before the event that emits it. Source: Flink's chained operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.config import Pipeline
from tidemark.config.dialect_support import TICK_MICROS
from tidemark.config.output_stream import (
    EMISSION_ORDER,
    EMITTED_AT,
    EMITTED_ORDER,
    EVENT_TIME,
    EVENT_TIMES,
    ORDER_STEPS,
    OUTPUT_STREAM_COLUMNS,
    OUTPUT_WATERMARK,
    compute_depth,
    compute_watermark_delay,
)
from tidemark.config.sides import OTHER
from tidemark.execution.lane_replay import LANE
from tidemark.execution.replay import ReplayResult
from tidemark.joins.output_schema import flatten_emissions, select_output
from tidemark.sources.normalization import Side, is_emission
from tidemark.sources.stored_input import StoredInput
from tidemark.spark.dataframe_utils import with_columns
from tidemark.spark.tables import from_pandas
from tidemark.timegrid.slices import Grid
from tidemark.watermarks.exact import scale_tiebreak
from tidemark.watermarks.lanes import Lane, Timeline
from tidemark.watermarks.values import END_OF_INPUT, NO_WATERMARK

END_TIEBREAK = 2**32
"""Tiebreak of the end of the left input. Rows of the last microsecond of its slice come before it if their tiebreaks
are smaller. A larger one would not fit into a long in a chain of `MAX_DEPTH` joins."""
_ADVANCE_SCHEMA = "lane long, slice long, clock long, tiebreak long, watermark long"
_POSITION = ("clock", "tiebreak")


def create_output_stream(
    replayed: ReplayResult, pipeline: Pipeline, inputs: Sequence[StoredInput], lane: Lane, grid: Grid
) -> DataFrame:
    """Return the rows of the table `output_stream`: emissions and watermarks of a job with one lane.

    Emissions have the columns of the table `emissions`, their event time or times, and their place. Watermarks have
    `_watermark`, their slice and their place.
    """
    joined, sides = replayed.joined.withColumn("lane", F.lit(0)), [source.side for source in inputs]
    return create_output_streams(replayed, joined, pipeline, sides, [lane], grid).drop(LANE)


def create_output_streams(
    replayed: ReplayResult,
    joined: DataFrame,
    pipeline: Pipeline,
    sides: Sequence[Side],
    lanes: Sequence[Lane],
    grid: Grid,
) -> DataFrame:
    """Return the rows of the table `output_stream` for all lanes of a job, with their lane as `LANE`.

    Args:
        replayed: Outputs of the job.
        joined: Its emissions with their `lane`.
        pipeline: The pipeline.
        sides: The sides of its inputs.
        lanes: The lanes.
        grid: Grid of the replay.
    """
    depth, delay = compute_depth(pipeline), F.lit(compute_watermark_delay(pipeline))
    advances = add_drain(replayed.list_increments(), lanes, replayed.timelines, grid, depth)
    placed = place_emissions(joined, advances)
    wide = flatten_emissions(placed, pipeline, grid, {**_place_columns(), EMISSION_ORDER: F.col("emission_order")})
    rows = select_output(wide.transform(with_columns, _event_times(pipeline, sides)), pipeline)
    watermarks = list_output_watermarks(advances, delay)
    watermarks = watermarks.select(
        grid.timestamp_column(F.col("slice")).alias("_slice"),
        F.col("watermark").alias(OUTPUT_WATERMARK),
        *(column.alias(name) for name, column in _place_columns().items()),
        F.col("lane").alias(LANE),
    )
    return rows.unionByName(watermarks, allowMissingColumns=True)


def select_stream_emissions(stream: DataFrame) -> DataFrame:
    """Select the emissions of an output stream, in the columns of the table `emissions`."""
    return stream.where(is_emission()).drop(*OUTPUT_STREAM_COLUMNS)


def extend_schema(emissions: T.StructType, pipeline: Pipeline) -> T.StructType:
    """Return the schema of a pipeline's output stream, by the schema of its emissions."""
    is_sql = pipeline.dialect == "flink-sql"
    types: dict[str, T.DataType] = {
        EMITTED_AT: T.TimestampType(),
        EMITTED_ORDER: T.LongType(),
        EMISSION_ORDER: T.ArrayType(T.LongType()),
        **dict.fromkeys(EVENT_TIMES.values() if is_sql else (EVENT_TIME,), T.TimestampType()),
        OUTPUT_WATERMARK: T.LongType(),
    }
    return T.StructType([*emissions.fields, *(T.StructField(name, dtype) for name, dtype in types.items())])


def _place_columns() -> dict[str, Column]:
    return {EMITTED_AT: F.timestamp_micros("clock"), EMITTED_ORDER: F.col("tiebreak")}


def _event_times(pipeline: Pipeline, sides: Sequence[Side]) -> dict[str, Column]:
    """Return the event times of flattened emissions, by the columns of the output stream."""
    if pipeline.dialect == "flink-datastream":
        return {EVENT_TIME: F.col("_result_time")}
    is_padded = {side: F.col("_emission") == f"padded_{other}" for side, other in OTHER.items()}
    if pipeline.join.window:
        return {name: F.when(~is_padded[side], F.col("_result_time")) for side, name in EVENT_TIMES.items()}
    times = {side.name: side.event_time for side in sides}
    return {
        name: F.timestamp_millis(
            replace(times[side], name=f"{side}_{times[side].name}").to_ticks(TICK_MICROS["flink-sql"])
        )
        for side, name in EVENT_TIMES.items()
    }


def place_emissions(joined: DataFrame, advances: DataFrame) -> DataFrame:
    """Add each row's place in the output stream, as `clock` and `tiebreak`, and drop the columns of its cause.

    The event that emits a row has the same clock. Its tiebreak is multiplied by `ORDER_STEPS`, since one event emits
    first rows at its arrival, and then rows at the timers that its watermark fires.

    Args:
        joined: Emissions with `lane`, `slice` and `EMITTING_EVENT_COLUMNS`.
        advances: Positions at which the combined watermark rises, from `add_drain`.
    """
    place = ["lane", "slice", "emitting_watermark"]
    levels = joined.where(F.col("emitting_watermark").isNotNull()).select(*place).distinct()
    first_events = _find_first_events(levels, advances)
    placed = joined.join(first_events, place, "left")
    placed = placed.withColumn("position", F.greatest("emitting_row", "reaching_event"))
    is_by_timer = F.col("emitting_watermark").isNotNull()
    tiebreak = scale_tiebreak(F.col("position.tiebreak"), ORDER_STEPS) + is_by_timer.cast("int")
    position = {"clock": F.col("position.clock"), "tiebreak": tiebreak}
    return placed.transform(with_columns, position).drop(
        "emitting_row", "emitting_watermark", "reaching_event", "position"
    )


def _find_first_events(levels: DataFrame, advances: DataFrame) -> DataFrame:
    """Find the first position at which the combined watermark reaches each level, as `reaching_event`.

    Each slice is sorted by watermark. It is read in descending order, because Spark updates a frame from the
    partition's start incrementally.
    """
    level, position = F.col("watermark").alias("emitting_watermark"), F.struct(*_POSITION).alias("position")
    events = advances.select("lane", "slice", level, position)
    events = events.unionByName(levels, allowMissingColumns=True)
    # An advance to exactly this level reaches it (>=), so it is sorted before the level.
    order = F.col("emitting_watermark").desc(), F.col("position").desc_nulls_last()
    from_highest = Window.partitionBy("lane", "slice").orderBy(*order)
    reached = from_highest.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    events = events.withColumn("reaching_event", F.last("position", ignorenulls=True).over(reached))
    return events.where(F.col("position").isNull()).drop("position")


def add_drain(
    advances: DataFrame, lanes: Sequence[Lane], timelines: Sequence[Timeline], grid: Grid, depth: int = 0
) -> DataFrame:
    """Add the end of the inputs to the positions at which the combined watermark rises.

    The inputs end one after the other, left first, after all rows of their last slice.

    Args:
        advances: Result of `increments.list_combined_increments`.
        lanes: Lanes of the job.
        timelines: Their watermarks.
        grid: Grid of the slices.
        depth: Number of joins before this one in its longest chain. Their inputs end first.
    """
    ends = [
        end
        for number, (lane, timeline) in enumerate(zip(lanes, timelines, strict=True))
        for end in _list_ends(number, lane, timeline, grid, depth)
    ]
    if not ends:
        return advances
    table = pd.DataFrame(ends, columns=[field.split()[0] for field in _ADVANCE_SCHEMA.split(", ")])
    return advances.unionByName(from_pandas(advances.sparkSession, table, _ADVANCE_SCHEMA))


def _list_ends(
    number: int, lane: Lane, timeline: Timeline, grid: Grid, depth: int
) -> list[tuple[int, int, int, int, int]]:
    """List the positions at which the end of an input raises the combined watermark, in `_ADVANCE_SCHEMA`."""
    last = timeline.before_drain
    if lane.drain is None or last is None:
        return []
    clock, tiebreak = grid.start_of(lane.drain + 1) - 1, END_TIEBREAK
    for _ in range(depth):
        tiebreak = (tiebreak + 2) * ORDER_STEPS  # after both ends of the previous join
    ends = [(number, lane.drain, clock, tiebreak + 1, END_OF_INPUT)]
    if last.combined < last.right:  # the left input has held back the watermark
        ends.insert(0, (number, lane.drain, clock, tiebreak, last.right))
    return ends


def list_output_watermarks(advances: DataFrame, delay: Column) -> DataFrame:
    """Return the watermarks that the operator emits: those of its inputs, less a delay. Each follows its event's rows.

    Args:
        advances: Positions at which the combined watermark rises.
        delay: Time that the operator subtracts, ms.
    """
    is_known = F.col("watermark") > F.lit(NO_WATERMARK) + delay
    columns = {
        "watermark": F.col("watermark") - delay,
        "tiebreak": scale_tiebreak(F.col("tiebreak"), ORDER_STEPS) + (ORDER_STEPS - 1),
    }
    return advances.where(is_known).transform(with_columns, columns)
