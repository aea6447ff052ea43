"""Streams whose event times are the clock's: no row is behind a watermark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

from pyspark.sql import DataFrame
from typing_extensions import override

from tidemark.watermarks.buckets import NO_WATERMARK, Buckets, Lane, Timelines

_SETTLED = {"after": NO_WATERMARK, "moving": False, "unsettled": False}


class ClockLane(Lane):
    """A stream on processing time, of which no row needs the watermark that it met."""

    @classmethod
    @override
    def timelines(cls, rows: DataFrame, lanes: Sequence[Self], buckets: Buckets) -> Timelines:
        found = super().timelines(rows, lanes, buckets)
        lines = [replace(line, buckets=line.buckets.assign(**_SETTLED)) for line in found.lines]
        return replace(found, lines=lines)
