"""Advance the watermarks of sources, inputs and the join from bucket to bucket."""

from __future__ import annotations

from collections.abc import Iterable

from tidemark.config.sides import SIDES
from tidemark.watermarks.buckets import Buckets
from tidemark.watermarks.source_status import UNPARTITIONED, StatusChange, list_initial_sources
from tidemark.watermarks.values import NO_WATERMARK, Watermarks


class SourceTracker:
    """The watermarks of a lane's sources, inputs and join, as its buckets are processed in order."""

    def __init__(self, initial: Watermarks, buckets: Buckets, *, is_union: bool) -> None:
        self.sources = list_initial_sources(initial, buckets)
        self.active = set(self.sources)
        self.inputs = {"left": initial.left, "right": initial.right}
        self.combined = initial.combined
        self.is_union = is_union
        self.aligned = set[str]()
        """Sides that limit the combined watermark, since the last call of `apply`."""

    @property
    def active_sides(self) -> set[str]:
        """Sides with an active source."""
        return {side for side, _ in self.active}

    def apply(self, changes: Iterable[StatusChange]) -> None:
        """Mark sources as active or idle, align the inputs, and advance the watermarks."""
        for change in changes:
            if change.becomes_active:
                self.active.discard((change.source[0], UNPARTITIONED))  # placeholder of an input without rows so far
                self.active.add(change.source)
            else:
                self.active.discard(change.source)
                self._flush(change.source[0])
        self._advance_inputs()
        self.aligned = {side for side in self.active_sides if not self.is_union or self.inputs[side] >= self.combined}
        self._advance_combined()

    def _flush(self, side: str) -> None:
        """Raise the watermark of an input without active sources, and the combined one without active inputs."""
        if side not in self.active_sides:
            watermarks = [source.watermark for key, source in self.sources.items() if key[0] == side]
            self.inputs[side] = max(self.inputs[side], *watermarks)
        if not self.active:
            self.combined = max(self.combined, *self.inputs.values())

    def advance(self) -> None:
        """Advance the watermarks as far as the active sources and aligned inputs allow."""
        self._advance_inputs()
        self._advance_combined()

    def _advance_combined(self) -> None:
        self.combined = max(self.combined, min((self.inputs[side] for side in self.aligned), default=NO_WATERMARK))

    def _advance_inputs(self) -> None:
        for side in SIDES:
            watermarks = [self.sources[key].watermark for key in self.active if key[0] == side]
            if watermarks:
                self.inputs[side] = max(self.inputs[side], min(watermarks))

    def snapshot(self) -> Watermarks:
        """Return the current watermarks. Of a partitioned input, sources without a partition are left out."""
        partitioned = {side for side, partition in self.sources if partition is not UNPARTITIONED}
        sources = [
            source
            for (side, partition), source in self.sources.items()
            if partition is not UNPARTITIONED or side not in partitioned
        ]
        sources.sort(key=lambda source: (source.side, source.partition or ""))
        return Watermarks(
            self.inputs["left"], self.inputs["right"], sources_combined=self.combined, sources=tuple(sources)
        )
