"""Implement the commands `tidemark quarantine ...` for rows that fail an expectation."""

from __future__ import annotations

from functools import partial
from getpass import getuser
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from tidemark.cli.common import (
    EXPECTATION_HELP,
    CandidateOption,
    PipelineArgument,
    UserOption,
    get_global_options,
    get_lake_root,
    naming_option,
    out,
    print_json,
    print_result,
)
from tidemark.cli.rich_table import create_table, create_unwrapped_line
from tidemark.config import Pipeline, load_pipeline
from tidemark.config.candidate_version import format_cli_arguments, to_candidate
from tidemark.config.types import parse_instant
from tidemark.formatting import format_count, format_values
from tidemark.quality.quarantine import QuarantinedGroup, ReleaseResult
from tidemark.quality.quarantine import list_quarantined as rows_in_quarantine
from tidemark.quality.quarantine import release as release_rows
from tidemark.spark.lazy_session import create_lazy_session, resolve_session
from tidemark.spark.session import get_spark_session

app = typer.Typer(
    help="List or release rows that were not published because they fail an expectation.\n\n"
    "Example: `tidemark quarantine list flights_weather`",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@app.command("list")
def list_(pipeline: PipelineArgument, candidate: CandidateOption = None) -> None:
    """Show how many rows are in quarantine by slice and expectation, with example keys if `expose_row_values` is on.

    Example: `tidemark quarantine list flights_weather --json`
    """
    loaded = to_candidate(load_pipeline(pipeline), candidate)
    groups = rows_in_quarantine(loaded, get_lake_root())
    print_result([group.to_dict() for group in groups], lambda: render_groups(loaded, groups))


@app.command()
def release(
    pipeline: PipelineArgument,
    starts: Annotated[
        list[str], typer.Option("--slice", metavar="T", help="Start of the slice, ISO 8601. Repeatable.")
    ],
    expectation: Annotated[
        str | None,
        typer.Option("--expectation", metavar="NAME", help=f"{EXPECTATION_HELP} [default: all]", show_default=False),
    ] = None,
    runs: Annotated[
        list[str] | None,
        typer.Option(
            "--run",
            metavar="RUN",
            help="Refuse rows of other runs than this one, which `list --json` shows. Repeatable. [default: all]",
            show_default=False,
        ),
    ] = None,
    candidate: CandidateOption = None,
    user: UserOption = None,
) -> None:
    """Publish the quarantined rows of slices, each slice in one commit.

    Rows that fail another expectation stay in quarantine. If the slice is reprocessed, it is validated again.

    Example: `tidemark quarantine release flights_weather --slice 2013-01-10T14:00Z`
    """
    loaded = to_candidate(load_pipeline(pipeline), candidate)
    with naming_option("--slice"):
        instants = [parse_instant(start) for start in starts]
    spark = resolve_session(
        create_lazy_session(partial(get_spark_session, "tidemark quarantine release", cluster=loaded.cluster))
    )
    results = []
    for instant in instants:
        result = release_rows(
            spark, loaded, get_lake_root(), instant, expectation, user or getuser(), frozenset(runs or ())
        )
        results.append(result.to_dict())
        if not get_global_options().as_json:
            out.print(_describe_release(result), soft_wrap=True)
    if get_global_options().as_json:
        print_json(results)


def _describe_release(result: ReleaseResult) -> str:
    remaining = result.remaining_rows
    remainder = f"; {format_count(remaining, 'row')} in quarantine still" if remaining else ""
    return f"released {format_count(result.rows, 'row')} of slice {result.slice}{remainder}"


def render_groups(pipeline: Pipeline, groups: list[QuarantinedGroup]) -> RenderableType:
    """Show the quarantined rows by slice and expectation, and the command that publishes them."""
    if not groups:
        return f"{pipeline.name}: nothing is in quarantine"
    table = create_table(("expectation",), ("slice", "rows"), title=f"{pipeline.name}: in quarantine")
    for group in groups:
        # Below the name, which is long: a column of examples would break its words.
        examples = "".join(f"\n{format_values(row)}" for row in group.examples)
        table.add_row(Text(group.expectation).append(examples, "dim"), group.slice, f"{group.rows:,}")
    command = f"tidemark quarantine release {format_cli_arguments(pipeline)} --slice T"
    return Group(table, create_unwrapped_line(f"To publish them: {command}"))
