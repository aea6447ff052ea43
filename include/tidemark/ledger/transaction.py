"""Change a pipeline's ledger and tables in one commit: prepare, commit, apply."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from tidemark.delta.table import OpenTables
from tidemark.ledger.ledger import Ledger
from tidemark.ledger.ledger_table import FORMAT
from tidemark.ledger.prepare_commit import prepare_commit
from tidemark.tables.run_files import StagedRun
from tidemark.tables.table_changes import TableChanges, apply_to_tables


@dataclass(frozen=True)
class LedgerTransaction:
    """A prepared commit of the ledger and of the tables that it manages.

    It is permanent once the ledger has it. If the process is killed before the tables have applied it, the next
    `Ledger.read` applies it.
    """

    ledger: Ledger
    number: int
    """Number of the commit."""
    changes: TableChanges
    """Changes of the tables."""
    versions_before: Mapping[str, int]
    """Versions of the tables before the commit, by name."""
    open_tables: OpenTables = field(default_factory=dict)
    """Tables that are open, by path. They are replaced by their new versions."""
    committed_at: datetime = field(default_factory=partial(datetime.now, UTC))

    @classmethod
    def prepare(
        cls,
        spark: SparkSession,
        ledger: Ledger,
        number: int,
        runs: Sequence[StagedRun],
        superseded: Iterable[int] = (),
        *,
        released: Iterable[int] = (),
        open_tables: OpenTables | None = None,
    ) -> LedgerTransaction:
        """Prepare the tables for the commit of some runs, without changing the rows that readers see.

        Args:
            spark: A session.
            ledger: The ledger to commit to.
            number: Number of the commit.
            runs: Staged runs. If two have the same slice, the later one's rows are committed.
            superseded: Slices that were committed before.
            released: Slices whose quarantined rows are released.
            open_tables: Tables that are open, by path.

        Raises:
            UserError: The new type of a column cannot represent all values in the table.
            FaultError: Other processes keep committing to a table.
        """
        handles: OpenTables = {} if open_tables is None else open_tables
        prepared = prepare_commit(spark, ledger.tables, ledger.grid, runs, superseded, handles, released)
        return cls(ledger, number, prepared.changes, prepared.versions_before, handles)

    def amend_row(self, stored: Mapping[str, Any], original_commit: int, **columns: Any) -> dict[str, Any]:
        """Return a stored ledger row as it is committed again, with some columns changed.

        Args:
            stored: The row.
            original_commit: Number of the commit in which the slice ran.
            columns: The changed columns.
        """
        return {
            **stored,
            "commit": self.number,
            "committed_at": self.committed_at,
            "format": FORMAT,
            "original_commit": original_commit,
            "promotion": None,
            **columns,
        }

    def commit(self, rows: Sequence[dict[str, Any]]) -> None:
        """Commit rows to the ledger, and apply the commit to the tables.

        Raises:
            SliceOrderError: Another process has committed since the ledger was read; nothing is committed.
            FaultError: A file of the commit is gone, and nothing is committed; or the rows are committed, but other
                processes keep writing to a table.
        """
        self.ledger.commit(rows, self.number, self.changes, self.versions_before, self.open_tables)
        apply_to_tables(self.ledger.tables, self.ledger.grid, self.number, self.changes, self.open_tables)
