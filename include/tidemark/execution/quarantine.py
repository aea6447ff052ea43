"""Divert rows that fail an expectation from a job's emissions to the table `quarantined`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.errors import CheckFailedError
from tidemark.execution.job_spec import JobSpec
from tidemark.execution.write import WrittenOutput
from tidemark.formatting import quote_identifier
from tidemark.quality.gx.expectations import build_expectation, get_expectation_name
from tidemark.quality.quarantine import FAILED_EXPECTATIONS_COLUMN, RUN_COLUMN
from tidemark.quality.results import ValidationResult
from tidemark.tables.run_files import StagedRun, stage_run
from tidemark.tables.table_changes import QUARANTINED


@dataclass(frozen=True)
class PublishableOutput:
    """Staged output of a job whose failing rows are in `quarantined` instead of `emissions`."""

    staged: StagedRun
    emissions: DataFrame
    quarantined_counts: Mapping[int, int] = field(default_factory=dict)
    """Number of quarantined rows by slice; slices without any are missing."""


def quarantine_failing_rows(spec: JobSpec, written: WrittenOutput, result: ValidationResult) -> PublishableOutput:
    """Separate emissions that fail an expectation with `on_failure: quarantine` from those to publish.

    Raises:
        CheckFailedError: Published and quarantined rows are not as many as the join returned. Nothing is published.
    """
    plan, spark = spec.plan, written.emissions.sparkSession
    expectations = {get_expectation_name(config): build_expectation(config) for config in plan.pipeline.quality}
    failed = {}
    for number, failures in zip(spec.slices, result.failures_by_slice, strict=False):
        names = [failure.expectation for failure in failures if failure.on_failure == "quarantine"]
        if names:
            failed[plan.grid.start_of(number)] = [(name, expectations[name]) for name in names]
    if not failed:
        return PublishableOutput(written.staged, written.emissions)
    from tidemark.quality.gx.failing_rows import mark_failing_rows  # noqa: PLC0415 - imports Great Expectations

    slice_start, failed_names = F.unix_micros("_slice"), F.col(FAILED_EXPECTATIONS_COLUMN)
    is_affected = slice_start.isin(list(failed))
    columns = [quote_identifier(name) for name in written.emissions.columns]
    with mark_failing_rows(written.emissions.where(is_affected), slice_start, failed) as marked:
        failing = marked.where(failed_names.isNotNull()).withColumn(RUN_COLUMN, F.lit(spec.run))
        failing = failing.select(*columns, RUN_COLUMN, FAILED_EXPECTATIONS_COLUMN)
        quarantined = stage_run(failing, plan.tables.quarantined, spec.run)
        passing = marked.where(failed_names.isNull()).select(*columns)
        file_count = max(1, len(written.staged.tables["emissions"].files))
        published = written.emissions.where(~is_affected).unionByName(passing).coalesce(file_count)
        emissions = stage_run(published, plan.tables.emissions, spec.run)
    if (row_count := sum(file.rows for file in (*emissions.files, *quarantined.files))) != written.emission_count:
        raise CheckFailedError(
            f"quality gate: {row_count:,} rows were staged to be published or quarantined, but the join returned "
            f"{written.emission_count:,}. Nothing of slices {plan.grid.label(spec.slices[0])} to "
            f"{plan.grid.label(spec.slices[-1] + 1)} was published"
        )
    slice_number = plan.grid.number_column(slice_start).alias("number")
    counts = quarantined.read(spark).groupBy(slice_number).count().collect()
    staged = replace(written.staged, tables={**written.staged.tables, "emissions": emissions, QUARANTINED: quarantined})
    return PublishableOutput(staged, emissions.read(spark), {row["number"]: row["count"] for row in counts})
