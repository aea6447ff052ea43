"""Mark the rows of an exported state, so that a resumed query emits nothing twice and loses nothing.

A row of the state has the input's columns and the struct `_tidemark`: its event `time`; a `lane`, and only rows of one
lane match; and `already_emitted`, true if the row has a partner and must not be emitted alone. With windows
`already_emitted` contains the starts of the windows with a partner, and of those that are closed.

The resumed query emits what the uncut join would have emitted:

- It accepts all rows of the state, because its watermark is 0 in the first batch. They are one file per side, so that
  none is read in a later batch.
- It drops pairs of two rows of the state: both were in the buffers at once, so the backfill has emitted them.
- It emits a row alone only if the backfill has not, by `already_emitted`.
- Its watermark continues from that of the state. The newest row is rarely in the state, so a seed row restores it.
- It drops live rows that are late for the exported watermark. In the second batch, Spark still compares with 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.checkpoints.checkpoint_ref import CheckpointRef
from tidemark.config.sides import OTHER, SIDES
from tidemark.errors import InputError
from tidemark.formatting import quote_identifier
from tidemark.joins.base import Join
from tidemark.joins.factory import create_lane
from tidemark.joins.join_type import PADDING_TYPES
from tidemark.joins.spark_stream_stream import StreamStreamJoin
from tidemark.sources.stored_input import StoredInput
from tidemark.spark.materialization import materialize
from tidemark.streaming.spark_query import SideQuery, SparkQuery
from tidemark.watermarks.values import NO_WATERMARK

_SEED_LANES = {"left": 1, "right": 2}
"""Lane of the row that restores a side's watermark; all other rows are in lane 0."""


def mark_rows(state: CheckpointRef, source: StoredInput, rows: DataFrame, join: Join) -> DataFrame:
    """Return one side's buffered rows: the input's columns and `_tidemark`."""
    time = F.timestamp_micros(F.col("event_time") * state.pipeline.tick_micros)
    already_emitted = _already_emitted_column(state, rows, join)
    marker = F.struct(time.alias("time"), F.lit(0).alias("lane"), already_emitted.alias("already_emitted"))
    in_side = rows.where(F.col("side") == source.side.name)
    return in_side.select(*_select_own_columns(source, rows), marker.alias("_tidemark"))


def create_watermark_seed_row(
    state: CheckpointRef, inputs: tuple[StoredInput, StoredInput], side: str, join: StreamStreamJoin
) -> DataFrame | None:
    """Create a row that restores a side's watermark and matches no other row.

    It is a valid row of the input with another event time, so that no filter below the query's watermark removes it.

    Returns:
        None for a side without a watermark.

    Raises:
        InputError: The input no longer contains a valid row.
    """
    watermarks, grid = state.entry.watermarks, state.grid
    watermark = getattr(watermarks, side)
    delay = getattr(state.pipeline, side).watermark_delay
    if delay is None or watermark == NO_WATERMARK:
        return None
    left, right = (source.side.normalize(source.table.read(), grid, grid.start) for source in inputs)
    validated = join.reject_invalid(left.unionByName(right, allowMissingColumns=True))
    valid = validated.where(F.col("rejected").isNull() & (F.col("side") == side)).limit(1)
    row = materialize(valid.select(f"{side}.*"), eager=True)
    if row.isEmpty():
        raise InputError(
            f"input {side} contains no valid row any more, though it had one before {state.end_label}. "
            "Restore its rows, or start the query from the input tables."
        )
    newest = F.timestamp_millis(F.lit(watermark + getattr(create_lane(state.pipeline, watermarks).lag, side)))
    already_emitted = F.lit(None).cast(_already_emitted_type(join)).alias("already_emitted")
    marker = F.struct(newest.alias("time"), F.lit(_SEED_LANES[side]).alias("lane"), already_emitted)
    return row.select("*", marker.alias("_tidemark"))


def continue_from_state(query: SparkQuery, join: StreamStreamJoin, watermark: int) -> SparkQuery:
    """Return the query that resumes from a state with a combined watermark (ms)."""

    def drop_late_rows(side: str, side_query: SideQuery) -> SideQuery:
        if side_query.delay is None:
            return side_query
        value = f"_{side}_window.end" if join.windows else f"_{side}_time"
        is_late = f"{value} <= timestamp_millis({watermark}L)"
        return replace(side_query, accepts=f"_{side}_state OR NOT coalesce({is_late}, false)")

    return replace(
        query,
        left=drop_late_rows("left", query.left),
        right=drop_late_rows("right", query.right),
        on=f"{query.on} AND _left_lane = _right_lane",
        where=" AND ".join(_list_new_output_conditions(query.how, join)) or None,
        already_emitted_type=_already_emitted_type(join),
    )


def _select_own_columns(source: StoredInput, rows: DataFrame) -> Iterator[Column]:
    """Yield the input's present columns; null if the state is older than the column."""
    dtype = rows.schema[source.side.name].dataType
    assert isinstance(dtype, T.StructType), "a row of the input"
    for field in source.side.schema:
        column = (
            F.col(f"{source.side.name}.{quote_identifier(field.name)}") if field.name in dtype.names else F.lit(None)
        )
        yield column.cast(field.dataType).alias(field.name)


def _already_emitted_column(state: CheckpointRef, rows: DataFrame, join: Join) -> Column:
    """Return `already_emitted` of buffered rows; null if the join does not track it."""
    number, watermark = state.entry.number, state.entry.watermarks.combined
    if not isinstance(join, StreamStreamJoin):
        is_matched = (
            F.coalesce(F.col("first_match_slice") <= number, F.lit(False))
            if "first_match_slice" in rows.columns
            else F.lit(None)
        )
        return is_matched.cast("boolean")
    matched = F.coalesce(
        F.map_filter("first_match_slices", lambda _, at: at <= number), F.create_map().cast("map<int, bigint>")
    )
    if not join.windows:
        return F.size(matched) > 0
    closed = F.lit(max(0, watermark) * 1000)
    done = F.filter(
        join.windows.assign(F.col("event_time")),
        lambda window, copy: F.map_contains_key(matched, copy) | (window["end"] <= closed),
    )
    return F.transform(done, lambda window: F.timestamp_micros(window["start"]))


def _already_emitted_type(join: StreamStreamJoin) -> str:
    return "ARRAY<TIMESTAMP>" if join.windows else "BOOLEAN"


def _list_new_output_conditions(how: str, join: StreamStreamJoin) -> Iterator[str]:
    """Yield conditions for rows of the join that have not been emitted before.

    No condition may read a single side, because Spark would push it below that side's watermark, where it would remove
    the seed row.
    """
    already_emitted = {
        side: f"array_contains(_{side}_already_emitted, _{side}_window.start)"
        if join.windows
        else f"_{side}_already_emitted"
        for side in SIDES
    }
    if how == "leftsemi":  # without windows the state contains no row with a partner, and a seed row matches none
        yield from [f"NOT coalesce({already_emitted['left']}, false)"] if join.windows else []
        return
    yield "NOT coalesce(_left_state AND _right_state, false)"
    for side in SIDES:
        if how in PADDING_TYPES[side]:
            is_due = f"_{side}_lane = 0 AND NOT coalesce({already_emitted[side]}, false)"
            yield f"(_{OTHER[side]}_state IS NOT NULL OR ({is_due}))"
