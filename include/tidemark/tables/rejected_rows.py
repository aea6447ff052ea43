"""Append the rejected rows of a run to a table that the ledger does not manage."""

from __future__ import annotations

from pyspark.sql import DataFrame

from tidemark.delta.retry import retry_on_conflict
from tidemark.delta.table import DeltaTableHandle
from tidemark.tables.run_files import stage_run
from tidemark.tables.schema_evolution import evolve_schema


def append_rejected_rows(rows: DataFrame, path: str, run: str) -> None:
    """Append rows of a run to a table that the ledger does not manage. Create the table if needed.

    Raises:
        UserError: The new type of a column cannot represent all values in the table.
        FaultError: Other processes keep committing to the table.
    """
    staged = stage_run(rows, path, run)

    def attempt() -> DeltaTableHandle:
        handle = DeltaTableHandle.open(path)
        handle = evolve_schema(rows.sparkSession, handle, path, staged.schema, change_feed=False)
        return handle.commit(staged.files)

    retry_on_conflict(attempt, path)
