"""Watermarks that the job has recorded beside each row: the row has met its own, whatever it is and its time.

A row's record is of the moment at which it came. It is the input's watermark from then on, for the row itself and for
all that come behind it; a watermark never goes down, so that one recorded after a higher one counts as that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from typing_extensions import override

from tidemark.config.sides import SIDES, SideName
from tidemark.spark.dataframe_utils import with_columns
from tidemark.watermarks.buckets import EVENT_TIME, Buckets, Lane, Timelines, Watermarks, of_lane

RECORDED = "recorded"
"""The column with the watermark of its input that a row has recorded, ms; null for none."""
_RAISING = "raising"


@dataclass(frozen=True)
class RecordedLane(Lane):
    """A stream of which one input, or both, have recorded their watermarks; the lag of these is 0."""

    recorded: tuple[SideName, ...] = SIDES

    raising = _RAISING
    told_by_place = False

    @classmethod
    @override
    def timelines(cls, rows: DataFrame, lanes: Sequence[Self], buckets: Buckets) -> Timelines:
        raised = F.when(_has_recorded(lanes), F.col(RECORDED)).otherwise(F.col(EVENT_TIME))
        return super().timelines(rows.withColumn(_RAISING, raised), lanes, buckets)

    @classmethod
    @override
    def split(cls, rows: DataFrame, *, exact: bool) -> tuple[DataFrame, DataFrame]:
        """What others have raised as for any lane, and then what each row has recorded itself."""
        on_time, in_order = super().split(rows, exact=exact)
        own = {
            f"{side}_watermark": F.greatest(f"{side}_watermark", F.when(F.col("side") == side, F.col(RECORDED)))
            for side in SIDES
        }
        combined = F.greatest("watermark", F.least(*own))
        in_order = in_order.transform(with_columns, own).withColumn("watermark", combined)
        return on_time.drop(RECORDED, _RAISING), in_order.drop(RECORDED, _RAISING)

    @override
    def newest(self, marks: Watermarks) -> None:
        """What was recorded may be anywhere beside event times."""


def _has_recorded(lanes: Sequence[RecordedLane]) -> Column:
    """Whether the watermark of a row's input is recorded in its lane."""
    left, right = (of_lane([int(side in lane.recorded) for lane in lanes]) == 1 for side in SIDES)
    return F.when(F.col("side") == "left", left).otherwise(right)
