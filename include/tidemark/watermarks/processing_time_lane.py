"""Watermarks of streams on processing time, where no row is late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

from pyspark.sql import DataFrame
from typing_extensions import override

from tidemark.watermarks.buckets import Buckets
from tidemark.watermarks.lanes import Lane, Timelines
from tidemark.watermarks.values import NO_WATERMARK

_NO_INCREMENTS = {"combined_after": NO_WATERMARK, "has_increment": False, "needs_order": False}


class ProcessingTimeLane(Lane):
    """A stream on processing time: no row needs the watermark at its arrival."""

    @classmethod
    @override
    def compute_timelines(cls, rows: DataFrame, lanes: Sequence[Self], buckets: Buckets) -> Timelines:
        computed = super().compute_timelines(rows, lanes, buckets)
        timelines = [replace(line, buckets=line.buckets.assign(**_NO_INCREMENTS)) for line in computed.timelines]
        return replace(computed, timelines=timelines)
