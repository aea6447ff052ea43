"""The watermarks of both inputs at one instant."""

from __future__ import annotations

from dataclasses import dataclass

NO_WATERMARK = -(2**63)
"""An input's watermark before its first row."""

END_OF_INPUT = 2**63 - 1
"""The watermark when a bounded input ends."""


@dataclass(frozen=True)
class WatermarkLag:
    """Lag of each input's watermark behind its greatest event time, in ms."""

    left: int
    right: int


@dataclass(frozen=True)
class SourceWatermark:
    """The watermark of a source: a partition of an input, or an input without partitions."""

    side: str
    partition: str | None
    watermark: int
    """Watermark of this source alone, ms."""
    last_clock: int
    """Clock of its last row, microseconds."""


@dataclass(frozen=True)
class Watermarks:
    """Watermarks of both inputs at one instant, ms; `NO_WATERMARK` for an input without rows."""

    left: int = NO_WATERMARK
    right: int = NO_WATERMARK
    batch: int | None = None
    """Watermark of the last micro-batch (dialect spark), None before the first."""
    left_last_cleanup: int = NO_WATERMARK
    """Watermark, at least 0, at which Flink SQL's interval join last removed expired left rows of any key."""
    right_last_cleanup: int = NO_WATERMARK

    sources_combined: int | None = None
    """Combined watermark of a lane with idle or partitioned inputs, which does not follow from `left` and `right`."""
    sources: tuple[SourceWatermark, ...] = ()
    """Watermarks of the sources of such a lane."""

    @property
    def combined(self) -> int:
        """The watermark that the join operator sees, ms."""
        if self.batch is not None:
            return self.batch
        return min(self.left, self.right) if self.sources_combined is None else self.sources_combined

    @property
    def last_cleanups(self) -> dict[str, int]:
        """Last cleanup of each side in Flink SQL's interval join."""
        return {"left": self.left_last_cleanup, "right": self.right_last_cleanup}

    def newest_event_time(self, lag: WatermarkLag) -> int:
        """Return the greatest event time of any row so far, ms."""
        sources = [(source.side, source.watermark) for source in self.sources]
        by_side = [("left", self.left), ("right", self.right), *sources]
        return max(watermark + int(getattr(lag, side)) for side, watermark in by_side)
