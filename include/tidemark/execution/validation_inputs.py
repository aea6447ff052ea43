"""Collect the rows that the quality gate validates, with those of earlier slices of the same day."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial, reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemark.config.sides import SIDES
from tidemark.config.types import to_micros
from tidemark.execution.job_spec import JobSpec
from tidemark.execution.row_accounting import RowAccounting
from tidemark.execution.state_metrics import compute_bounded_metrics
from tidemark.execution.write import WrittenOutput
from tidemark.quality.baseline_checks import MetricDetails, compare_with_baseline
from tidemark.quality.evaluation_scope import ValidationRows, find_earlier_slices, find_last_slices_of_days
from tidemark.quality.quarantine import FAILED_EXPECTATIONS_COLUMN, RUN_COLUMN
from tidemark.tables.run_files import filter_slices, read_slices
from tidemark.tables.table_changes import QUARANTINED
from tidemark.timegrid.slices import group_consecutive
from tidemark.watermarks.row_status import is_filtered


def collect_output_rows(
    spec: JobSpec, written: WrittenOutput, accounting: RowAccounting, metric_details: MetricDetails
) -> ValidationRows:
    """Collect the rows that a job has written, and the metrics of its slices."""
    plan, spark = spec.plan, written.emissions.sparkSession
    tables = {"emissions": written.emissions}
    if any(expectation.on == "late" for expectation in plan.pipeline.quality):
        tables["late"] = _read_late_rows(spark, spec, written)
    end = plan.pipeline.slices.end
    days = find_last_slices_of_days(plan.grid, spec.slices, plan.grid.number_at(to_micros(end)) if end else None)
    earlier_slices = find_earlier_slices(plan.grid, spec.slices, days)
    earlier_row_readers: dict[str, Callable[[], DataFrame | None]] = {
        name: partial(_read_earlier_rows, spark, spec, name, earlier_slices) for name in tables
    }
    metrics = compare_with_baseline(spec.ledger.entries, accounting.entries, spec.slices, plan.grid)
    metrics = metrics.assign(**compute_bounded_metrics(spec, written))
    return ValidationRows(
        _list_slice_starts(spec), tables, days, earlier_row_readers, metrics, metric_details, plan.grid
    )


def collect_input_rows(spec: JobSpec, rows: DataFrame) -> ValidationRows:
    """Collect normalized rows of a job's inputs, in the columns of their input, without those that `where` excludes.

    An input's own column `_slice` is left out. Outputs of Tidemark have one.
    """
    rows = rows.where(~is_filtered())
    slice_start = spec.plan.grid.timestamp_column(F.col("slice")).alias("_slice")
    tables: dict[str, DataFrame] = {}
    for side in SIDES:
        names = (name for name in rows.select(f"{side}.*").columns if name.lower() != "_slice")
        columns = (F.col(side)[name].alias(name) for name in names)
        tables[side] = rows.where(F.col("side") == side).select(slice_start, *columns)
    return ValidationRows(_list_slice_starts(spec), tables)


def _list_slice_starts(spec: JobSpec) -> list[int]:
    return [spec.plan.grid.start_of(number) for number in spec.slices]


def _read_late_rows(spark: SparkSession, spec: JobSpec, written: WrittenOutput) -> DataFrame:
    """Read a job's late and rejected rows. If it wrote none, return an empty table with the columns of earlier ones."""
    if staged := written.staged.tables.get("late"):
        return staged.read(spark)
    last = spec.ledger.last
    earlier_rows = _read_earlier_rows(spark, spec, "late", range(last.number + 1 if last else 0))
    if earlier_rows is None:  # this command runs all slices again, and none of its jobs had late rows
        earlier_rows = read_slices(spark, spec.plan.tables, "late", spec.plan.grid, range(0))
    assert earlier_rows is not None, "the first slice creates the table"
    return earlier_rows.limit(0)


def _read_earlier_rows(spark: SparkSession, spec: JobSpec, table: str, slices: range) -> DataFrame | None:
    """Read rows of earlier slices, from the table or from staged files of uncommitted runs; None if there are none.

    Those of `emissions` include the rows in quarantine.
    """
    plan, slices_by_run = spec.plan, defaultdict[str | None, list[int]](list)
    for number in slices:
        if entry := spec.ledger.entry(number):
            slices_by_run[entry.run if entry.run in spec.uncommitted_runs else None].append(number)
    parts: list[DataFrame | None] = []
    for run, numbers in slices_by_run.items():
        for span in group_consecutive(numbers):
            if run is None:
                parts.append(read_slices(spark, plan.tables, table, plan.grid, span))
            elif staged := spec.uncommitted_runs[run].tables.get(table):
                parts.append(filter_slices(staged.read(spark), table, plan.grid, span.start, span.stop))
    if table == "emissions":  # expectations are evaluated on the rows that the join emitted
        quarantined = _read_earlier_rows(spark, spec, QUARANTINED, slices)
        if quarantined is not None:
            parts.append(quarantined.drop(RUN_COLUMN, FAILED_EXPECTATIONS_COLUMN))
    tables = [rows for rows in parts if rows is not None]
    return reduce(partial(DataFrame.unionByName, allowMissingColumns=True), tables) if tables else None
