"""Implement the command `tidemark verify`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated

import typer
from rich import filesize
from rich.markup import escape
from rich.table import Table

from tidemark.cli.common import JsonOption, LakeOption, PipelineArgument, err, out, print_json
from tidemark.cli.progress import run_with_progress
from tidemark.config import Pipeline, load_pipeline
from tidemark.delta.paths import resolve_lake_root
from tidemark.errors import CheckFailedError
from tidemark.formatting import format_count, to_single_line
from tidemark.integrity.check import IntegrityIssue, IntegrityReport, check_integrity
from tidemark.integrity.repair import Repair, apply_repair, plan_repair
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.spark.lazy_session import create_lazy_session
from tidemark.spark.session import get_spark_session
from tidemark.timegrid.slices import Grid, group_consecutive


def verify(
    pipeline: PipelineArgument,
    lake: LakeOption = None,
    deep: Annotated[  # noqa: FBT002
        bool, typer.Option("--deep", help="Also read every page of every file and check its checksum.")
    ] = False,
    repair: Annotated[  # noqa: FBT002
        bool,
        typer.Option(
            "--repair", help="Restore references to committed files, and recompute slices whose rows are lost."
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --repair, show the plan without repairing.")] = False,  # noqa: FBT002
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Check that a pipeline's ledger, tables and files agree, and name what is damaged.

    Nothing is written without `--repair`, which prints its plan first.

    Example: `tidemark verify flights_weather --deep`
    """
    settings, root = load_pipeline(pipeline), resolve_lake_root(lake)
    report = check_integrity(settings, root, deep=deep)
    if repair and report.damages:
        plan = plan_repair(settings, root, report, deep=deep)
        for line in _describe_repair(plan, Grid.from_config(settings.slices)):
            err.print(line, soft_wrap=True)
        if not dry_run and not plan.unrepairable:
            apply_repair(settings, root, plan)
            _reprocess(settings, root, plan)
            report = check_integrity(settings, root, deep=deep)
    if as_json:
        print_json(report.to_dict())
    else:
        _print_report(report)
    if report.damages:
        kinds = ", ".join(dict.fromkeys(issue.damage for issue in report.damages))
        raise CheckFailedError(f"the tables of {report.pipeline} are not as they were committed: {kinds}")


def _describe_repair(repair: Repair, grid: Grid) -> Iterator[str]:
    if repair.applies_commits:
        yield "commits of the ledger that the tables lack are applied"
    for table_repair in repair.table_repairs:
        restored, removed = (
            format_count(len(table_repair.restored), "reference"),
            format_count(len(table_repair.removed), "reference"),
        )
        yield f"{table_repair.table}: {restored} to committed files are restored, {removed} go"
    for slices in group_consecutive(repair.slices_to_rerun):
        yield f"{grid.label(slices.start)} to {grid.label(slices.stop)} is reprocessed, with later slices it changes"
    for lost in repair.unrepairable:
        yield f"left as it is, and so is all else: {lost.damage} ({lost.table}): {escape(to_single_line(lost.detail))}"


def _reprocess(settings: Pipeline, root: str, repair: Repair) -> None:
    grid = Grid.from_config(settings.slices)
    for slices in group_consecutive(repair.slices_to_rerun):
        session = create_lazy_session(partial(get_spark_session, "tidemark verify", cluster=settings.cluster))
        request = Request(grid.datetime_of(slices.start), grid.datetime_of(slices.stop), reprocess=True)
        for _ in run_with_progress(create_plan(session, settings, root, request), lines=False):
            pass


def _print_report(report: IntegrityReport) -> None:
    slices, files = format_count(report.slices, "slice"), format_count(report.files, "file")
    extent = f"{slices}, {files} ({filesize.decimal(report.bytes)})"
    if report.issues:
        table = Table("damage", "table", "slices", "what", title=report.pipeline, title_justify="left")
        for issue in report.issues:
            file = f"\n[dim]{escape(issue.file)}[/]" if issue.file else ""
            table.add_row(
                issue.damage, issue.table, _describe_slices(issue), escape(to_single_line(issue.detail)) + file
            )
        out.print(table)
    conclusion = "not as committed" if report.damages else "consistent"
    out.print(f"{report.pipeline}: {extent}: {conclusion}", soft_wrap=True)


def _describe_slices(finding: IntegrityIssue) -> str:
    return "\n".join(f"{start} to {end}" for start, end in finding.slices)
