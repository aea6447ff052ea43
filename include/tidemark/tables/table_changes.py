"""What a commit of the ledger makes of the tables: files that come and files that go, in one commit of each table.

A table follows the ledger's commits one by one, each under its number as transaction id. Who finds one behind brings it
up, and what is needed for that stands in the ledger itself: docs/decisions/0022-tables-by-reference.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import CommitConflictError, DataFile, DeltaTableHandle, OpenTables
from tidemark.errors import FaultError
from tidemark.tables.undo_compaction import files_spanning_and_within, restore_files, restore_uncompacted_version
from tidemark.timegrid.slices import Grid

QUARANTINED = "quarantined"
OPTIONAL_TABLES = (QUARANTINED, "quality")
"""Tables of some pipelines alone, from some commit on: before it `come_to` goes by the others."""
FOLLOWING = (QUARANTINED, "emissions", "late", "checkpoint", "quality")
"""The tables that follow the ledger, in the order in which they are brought up."""
TRIES = 50
"""How often a table is opened again where another process has committed to it meanwhile."""


@dataclass(frozen=True)
class TableChanges:
    """What becomes of the tables in one commit."""

    added: Mapping[str, tuple[DataFile, ...]]
    """The files that come, by the name of their table."""
    superseded: tuple[int, ...] = ()
    """Slices that had run before: the files that hold their rows go."""
    released: tuple[int, ...] = ()
    """Slices of which quarantined rows are published beside the others: their files go from `quarantined` alone."""

    dropped: Mapping[str, tuple[str, ...]] | None = None
    """Files whose rows are forgotten, by the name of their table: they go by their paths; None for no such commit."""

    def slices_removed_from(self, name: str) -> tuple[int, ...]:
        """The slices whose files go from a table."""
        return self.superseded + (self.released if name == QUARANTINED else ())


def open_tables(tables: PipelineTables) -> dict[str, DeltaTableHandle]:
    """The logs of the ledger and of the tables that follow it, by their names; of those that are there."""
    logs = {name: DeltaTableHandle.open(getattr(tables, name)) for name in ("ledger", *FOLLOWING)}
    return {name: log for name, log in logs.items() if log}


def last_applied_commit(tables: PipelineTables) -> int | None:
    """Return the last commit of the ledger that all tables have applied; None if there are no tables."""
    logs = {name: log for name in FOLLOWING if (log := DeltaTableHandle.open(getattr(tables, name)))}
    applied = {name: log.txn_version for name, log in logs.items()}
    return min((number for name, number in applied.items() if number or name not in OPTIONAL_TABLES), default=None)


def apply_to_tables(
    tables: PipelineTables, grid: Grid, number: int, references: TableChanges, opened: OpenTables | None = None
) -> None:
    """Let the tables follow a commit of the ledger; those that have are left alone.

    Which files go is told by what they hold, not by their names: another process may have split them meanwhile
    (`prepare`), whose own commit came too late, or merged them (`compact`): then they are taken apart again (`apart`).

    Raises:
        FaultError: a table is never left alone, or something else than Tidemark has merged files of it.
    """
    for name in FOLLOWING:
        path, handles = getattr(tables, name), {} if opened is None else opened
        for _ in range(TRIES):
            log = handles.pop(path, None) or DeltaTableHandle.open(path)
            if log is None or log.txn_version >= number:
                break
            try:
                log, removed = _find_superseded_files(log, name, grid, references.slices_removed_from(name))
                log, dropped = _find_dropped_files(log, (references.dropped or {}).get(name, ()))
                handles[path] = log.commit(references.added.get(name, ()), [*removed, *dropped], number)
            except CommitConflictError:
                continue
            break
        else:
            raise FaultError(
                f"the slices of commit {number} are committed, but other processes keep writing to {path}; the next "
                "command on this pipeline brings it up"
            )


def _find_dropped_files(log: DeltaTableHandle, paths: Collection[str]) -> tuple[DeltaTableHandle, Collection[str]]:
    """A table that has some files by their names, and these."""
    if (table := restore_files(log, paths)) is None:
        raise FaultError(
            f"{log.path} no longer has a file whose rows are forgotten, {min(paths)}: something else than Tidemark has "
            "rewritten it; restore the version before (RESTORE TABLE) and run the command again"
        )
    return table, paths


def to_file_rows(references: TableChanges) -> list[dict[str, Any]]:
    """The files of references as the ledger stores them."""
    return [{"table": name, **asdict(file)} for name, files in references.added.items() for file in files]


def files_from_rows(rows: Iterable[Mapping[str, Any]]) -> dict[str, tuple[DataFile, ...]]:
    """The inverse of `as_rows`."""
    files: dict[str, tuple[DataFile, ...]] = dict.fromkeys(FOLLOWING, ())
    for row in rows:
        files[row["table"]] += (DataFile(**{key: value for key, value in row.items() if key != "table"}),)
    return files


def _find_superseded_files(
    log: DeltaTableHandle, name: str, grid: Grid, numbers: Collection[int]
) -> tuple[DeltaTableHandle, list[str]]:
    """A table in which no file has rows of these slices and of others, and the files that have theirs."""
    across, inside = files_spanning_and_within(log, name, grid, numbers)
    if not across:
        return log, inside
    if (uncompacted := restore_uncompacted_version(log, name, grid, numbers)) is None:
        raise FaultError(
            f"{log.path} has slices that were reprocessed and others in one file, {across[0]}: something else than "
            "Tidemark has rewritten it; restore the version before (RESTORE TABLE) and run the command again"
        )
    return uncompacted, files_spanning_and_within(uncompacted, name, grid, numbers)[1]
