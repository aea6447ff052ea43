"""Settings of the slices that cut the pipeline's clock."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Self

from pydantic import model_validator

from tidemark.config.base import Settings
from tidemark.config.local_days import find_irregular_day, get_day_start, to_local_day
from tidemark.config.types import (
    Instant,
    PositiveDuration,
    TimeZone,
    format_duration,
    format_instant,
    from_micros,
    to_micros,
)

DAY = timedelta(days=1)


class Slices(Settings):
    """Slices of the pipeline's clock: half-open intervals [start + n * every, start + (n + 1) * every)."""

    every: PositiveDuration
    """Length of a slice."""
    start: Instant
    """Start of the first slice."""
    end: Instant | None = None
    """End of the last slice (exclusive), a slice boundary. Default: unlimited."""
    time_zone: TimeZone = "UTC"
    """IANA time zone whose local days the slices are. It needs `every: 1 day` and a `start` at local midnight. Days on
    which the clocks change are shorter or longer."""

    @model_validator(mode="after")
    def _check_local_days(self) -> Self:
        if self.time_zone == "UTC":
            return self
        if self.every != DAY:
            raise ValueError(
                f"every ({format_duration(self.every)}) cannot be combined with time_zone. Set every to 1 day, or "
                "remove time_zone."
            )
        if (boundary := self._find_boundary_before(self.start)) != self.start:
            raise ValueError(
                f"start ({format_instant(self.start)}) is not a midnight in {self.time_zone}. Use the previous one, "
                f"{format_instant(boundary)}."
            )
        if day := find_irregular_day(to_local_day(to_micros(self.start), self.time_zone), self.time_zone):
            raise ValueError(
                f"time_zone: {day} is not a whole day in {self.time_zone}, because the clocks changed over midnight. "
                "Use a later start, or remove time_zone."
            )
        return self

    @model_validator(mode="after")
    def _check_end(self) -> Self:
        if self.end is None:
            return self
        if self.end <= self.start:
            raise ValueError(
                f"end ({format_instant(self.end)}) is not after start ({format_instant(self.start)}). Use a later end."
            )
        if (boundary := self._find_boundary_before(self.end)) != self.end:
            raise ValueError(
                f"end ({format_instant(self.end)}) is not a slice boundary. Use the previous one, "
                f"{format_instant(boundary)}."
            )
        return self

    def _find_boundary_before(self, instant: datetime) -> datetime:
        """Return the last slice boundary at or before an instant."""
        if self.time_zone == "UTC":
            return instant - (instant - self.start) % self.every
        try:
            return from_micros(get_day_start(to_local_day(to_micros(instant), self.time_zone), self.time_zone))
        except OverflowError:
            raise ValueError(f"{format_instant(instant)} is outside the years 1 to 9999 of {self.time_zone}") from None

    @property
    def last_start(self) -> datetime | None:
        """Start of the last slice; None if unlimited."""
        return self.end and self._find_boundary_before(self.end - timedelta(microseconds=1))
