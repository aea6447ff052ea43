"""Implement the commands `tidemark quarantine`, `release` and `waive` for rows and slices that fail an expectation."""

from __future__ import annotations

from functools import partial
from getpass import getuser
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.table import Table

from tidemark.cli.common import JsonOption, LakeOption, PipelineArgument, UserOption, naming_option, out, print_json
from tidemark.config import load_pipeline
from tidemark.config.types import format_instant, parse_instant
from tidemark.delta.paths import resolve_lake_root
from tidemark.formatting import format_count
from tidemark.quality.quarantine import QuarantinedGroup
from tidemark.quality.quarantine import list_quarantined as rows_in_quarantine
from tidemark.quality.quarantine import release as release_rows
from tidemark.quality.waivers import waive as waive_expectation
from tidemark.spark.lazy_session import create_lazy_session, resolve_session
from tidemark.spark.session import get_spark_session

app = typer.Typer(
    help="Inspect rows that were not published because they fail an expectation.\n\n"
    "Example: `tidemark quarantine list flights_weather`",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
SliceOption = Annotated[str, typer.Option("--slice", metavar="T", help="Start of the slice, ISO 8601.")]
_NAME = "Name of the expectation as shown, or a part of it."


@app.command("list")
def list_(pipeline: PipelineArgument, lake: LakeOption = None, as_json: JsonOption = False) -> None:  # noqa: FBT002
    """Show how many rows are in quarantine by slice and expectation, with example keys if `expose_row_values` is on.

    Example: `tidemark quarantine list flights_weather --json`
    """
    loaded = load_pipeline(pipeline)
    groups = rows_in_quarantine(loaded, resolve_lake_root(lake))
    if as_json:
        print_json([group.to_dict() for group in groups])
    else:
        out.print(_render(loaded.name, groups))


def release(
    pipeline: PipelineArgument,
    start: SliceOption,
    expectation: Annotated[
        str | None, typer.Option("--expectation", metavar="NAME", help=f"{_NAME} [default: all]", show_default=False)
    ] = None,
    user: UserOption = None,
    lake: LakeOption = None,
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Publish the quarantined rows of a slice in one commit.

    Rows that fail another expectation stay in quarantine. If the slice is reprocessed, it is validated again.

    Example: `tidemark release flights_weather --slice 2013-01-10T14:00Z`
    """
    loaded = load_pipeline(pipeline)
    with naming_option("--slice"):
        instant = parse_instant(start)
    spark = create_lazy_session(partial(get_spark_session, "tidemark release", cluster=loaded.cluster))
    released = release_rows(
        resolve_session(spark), loaded, resolve_lake_root(lake), instant, expectation, user or getuser()
    )
    if as_json:
        print_json(released.to_dict())
        return
    remainder = (
        f"; {format_count(released.remaining_rows, 'row')} in quarantine still" if released.remaining_rows else ""
    )
    out.print(f"released {format_count(released.rows, 'row')} of slice {released.slice}{remainder}", soft_wrap=True)


def waive(
    pipeline: PipelineArgument,
    start: SliceOption,
    expectation: Annotated[str, typer.Option("--expectation", metavar="NAME", help=_NAME)],
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Reason to record in the ledger.")],
    user: UserOption = None,
    lake: LakeOption = None,
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Publish one slice at its next run even if an expectation fails.

    The ledger records user, time and reason. The waiver applies to one run: later runs are validated again.

    Example: `tidemark waive flights_weather --slice 2013-01-10T14:00Z --expectation row_count --reason "a storm"`
    """
    loaded = load_pipeline(pipeline)
    with naming_option("--slice"):
        instant = parse_instant(start)
    waiver = waive_expectation(loaded, resolve_lake_root(lake), instant, expectation, reason, user or getuser())
    if as_json:
        print_json({"slice": format_instant(waiver.slice), "attempt": waiver.attempt, **waiver.to_dict()})
        return
    out.print(
        f"{waiver.expectation} is waived for the next run of slice {format_instant(waiver.slice)}; "
        f"go on with tidemark run {loaded.name}, or reprocess",
        soft_wrap=True,
        markup=False,
    )


def _render(pipeline: str, groups: list[QuarantinedGroup]) -> RenderableType:
    if not groups:
        return f"{pipeline}: nothing is in quarantine"
    table = Table("slice", "expectation", title=f"{pipeline}: in quarantine", title_justify="left")
    table.add_column("rows", justify="right")
    if shown := any(group.examples for group in groups):
        table.add_column("such as")
    for group in groups:
        cells = [group.slice, group.expectation, f"{group.rows:,}"]
        table.add_row(*cells, *(["\n".join(map(_describe_keys, group.examples))] if shown else []))
    return Group(table, f"Back into emissions: tidemark release {pipeline} --slice T")


def _describe_keys(row: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in row.items())
