"""How a pipeline's tables are kept, once their rows stand; no row depends on it."""

from __future__ import annotations

from datetime import timedelta

from pydantic import field_validator

from tidemark.settings.base import Settings
from tidemark.settings.values import Duration, PositiveDuration, format_duration

SOONEST = timedelta(hours=1)
"""A query may read files for so long after they were superseded."""


class Compact(Settings):
    """Which files `tidemark compact` makes fewer: those of whole periods whose slices are settled."""

    after: Duration
    """A slice is settled when it ends at least this long before the end of the newest committed one."""
    into: PositiveDuration
    """How long a period is, whose files become one of each table: several slices. Periods are counted from 1970-01-01
    UTC, so that one of a day is a day of UTC; a slice belongs to that in which it starts."""

    @field_validator("after")
    @classmethod
    def _not_negative(cls, value: timedelta) -> timedelta:
        if value < timedelta():
            raise ValueError("must not be negative")
        return value

    def check(self, every: timedelta) -> None:
        """See that a period has whole slices of such a length, two at least.

        Raises:
            ValueError: it has not.
        """
        if self.into % every or self.into == every:
            raise ValueError(
                f"compact.into ({format_duration(self.into)}) has to be a multiple of slices.every "
                f"({format_duration(every)}), and longer"
            )


class Retention(Settings):
    """How long `tidemark vacuum` leaves what nothing needs that is committed."""

    superseded: Duration | None = None
    """Files that a table had and has no longer, of answers that were replaced and of states that have expired: at least
    1 hour. Versions of the table that had one can then no longer be read. By default they are kept for ever."""

    @field_validator("superseded")
    @classmethod
    def _not_at_once(cls, value: timedelta | None) -> timedelta | None:
        if value is not None and value < SOONEST:
            raise ValueError(f"must be {format_duration(SOONEST)} at least: a query may still read them")
        return value
