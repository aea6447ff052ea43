"""Prepare the tables for a commit of the ledger: evolve schemas, and split files at slice bounds.

Nothing here changes the rows that readers of the tables see.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from pyspark.sql import SparkSession

from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.retry import retry_on_conflict
from tidemark.delta.staging import StagedFiles, read_files
from tidemark.delta.table import DataFile, DeltaTableHandle, OpenTables
from tidemark.tables.run_files import StagedRun, classify_files, filter_slices, parse_run, stage_run
from tidemark.tables.schema_evolution import evolve_schema
from tidemark.tables.table_changes import LEDGER_MANAGED_TABLES, TableChanges
from tidemark.timegrid.slices import Grid, group_consecutive


@dataclass(frozen=True)
class PreparedCommit:
    """A commit whose table changes are prepared."""

    changes: TableChanges
    """Changes of the tables."""
    versions_before: dict[str, int]
    """Versions of the tables before the commit."""


def prepare_commit(
    spark: SparkSession,
    tables: PipelineTables,
    grid: Grid,
    runs: Sequence[StagedRun],
    superseded: Iterable[int],
    open_tables: OpenTables,
    released: Iterable[int] = (),
) -> PreparedCommit:
    """Prepare the tables for the commit of some runs.

    Files that also have rows of slices that are not superseded are split, in a commit that changes no data.

    Args:
        spark: A session.
        tables: The pipeline's tables.
        grid: The grid of slices.
        runs: Staged runs. If two have the same slice, the later one's rows are committed.
        superseded: Slices that were committed before.
        open_tables: Tables that are open, by path. They are replaced by their new versions.
        released: Slices whose quarantined rows are released.

    Raises:
        UserError: The new type of a column cannot represent all values in the table.
        FaultError: Other processes keep committing to a table.
    """
    newest = list(_without_superseded_slices(spark, grid, runs))
    added: dict[str, tuple[DataFile, ...]] = {}
    changes = TableChanges(added, tuple(superseded), tuple(released))
    versions_before: dict[str, int] = {}
    for name in LEDGER_MANAGED_TABLES:
        path = getattr(tables, name)
        staged = [run.tables[name] for run in newest if name in run.tables]
        log = retry_on_conflict(
            partial(_prepare_table, spark, name, path, grid, staged, changes, open_tables),
            path,
        )
        if log:
            versions_before[name] = log.version
            added[name] = tuple(file for part in staged for file in part.files)
    return PreparedCommit(changes, versions_before)


def _prepare_table(
    spark: SparkSession,
    name: str,
    path: str,
    grid: Grid,
    staged: Sequence[StagedFiles],
    changes: TableChanges,
    open_tables: OpenTables,
) -> DeltaTableHandle | None:
    """Prepare one table for a commit. Return its new version; None if there is neither a table nor a staged file."""
    log = _evolve_table(spark, open_tables.pop(path, None) or DeltaTableHandle.open(path), path, name, staged)
    if log:
        log = open_tables[path] = _split_files(
            spark, log, name, grid, group_consecutive(changes.slices_removed_from(name))
        )
    return log


def _without_superseded_slices(spark: SparkSession, grid: Grid, runs: Sequence[StagedRun]) -> Iterable[StagedRun]:
    """Yield the runs without slices that later runs have too."""
    for number, run in enumerate(runs):
        later = {n for other in runs[number + 1 :] for n in other.slices}
        for slices in group_consecutive(n for n in run.slices if n not in later):
            yield run.restage_slices(spark, grid, slices)


def _evolve_table(
    spark: SparkSession, log: DeltaTableHandle | None, path: str, name: str, staged: Sequence[StagedFiles]
) -> DeltaTableHandle | None:
    """Evolve a table to the schemas of staged files. Return None if there is neither a table nor a staged file."""
    for part in staged:
        log = evolve_schema(spark, log, path, part.schema, change_feed=name == "emissions")
    return log


def _split_files(
    spark: SparkSession, log: DeltaTableHandle, name: str, grid: Grid, superseded: Iterable[range]
) -> DeltaTableHandle:
    """Split files with rows of superseded and of other slices. Return the table's new version."""
    for slices in superseded:
        across = [path for path, place in classify_files(log, name, grid, slices).items() if place == "across"]
        if across:
            log = log.commit(_rewrite_files(spark, log, name, grid, slices, across), across, changes_data=False)
    return log


def _rewrite_files(
    spark: SparkSession, log: DeltaTableHandle, name: str, grid: Grid, slices: range, paths: Sequence[str]
) -> list[DataFile]:
    """Rewrite files as separate files for rows before, in and after some slices."""
    parts = ((None, slices.start), (slices.start, slices.stop), (slices.stop, None))
    files: list[DataFile] = []
    for run in sorted({parse_run(path) for path in paths}):
        rows = read_files(spark, log.path, log.schema, (path for path in paths if parse_run(path) == run))
        for start, stop in parts:
            files += stage_run(filter_slices(rows, name, grid, start, stop), log.path, run).files
    return files
