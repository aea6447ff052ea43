"""Find when the sources of inputs become active and idle."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pandas as pd

from tidemark.config.sides import SIDES
from tidemark.watermarks.buckets import Buckets
from tidemark.watermarks.values import NO_WATERMARK, SourceWatermark, Watermarks

Position = tuple[int, int]
"""Clock (microseconds) and tiebreak."""
SourceKey = tuple[str, str | None]
"""Side and partition."""
UNPARTITIONED = None
"""Partition of an input that has no partitions, or no row yet."""
LEAST_TIEBREAK, GREATEST_TIEBREAK = -(2**63), 2**63 - 1


@dataclass(frozen=True)
class StatusChange:
    """A source becomes idle at a clock, or active after its first row at a clock."""

    clock: int
    source: SourceKey
    becomes_active: bool
    tiebreak: int = GREATEST_TIEBREAK
    """Tiebreak of the row that makes the source active; any that no row at the clock exceeds, if all arrive at once."""

    @property
    def start(self) -> Position:
        """First position whose rows see the change."""
        return find_next_position(self.clock, self.tiebreak) if self.becomes_active else (self.clock, LEAST_TIEBREAK)


def find_next_position(clock: int, tiebreak: int) -> Position:
    """Return the first position after another one."""
    return (clock, tiebreak + 1) if tiebreak < GREATEST_TIEBREAK else (clock + 1, LEAST_TIEBREAK)


def list_initial_sources(watermarks: Watermarks, buckets: Buckets) -> dict[SourceKey, SourceWatermark]:
    """Return a lane's sources when a job starts; an input without rows so far counts as silent from then on.

    Args:
        watermarks: Initial watermarks of the lane.
        buckets: The buckets of the job.
    """
    start = buckets.grid.start_of(buckets.slices[0])
    existing = watermarks.sources
    missing = [side for side in SIDES if side not in {source.side for source in existing}]
    sources: dict[SourceKey, SourceWatermark] = {
        (side, UNPARTITIONED): SourceWatermark(side, UNPARTITIONED, NO_WATERMARK, start) for side in missing
    }
    return sources | {(source.side, source.partition): source for source in existing}


def find_status_changes(
    statistics: pd.DataFrame, sources: Mapping[SourceKey, SourceWatermark], idle_timeouts: Mapping[str, int | None]
) -> Iterator[StatusChange]:
    """Yield when each source of a lane becomes active and idle.

    Args:
        statistics: Result of `source_statistics.compute_source_statistics` for the lane's buckets, in order.
        sources: Result of `list_initial_sources`.
        idle_timeouts: Microseconds without a row after which a source is idle, by side; None for never.
    """
    last_clocks = {key: source.last_clock for key, source in sources.items()}
    non_empty = statistics[statistics["first"].notna()]
    spans: dict[SourceKey, list[tuple[int, int]]] = defaultdict(list)
    columns = (non_empty[name] for name in ("side", "partition", "first", "last"))
    for side, partition, first, last in zip(*columns, strict=True):
        spans[side, partition].append((int(first), int(last)))
    for key in {**last_clocks, **spans}:
        timeout = idle_timeouts.get(key[0])
        last = last_clocks.get(key)
        if last is None:
            yield StatusChange(spans[key][0][0], key, becomes_active=True)
            last = spans[key][0][0]
        for first, last_in_bucket in spans[key]:
            if timeout is not None and first - last > timeout:
                yield StatusChange(last + timeout + 1, key, becomes_active=False)
                yield StatusChange(first, key, becomes_active=True)
            last = last_in_bucket
        if timeout is not None:
            yield StatusChange(last + timeout + 1, key, becomes_active=False)
