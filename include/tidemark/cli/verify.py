"""The command `tidemark verify`."""

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
from tidemark.delta.paths import lake_root
from tidemark.errors import CheckFailedError
from tidemark.formatting import counted, in_one_line
from tidemark.integrity.check import Finding, Soundness, check
from tidemark.integrity.repair import Repair, plan_repair, put_right
from tidemark.planning.plan import Request, make_plan
from tidemark.spark.lazy_session import deferred
from tidemark.spark.session import spark_session
from tidemark.timegrid.slices import Grid, ranges


def verify(
    pipeline: PipelineArgument,
    lake: LakeOption = None,
    content: Annotated[  # noqa: FBT002
        bool, typer.Option("--content", help="Read every page of every file against its checksum, too.")
    ] = False,
    repair: Annotated[  # noqa: FBT002
        bool, typer.Option("--repair", help="Put references right, and run slices again whose rows are gone.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --repair: only plan.")] = False,  # noqa: FBT002
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Hold a pipeline's ledger, tables and files against each other, and name what is damaged.

    Nothing is written without `--repair`, which says first what it does.

    Example: `tidemark verify flights_weather --content`
    """
    settings, root = load_pipeline(pipeline), lake_root(lake)
    found = check(settings, root, content=content)
    if repair and found.damages:
        planned = plan_repair(settings, root, found, content=content)
        for line in _planned(planned, Grid.of(settings.slices)):
            err.print(line, soft_wrap=True)
        if not dry_run and not planned.lost:
            put_right(settings, root, planned)
            _run_again(settings, root, planned)
            found = check(settings, root, content=content)
    if as_json:
        print_json(found.describe())
    else:
        _show(found)
    if found.damages:
        kinds = ", ".join(dict.fromkeys(one.damage for one in found.damages))
        raise CheckFailedError(f"{found.pipeline} is not as it was committed: {kinds}")


def _planned(repair: Repair, grid: Grid) -> Iterator[str]:
    if repair.behind:
        yield "tables that are behind the ledger are brought up"
    for one in repair.mendings:
        come, gone = counted(len(one.come), "reference"), counted(len(one.gone), "reference")
        yield f"{one.table}: {come} to committed files come back, {gone} go"
    for slices in ranges(repair.again):
        yield f"{grid.name(slices.start)} to {grid.name(slices.stop)} is run again, and what follows from it"
    for lost in repair.lost:
        yield f"left as it is, and so is all else: {lost.damage} ({lost.table}): {escape(in_one_line(lost.detail))}"


def _run_again(settings: Pipeline, root: str, repair: Repair) -> None:
    grid = Grid.of(settings.slices)
    for one in ranges(repair.again):
        session = deferred(partial(spark_session, "tidemark verify", cluster=settings.cluster))
        wanted = Request(grid.datetime_of(one.start), grid.datetime_of(one.stop), reprocess=True)
        for _ in run_with_progress(make_plan(session, settings, root, wanted), lines=False):
            pass


def _show(found: Soundness) -> None:
    looked = f"{counted(found.slices, 'slice')}, {counted(found.files, 'file')} ({filesize.decimal(found.bytes)})"
    if found.findings:
        table = Table("damage", "table", "slices", "what", title=found.pipeline, title_justify="left")
        for one in found.findings:
            file = f"\n[dim]{escape(one.file)}[/]" if one.file else ""
            table.add_row(one.damage, one.table, _slices(one), escape(in_one_line(one.detail)) + file)
        out.print(table)
    told = "not as committed" if found.damages else "sound"
    out.print(f"{found.pipeline}: {looked}: {told}", soft_wrap=True)


def _slices(finding: Finding) -> str:
    return "\n".join(f"{start} to {end}" for start, end in finding.slices)
