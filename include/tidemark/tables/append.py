"""Append to small tables that do not follow the ledger."""

from __future__ import annotations

import pyarrow as pa

from tidemark.delta.retry import retry_on_conflict
from tidemark.delta.table import DeltaTableHandle, create_internal_table


def append(path: str, rows: pa.Table) -> None:
    """Append rows to a table. Create it if needed.

    Raises:
        FaultError: Other processes keep committing to the table.
    """
    retry_on_conflict(
        lambda: (DeltaTableHandle.open(path) or create_internal_table(path, rows.schema)).append(rows), path
    )
