"""What the gate looks at in a job: what it has written, and of a day that began before it what slices before hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial, reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemark.config.sides import SIDES
from tidemark.config.types import to_micros
from tidemark.execution.job_spec import Task
from tidemark.execution.row_accounting import Tally
from tidemark.execution.write import Written
from tidemark.quality.baseline_checks import compare_with_baseline
from tidemark.quality.evaluation_scope import JobRows, find_earlier_slices, find_last_slices_of_days
from tidemark.tables.run_files import read_slices, within
from tidemark.timegrid.slices import group_consecutive
from tidemark.watermarks.row_status import is_filtered


def job_rows(task: Task, written: Written, tallied: Tally) -> JobRows:
    """The rows that a job has written, and its figures."""
    plan, spark = task.plan, written.output.sparkSession
    tables = {"emissions": written.output}
    if any(asked.on == "late" for asked in plan.pipeline.quality):
        tables["late"] = _late(spark, task, written)
    end = plan.pipeline.slices.end
    days = find_last_slices_of_days(plan.grid, task.slices, plan.grid.number_at(to_micros(end)) if end else None)
    before = find_earlier_slices(plan.grid, task.slices, days)
    earlier: dict[str, Callable[[], DataFrame | None]] = {
        name: partial(rows_of, spark, task, name, before) for name in tables
    }
    figures = compare_with_baseline(task.ledger.entries, tallied.entries, task.slices, plan.grid)
    return JobRows(_starts(task), tables, days, earlier, figures, plan.grid)


def input_rows(task: Task, rows: DataFrame) -> JobRows:
    """The rows that a job has read of its inputs (`sources.normalization.Side.normalize`), under their own names.

    What `where` leaves out is not among them.
    """
    rows = rows.where(~is_filtered())
    begin = task.plan.grid.timestamp_column(F.col("slice")).alias("_slice")
    return JobRows(
        _starts(task),
        {side: rows.where(F.col("side") == side).select(begin, f"{side}.*") for side in SIDES},
    )


def _starts(task: Task) -> list[int]:
    return [task.plan.grid.start_of(number) for number in task.slices]


def _late(spark: SparkSession, task: Task, written: Written) -> DataFrame:
    """Late and rejected rows; where a job has none it writes none, and the slices before tell the columns."""
    if staged := written.staged.tables.get("late"):
        return staged.read(spark)
    earlier_late = rows_of(spark, task, "late", range(task.ledger.last.number + 1 if task.ledger.last else 0))
    assert earlier_late is not None, "the first slice has made the table"
    return earlier_late.limit(0)


def rows_of(spark: SparkSession, task: Task, table: str, slices: range) -> DataFrame | None:
    """What slices before a job have written: from the table, or from files of jobs that are not in it yet."""
    plan, by_run = task.plan, defaultdict[str | None, list[int]](list)
    for number in slices:
        if entry := task.ledger.entry(number):
            by_run[entry.run if entry.run in task.uncommitted_runs else None].append(number)
    parts = []
    for run, numbers in by_run.items():
        for span in group_consecutive(numbers):
            if run is None:
                parts.append(read_slices(spark, plan.tables, table, plan.grid, span))
            elif staged := task.uncommitted_runs[run].tables.get(table):
                parts.append(within(staged.read(spark), table, plan.grid, span.start, span.stop))
    stored_parts = [part for part in parts if part is not None]
    return reduce(partial(DataFrame.unionByName, allowMissingColumns=True), stored_parts) if stored_parts else None
