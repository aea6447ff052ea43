"""Retry commits that lost a race against another process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pyarrow as pa

from tidemark.delta.table import CommitConflictError, DeltaTableHandle, create_internal_table
from tidemark.errors import FaultError

MAX_ATTEMPTS = 50

ResultT = TypeVar("ResultT")


def retry_on_conflict(attempt: Callable[[], ResultT], path: str, message: str | None = None) -> ResultT:
    """Call `attempt` until no other process commits in between, at most `MAX_ATTEMPTS` times.

    Args:
        attempt: Opens the table and commits to it (optimistic concurrency). Called again only after a
            `CommitConflictError`.
        path: The table's folder or URI, for the error message.
        message: Replaces the error message.

    Returns:
        The result of the first attempt without a conflict.

    Raises:
        FaultError: Every attempt had a conflict.
    """
    for _ in range(MAX_ATTEMPTS):
        try:
            return attempt()
        except CommitConflictError:
            continue
    raise FaultError(message or f"other processes keep writing to {path}. Run the command again.")


def append_with_retry(path: str, rows: pa.Table) -> None:
    """Append rows to a table that only Tidemark reads. Create it if needed.

    Raises:
        FaultError: Other processes keep committing to the table.
    """
    retry_on_conflict(
        lambda: (DeltaTableHandle.open(path) or create_internal_table(path, rows.schema)).append(rows), path
    )
