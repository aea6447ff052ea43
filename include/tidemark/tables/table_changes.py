"""Apply a commit of the ledger to the tables: add and remove files, in one commit per table.

A table applies the ledger's commits in order, each with its number as transaction version. Any process can apply
missing commits, because the ledger records their files: docs/decisions/0003-ledger-and-file-references.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from tidemark.config.output_stream import OUTPUT_STREAM
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.retry import retry_on_conflict
from tidemark.delta.table import DataFile, DeltaTableHandle, OpenTables
from tidemark.errors import FaultError
from tidemark.tables.undo_compaction import files_spanning_and_within, restore_files, restore_uncompacted_version
from tidemark.timegrid.slices import Grid

QUARANTINED = "quarantined"
OPTIONAL_TABLES = (QUARANTINED, OUTPUT_STREAM, "quality")
"""Tables that only exist from some commit on, if at all. `list_applied_commits` leaves them out until then."""
LEDGER_MANAGED_TABLES = (QUARANTINED, "emissions", OUTPUT_STREAM, "late", "quality", "checkpoint")
"""Tables to which the ledger's commits are applied, in the order in which commits are applied.

The last one is not optional: while it lacks a commit, `list_applied_commits` shows that tables lack it.
"""
assert LEDGER_MANAGED_TABLES[-1] not in OPTIONAL_TABLES


@dataclass(frozen=True)
class TableChanges:
    """Changes of the tables in one commit."""

    added: Mapping[str, tuple[DataFile, ...]]
    """Files to add, by table."""
    superseded: tuple[int, ...] = ()
    """Slices that were rerun: the files with their earlier rows are removed."""
    released: tuple[int, ...] = ()
    """Slices whose quarantined rows are released: files with their rows are removed from `quarantined` only."""

    removed_files: Mapping[str, tuple[str, ...]] | None = None
    """Paths of files to remove because rows in them are erased, by table; None if the commit erases none."""

    def slices_removed_from(self, name: str) -> tuple[int, ...]:
        """Return the slices whose files are removed from a table."""
        return self.superseded + (self.released if name == QUARANTINED else ())


def open_tables(tables: PipelineTables) -> dict[str, DeltaTableHandle]:
    """Open the ledger and the tables that it manages, by name; without tables that do not exist."""
    logs = {name: DeltaTableHandle.open(getattr(tables, name)) for name in ("ledger", *LEDGER_MANAGED_TABLES)}
    return {name: log for name, log in logs.items() if log}


def list_applied_commits(tables: PipelineTables) -> dict[str, int]:
    """Return the last commit of the ledger that each table has applied, 0 for none, by table."""
    logs = {name: log for name in LEDGER_MANAGED_TABLES if (log := DeltaTableHandle.open(getattr(tables, name)))}
    applied = {name: log.txn_version for name, log in logs.items()}
    return {name: number for name, number in applied.items() if number or name not in OPTIONAL_TABLES}


def apply_to_tables(
    tables: PipelineTables, grid: Grid, number: int, changes: TableChanges, open_tables: OpenTables | None = None
) -> None:
    """Apply a commit of the ledger to the tables that lack it.

    Files are removed by the slices of their rows and not by path, because another process may have split them for a
    commit that came too late (`prepare_commit`), or compacted them. A compaction is undone (`undo_compaction`).

    Args:
        tables: The pipeline's tables.
        grid: The grid of slices.
        number: Number of the commit.
        changes: The commit's changes.
        open_tables: Tables that are open, by path. They are replaced by their new versions.

    Raises:
        FaultError: Other processes keep committing to a table, or a program other than Tidemark merged its files.
    """
    handles = OpenTables() if open_tables is None else open_tables
    for name in LEDGER_MANAGED_TABLES:
        path = getattr(tables, name)
        retry_on_conflict(
            partial(_apply_to_table, name, path, grid, number, changes, handles),
            path,
            f"the slices of commit {number} are committed, but other processes keep writing to {path}. The next "
            "command on this pipeline applies the commit.",
        )


def _apply_to_table(name: str, path: str, grid: Grid, number: int, changes: TableChanges, handles: OpenTables) -> None:
    """Apply a commit to one table, unless it has applied it. The handle is replaced by its new version."""
    log = handles.pop(path, None) or DeltaTableHandle.open(path)
    if log is None or log.txn_version >= number:
        return
    log, removed = _find_superseded_files(log, name, grid, changes.slices_removed_from(name))
    log, removed_paths = _restore_removed_files(log, name, (changes.removed_files or {}).get(name, ()))
    handles[path] = log.commit(changes.added.get(name, ()), [*removed, *removed_paths], number)


def _restore_removed_files(
    log: DeltaTableHandle, name: str, paths: Collection[str]
) -> tuple[DeltaTableHandle, Collection[str]]:
    """Return the table with the files at these paths, restored if they were compacted, and the paths.

    Files of checkpoints that have expired meanwhile are left out.
    """
    if (table := restore_files(log, paths)) is None:
        if name == "checkpoint":
            return log, sorted(set(paths).intersection(log.files["path"]))
        raise FaultError(
            f"{log.path} has lost file {min(paths)}, in which rows are erased: a program other than Tidemark has "
            "rewritten it. Restore the version before (RESTORE TABLE), and run the command again."
        )
    return table, paths


def to_file_rows(changes: TableChanges) -> list[dict[str, Any]]:
    """Convert the added files to rows of the ledger's column `added_files`."""
    return [{"table": name, **asdict(file)} for name, files in changes.added.items() for file in files]


def files_from_rows(rows: Iterable[Mapping[str, Any]]) -> dict[str, tuple[DataFile, ...]]:
    """Convert rows of the ledger's column `added_files` to files by table; the inverse of `to_file_rows`."""
    files: dict[str, tuple[DataFile, ...]] = dict.fromkeys(LEDGER_MANAGED_TABLES, ())
    for row in rows:
        files[row["table"]] += (DataFile(**{key: value for key, value in row.items() if key != "table"}),)
    return files


def _find_superseded_files(
    log: DeltaTableHandle, name: str, grid: Grid, numbers: Collection[int]
) -> tuple[DeltaTableHandle, list[str]]:
    """Find the files with rows of some slices. Undo compactions that merged these rows with others.

    Returns:
        The table, in which no file has rows of these slices and of others, and the paths.
    """
    across, inside = files_spanning_and_within(log, name, grid, numbers)
    if not across:
        return log, inside
    if (uncompacted := restore_uncompacted_version(log, name, grid, numbers)) is None:
        raise FaultError(
            f"{log.path} has reprocessed and other slices in one file, {across[0]}: a program other than Tidemark has "
            "rewritten it. Restore the version before (RESTORE TABLE), and run the command again."
        )
    return uncompacted, files_spanning_and_within(uncompacted, name, grid, numbers)[1]
