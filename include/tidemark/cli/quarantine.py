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
    SliceOption,
    UserOption,
    get_lake_root,
    naming_option,
    print_result,
)
from tidemark.cli.rich_table import create_table, create_unwrapped_line
from tidemark.config import Pipeline, load_pipeline
from tidemark.config.candidate_version import format_cli_arguments, to_candidate
from tidemark.config.types import parse_instant
from tidemark.formatting import format_count, format_values
from tidemark.quality.quarantine import QuarantinedGroup
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
    start: SliceOption,
    expectation: Annotated[
        str | None,
        typer.Option("--expectation", metavar="NAME", help=f"{EXPECTATION_HELP} [default: all]", show_default=False),
    ] = None,
    candidate: CandidateOption = None,
    user: UserOption = None,
) -> None:
    """Publish the quarantined rows of a slice in one commit.

    Rows that fail another expectation stay in quarantine. If the slice is reprocessed, it is validated again.

    Example: `tidemark quarantine release flights_weather --slice 2013-01-10T14:00Z`
    """
    loaded = to_candidate(load_pipeline(pipeline), candidate)
    with naming_option("--slice"):
        instant = parse_instant(start)
    spark = create_lazy_session(partial(get_spark_session, "tidemark quarantine release", cluster=loaded.cluster))
    released = release_rows(resolve_session(spark), loaded, get_lake_root(), instant, expectation, user or getuser())
    rows = f"released {format_count(released.rows, 'row')} of slice {released.slice}"
    remaining = released.remaining_rows
    remainder = f"; {format_count(remaining, 'row')} in quarantine still" if remaining else ""
    print_result(released, lambda: rows + remainder, soft_wrap=True)


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
