"""What one job writes of the tables: files in a folder of each table that carries the name of its run.

Nobody sees them before a commit refers to them; of a run that no commit names, files are what is left behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemark.config.types import to_micros
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.staging import StagedFiles, read_files, stage_rows
from tidemark.delta.table import DeltaTableHandle
from tidemark.spark.dataframe_utils import with_columns
from tidemark.timegrid.slices import Grid

FOLDER = "run="
"""What the name of a run's folder begins with."""
_MERGED = "merged."
SLICE_COLUMNS = {
    **dict.fromkeys(("emissions", "late", "quarantined"), ("_slice", "_slice")),
    "checkpoint": ("carried_from", "carried_until"),
    "quality": ("slice", "slice"),
}
"""The columns that say to which slices a row belongs: the first, and the last (of a checkpoint the one behind it)."""

Place = Literal["inside", "outside", "across"]


def new_run(grid: Grid, first: int, attempt: int, commit: int) -> str:
    """Name of a run: the ledger's commit that it would be, its first slice and attempt, a token no other try has."""
    start = f"{grid.datetime_of(first):%Y%m%dT%H%M%S.%f}Z".replace(".000000Z", "Z")
    return f"{commit:08d}.{start}.{attempt}.{uuid4().hex[:8]}"


def new_merged(commit: int) -> str:
    """Name of what stands in place of a run where files of several are merged, as of a commit of the ledger."""
    return f"{_MERGED}{commit:08d}.{uuid4().hex[:8]}"


def merged_at(run: str) -> int | None:
    """The commit of the ledger as of which files of several runs were merged into one of this; None for a job's run.

    >>> merged_at("merged.00000012.0a1b2c3d")
    12
    """
    return int(run.removeprefix(_MERGED).partition(".")[0]) if run.startswith(_MERGED) else None


def run_of(path: str) -> str:
    """The run that wrote a file, by its path in a table; underscores set a folder apart from a column called `run`.

    >>> run_of("run=00000012.20240101T010000Z.1.0a1b2c3d/0/part-0.parquet")
    '00000012.20240101T010000Z.1.0a1b2c3d'
    >>> run_of("wider=8c1f2b3a/_run=00000012.20240101T010000Z.1.0a1b2c3d/part-0.parquet")
    '00000012.20240101T010000Z.1.0a1b2c3d'
    """
    folders = (part.lstrip("_") for part in path.split("/"))
    return next((folder.removeprefix(FOLDER) for folder in folders if folder.startswith(FOLDER)), path)


@dataclass(frozen=True)
class StagedRun:
    """A run of a range of slices, before its commit."""

    run: str
    slices: range
    tables: Mapping[str, StagedFiles]
    """By name; a table for which there is nothing is left out."""

    def only(self, spark: SparkSession, grid: Grid, slices: range) -> StagedRun:
        """The same for some of its slices, the others' rows left out."""
        if slices == self.slices:
            return self
        cut = {
            name: stage_run(within(one.read(spark), name, grid, slices.start, slices.stop), one.table, self.run)
            for name, one in self.tables.items()
        }
        return replace(self, slices=slices, tables=cut)


def stage_run(rows: DataFrame, table: str, run: str) -> StagedFiles:
    """Write rows of a run, in a folder that nothing else is in."""
    return stage_rows(rows, table, f"{FOLDER}{run}/{uuid4().hex[:8]}")


def within(rows: DataFrame, name: str, grid: Grid, start: int | None, stop: int | None) -> DataFrame:
    """The rows of a table that belong to slices start <= n < stop; None for no bound.

    A row of the checkpoint is in the buffers at the end of slices carried_from <= n < carried_until, both times; it is
    cut to those that are asked for.
    """
    first, last = SLICE_COLUMNS[name]
    begin, end = (None if n is None else F.lit(grid.datetime_of(n)) for n in (start, stop))
    if begin is not None:
        rows = rows.where(F.col(last) >= begin if first == last else F.col(last) > begin)
    if end is not None:
        rows = rows.where(F.col(first) < end)
    if first == last:
        return rows
    cut = {} if begin is None else {first: F.greatest(first, begin)}
    return rows.transform(with_columns, cut if end is None else cut | {last: F.least(last, end)})


def read_slices(spark: SparkSession, tables: PipelineTables, name: str, grid: Grid, slices: range) -> DataFrame | None:
    """What a table holds of a range of slices, by the files that have any; None where there is no table."""
    log = DeltaTableHandle.open(getattr(tables, name))
    if log is None:
        return None
    paths = [path for path, place in classify_files(log, name, grid, slices).items() if place != "outside"]
    return within(read_files(spark, log.path, log.schema, paths), name, grid, slices.start, slices.stop)


def classify_files(log: DeltaTableHandle, name: str, grid: Grid, slices: range) -> dict[str, Place]:
    """Where the rows of each file lie: all `inside` some slices, all `outside`, or, as far as is known, `across`."""
    return {path: _place(span, slices) for path, span in spans(log, name, grid).items()}


def spans(log: DeltaTableHandle, name: str, grid: Grid) -> dict[str, range | None]:
    """The slices that each file may have rows of, by its statistics; None where they do not tell."""
    first, last = SLICE_COLUMNS[name]
    beyond = 1 if first == last else 0
    return {
        path: range(grid.number_at(to_micros(low)), grid.number_at(to_micros(high)) + beyond) if low and high else None
        for path, low, high in zip(log.files["path"], log.get_min_values(first), log.get_max_values(last), strict=True)
    }


def _place(span: range | None, slices: range) -> Place:
    if span is None:
        return "across"
    if span.stop <= slices.start or span.start >= slices.stop:
        return "outside"
    return "inside" if span.start >= slices.start and span.stop <= slices.stop else "across"
