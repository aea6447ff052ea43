"""How a pipeline's tables are kept, once their rows stand; no row depends on it."""

from __future__ import annotations

from datetime import timedelta
from typing import Self

from pydantic import field_validator, model_validator

from tidemark.config.base import Settings
from tidemark.config.types import Duration, PositiveDuration, format_duration

SOONEST = timedelta(hours=1)
"""A query may read files for so long after they were superseded."""
LEFT_BEHIND = timedelta(days=7)
"""A file that no commit has, and that is older, is taken for left behind: no run takes so long."""


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
    """How long `tidemark vacuum` leaves what nothing needs that is committed; each is at least 1 hour."""

    superseded: Duration | None = None
    """Files that a table had and has no longer, of answers that were replaced and of states that have expired. Versions
    of the table that had one can then no longer be read. By default they are kept for ever."""
    states: Duration | None = None
    """Checkpoints of slices that end longer than this before the last committed one does, on the pipeline's clock: they
    expire, as by `tidemark state expire`, but for those that a plan could need. By default none does."""
    garbage: Duration = LEFT_BEHIND
    """Files that were written and that no commit has: longer than the longest job takes."""
    docs: Duration | None = None
    """Great Expectations' results and their pages in Data Docs. By default the newest 50 are kept."""
    logs: Duration | None = None
    """Commits in the logs of the tables that follow the ledger, which stays whole: at least as long as `superseded`,
    which has to be there too. Versions before them can then no longer be read. By default they are kept for ever."""

    @field_validator("superseded", "states", "garbage", "docs", "logs")
    @classmethod
    def _not_at_once(cls, value: timedelta | None) -> timedelta | None:
        if value is not None and value < SOONEST:
            raise ValueError(f"must be {format_duration(SOONEST)} at least: a query or a job may still need them")
        return value

    @model_validator(mode="after")
    def _versions_with_their_files(self) -> Self:
        if self.logs is None:
            return self
        told = f"logs ({format_duration(self.logs)})"
        if self.superseded is None:
            raise ValueError(f"{told} needs superseded: files of versions that no log tells of serve nobody")
        if self.logs < self.superseded:
            raise ValueError(
                f"{told} is shorter than superseded ({format_duration(self.superseded)}), whose versions need their "
                f"log; make it {format_duration(self.superseded)} at least"
            )
        return self
