"""`tidemark quality`: what the gate has seen over time, as a table, as data or as a page."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup
from typing_extensions import override

from tidemark.cli.common import JsonOption, LakeOption, PipelineArgument, out, print_json
from tidemark.cli.read_only_session import session_over
from tidemark.config import load_pipeline
from tidemark.delta.filesystem import write_text
from tidemark.delta.paths import lake_root
from tidemark.errors import UserError
from tidemark.ledger.committed_snapshot import committed
from tidemark.ledger.ledger import Ledger
from tidemark.quality.gx.project import catch_up, docs_page
from tidemark.quality.profiling import block, profile, proposals
from tidemark.quality.results_history import Seen, describe, seen, stored
from tidemark.report import check_paths, quality_trends


class _ShowUnlessNamed(TyperGroup):
    """A pipeline's name where a command's could stand asks for `show`."""

    @override
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        return super().resolve_command(ctx, args if args[0] in self.commands else ["show", *args])


app = typer.Typer(help="What the quality gate has seen over time.", no_args_is_help=True, cls=_ShowUnlessNamed)


@app.command()
def show(
    pipeline: PipelineArgument,
    lake: LakeOption = None,
    report: Annotated[
        str | None, typer.Option("--report", metavar="FILE", help="Write each value over time, as FILE.html.")
    ] = None,
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Show by expectation how many slices were judged, how they came out, and the worst value.

    Example: `tidemark quality flights_weather --report quality.html`
    """
    loaded = load_pipeline(pipeline)
    if report:
        check_paths([report], quality_trends.FORMATS)
    ledger = Ledger.of(loaded, lake_root(lake))
    rows = stored(ledger.tables.quality)
    found = seen(rows, stored(ledger.tables.refused))
    if as_json:
        print_json(describe(found))
    else:
        out.print(_view(loaded.name, found))
        catch_up(ledger.tables)
        out.print(f"Data Docs: {docs_page(ledger.tables)}", soft_wrap=True)
    if report:
        write_text(report, quality_trends.html(quality_trends.gather(loaded, ledger, rows)))


@app.command()
def suggest(
    pipeline: PipelineArgument,
    lake: LakeOption = None,
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Propose expectations by what committed slices hold, as a block to paste into the pipeline file; writes nothing.

    Example: `tidemark quality suggest flights_weather`
    """
    loaded, root = load_pipeline(pipeline), lake_root(lake)
    ledger = Ledger.of(loaded, root)
    if not ledger.entries:
        raise UserError(f"{loaded.name} has committed nothing to learn from; tidemark run {pipeline} first")
    with session_over(root, "tidemark quality suggest", loaded) as spark:
        found = profile(committed(spark, ledger, "emissions"))
    if found is None:
        raise UserError(f"{loaded.name} has committed slices, and no row in them to learn from")
    if as_json:
        print_json(proposals(found))
    else:
        out.print(block(found), soft_wrap=True, markup=False, highlight=False)


def _view(name: str, found: list[Seen]) -> RenderableType:
    if not found:
        return f"{name}: no slice was judged by an expectation; tidemark quality suggest {name} proposes some"
    table = Table(title=f"{name}: quality", title_justify="left", show_lines=True)
    table.add_column("expectation", overflow="fold")
    table.add_column("slices", justify="right", no_wrap=True)
    table.add_column("worst value", justify="right", no_wrap=True)
    for one in found:
        outcomes = "".join(f"\n{count:,} {outcome}" for outcome, count in one.outcomes.items())
        about = ", ".join(part for part in (one.severity, _bounds(one)) if part)
        table.add_row(
            Text(one.expectation).append(f"\n{about}", "dim"),
            Text(f"{one.judged:,} judged").append(outcomes, "dim"),
            "" if one.worst is None else Text(f"{one.worst:,.6g}").append(f"\nin {one.worst_in}", "dim"),
        )
    return table


def _bounds(one: Seen) -> str:
    if one.least is None and one.greatest is None:
        return ""
    if one.least is None:
        return f"<= {one.greatest:,.6g}"
    return f">= {one.least:,.6g}" if one.greatest is None else f"{one.least:,.6g} to {one.greatest:,.6g}"
