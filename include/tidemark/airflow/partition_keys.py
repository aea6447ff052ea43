"""Compute the partition keys of committed slices and of days whose slices are all committed.

It opens tables: import it only inside the process of a task.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from tidemark.airflow.status_queries import select_rows_since
from tidemark.config import Pipeline
from tidemark.config.airflow import PartitionKind
from tidemark.config.local_days import get_day_start, to_local_day
from tidemark.config.types import to_micros
from tidemark.ledger.ledger import Ledger
from tidemark.ledger.staleness import find_stale_slices
from tidemark.timegrid.slices import Grid

_EPOCH = date(1970, 1, 1)
_NO_LAST_SLICE = 2**53
"""Number of a slice that no pipeline without an end reaches."""


@dataclass(frozen=True)
class DayCalendar:
    """Days of a time zone and their slices."""

    grid: Grid
    zone: str
    slices: range
    """First slice of the pipeline, and the slice after its last."""

    def find_complete_days(self, changed: Iterable[int], valid: Collection[int]) -> list[int]:
        """Return the days with a changed slice whose slices are all valid, as days since 1970-01-01, in order."""
        days = sorted({day for number in changed for day in self._days_of(number)})
        return [day for day in days if all(number in valid for number in self._slices_of(day))]

    def _days_of(self, number: int) -> range:
        """Return the days that a slice overlaps: one, except for slices across midnight."""
        first, last = self.grid.start_of(number), self.grid.start_of(number + 1) - 1
        return range(to_local_day(first, self.zone), to_local_day(last, self.zone) + 1)

    def _slices_of(self, day: int) -> range:
        """Return the slices that overlap a day. The pipeline's first and last day may lack some."""
        start, end = get_day_start(day, self.zone), get_day_start(day + 1, self.zone)
        first, stop = self.grid.number_at(start), self.grid.number_at(end - 1) + 1
        return range(max(first, self.slices.start), min(stop, self.slices.stop))


def committed_keys(
    pipeline: Pipeline, lake: str, since: datetime | Mapping[str, Any]
) -> dict[PartitionKind, list[str]]:
    """Return the keys of the slices that were committed since then, and of their complete days.

    A day is complete if all of its slices are committed and none of them is stale.

    Args:
        pipeline: The pipeline.
        lake: The lake root.
        since: Start, as for `status_queries.select_rows_since`.

    Raises:
        UserError: The tables are not valid.
    """
    ledger = Ledger.from_pipeline(pipeline, lake, applies_commits=False)
    grid = ledger.grid
    if ledger.rows.empty:
        return {"slice": [], "day": []}
    changed = select_rows_since(ledger, since)["number"].astype(int).tolist()
    end = pipeline.slices.end
    stop = grid.number_at(to_micros(end)) if end else _NO_LAST_SLICE
    zone = pipeline.airflow.day_time_zone or pipeline.slices.time_zone
    calendar = DayCalendar(grid, zone, range(min(ledger.entries), stop))
    days = calendar.find_complete_days(changed, ledger.entries.keys() - find_stale_slices(ledger).keys())
    return {
        "slice": [to_slice_key(grid.datetime_of(number)) for number in changed],
        "day": [(_EPOCH + timedelta(days=day)).isoformat() for day in days],
    }


def to_slice_key(start: datetime) -> str:
    """Return a slice's key: its start in UTC, in the format that Airflow's temporal mappers expect by default.

    >>> to_slice_key(datetime(2024, 1, 1, 5, tzinfo=UTC))
    '2024-01-01T05:00:00'
    """
    return start.astimezone(UTC).replace(tzinfo=None).isoformat()


def input_keys(pipeline: Pipeline, start: datetime, end: datetime, key_format: str) -> list[str]:
    """Return the keys of an input for the slices from `start` to `end` (exclusive), without repetitions.

    Args:
        pipeline: The pipeline.
        start: Start of the first slice.
        end: End of the last slice.
        key_format: Format of a key, as `Completeness.partition`.
    """
    grid, zone = Grid.from_config(pipeline.slices), ZoneInfo(pipeline.slices.time_zone)
    numbers = range(grid.number_at(to_micros(start)), grid.number_at(to_micros(end) - 1) + 1)
    return list(dict.fromkeys(grid.datetime_of(number).astimezone(zone).strftime(key_format) for number in numbers))
