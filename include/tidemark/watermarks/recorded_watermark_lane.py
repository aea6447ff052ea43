"""Watermarks that the streaming job recorded in a column of its rows.

The recorded value was the input's watermark at the row's arrival, for the row itself and for all later rows. A
watermark never goes down, so a lower value after a higher one has no effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from typing_extensions import override

from tidemark.config.sides import SIDES, SideName
from tidemark.spark.dataframe_utils import choose_by_side, with_columns
from tidemark.watermarks.buckets import EVENT_TIME, Buckets
from tidemark.watermarks.job_watermarks import lookup_by_lane
from tidemark.watermarks.lanes import Lane, Timelines
from tidemark.watermarks.values import Watermarks

RECORDED_WATERMARK = "recorded_watermark"
"""Column with the recorded watermark of a row's input, ms; null for none."""
PRECEDING_WATERMARK = "preceding_watermark"
"""Column with the combined watermark right before the row raised it to the one that the row recorded, ms."""
_WATERMARK_VALUE = "watermark_value"


@dataclass(frozen=True)
class RecordedWatermarkLane(Lane):
    """A stream in which one input or both have recorded their watermarks. The lag of these inputs is 0."""

    recorded_sides: tuple[SideName, ...] = SIDES

    watermark_column = _WATERMARK_VALUE
    is_determined_by_position = False
    applies_to_own_row = True

    @classmethod
    @override
    def compute_timelines(cls, rows: DataFrame, lanes: Sequence[Self], buckets: Buckets) -> Timelines:
        value = F.when(_has_recorded_watermark(lanes), F.col(RECORDED_WATERMARK)).otherwise(F.col(EVENT_TIME))
        return super().compute_timelines(rows.withColumn(_WATERMARK_VALUE, value), lanes, buckets)

    @classmethod
    @override
    def split(cls, rows: DataFrame, *, includes_all_rows: bool) -> tuple[DataFrame, DataFrame]:
        """Split as `Lane.split` does, and raise the watermarks of late candidates to those that they recorded.

        Adds `PRECEDING_WATERMARK`: between two rows, the watermark may rise twice, after the first row and before the
        second one. Both advances fire timers.
        """
        on_time, candidates = super().split(rows, includes_all_rows=includes_all_rows)
        added = (RECORDED_WATERMARK, _WATERMARK_VALUE)
        if not cls.applies_to_own_row:
            return on_time.drop(*added), candidates.drop(*added)
        recorded = {side: F.when(F.col("side") == side, F.col(RECORDED_WATERMARK)) for side in SIDES}
        own = {f"{side}_watermark": F.greatest(f"{side}_watermark", value) for side, value in recorded.items()}
        combined = {PRECEDING_WATERMARK: F.col("watermark"), "watermark": F.greatest("watermark", F.least(*own))}
        candidates = candidates.transform(with_columns, own).transform(with_columns, combined)
        on_time = on_time.withColumn(PRECEDING_WATERMARK, F.col("watermark"))
        return on_time.drop(*added), candidates.drop(*added)

    @override
    def newest_event_time(self, watermarks: Watermarks) -> None:
        """Return None: recorded watermarks are independent of event times."""


@dataclass(frozen=True)
class OutputStreamLane(RecordedWatermarkLane):
    """A stream in which one input or both are the output of another join (`execution.output_stream`).

    Rows of their own carry the watermarks of such an input. They apply after their position.
    """

    is_determined_by_position = True
    applies_to_own_row = False


def _has_recorded_watermark(lanes: Sequence[RecordedWatermarkLane]) -> Column:
    """Return True for rows whose input has recorded its watermark."""
    return choose_by_side(
        *(lookup_by_lane([int(side in lane.recorded_sides) for lane in lanes]) == 1 for side in SIDES)
    )
