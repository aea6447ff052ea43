"""Rows late, told by their places: for a job in which most rows may be late, and few are.

A bucket that is longer than the delays tells of few of its rows that they are on time. To put all others in order
moves every row, with all its columns. But the watermark that a row met follows from its place alone, and few places
hold a row that is behind it. So places and times are put in order, without the rows; those few places then go to all
tasks, where a row that is at none of them is on time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Self

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.config.sides import SIDES
from tidemark.spark.dataframe_utils import with_columns
from tidemark.spark.materialization import counted_once
from tidemark.watermarks.exact import (
    BUCKET_COLUMNS,
    PLACE,
    combined_before,
    is_maybe_late,
    marks,
    raises,
    with_befores,
    with_watermarks_before,
)
from tidemark.watermarks.row_status import is_filtered, is_rejected

_AT = {name: f"at_{name}" for name in PLACE}
_MET = {name: f"met_{name}" for name in ("left_watermark", "right_watermark", "watermark")}


@dataclass(frozen=True)
class Places:
    """The places at which a row is late, at the watermark or rejected; of the rows of `buckets.with_buckets`."""

    known: DataFrame
    """A row for each: the place, and the watermarks met there, ms."""
    count: int

    @classmethod
    def behind(cls, rows: DataFrame, raising: str) -> Self:
        """Those of some rows, of which a column raises the watermark. Reads them once, and keeps what it finds."""
        maybe_late, by_side = is_maybe_late(exact=False), marks(raising, exact=False)
        times = rows.where(maybe_late | raises(raising, exact=False)).select(
            *PLACE,
            "event_time",
            *("before", "left_before", "right_before", "left_counts", "right_counts"),
            maybe_late.alias("asks"),
            is_rejected().alias("is_rejected"),
            *(mark.alias(f"{side}_mark") for side, mark in by_side.items()),
        )
        met = with_befores(times, {side: F.col(f"{side}_mark") for side in SIDES}).where("asks")
        watermarks = F.col("left_before"), F.col("right_before"), combined_before()
        told = met.select(
            *(F.col(name).alias(at) for name, at in _AT.items()),
            *(watermark.alias(name) for watermark, name in zip(watermarks, _MET.values(), strict=True)),
            "event_time",
            "is_rejected",
        )
        behind = told.where(F.col("is_rejected") | (F.col("event_time") <= F.col(_MET["watermark"])))
        return cls(*counted_once(behind.select(*_AT.values(), *_MET.values()).distinct()))

    def away(self, rows: DataFrame) -> DataFrame:
        """Of the same rows those at no such place, as `Lane.split` has rows on time."""
        on_time = rows.where(~is_filtered()).join(F.broadcast(self.known), _is_at(), "left_anti")
        return with_watermarks_before(on_time)

    def beside(self, rows: DataFrame) -> DataFrame:
        """The same rows, but for those that `where` leaves out, with what is known of their places: see `is_there`."""
        return rows.where(~is_filtered()).join(F.broadcast(self.known), _is_at(), "left")

    @staticmethod
    def is_there() -> Column:
        """Whether a row `beside` is at such a place."""
        return F.col(_AT["clock"]).isNotNull()

    @classmethod
    def split(cls, rows: DataFrame) -> tuple[DataFrame, DataFrame]:
        """`Lane.split` of rows `beside`: those at such a place come second, with the watermarks that they met."""
        told = (*_AT.values(), *_MET.values())
        met = {name: F.col(column) for name, column in _MET.items()}
        away, there = rows.where(~cls.is_there()), rows.where(cls.is_there())
        return with_watermarks_before(away).drop(*told), there.transform(with_columns, met).drop(*BUCKET_COLUMNS, *told)


def _is_at() -> Column:
    """Whether a row is at a place; one that is on time anyway is not looked up."""
    bucket, clock, tiebreak = (F.col(name) for name in PLACE)
    of_row = bucket, F.when(is_maybe_late(exact=False), clock), tiebreak
    return reduce(Column.__and__, (own == F.col(at) for own, at in zip(of_row, _AT.values(), strict=True)))
