"""Implement the commands `tidemark tables verify` and `tidemark tables repair`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Annotated

import typer
from rich import filesize
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from tidemark.cli.common import (
    PipelineArgument,
    YesOption,
    err,
    get_lake_root,
    print_result,
    require_confirmation,
)
from tidemark.cli.progress import run_with_progress, show_activity
from tidemark.cli.rich_table import create_table
from tidemark.config import Pipeline, load_pipeline
from tidemark.config.candidate_version import format_cli_arguments
from tidemark.errors import CheckFailedError, UserError
from tidemark.formatting import format_count, to_single_line
from tidemark.integrity.check import IntegrityIssue, IntegrityReport, check_integrity
from tidemark.integrity.repair import Repair, execute_repair, plan_repair
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.spark.lazy_session import create_lazy_session
from tidemark.spark.session import get_spark_session
from tidemark.timegrid.slices import Grid, group_consecutive

DeepOption = Annotated[bool, typer.Option("--deep", help="Also read every page of every file and check its checksum.")]


def verify(pipeline: PipelineArgument, deep: DeepOption = False) -> None:  # noqa: FBT002
    """Check that a pipeline's ledger, tables and files agree, and name what is damaged. Read-only.

    The exit code is 1 if something is damaged. `tidemark tables repair` repairs it.

    Example: `tidemark tables verify flights_weather --deep`
    """
    settings = load_pipeline(pipeline)
    report = _check(settings, get_lake_root(), deep=deep)
    print_result(report, lambda: _render_report(report))
    _require_no_damage(settings, report)


def repair(
    pipeline: PipelineArgument,
    deep: DeepOption = False,  # noqa: FBT002
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan without repairing.")] = False,  # noqa: FBT002
    yes: YesOption = False,  # noqa: FBT002
) -> None:
    """Restore references to committed files, and recompute slices whose rows are lost.

    Prints its plan and asks first. The exit code is 1 if something remains damaged.

    Example: `tidemark tables repair flights_weather --dry-run`
    """
    settings, root = load_pipeline(pipeline), get_lake_root()
    report = _check(settings, root, deep=deep)
    if report.damages:
        plan = plan_repair(settings, root, report, deep=deep)
        for line in _describe_repair(plan, Grid.from_config(settings.slices)):
            err.print(line, soft_wrap=True)
        if not dry_run and not plan.unrepairable:
            require_confirmation(f"The tables of {settings.name} will be changed as printed.", is_confirmed=yes)
            execute_repair(settings, root, plan, partial(_reprocess, settings, root))
            report = _check(settings, root, deep=deep)
    print_result(report, lambda: _render_report(report))
    _require_no_damage(settings, report)


def _require_no_damage(settings: Pipeline, report: IntegrityReport) -> None:
    if report.damages:
        kinds = ", ".join(dict.fromkeys(issue.damage for issue in report.damages))
        raise CheckFailedError(
            f"the tables of {report.pipeline} are not as they were committed: {kinds}. Run tidemark tables repair "
            f"{format_cli_arguments(settings)} --dry-run to see what can be repaired."
        )


def _check(settings: Pipeline, root: str, *, deep: bool) -> IntegrityReport:
    """Check the tables, and show how many files are checked.

    Raises:
        UserError: Nothing is committed.
    """
    files = Counter[str]()
    with show_activity("checking files", lambda: f"{files.total():,} checked"):
        report = check_integrity(settings, root, deep=deep, on_file=lambda table: files.update([table]))
    if not report.slices and not report.issues:
        raise UserError(
            f"{settings.name} has committed no slice in {root}, so there is nothing to verify. Check its name and "
            "--lake."
        )
    return report


def _describe_repair(plan: Repair, grid: Grid) -> Iterator[str]:
    for table_repair in plan.table_repairs:
        restored, removed = (
            format_count(len(table_repair.restored), "reference"),
            format_count(len(table_repair.removed), "reference"),
        )
        yield f"{table_repair.table}: {restored} to committed files are restored, {removed} removed"
    if plan.applies_commits:
        yield "commits of the ledger that the tables lack are applied"
    for slices in group_consecutive(plan.slices_to_rerun):
        yield f"{grid.label(slices.start)} to {grid.label(slices.stop)} is reprocessed, with later slices it changes"
    for lost in plan.unrepairable:
        yield f"nothing is repaired: {lost.damage} ({lost.table}): {escape(to_single_line(lost.detail))}"


def _reprocess(settings: Pipeline, root: str, request: Request) -> None:
    session = create_lazy_session(partial(get_spark_session, "tidemark tables repair", cluster=settings.cluster))
    for _ in run_with_progress(create_plan(session, settings, root, request), lines=False):
        pass


def _render_report(report: IntegrityReport) -> RenderableType:
    slices, files = format_count(report.slices, "slice"), format_count(report.files, "file")
    extent = f"{slices}, {files} ({filesize.decimal(report.bytes)})"
    conclusion = f"{report.pipeline}: {extent}: {'not as committed' if report.damages else 'consistent'}"
    return Group(render_issues(report), conclusion) if report.issues else conclusion


def render_issues(report: IntegrityReport) -> Table:
    """Show what is damaged, with table, slices and file."""
    table = create_table(("damage", "what"), ("slices",), title=report.pipeline)
    for issue in report.issues:
        file = f"\n[dim]{escape(issue.file)}[/]" if issue.file else ""
        damage = f"{issue.damage}\n[dim]{escape(issue.table)}[/]"
        table.add_row(damage, escape(to_single_line(issue.detail)) + file, _describe_slices(issue))
    return table


def _describe_slices(issue: IntegrityIssue) -> str:
    return "\n".join(f"{start} to\n{end}" for start, end in issue.slices)
