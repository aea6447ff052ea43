"""Describe a user's request to run slices."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal


@dataclass(frozen=True)
class Request:
    """A user's request to run slices."""

    start: datetime | None = None
    """Start of the first slice to run; by default the end of the last committed slice."""
    end: datetime | None = None
    """End of the last slice to run (exclusive); by default after the last row, and not after now."""
    slices_per_job: int | Literal["auto"] = "auto"
    drain: bool = False
    """End the inputs after the last slice: advance the watermarks to infinity."""
    from_empty_state: bool = False
    """Start without a predecessor, like a streaming job without a savepoint."""
    reprocess: bool = False
    """Run committed slices again. Without `start` and `end`: stale ones, and those with changed or late-arriving
    rows."""
    outdated: bool = False
    """With `reprocess`: late-arriving rows count only with `on_late_arriving_rows: reprocess`."""
    atomic: bool = False
    """Commit all jobs in one commit at the end."""
    ignore_completeness: bool = False
    """Run slices even if their inputs are incomplete by the rules of the pipeline file."""
    skip_asset_check: bool = False
    """Assume that the assets in these rules had an event: Airflow checked it."""

    @property
    def reprocesses_range(self) -> bool:
        """True for a reprocess with `start` or `end`."""
        return self.reprocess and (self.start is not None or self.end is not None)
