"""Resume a join from an exported checkpoint, as a Structured Streaming query; needs PySpark and Delta only.

`resume(spark, left, right)` returns the rows to write with `writeStream`. The README of the export describes its use.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

SIDES = ("left", "right")


def resume(spark: SparkSession, left: DataFrame, right: DataFrame, folder: str | None = None) -> DataFrame:
    """Join the exported state and streams that begin where the backfill ended.

    Sets the session's settings that the query depends on, and keeps once it has started.

    Args:
        folder: The folder of the export; by default that of this file.
    """
    path = folder or str(Path(__file__).resolve().parent)
    query = json.loads(Path(path, "state.json").read_text(encoding="utf-8"))["query"]
    for name, value in query["settings"].items():
        spark.conf.set(name, value)
    sides = {}
    for side, live in zip(SIDES, (left, right), strict=True):
        names, time = query[side]["columns"], query[side]["time"]
        # One file, so that the first micro-batch reads all of it.
        state = spark.readStream.format("delta").load(f"{path}/{side}")
        state_markers = ("_tidemark.lane", "_tidemark.already_emitted", "true")
        live_markers = ("0", f"CAST(NULL AS {query['already_emitted_type']})", "false")
        rows = select_side(state, side, names, "_tidemark.time", state_markers)
        live_rows = select_side(filter_at_source(live, query[side]), side, names, time, live_markers)
        sides[side] = rows.unionByName(live_rows)
    return join_sides(query, sides)


def filter_at_source(rows: DataFrame, side_query: Mapping[str, Any]) -> DataFrame:
    """Apply the filter of a side that is below its watermark."""
    return rows.where(side_query["source"]) if side_query["source"] else rows


def select_side(rows: DataFrame, side: str, columns: list[str], time: str, markers: tuple[str, ...] = ()) -> DataFrame:
    """Return a side's rows in the form of the join: columns `left_NAME`, `_left_time` and the constant `_left`.

    Args:
        markers: SQL of `_left_lane`, rows of different lanes never match; of `_left_already_emitted`, output of the
            backfill for the row alone; and of `_left_state`, true for rows of the exported state.
    """
    own = (f"`{name}` AS `{side}_{name}`" for name in (column.replace("`", "``") for column in columns))
    names = ("lane", "already_emitted", "state")
    marked = (f"{marker} AS _{side}_{name}" for name, marker in zip(names, markers, strict=False))
    return rows.selectExpr(*own, f"{time} AS _{side}_time", f"true AS _{side}", *marked)


def join_sides(query: Mapping[str, Any], sides: Mapping[str, DataFrame]) -> DataFrame:
    """Run the query over the rows of `select_side` of both sides."""
    left, right = (_prepare_side(rows, side, query[side]) for side, rows in sides.items())
    rows = left.join(right, F.expr(query["on"]), query["how"])
    wide = (rows.where(query["where"]) if query["where"] else rows).selectExpr(*query["wide"])
    return wide.selectExpr(*query["select"]) if query["select"] else wide


def _prepare_side(rows: DataFrame, side: str, side_query: Mapping[str, str | None]) -> DataFrame:
    """Add watermark and windows to a side, and drop live rows that are late for the backfill's watermark."""
    if side_query["delay"] is not None:
        rows = rows.withWatermark(f"_{side}_time", side_query["delay"])
    if side_query["window"] is not None:
        rows = rows.withColumn(f"_{side}_window", F.expr(side_query["window"])).drop(f"_{side}_time")
    return rows.where(side_query["accepts"]) if side_query["accepts"] else rows
