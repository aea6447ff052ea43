"""The commands `tidemark quarantine`, `release` and `waive`: ways on after rows that break an expectation."""

from __future__ import annotations

from functools import partial
from getpass import getuser
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.table import Table

from tidemark.cli.common import ByOption, JsonOption, LakeOption, PipelineArgument, naming, out, print_json
from tidemark.config import load_pipeline
from tidemark.config.types import format_instant, parse_instant
from tidemark.delta.paths import lake_root
from tidemark.formatting import counted
from tidemark.quality.quarantine import Quarantined
from tidemark.quality.quarantine import quarantined as rows_in_quarantine
from tidemark.quality.quarantine import release as release_rows
from tidemark.quality.waiver_request import waive as waive_expectation
from tidemark.spark.lazy_session import awake, deferred
from tidemark.spark.session import spark_session

app = typer.Typer(
    help="Look at rows that were not published, for they break an expectation.\n\n"
    "Example: `tidemark quarantine list flights_weather`",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
SliceOption = Annotated[str, typer.Option("--slice", metavar="T", help="The slice, by its start (ISO 8601).")]
_NAME = "An expectation, by its name as it is told, or by a part of that."


@app.command("list")
def list_(pipeline: PipelineArgument, lake: LakeOption = None, as_json: JsonOption = False) -> None:  # noqa: FBT002
    """Show the rows in quarantine by slice and expectation; keys of some where the file has `show_rows`.

    Example: `tidemark quarantine list flights_weather --json`
    """
    loaded = load_pipeline(pipeline)
    found = rows_in_quarantine(loaded, lake_root(lake))
    if as_json:
        print_json([one.describe() for one in found])
    else:
        out.print(_view(loaded.name, found))


def release(
    pipeline: PipelineArgument,
    start: SliceOption,
    expectation: Annotated[
        str | None, typer.Option("--expectation", metavar="NAME", help=f"{_NAME} [default: all]", show_default=False)
    ] = None,
    by: ByOption = None,
    lake: LakeOption = None,
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Publish the quarantined rows of a slice after all, beside those that are published, in one commit.

    Rows that break another expectation too stay in quarantine for that. Run again, the slice is judged again.

    Example: `tidemark release flights_weather --slice 2013-01-10T14:00Z`
    """
    loaded = load_pipeline(pipeline)
    with naming("--slice"):
        at = parse_instant(start)
    spark = deferred(partial(spark_session, "tidemark release", cluster=loaded.cluster))
    released = release_rows(awake(spark), loaded, lake_root(lake), at, expectation, by or getuser())
    if as_json:
        print_json(released.describe())
        return
    stay = f"; {counted(released.left, 'row')} in quarantine still" if released.left else ""
    out.print(f"released {counted(released.rows, 'row')} of slice {released.slice}{stay}", soft_wrap=True)


def waive(
    pipeline: PipelineArgument,
    start: SliceOption,
    expectation: Annotated[str, typer.Option("--expectation", metavar="NAME", help=_NAME)],
    because: Annotated[str, typer.Option("--because", metavar="TEXT", help="Why; it stands in the ledger.")],
    by: ByOption = None,
    lake: LakeOption = None,
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Let one slice through at its next run although an expectation does not hold for it.

    The ledger has who, when and why. It holds for that run: where the slice is run again later, it is judged again.

    Example: `tidemark waive flights_weather --slice 2013-01-10T14:00Z --expectation row_count --because "a storm"`
    """
    loaded = load_pipeline(pipeline)
    with naming("--slice"):
        at = parse_instant(start)
    waiver = waive_expectation(loaded, lake_root(lake), at, expectation, because, by or getuser())
    if as_json:
        print_json({"slice": format_instant(waiver.slice), "attempt": waiver.attempt, **waiver.recorded()})
        return
    out.print(
        f"{waiver.expectation} is waived for the next run of slice {format_instant(waiver.slice)}; "
        f"go on with tidemark run {loaded.name}, or reprocess",
        soft_wrap=True,
        markup=False,
    )


def _view(pipeline: str, found: list[Quarantined]) -> RenderableType:
    if not found:
        return f"{pipeline}: nothing is in quarantine"
    table = Table("slice", "expectation", title=f"{pipeline}: in quarantine", title_justify="left")
    table.add_column("rows", justify="right")
    if shown := any(one.examples for one in found):
        table.add_column("such as")
    for one in found:
        cells = [one.slice, one.expectation, f"{one.rows:,}"]
        table.add_row(*cells, *(["\n".join(map(_keys, one.examples))] if shown else []))
    return Group(table, f"Back into emissions: tidemark release {pipeline} --slice T")


def _keys(row: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in row.items())
