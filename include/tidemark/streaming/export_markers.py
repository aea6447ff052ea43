"""What keeps the rows of an exported state apart from live ones, so that nothing is emitted twice.

Beside the input's columns a row of the state has the struct `_tidemark`: its event `time`; a `lane`, and only rows of
one lane meet; and `told`, whether it has met a partner, so that it is not to be emitted alone any more. With windows
those are the starts of the windows for which this holds, or that are closed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.checkpoints.checkpoint_ref import SavedState
from tidemark.config.sides import OTHER, SIDES
from tidemark.errors import InputError
from tidemark.formatting import quoted
from tidemark.joins import Join, lane_of
from tidemark.joins.spark_stream_stream import MicroBatchJoin
from tidemark.joins.window_output import PADDING
from tidemark.sources.stored_input import StoredInput
from tidemark.spark.materialization import computed_once
from tidemark.streaming.spark_query import QueryText, SideText
from tidemark.watermarks.buckets import NO_WATERMARK

_LANES = {"left": 1, "right": 2}
"""The lane of the row that bears a side's watermark; all others are in lane 0."""


def marked(state: SavedState, source: StoredInput, rows: DataFrame, join: Join) -> DataFrame:
    """One side's rows in the buffers: the input's columns, and `_tidemark`."""
    side, tick = source.side.name, state.pipeline.tick
    time = F.timestamp_micros(F.col("event_time") * tick)
    return rows.where(F.col("side") == side).select(
        *_own_columns(source, rows),
        F.struct(time.alias("time"), F.lit(0).alias("lane"), _already_emitted(state, rows, join).alias("told")).alias(
            "_tidemark"
        ),
    )


def bearer(
    state: SavedState, inputs: tuple[StoredInput, StoredInput], side: str, join: MicroBatchJoin
) -> DataFrame | None:
    """A row that brings a side's watermark to where it is, and meets nobody; None for a side without a watermark yet.

    It is some row of the input that takes part, and so one that no filter below the query's watermark stops, at another
    event time.

    Raises:
        InputError: the input has no such row any more.
    """
    marks, grid = state.entry.watermarks, state.grid
    mark, delay = getattr(marks, side), getattr(state.pipeline, side).watermark_delay
    if delay is None or mark == NO_WATERMARK:
        return None
    left, right = (one.side.normalized(one.table.read(), grid, grid.start) for one in inputs)
    admitted = join.admitted(left.unionByName(right, allowMissingColumns=True))
    found = admitted.where(F.col("rejected").isNull() & (F.col("side") == side)).limit(1)
    row = computed_once(found.select(f"{side}.*"), now=True)
    if row.isEmpty():
        raise InputError(f"input {side} has no row that takes part any more, though it had one before {state.label}")
    newest = F.timestamp_millis(F.lit(mark + getattr(lane_of(state.pipeline, marks).lag, side)))
    already_emitted = F.lit(None).cast(_type_of_mark(join)).alias("told")
    return row.select(
        "*", F.struct(newest.alias("time"), F.lit(_LANES[side]).alias("lane"), already_emitted).alias("_tidemark")
    )


def handed_over(query: QueryText, join: MicroBatchJoin, watermark: int) -> QueryText:
    """The query, going on from a state whose watermark is `watermark` ms."""

    def accepting(side: str, text: SideText) -> SideText:
        if text.delay is None:
            return text
        value = f"_{side}_window.end" if join.windows else f"_{side}_time"
        late = f"{value} <= timestamp_millis({watermark}L)"
        return replace(text, accepts=f"_{side}_state OR NOT coalesce({late}, false)")

    return replace(
        query,
        left=accepting("left", query.left),
        right=accepting("right", query.right),
        on=f"{query.on} AND _left_lane = _right_lane",
        where=" AND ".join(_emitted(query.how, join)) or None,
        told=_type_of_mark(join),
    )


def _own_columns(source: StoredInput, rows: DataFrame) -> Iterator[Column]:
    """The input's columns as they are now; null where the state is older than the column."""
    kind = rows.schema[source.side.name].dataType
    assert isinstance(kind, T.StructType), "a row of the input"
    for field in source.side.schema:
        known = F.col(f"{source.side.name}.{quoted(field.name)}") if field.name in kind.names else F.lit(None)
        yield known.cast(field.dataType).alias(field.name)


def _already_emitted(state: SavedState, rows: DataFrame, join: Join) -> Column:
    """What has been told of each row; null where the join does not know."""
    number, watermark = state.entry.number, state.entry.watermarks.combined
    if not isinstance(join, MicroBatchJoin):
        known = F.coalesce(F.col("matched_in") <= number, F.lit(False)) if "matched_in" in rows.columns else F.lit(None)
        return known.cast("boolean")
    matched = F.coalesce(F.map_filter("matched", lambda _, at: at <= number), F.create_map().cast("map<int, bigint>"))
    if not join.windows:
        return F.size(matched) > 0
    closed = F.lit(max(0, watermark) * 1000)
    done = F.filter(
        join.windows.of(F.col("event_time")),
        lambda window, copy: F.map_contains_key(matched, copy) | (window["end"] <= closed),
    )
    return F.transform(done, lambda window: F.timestamp_micros(window["start"]))


def _type_of_mark(join: MicroBatchJoin) -> str:
    return "ARRAY<TIMESTAMP>" if join.windows else "BOOLEAN"


def _emitted(how: str, join: MicroBatchJoin) -> Iterator[str]:
    """Which of the join's rows have not been emitted before.

    No part would keep a bearer from its side's watermark: Spark filters below it by what reads that side alone.
    """
    already_emitted = {
        side: f"array_contains(_{side}_told, _{side}_window.start)" if join.windows else f"_{side}_told"
        for side in SIDES
    }
    if how == "leftsemi":  # without windows a row that has met a partner is not in the state, and a bearer meets none
        yield from [f"NOT coalesce({already_emitted['left']}, false)"] if join.windows else []
        return
    yield "NOT coalesce(_left_state AND _right_state, false)"
    for side in SIDES:
        if how in PADDING[side]:
            owed = f"_{side}_lane = 0 AND NOT coalesce({already_emitted[side]}, false)"
            yield f"(_{OTHER[side]}_state IS NOT NULL OR ({owed}))"
