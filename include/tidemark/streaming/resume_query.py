"""Goes on with a join where its backfill ended, as a Structured Streaming query; needs PySpark and Delta alone.

`continued(spark, left, right)` gives the rows to write with `writeStream`; the README beside it says more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

SIDES = ("left", "right")


def continued(spark: SparkSession, left: DataFrame, right: DataFrame, folder: str | None = None) -> DataFrame:
    """The join of the exported state and of streams that begin where the backfill ended.

    Sets the session's settings that the query depends on and keeps once it has started. `folder` is that of the export,
    by default the one in which this file lies.
    """
    place = folder or str(Path(__file__).resolve().parent)
    query = json.loads(Path(place, "state.json").read_text(encoding="utf-8"))["query"]
    for name, value in query["settings"].items():
        spark.conf.set(name, value)
    sides = {}
    for side, live in zip(SIDES, (left, right), strict=True):
        # One file, so that the first micro-batch reads all of it.
        state = spark.readStream.format("delta").load(f"{place}/{side}")
        marks = ("_tidemark.lane", "_tidemark.told", "true")
        rows = side_rows(state, side, query[side]["columns"], "_tidemark.time", marks)
        fresh = ("0", f"CAST(NULL AS {query['told']})", "false")
        came = of_source(live, query[side])
        sides[side] = rows.unionByName(side_rows(came, side, query[side]["columns"], query[side]["time"], fresh))
    return joined(query, sides)


def of_source(rows: DataFrame, side_text: Mapping[str, Any]) -> DataFrame:
    """A side's rows, but for those that the query leaves out before it makes the watermark."""
    return rows.where(side_text["source"]) if side_text["source"] else rows


def side_rows(rows: DataFrame, side: str, columns: list[str], time: str, marks: tuple[str, ...] = ()) -> DataFrame:
    """A side's rows as the join reads them: `left_NAME`, the time in `_left_time`, and a mark in `_left`.

    With `marks`: `_left_lane`, which keeps rows from meeting those of another one; `_left_told`, what the backfill has
    emitted of the row alone; and `_left_state`, whether the row is of the state.
    """
    own = (f"`{name}` AS `{side}_{name}`" for name in (column.replace("`", "``") for column in columns))
    marked = (f"{text} AS _{side}_{name}" for name, text in zip(("lane", "told", "state"), marks, strict=False))
    return rows.selectExpr(*own, f"{time} AS _{side}_time", f"true AS _{side}", *marked)


def joined(query: Mapping[str, Any], sides: Mapping[str, DataFrame]) -> DataFrame:
    """The query over both sides' `side_rows` rows."""
    left, right = (_prepared(rows, side, query[side]) for side, rows in sides.items())
    rows = left.join(right, F.expr(query["on"]), query["how"])
    wide = (rows.where(query["where"]) if query["where"] else rows).selectExpr(*query["wide"])
    return wide.selectExpr(*query["select"]) if query["select"] else wide


def _prepared(rows: DataFrame, side: str, side_text: Mapping[str, str | None]) -> DataFrame:
    """A side with its watermark, in its windows, and without live rows that came too late for the backfill already."""
    if side_text["delay"] is not None:
        rows = rows.withWatermark(f"_{side}_time", side_text["delay"])
    if side_text["window"] is not None:
        rows = rows.withColumn(f"_{side}_window", F.expr(side_text["window"])).drop(f"_{side}_time")
    return rows.where(side_text["accepts"]) if side_text["accepts"] else rows
