"""How a pipeline's tables are kept, once their rows stand; no row depends on it."""

from __future__ import annotations

from datetime import timedelta

from pydantic import field_validator

from tidemark.settings.base import Settings
from tidemark.settings.values import Duration, format_duration

SOONEST = timedelta(hours=1)


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
