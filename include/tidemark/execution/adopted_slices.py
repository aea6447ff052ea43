"""Withhold the output of adopted slices: a job runs them for their state only."""

from __future__ import annotations

from dataclasses import replace

from tidemark.config.output_stream import OUTPUT_STREAM
from tidemark.execution.job_spec import JobSpec
from tidemark.execution.quarantine import PublishableOutput
from tidemark.tables.run_files import filter_slices, stage_run
from tidemark.tables.table_changes import QUARANTINED

_WITHHELD = ("emissions", OUTPUT_STREAM, "late", QUARANTINED)
"""Tables without rows of adopted slices."""


def withhold_adopted_output(spec: JobSpec, output: PublishableOutput) -> PublishableOutput:
    """Remove emissions, late and quarantined rows of adopted slices from a job's output."""
    if not spec.adopted_from:
        return output
    spark, grid, first_own = output.emissions.sparkSession, spec.plan.grid, max(spec.adopted_from) + 1
    tables = dict(output.staged.tables)
    for name in _WITHHELD:
        if name not in tables:
            continue
        staged = tables.pop(name)
        if first_own < spec.slices.stop:
            tables[name] = stage_run(
                filter_slices(staged.read(spark), name, grid, first_own, None), staged.table, spec.run
            )
        elif name != QUARANTINED:
            tables[name] = replace(staged, files=())
    counts = {number: rows for number, rows in output.quarantined_counts.items() if number >= first_own}
    return PublishableOutput(replace(output.staged, tables=tables), tables["emissions"].read(spark), counts)
