"""Implement the commands `tidemark version ...` for candidate versions of a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from getpass import getuser
from typing import Annotated

import typer
from rich import filesize
from rich.console import Group, RenderableType
from rich.text import Text

from tidemark.cli.common import (
    PipelineArgument,
    UserOption,
    YesOption,
    get_lake_root,
    print_result,
    require_confirmation,
)
from tidemark.cli.rich_table import create_table, create_unwrapped_line
from tidemark.config import Pipeline, load_pipeline
from tidemark.config.candidate_version import format_cli_arguments
from tidemark.formatting import format_count
from tidemark.spark.lazy_session import create_lazy_session
from tidemark.spark.session import get_spark_session
from tidemark.versions.candidates import CandidateVersion, drop_candidate, list_candidates
from tidemark.versions.promotion import PromotionResult
from tidemark.versions.promotion import promote as promote_candidate
from tidemark.versions.promotion import rollback as roll_back

CandidateArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the candidate version (tidemark run --candidate NAME).")
]


app = typer.Typer(
    help="List, promote, roll back or drop candidate versions of a pipeline.\n\n"
    "A candidate version is filled next to the live one, with `tidemark run --candidate NAME`.\n\n"
    "Example: `tidemark version list flights_weather`",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@app.command("list")
def list_(pipeline: PipelineArgument) -> None:
    """List the candidate versions of a pipeline, with their slices, files and differing settings.

    Example: `tidemark version list flights_weather`
    """
    loaded = load_pipeline(pipeline)
    candidates = list_candidates(loaded, get_lake_root())
    print_result([candidate.to_dict() for candidate in candidates], lambda: render_candidates(loaded, candidates))


@app.command()
def drop(pipeline: PipelineArgument, name: CandidateArgument, yes: YesOption = False) -> None:  # noqa: FBT002
    """Delete a candidate version and its files. Asks first.

    Example: `tidemark version drop flights_weather wide`
    """
    loaded = load_pipeline(pipeline)
    require_confirmation(f"Candidate {name} of {loaded.name} and its files will be deleted.", is_confirmed=yes)
    freed_bytes = drop_candidate(loaded, get_lake_root(), name)
    print_result(
        {"pipeline": loaded.name, "candidate": name, "bytes": freed_bytes},
        lambda: f"{loaded.name}: candidate {name} is deleted, {filesize.decimal(freed_bytes)}",
        soft_wrap=True,
    )


@app.command()
def promote(
    pipeline: PipelineArgument,
    name: CandidateArgument,
    user: UserOption = None,
) -> None:
    """Make a candidate version live. Each table switches in one commit.

    PIPELINE is the file with which the candidate ran. Schedule this file from then on.

    Example: `tidemark version promote flights_weather wide`
    """
    _switch(promote_candidate, "promote", pipeline, name, user)


@app.command()
def rollback(
    pipeline: PipelineArgument,
    name: CandidateArgument,
    user: UserOption = None,
) -> None:
    """Return to the version that was live before a promotion. Each table switches in one commit.

    PIPELINE is the file as it was before. Schedule this file from then on.

    Example: `tidemark version rollback flights_weather wide`
    """
    _switch(roll_back, "rollback", pipeline, name, user)


def _switch(switch: Callable[..., PromotionResult], command: str, pipeline: str, name: str, user: str | None) -> None:
    loaded = load_pipeline(pipeline)
    spark = create_lazy_session(partial(get_spark_session, f"tidemark version {command}", cluster=loaded.cluster))
    result = switch(spark, loaded, get_lake_root(), name, user or getuser())
    print_result(result, lambda: "\n".join(_describe_switch(result, command, name)), soft_wrap=True)


def _describe_switch(result: PromotionResult, command: str, name: str) -> Iterator[str]:
    state = f"live as candidate {name}" if command == "promote" else f"live again, as before candidate {name}"
    files = f"{format_count(result.files, 'file')}, {filesize.decimal(result.bytes)}"
    yield (
        f"{result.pipeline}: {result.start} to {result.end} (exclusive) is {state}: "
        f"{format_count(result.slices, 'slice')}, {files}"
    )
    for start, end in result.slices_to_rerun:
        yield f"slices from {start} to {end} continue another state. The next run runs them again."


def render_candidates(pipeline: Pipeline, candidates: list[CandidateVersion]) -> RenderableType:
    """Show the candidate versions of a pipeline, or the command that creates one."""
    if not candidates:
        command = f"tidemark run {format_cli_arguments(pipeline)} --candidate NAME"
        line = f"{pipeline.name}: there is no candidate version. Create one with {command}."
        return Group(create_unwrapped_line(line))
    figures = ("from, to (exclusive)", "slices", "files", "bytes")
    table = create_table(("candidate",), figures, title=f"{pipeline.name}: candidate versions")
    for candidate in candidates:
        table.add_row(
            candidate.name,
            f"{candidate.start}\n{candidate.end}",
            f"{candidate.slices:,}",
            f"{candidate.files:,}",
            filesize.decimal(candidate.bytes),
        )
    return Group(
        table,
        *(
            Text(f"{candidate.name}: {candidate.differing_settings}")
            for candidate in candidates
            if candidate.differing_settings
        ),
    )
