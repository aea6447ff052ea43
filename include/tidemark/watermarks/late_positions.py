"""Find late rows by position, for jobs in which many rows are late candidates but few are late.

If rows arrive together, for example with a commit, the watermark after their bucket and their clock show few of them to
be on time. Ordering all others would shuffle every row with all its columns. But the position of a row determines the
watermark at its arrival, and few positions have late rows. So positions and times are ordered without the rows. The
late positions are then broadcast, and a row at none of them is on time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Self

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.config.sides import SIDES
from tidemark.spark.dataframe_utils import with_columns
from tidemark.spark.materialization import materialize_and_count
from tidemark.watermarks.exact import (
    BUCKET_COLUMNS,
    POSITION,
    advances_watermark,
    is_late_candidate,
    preceding_combined_watermark,
    watermark_increments,
    with_bucket_watermarks,
    with_preceding_watermarks,
)
from tidemark.watermarks.row_status import is_filtered, is_rejected

_POSITION_COLUMNS = {name: f"late_{name}" for name in POSITION}
_WATERMARK_COLUMNS = {name: f"late_{name}" for name in ("left_watermark", "right_watermark", "watermark")}


@dataclass(frozen=True)
class LatePositions:
    """Positions of rows that are late, at the watermark, or rejected."""

    positions: DataFrame
    """One row per position, with the watermarks there, ms."""
    count: int

    @classmethod
    def find(cls, rows: DataFrame, watermark_column: str) -> Self:
        """Find the late positions of a job and materialize them. Reads the rows once.

        Args:
            rows: Rows from `lanes.join_bucket_watermarks`.
            watermark_column: Column from which the watermark is made, as `Lane.watermark_column`.
        """
        is_candidate = is_late_candidate(includes_all_rows=False)
        increments = watermark_increments(watermark_column, includes_all_rows=False)
        times = rows.where(is_candidate | advances_watermark(watermark_column, includes_all_rows=False)).select(
            *POSITION,
            "event_time",
            *("combined_before", "left_before", "right_before", "left_is_aligned", "right_is_aligned", "late_margin"),
            is_candidate.alias("is_candidate"),
            is_rejected().alias("is_rejected"),
            *(increment.alias(f"{side}_increment") for side, increment in increments.items()),
        )
        preceding = with_preceding_watermarks(times, {side: F.col(f"{side}_increment") for side in SIDES})
        watermarks = F.col("left_before"), F.col("right_before"), preceding_combined_watermark()
        candidates = preceding.where("is_candidate").select(
            *(F.col(name).alias(alias) for name, alias in _POSITION_COLUMNS.items()),
            *(column.alias(alias) for column, alias in zip(watermarks, _WATERMARK_COLUMNS.values(), strict=True)),
            "event_time",
            "late_margin",
            "is_rejected",
        )
        is_late = F.col("event_time") <= F.col(_WATERMARK_COLUMNS["watermark"]) + F.col("late_margin")
        late = candidates.where(F.col("is_rejected") | is_late)
        return cls(
            *materialize_and_count(late.select(*_POSITION_COLUMNS.values(), *_WATERMARK_COLUMNS.values()).distinct())
        )

    def select_on_time(self, rows: DataFrame) -> DataFrame:
        """Select the rows at no late position, in the form of the rows on time of `Lane.split`."""
        on_time = rows.where(~is_filtered()).join(F.broadcast(self.positions), _matches_position(), "left_anti")
        return with_bucket_watermarks(on_time)

    def annotate(self, rows: DataFrame) -> DataFrame:
        """Join rows with the late positions, and drop the rows that `where` filters."""
        return rows.where(~is_filtered()).join(F.broadcast(self.positions), _matches_position(), "left")

    @staticmethod
    def is_at_late_position() -> Column:
        """Return True for rows at a late position, after `annotate`."""
        return F.col(_POSITION_COLUMNS["clock"]).isNotNull()

    @classmethod
    def split_annotated(cls, rows: DataFrame) -> tuple[DataFrame, DataFrame]:
        """Split rows from `annotate` into those on time and those at late positions, in the form of `Lane.split`."""
        added = (*_POSITION_COLUMNS.values(), *_WATERMARK_COLUMNS.values())
        watermarks = {name: F.col(column) for name, column in _WATERMARK_COLUMNS.items()}
        on_time, late = rows.where(~cls.is_at_late_position()), rows.where(cls.is_at_late_position())
        late = late.transform(with_columns, watermarks).drop(*BUCKET_COLUMNS, *added)
        return with_bucket_watermarks(on_time).drop(*added), late


def _matches_position() -> Column:
    """Return True if a row is at a late position; rows that are surely on time are not looked up."""
    bucket, clock, tiebreak = (F.col(name) for name in POSITION)
    position = bucket, F.when(is_late_candidate(includes_all_rows=False), clock), tiebreak
    columns = zip(position, _POSITION_COLUMNS.values(), strict=True)
    return reduce(Column.__and__, (own == F.col(late) for own, late in columns))
