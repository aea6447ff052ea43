"""Settings of compaction and retention of a pipeline's tables."""

from __future__ import annotations

from datetime import timedelta
from typing import Self

from pydantic import field_validator, model_validator

from tidemark.config.base import Settings
from tidemark.config.types import Duration, NonNegativeDuration, PositiveDuration, format_duration

MIN_RETENTION = timedelta(hours=1)
"""Minimum retention of files: running queries read replaced files, and running jobs commit uncommitted files."""
DEFAULT_UNCOMMITTED_AGE = timedelta(days=7)
"""Default age from which an uncommitted file counts as abandoned. No run takes this long."""


def check_retention(value: timedelta) -> timedelta:
    """Return a retention that is not shorter than `MIN_RETENTION`.

    Raises:
        ValueError: It is shorter.
    """
    if value < MIN_RETENTION:
        raise ValueError(f"must be at least {format_duration(MIN_RETENTION)}, as running jobs may need the files")
    return value


class CompactionSettings(Settings):
    """Files that `tidemark tables compact` merges: those of whole periods whose slices are settled."""

    settled_after: NonNegativeDuration
    """Files of a period are merged if the newest committed slice ends at least this time after the period."""
    period: PositiveDuration
    """Length of a period, whose files are merged into one file per table: a multiple of `slices.every`, and longer.
    Periods are counted from 1970-01-01 UTC. A slice belongs to the period in which it starts."""

    def check_period(self, every: timedelta) -> None:
        """Check that a period consists of at least two whole slices of length `every`.

        Raises:
            ValueError: The period is no multiple of the slice length, or not longer.
        """
        if self.period % every or self.period == every:
            raise ValueError(
                f"compact.period ({format_duration(self.period)}) is not a multiple of slices.every "
                f"({format_duration(every)}), or not longer. Set it to several slices."
            )


class Retention(Settings):
    """Minimum ages of files that `tidemark tables vacuum` removes. Each is at least 1 hour."""

    replaced_files: Duration | None = None
    """Minimum age of files that a table once had: of recomputed slices and expired checkpoints. Table versions that
    contain a removed file can no longer be read. Default: never removed."""
    checkpoints: Duration | None = None
    """Minimum age of checkpoints, on the pipeline's clock, before the end of the last committed slice. Older
    checkpoints expire as by `tidemark checkpoint expire`, except those that a plan may need. Default: never expired."""
    uncommitted_files: Duration = DEFAULT_UNCOMMITTED_AGE
    """Minimum age of files that were never committed. It must exceed the duration of the longest job, or of the longest
    run with `--atomic`, which commits all of its jobs at the end."""
    data_docs: Duration | None = None
    """Minimum age of Great Expectations' results and their Data Docs pages. Default: the newest 50 are kept."""
    log_files: Duration | None = None
    """Minimum age of log files of the pipeline's Delta tables except the ledger. It needs `replaced_files` and must not
    be shorter. Table versions before a removed log file can no longer be read. Default: never removed."""

    @field_validator("replaced_files", "checkpoints", "uncommitted_files", "data_docs", "log_files")
    @classmethod
    def _check_minimum(cls, value: timedelta | None) -> timedelta | None:
        return None if value is None else check_retention(value)

    @model_validator(mode="after")
    def _check_log_files(self) -> Self:
        if self.log_files is None:
            return self
        log_files = f"log_files ({format_duration(self.log_files)})"
        if self.replaced_files is None:
            raise ValueError(
                f"{log_files} needs replaced_files. Set it too, because files of versions without a log are unreadable."
            )
        if self.log_files < self.replaced_files:
            minimum = format_duration(self.replaced_files)
            raise ValueError(
                f"{log_files} is shorter than replaced_files ({minimum}), whose versions need their log files. "
                f"Set it to at least {minimum}."
            )
        return self
