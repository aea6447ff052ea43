"""Small tables beside the ledger, to which several processes append."""

from __future__ import annotations

import pyarrow as pa

from tidemark.delta.table import CommitConflictError, DeltaTableHandle, create_arrow_table
from tidemark.errors import FaultError
from tidemark.tables.table_changes import TRIES


def append(path: str, rows: pa.Table) -> None:
    """Add rows to a table, which is made with the first ones.

    Raises:
        FaultError: other processes never let go of the table.
    """
    for _ in range(TRIES):
        try:
            (DeltaTableHandle.open(path) or create_arrow_table(path, rows.schema)).append(rows)
        except CommitConflictError:
            continue
        return
    raise FaultError(f"other processes keep writing to {path}; run the command again")
