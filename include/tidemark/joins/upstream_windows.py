"""Windows of rows that another window join has emitted: Flink SQL joins them in the same windows again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F
from typing_extensions import override

from tidemark.config.sides import OTHER, SideName
from tidemark.formatting import quote_identifier
from tidemark.joins.window import AlignedWindows


@dataclass(frozen=True)
class UpstreamWindows(AlignedWindows):
    """Windows of a join of which one input or both have been in a window already.

    Such a row is in one window, and its event time is the last millisecond of it. If it has none, because that side is
    padded, the engine reads its end as 0. The row then has no start and matches nothing.
    """

    event_times: Mapping[SideName, str] = field(default_factory=dict)
    """Columns of the event times of such inputs, by side."""

    @override
    def last_end(self, event_time: Column) -> Column:
        end = self._local(event_time) + 1
        return F.when(self._is_in_window, end).otherwise(super().last_end(event_time))

    @override
    def overlap(self, left: Column, right: Column) -> Column:
        times = {"left": self._local(left), "right": self._local(right)}
        if len(self.event_times) == len(times):
            return times["left"] == times["right"]
        [upstream] = self.event_times
        last = times[upstream]
        time = times[OTHER[upstream]]
        return (self._start(last) <= time) & (time <= last)

    @override
    def _list_distinct_bounds(self, time: Column) -> Column:
        return F.when(self._is_in_window, F.array(time + 1)).otherwise(super()._list_distinct_bounds(time))

    @override
    def _to_bounds(self, time: Column, bound: Column) -> tuple[Column, Column]:
        start, end = super()._to_bounds(time, bound)
        own_start = F.when(~self._has_no_window, self._start(time))
        return F.when(self._is_in_window, own_start).otherwise(start), F.when(self._is_in_window, bound).otherwise(end)

    def _start(self, last: Column) -> Column:
        """Return the start of the window whose last millisecond is given, in local time."""
        return F.when(self.is_cumulating, self._last_start(last, self.size)).otherwise(last + 1 - self.size)

    @property
    def _is_in_window(self) -> Column:
        return F.col("side").isin(*self.event_times)

    @property
    def _has_no_window(self) -> Column:
        """True for rows whose window is of a padded side."""
        missing = (
            (F.col("side") == side) & F.col(f"{side}.{quote_identifier(column)}").isNull()
            for side, column in self.event_times.items()
        )
        return reduce(Column.__or__, missing)


def with_upstream_windows(windows: AlignedWindows, event_times: Mapping[SideName, str]) -> AlignedWindows:
    """Return windows in which some inputs keep the windows of another join, if there are such inputs.

    Args:
        windows: The windows of both joins.
        event_times: Columns of the event times of such inputs, by side.
    """
    if not event_times:
        return windows
    settings = {each.name: getattr(windows, each.name) for each in fields(windows)}
    return UpstreamWindows(**{**settings, "is_tumbling": False}, event_times=event_times)
