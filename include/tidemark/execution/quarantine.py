"""Between the verdict and the commit: rows that break an expectation are taken out of what is published, and kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.errors import CheckFailedError
from tidemark.execution.job_spec import Task
from tidemark.execution.write import Written
from tidemark.formatting import quote_identifier
from tidemark.quality.gx.expectations import build_expectation, get_expectation_name
from tidemark.quality.quarantine import FAILED_EXPECTATIONS_COLUMN, RUN_COLUMN
from tidemark.quality.results import ValidationResult
from tidemark.tables.run_files import StagedRun, stage_run
from tidemark.tables.table_changes import QUARANTINED


@dataclass(frozen=True)
class Published:
    """What a job would publish."""

    staged: StagedRun
    output: DataFrame
    """Its emissions."""
    quarantined: Mapping[int, int] = field(default_factory=dict)
    """How many rows of each slice are not among them, but in `quarantined`; slices without any are left out."""


def publishable(task: Task, written: Written, verdict: ValidationResult) -> Published:
    """What a job has written, without the rows that break an expectation for which they are to be quarantined.

    Raises:
        CheckFailedError: published and quarantined rows are not all that the join gave; nothing is published.
    """
    plan, spark = task.plan, written.output.sparkSession
    named = {get_expectation_name(one): build_expectation(one) for one in plan.pipeline.quality}
    failed = {
        plan.grid.start_of(number): chosen
        for number, findings in zip(task.slices, verdict.failures_by_slice, strict=False)
        if (chosen := [(one.expectation, named[one.expectation]) for one in findings if one.on_failure == "quarantine"])
    }
    if not failed:
        return Published(written.staged, written.output)
    from tidemark.quality.gx.failing_rows import mark_failing_rows  # noqa: PLC0415 - imports Great Expectations

    start = F.unix_micros("_slice")
    touched = start.isin(list(failed))
    columns = [quote_identifier(name) for name in written.output.columns]
    with mark_failing_rows(written.output.where(touched), start, failed) as told:
        broken = told.where(F.col(FAILED_EXPECTATIONS_COLUMN).isNotNull()).withColumn(RUN_COLUMN, F.lit(task.run))
        aside = stage_run(
            broken.select(*columns, RUN_COLUMN, FAILED_EXPECTATIONS_COLUMN), plan.tables.quarantined, task.run
        )
        whole = told.where(F.col(FAILED_EXPECTATIONS_COLUMN).isNull()).select(*columns)
        files = max(1, len(written.staged.tables["emissions"].files))
        kept = written.output.where(~touched).unionByName(whole).coalesce(files)
        emissions = stage_run(kept, plan.tables.emissions, task.run)
    if (rows := sum(one.rows for one in (*emissions.files, *aside.files))) != written.emitted:
        raise CheckFailedError(
            f"quality gate: {rows:,} rows are published or quarantined, and the join gave {written.emitted:,}; nothing "
            f"of slices {plan.grid.name(task.slices[0])} to {plan.grid.name(task.slices[-1] + 1)} was published"
        )
    number = plan.grid.number_column(start).alias("number")
    counts = aside.read(spark).groupBy(number).count().collect()
    staged = replace(written.staged, tables={**written.staged.tables, "emissions": emissions, QUARANTINED: aside})
    return Published(staged, emissions.read(spark), {row["number"]: row["count"] for row in counts})
