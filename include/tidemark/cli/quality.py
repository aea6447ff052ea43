"""Implement the commands `tidemark quality ...`: validation results over time, and proposed expectations."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup
from typing_extensions import override

from tidemark.cli.common import JsonOption, LakeOption, PipelineArgument, out, print_json
from tidemark.cli.read_only_session import read_only_session
from tidemark.config import load_pipeline
from tidemark.delta.filesystem import write_text
from tidemark.delta.paths import resolve_lake_root
from tidemark.errors import UserError
from tidemark.ledger.committed_snapshot import read_committed_rows
from tidemark.ledger.ledger import Ledger
from tidemark.quality.gx.data_docs import get_docs_index, update_data_docs
from tidemark.quality.profiling import format_yaml_block, profile_emissions, propose_expectations
from tidemark.quality.results_table import ExpectationHistory, read_results, summarize_results
from tidemark.report import check_paths, quality_trends


class _DefaultToShow(TyperGroup):
    """Group in which a pipeline's name instead of a command means `show`."""

    @override
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        return super().resolve_command(ctx, args if args[0] in self.commands else ["show", *args])


app = typer.Typer(
    help="Show validation results over time, or propose expectations.", no_args_is_help=True, cls=_DefaultToShow
)


@app.command()
def show(
    pipeline: PipelineArgument,
    lake: LakeOption = None,
    report: Annotated[
        str | None, typer.Option("--report", metavar="FILE", help="Write charts of each value over time to FILE.html.")
    ] = None,
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Show how many slices each expectation validated, the outcomes, and the worst value.

    Example: `tidemark quality flights_weather --report quality.html`
    """
    loaded = load_pipeline(pipeline)
    if report:
        check_paths([report], quality_trends.FORMATS)
    ledger = Ledger.from_pipeline(loaded, resolve_lake_root(lake))
    rows = read_results(ledger.tables.quality)
    histories = summarize_results(rows, read_results(ledger.tables.rejection_results))
    if as_json:
        print_json([history.to_dict() for history in histories])
    else:
        out.print(_render(loaded.name, histories))
        update_data_docs(ledger.tables)
        out.print(f"Data Docs: {get_docs_index(ledger.tables)}", soft_wrap=True)
    if report:
        write_text(report, quality_trends.render_html(quality_trends.collect_trends(loaded, ledger, rows)))


@app.command()
def suggest(
    pipeline: PipelineArgument,
    lake: LakeOption = None,
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Propose expectations from the rows of committed slices, to paste into the pipeline file. Read-only.

    Example: `tidemark quality suggest flights_weather`
    """
    loaded, root = load_pipeline(pipeline), resolve_lake_root(lake)
    ledger = Ledger.from_pipeline(loaded, root)
    if not ledger.entries:
        raise UserError(f"{loaded.name} has committed nothing to learn from; tidemark run {pipeline} first")
    with read_only_session(root, "tidemark quality suggest", loaded) as spark:
        profile_ = profile_emissions(read_committed_rows(spark, ledger, "emissions"))
    if profile_ is None:
        raise UserError(f"{loaded.name} has committed slices, and no row in them to learn from")
    if as_json:
        print_json(propose_expectations(profile_))
    else:
        out.print(format_yaml_block(profile_), soft_wrap=True, markup=False, highlight=False)


def _render(name: str, histories: list[ExpectationHistory]) -> RenderableType:
    if not histories:
        return f"{name}: no slice was judged by an expectation; tidemark quality suggest {name} proposes some"
    table = Table(title=f"{name}: quality", title_justify="left", show_lines=True)
    table.add_column("expectation", overflow="fold")
    table.add_column("slices", justify="right", no_wrap=True)
    table.add_column("worst value", justify="right", no_wrap=True)
    for history in histories:
        outcomes = "".join(f"\n{count:,} {outcome}" for outcome, count in history.outcomes.items())
        about = ", ".join(part for part in (history.severity, _describe_bounds(history)) if part)
        table.add_row(
            Text(history.expectation).append(f"\n{about}", "dim"),
            Text(f"{history.evaluated:,} judged").append(outcomes, "dim"),
            ""
            if history.worst_value is None
            else Text(f"{history.worst_value:,.6g}").append(f"\nin {history.worst_slice}", "dim"),
        )
    return table


def _describe_bounds(history: ExpectationHistory) -> str:
    if history.min_value is None and history.max_value is None:
        return ""
    if history.min_value is None:
        return f"<= {history.max_value:,.6g}"
    return (
        f">= {history.min_value:,.6g}"
        if history.max_value is None
        else f"{history.min_value:,.6g} to {history.max_value:,.6g}"
    )
