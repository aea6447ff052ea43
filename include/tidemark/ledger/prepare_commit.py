"""What a commit needs before the ledger can have it: tables with the right columns, files that can go as a whole.

Nothing here changes what a reader of the tables sees.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.staging import Staged, read_files
from tidemark.delta.table import DataFile, DeltaLog, Opened, OvertakenError
from tidemark.errors import FaultError
from tidemark.tables.run_files import StagedRun, places, run_of, stage_run, within
from tidemark.tables.schema_evolution import fitted
from tidemark.tables.table_changes import FOLLOWING, TRIES, References
from tidemark.timegrid.slices import Grid, ranges


@dataclass(frozen=True)
class Prepared:
    """A commit of the ledger that only has to be made."""

    references: References
    """What it makes of the tables."""
    before: dict[str, int]
    """The versions of the tables until then."""


def prepare(
    spark: SparkSession,
    tables: PipelineTables,
    grid: Grid,
    runs: Sequence[StagedRun],
    superseded: Iterable[int],
    opened: Opened,
    released: Iterable[int] = (),
) -> Prepared:
    """Make ready for the commit of some runs; where two have a slice the later one's rows count.

    Files with rows of slices that are `superseded`, and of others beside, are written again as files that have either:
    a commit that changes no data.

    Raises:
        UserError: a column has a type in which the values that the table has of it cannot all be.
        FaultError: other processes never let go of a table.
    """
    newest = list(_newest(spark, grid, runs))
    added: dict[str, tuple[DataFile, ...]] = {}
    references = References(added, tuple(superseded), tuple(released))
    before: dict[str, int] = {}
    for name in FOLLOWING:
        path = getattr(tables, name)
        staged = [run.tables[name] for run in newest if name in run.tables]
        for _ in range(TRIES):
            try:
                log = _table(spark, opened.pop(path, None) or DeltaLog.open(path), path, name, staged)
                if log is None:
                    break
                opened[path] = _split(spark, log, name, grid, ranges(references.gone(name)))
            except OvertakenError:
                continue
            before[name] = opened[path].version
            added[name] = tuple(file for one in staged for file in one.files)
            break
        else:
            raise FaultError(f"other processes keep writing to {path}; run the command again")
    return Prepared(references, before)


def _newest(spark: SparkSession, grid: Grid, runs: Sequence[StagedRun]) -> Iterable[StagedRun]:
    """The runs without slices that later ones have run again."""
    for number, run in enumerate(runs):
        later = {n for other in runs[number + 1 :] for n in other.slices}
        for slices in ranges(n for n in run.slices if n not in later):
            yield run.only(spark, grid, slices)


def _table(
    spark: SparkSession, log: DeltaLog | None, path: str, name: str, staged: Sequence[Staged]
) -> DeltaLog | None:
    """A table with all the columns that are staged for it; None where there is none, and nothing for it."""
    for one in staged:
        log = fitted(spark, log, path, one.schema, change_feed=name == "emissions")
    return log


def _split(spark: SparkSession, log: DeltaLog, name: str, grid: Grid, superseded: Iterable[range]) -> DeltaLog:
    """The table, once no file has rows of slices that are superseded and of others."""
    for slices in superseded:
        across = [path for path, place in places(log, name, grid, slices).items() if place == "across"]
        if across:
            log = log.commit(_apart(spark, log, name, grid, slices, across), across, changes_data=False)
    return log


def _apart(
    spark: SparkSession, log: DeltaLog, name: str, grid: Grid, slices: range, paths: Sequence[str]
) -> list[DataFile]:
    """The rows of files once more: those before some slices, of them, and behind them, each in files of their own."""
    parts = ((None, slices.start), (slices.start, slices.stop), (slices.stop, None))
    files: list[DataFile] = []
    for run in sorted({run_of(path) for path in paths}):
        rows = read_files(spark, log.path, log.schema, (path for path in paths if run_of(path) == run))
        for start, stop in parts:
            files += stage_run(within(rows, name, grid, start, stop), log.path, run).files
    return files


def set_aside(rows: DataFrame, path: str, run: str) -> None:
    """Add rows of a run to a table of no commit's, made where there is none.

    Raises:
        UserError: as `prepare`.
        FaultError: other processes never let go of the table.
    """
    staged = stage_run(rows, path, run)
    for _ in range(TRIES):
        try:
            fitted(rows.sparkSession, DeltaLog.open(path), path, staged.schema, change_feed=False).commit(staged.files)
        except OvertakenError:
            continue
        return
    raise FaultError(f"other processes keep writing to {path}; run the command again")
