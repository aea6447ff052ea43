"""Append to small tables that do not follow the ledger."""

from __future__ import annotations

import pyarrow as pa

from tidemark.delta.table import CommitConflictError, DeltaTableHandle, create_arrow_table
from tidemark.errors import FaultError
from tidemark.tables.table_changes import TRIES


def append(path: str, rows: pa.Table) -> None:
    """Append rows to a table. Create it if needed.

    Raises:
        FaultError: Other processes keep committing to the table.
    """
    for _ in range(TRIES):
        try:
            (DeltaTableHandle.open(path) or create_arrow_table(path, rows.schema)).append(rows)
        except CommitConflictError:
            continue
        return
    raise FaultError(f"other processes keep writing to {path}. Run the command again.")
