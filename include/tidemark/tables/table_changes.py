"""What a commit of the ledger makes of the tables: files that come and files that go, in one commit of each table.

A table follows the ledger's commits one by one, each under its number as transaction id. Who finds one behind brings it
up, and what is needed for that stands in the ledger itself: docs/decisions/0022-tables-by-reference.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import DataFile, DeltaLog, Opened, OvertakenError
from tidemark.errors import FaultError, OlderFormatError
from tidemark.tables.undo_compaction import parted, taken_apart, with_files
from tidemark.timegrid.slices import Grid

QUARANTINED = "quarantined"
MADE_WHEN_NEEDED = (QUARANTINED, "quality")
"""Tables of some pipelines alone, from some commit on: before it `come_to` goes by the others."""
FOLLOWING = (QUARANTINED, "emissions", "late", "checkpoint", "quality")
"""The tables that follow the ledger, in the order in which they are brought up."""
TRIES = 50
"""How often a table is opened again where another process has committed to it meanwhile."""


@dataclass(frozen=True)
class References:
    """What becomes of the tables in one commit."""

    added: Mapping[str, tuple[DataFile, ...]]
    """The files that come, by the name of their table."""
    superseded: tuple[int, ...] = ()
    """Slices that had run before: the files that hold their rows go."""
    released: tuple[int, ...] = ()
    """Slices of which quarantined rows are published beside the others: their files go from `quarantined` alone."""

    dropped: Mapping[str, tuple[str, ...]] | None = None
    """Files whose rows are forgotten, by the name of their table: they go by their paths; None for no such commit."""

    def gone(self, name: str) -> tuple[int, ...]:
        """The slices whose files go from a table."""
        return self.superseded + (self.released if name == QUARANTINED else ())


def logs_of(tables: PipelineTables) -> dict[str, DeltaLog]:
    """The logs of the ledger and of the tables that follow it, by their names; of those that are there."""
    logs = {name: DeltaLog.open(getattr(tables, name)) for name in ("ledger", *FOLLOWING)}
    return {name: log for name, log in logs.items() if log}


def come_to(tables: PipelineTables) -> int | None:
    """The last commit of the ledger that all of the tables have followed; None where there are none.

    Raises:
        OlderFormatError: one is as an earlier version has left it: to take them over was not brought to its end.
    """
    logs = {name: log for name in FOLLOWING if (log := DeltaLog.open(getattr(tables, name)))}
    if any(log.partitioned_by for log in logs.values()):
        raise OlderFormatError(tables.root)
    come = {name: log.commit_number for name, log in logs.items()}
    return min((number for name, number in come.items() if number or name not in MADE_WHEN_NEEDED), default=None)


def publish(
    tables: PipelineTables, grid: Grid, number: int, references: References, opened: Opened | None = None
) -> None:
    """Let the tables follow a commit of the ledger; those that have are left alone.

    Which files go is told by what they hold, not by their names: another process may have split them meanwhile
    (`prepare`), whose own commit came too late, or merged them (`compact`): then they are taken apart again (`apart`).

    Raises:
        FaultError: a table is never left alone, or something else than Tidemark has merged files of it.
    """
    for name in FOLLOWING:
        path, known = getattr(tables, name), {} if opened is None else opened
        for _ in range(TRIES):
            log = known.pop(path, None) or DeltaLog.open(path)
            if log is None or log.commit_number >= number:
                break
            try:
                log, gone = _superseded(log, name, grid, references.gone(name))
                log, dropped = _dropped(log, (references.dropped or {}).get(name, ()))
                known[path] = log.commit(references.added.get(name, ()), [*gone, *dropped], number)
            except OvertakenError:
                continue
            break
        else:
            raise FaultError(
                f"the slices of commit {number} are committed, but other processes keep writing to {path}; the next "
                "command on this pipeline brings it up"
            )


def _dropped(log: DeltaLog, paths: Collection[str]) -> tuple[DeltaLog, Collection[str]]:
    """A table that has some files by their names, and these."""
    if (found := with_files(log, paths)) is None:
        raise FaultError(
            f"{log.path} no longer has a file whose rows are forgotten, {min(paths)}: something else than Tidemark has "
            "rewritten it; restore the version before (RESTORE TABLE) and run the command again"
        )
    return found, paths


def as_rows(references: References) -> list[dict[str, Any]]:
    """The files of references as the ledger stores them."""
    return [{"table": name, **asdict(file)} for name, files in references.added.items() for file in files]


def files_from_rows(rows: Iterable[Mapping[str, Any]]) -> dict[str, tuple[DataFile, ...]]:
    """The inverse of `as_rows`."""
    found: dict[str, tuple[DataFile, ...]] = dict.fromkeys(FOLLOWING, ())
    for row in rows:
        found[row["table"]] += (DataFile(**{key: value for key, value in row.items() if key != "table"}),)
    return found


def _superseded(log: DeltaLog, name: str, grid: Grid, numbers: Collection[int]) -> tuple[DeltaLog, list[str]]:
    """A table in which no file has rows of these slices and of others, and the files that have theirs."""
    across, inside = parted(log, name, grid, numbers)
    if not across:
        return log, inside
    if (apart := taken_apart(log, name, grid, numbers)) is None:
        raise FaultError(
            f"{log.path} has slices that were reprocessed and others in one file, {across[0]}: something else than "
            "Tidemark has rewritten it; restore the version before (RESTORE TABLE) and run the command again"
        )
    return apart, parted(apart, name, grid, numbers)[1]
