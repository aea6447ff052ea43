"""Write and find the files of a run, in a folder per table and run.

Readers see files only once a commit references them. Files of a run without a commit are uncommitted files.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Literal
from uuid import uuid4

import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemark.config.output_stream import OUTPUT_STREAM
from tidemark.config.types import to_micros
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.staging import StagedFiles, read_files, stage_rows
from tidemark.delta.table import DeltaTableHandle
from tidemark.spark.dataframe_utils import with_columns
from tidemark.timegrid.slices import Grid

FOLDER = "run="
"""Prefix of a run's folder."""
_MERGED = "merged."
SLICE_COLUMNS = {
    **dict.fromkeys(("emissions", OUTPUT_STREAM, "late", "quarantined"), ("_slice", "_slice")),
    "checkpoint": ("carried_from", "carried_until"),
    "quality": ("slice", "slice"),
}
"""Columns with a row's first and last slice, by table. The last one is exclusive for `checkpoint`, else inclusive."""

Place = Literal["inside", "outside", "across"]


def create_run_name(grid: Grid, first: int, attempt: int, commit: int) -> str:
    """Create a run's name from its future commit number, first slice, attempt and a random token."""
    start = f"{grid.datetime_of(first):%Y%m%dT%H%M%S.%f}Z".replace(".000000Z", "Z")
    return f"{commit:08d}.{start}.{attempt}.{uuid4().hex[:8]}"


def create_merged_run_name(commit: int) -> str:
    """Create a name that replaces the run in files merged from several runs, as of a commit of the ledger."""
    return f"{_MERGED}{commit:08d}.{uuid4().hex[:8]}"


def parse_merge_commit(run: str) -> int | None:
    """Parse the ledger's commit as of which files were merged from a run's name; None for a job's run.

    >>> parse_merge_commit("merged.00000012.0a1b2c3d")
    12
    """
    return int(run.removeprefix(_MERGED).partition(".")[0]) if run.startswith(_MERGED) else None


def parse_run(path: str) -> str:
    """Parse the run from a file's path in a table; the path itself for a file that another program has written.

    Underscores distinguish the folder from a column named `run`.

    >>> parse_run("run=00000012.20240101T010000Z.1.0a1b2c3d/0/part-0.parquet")
    '00000012.20240101T010000Z.1.0a1b2c3d'
    >>> parse_run("wider=8c1f2b3a/_run=00000012.20240101T010000Z.1.0a1b2c3d/part-0.parquet")
    '00000012.20240101T010000Z.1.0a1b2c3d'
    """
    folders = (part.lstrip("_") for part in path.split("/"))
    return next((folder.removeprefix(FOLDER) for folder in folders if folder.startswith(FOLDER)), path)


@dataclass(frozen=True)
class StagedRun:
    """A run of a range of slices that is not committed yet."""

    run: str
    slices: range
    tables: Mapping[str, StagedFiles]
    """Staged files by table; without tables that have none."""

    def restage_slices(self, spark: SparkSession, grid: Grid, slices: range) -> StagedRun:
        """Write new staged files with the rows of these slices; return self without writing if no slice is dropped."""
        if slices == self.slices:
            return self
        tables = {
            name: stage_run(
                filter_slices(staged.read(spark), name, grid, slices.start, slices.stop), staged.table, self.run
            )
            for name, staged in self.tables.items()
        }
        return replace(self, slices=slices, tables=tables)


def stage_run(rows: DataFrame, table: str, run: str) -> StagedFiles:
    """Write rows of a run to a new folder."""
    return stage_rows(rows, table, f"{FOLDER}{run}/{uuid4().hex[:8]}")


def filter_slices(rows: DataFrame, name: str, grid: Grid, start: int | None, stop: int | None) -> DataFrame:
    """Filter a table's rows to slices start <= n < stop.

    A checkpoint row is in the buffers at the end of slices carried_from <= n < carried_until (timestamps); the two
    columns are clipped to the bounds.

    Args:
        rows: Rows of the table.
        name: Name of the table.
        grid: The grid of slices.
        start: First slice; None for no bound.
        stop: Slice after the last; None for no bound.
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
    """Read a table's rows of a range of slices, from the files that may have any; None without a table."""
    log = DeltaTableHandle.open(getattr(tables, name))
    if log is None:
        return None
    paths = [path for path, place in classify_files(log, name, grid, slices).items() if place != "outside"]
    return filter_slices(read_files(spark, log.path, log.schema, paths), name, grid, slices.start, slices.stop)


def read_slice_rows(
    tables: PipelineTables, name: str, grid: Grid, slices: range, columns: Collection[str]
) -> pa.Table | None:
    """Read columns of the rows of some slices into memory without Spark; None without a table.

    Args:
        tables: The pipeline's tables.
        name: Name of a table whose rows have one slice each.
        grid: The grid of slices.
        slices: The slices.
        columns: Names of columns, with that of the slice. Names that the table lacks are ignored.
    """
    log = DeltaTableHandle.open(getattr(tables, name))
    if log is None:
        return None
    column = ds.field(SLICE_COLUMNS[name][0])
    bounds = (slices.start, slices.stop)
    first, end = (pa.scalar(grid.datetime_of(number), pa.timestamp("us", "UTC")) for number in bounds)
    paths = [path for path, place in classify_files(log, name, grid, slices).items() if place != "outside"]
    return log.read(columns, (column >= first) & (column < end), paths=paths)


def classify_files(log: DeltaTableHandle, name: str, grid: Grid, slices: range) -> dict[str, Place]:
    """Classify files: all rows `inside` some slices, all `outside`, or `across` (also if statistics are missing)."""
    return {path: _place(span, slices) for path, span in list_slices_by_file(log, name, grid).items()}


def list_slices_by_file(log: DeltaTableHandle, name: str, grid: Grid) -> dict[str, range | None]:
    """Return the range of slices of each file's rows, by its statistics; None if these are missing."""
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
