"""Plan an erasure: count the rows and files to erase, without writing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from tidemark.config import Pipeline
from tidemark.config.sides import SideName
from tidemark.delta.staging import read_files
from tidemark.delta.table import DeltaTableHandle
from tidemark.erasure.erased_tables import ERASED_LEDGER_TABLES, REJECTED_OUTPUT
from tidemark.erasure.predicates import list_unidentifiable_files, match_rows
from tidemark.joins.base import Join
from tidemark.ledger.ledger import Ledger
from tidemark.spark.dataframe_utils import get_file_metadata
from tidemark.tables.run_files import SLICE_COLUMNS
from tidemark.timegrid.slices import Grid


@dataclass(frozen=True)
class ErasurePlan:
    """The rows to erase from the tables of one version of a pipeline."""

    pipeline: Pipeline
    """The pipeline with the settings of its last run."""
    join: Join
    ledger: Ledger = field(repr=False)
    where: Mapping[SideName, str]
    """Predicate by side, SQL over the input's own columns."""
    matching_files: Mapping[str, Mapping[str, int]] = field(repr=False)
    """Number of rows to erase, by table and file."""
    rows_by_slice: Mapping[str, Mapping[int, int]] = field(repr=False)
    """Number of rows to erase, by table and slice; of `checkpoint`: rows in the buffers at the slice's end."""
    carried_rows: Mapping[int, Counter[SideName]] = field(repr=False)
    """Number of rows to erase from the buffers, by slice and side."""
    rejected_rows: int
    """Number of rows to erase from rejected output, which follows no ledger."""

    @property
    def row_counts(self) -> dict[str, int]:
        """Number of rows to erase, by table that the ledger manages."""
        return {name: sum(files.values()) for name, files in self.matching_files.items()}

    @property
    def slice_numbers(self) -> list[int]:
        """The slices that lose rows, in order."""
        return sorted({number for slices in self.rows_by_slice.values() for number in slices})


def plan_erasure(
    spark: SparkSession, pipeline: Pipeline, join: Join, ledger: Ledger, where: Mapping[SideName, str]
) -> ErasurePlan:
    """Find the rows to erase in all tables that contain rows of the inputs.

    Raises:
        UserError: A table lacks a column that a predicate needs.
    """
    rejected_rows = sum(
        count_rejected_rows(spark, pipeline, DeltaTableHandle.open(ledger.tables.rejected_output), where).values()
    )
    matching_files: dict[str, dict[str, int]] = {}
    rows_by_slice: dict[str, Counter[int]] = {}
    carried_rows: dict[int, Counter[SideName]] = {}
    for name in ERASED_LEDGER_TABLES:
        log = DeltaTableHandle.open(getattr(ledger.tables, name))
        if log is None or log.files.empty:
            continue
        condition = match_rows(spark, pipeline, where, log, name)
        for path, numbers, side, rows in _count_matching_rows(spark, log, name, ledger.grid, condition):
            matching_files.setdefault(name, {}).setdefault(path, 0)
            matching_files[name][path] += rows
            for number in numbers:
                rows_by_slice.setdefault(name, Counter())[number] += rows
                if name == "checkpoint":
                    carried_rows.setdefault(number, Counter())[side] += rows
    return ErasurePlan(pipeline, join, ledger, where, matching_files, rows_by_slice, carried_rows, rejected_rows)


def _count_matching_rows(
    spark: SparkSession, log: DeltaTableHandle, name: str, grid: Grid, condition: Column
) -> Iterator[tuple[str, range, SideName, int]]:
    """Yield numbers of matching rows by file, slices and, for checkpoints, side."""
    first, last = SLICE_COLUMNS[name]
    side = F.col("side") if name == "checkpoint" else F.lit("left")
    rows = read_files(spark, log.path, log.schema, log.files["path"]).where(condition)
    start, stop = (
        grid.number_column(F.unix_micros(column)).alias(name) for column, name in ((first, "start"), (last, "stop"))
    )
    labelled = rows.select(get_file_metadata(rows, "file_path").alias("file"), side.alias("side"), start, stop)
    find_path = create_path_lookup(log.files["path"])
    for row in labelled.groupBy(*labelled.columns).count().collect():
        stop = row["stop"] + (first == last)
        yield find_path(row["file"]), range(row["start"], stop), row["side"], row["count"]


def create_path_lookup(paths: Iterable[str]) -> Callable[[str], str]:
    """Return a function that maps the address of a file in Spark to its path in the table."""
    by_name: dict[str, list[str]] = {}
    for path in paths:
        by_name.setdefault(unquote(path).rpartition("/")[2], []).append(path)

    def find_path(address: str) -> str:
        decoded = unquote(address)
        return next(path for path in by_name[decoded.rpartition("/")[2]] if decoded.endswith(f"/{unquote(path)}"))

    return find_path


def count_rejected_rows(
    spark: SparkSession, pipeline: Pipeline, log: DeltaTableHandle | None, where: Mapping[SideName, str]
) -> dict[str, int]:
    """Count the rows to erase in each file of rejected output; `log` is that table, None if it does not exist."""
    if log is None or log.files.empty:
        return {}
    unidentifiable = list_unidentifiable_files(pipeline, where, log)
    rows_by_file = dict(zip(log.files["path"], log.files["rows"], strict=True))
    counts = {path: int(rows_by_file[path]) for path in unidentifiable}
    if paths := rows_by_file.keys() - unidentifiable:
        rows = read_files(spark, log.path, log.schema, paths)
        matching = rows.where(match_rows(spark, pipeline, where, log, REJECTED_OUTPUT))
        find_path = create_path_lookup(paths)
        by_file = matching.groupBy(get_file_metadata(matching, "file_path")).count().collect()
        counts |= {find_path(row[0]): row[1] for row in by_file}
    return counts
