"""Between the verdict and the commit: rows that break an expectation are taken out of what is published, and kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.errors import CheckFailedError
from tidemark.execution.job_spec import Task
from tidemark.execution.write import Written
from tidemark.formatting import quoted
from tidemark.quality.gx.project import built, name_of
from tidemark.quality.quarantine import EXPECTATIONS, RUN
from tidemark.quality.results import Verdict
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


def publishable(task: Task, written: Written, verdict: Verdict) -> Published:
    """What a job has written, without the rows that break an expectation for which they are to be quarantined.

    Raises:
        CheckFailedError: published and quarantined rows are not all that the join gave; nothing is published.
    """
    plan, spark = task.plan, written.output.sparkSession
    named = {name_of(one): built(one) for one in plan.pipeline.quality}
    failed = {
        plan.grid.start_of(number): chosen
        for number, findings in zip(task.slices, verdict.by_slice, strict=False)
        if (chosen := [(one.expectation, named[one.expectation]) for one in findings if one.on_failure == "quarantine"])
    }
    if not failed:
        return Published(written.staged, written.output)
    from tidemark.quality.failing_rows import broken_rows  # noqa: PLC0415 - imports Great Expectations

    start = F.unix_micros("_slice")
    touched = start.isin(list(failed))
    columns = [quoted(name) for name in written.output.columns]
    with broken_rows(written.output.where(touched), start, failed) as told:
        broken = told.where(F.col(EXPECTATIONS).isNotNull()).withColumn(RUN, F.lit(task.run))
        aside = stage_run(broken.select(*columns, RUN, EXPECTATIONS), plan.tables.quarantined, task.run)
        whole = told.where(F.col(EXPECTATIONS).isNull()).select(*columns)
        files = max(1, len(written.staged.tables["emissions"].files))
        kept = written.output.where(~touched).unionByName(whole).coalesce(files)
        emissions = stage_run(kept, plan.tables.emissions, task.run)
    if (rows := sum(one.rows for one in (*emissions.files, *aside.files))) != written.emitted:
        raise CheckFailedError(
            f"quality gate: {rows:,} rows are published or quarantined, and the join gave {written.emitted:,}; nothing "
            f"of slices {plan.grid.name(task.slices[0])} to {plan.grid.name(task.slices[-1] + 1)} was published"
        )
    number = plan.grid.number_column(start).alias("number")
    counts = aside.rows(spark).groupBy(number).count().collect()
    staged = replace(written.staged, tables={**written.staged.tables, "emissions": emissions, QUARANTINED: aside})
    return Published(staged, emissions.rows(spark), {row["number"]: row["count"] for row in counts})
