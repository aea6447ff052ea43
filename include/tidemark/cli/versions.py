"""The commands `tidemark shadows`, `promote` and `rollback`: a new version of a pipeline beside the one served."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from getpass import getuser
from typing import Annotated

import typer
from rich import filesize
from rich.console import Group, RenderableType
from rich.table import Table

from tidemark.cli.common import ByOption, JsonOption, LakeOption, PipelineArgument, out, print_json
from tidemark.config import load_pipeline
from tidemark.delta.paths import lake_root
from tidemark.formatting import counted
from tidemark.spark.lazy_session import deferred
from tidemark.spark.session import spark_session
from tidemark.versions.candidates import Shadow, drop
from tidemark.versions.candidates import shadows as shadows_of
from tidemark.versions.promotion import Moved
from tidemark.versions.promotion import promote as promote_shadow
from tidemark.versions.promotion import rollback as roll_back

ShadowArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The shadow, as tidemark run --shadow has named it.")
]


def shadows(
    pipeline: PipelineArgument,
    gone: Annotated[
        str | None, typer.Option("--drop", metavar="NAME", help="Remove this one with all of its files.")
    ] = None,
    lake: LakeOption = None,
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Show the versions of a pipeline that run beside the one that is served, or remove one.

    Example: `tidemark shadows flights_weather --drop wide`
    """
    loaded, root = load_pipeline(pipeline), lake_root(lake)
    freed = None if gone is None else drop(loaded, root, gone)
    found = shadows_of(loaded, root)
    if as_json:
        print_json([one.describe() for one in found])
        return
    if freed is not None:
        out.print(f"{loaded.name}: shadow {gone} is gone, {filesize.decimal(freed)}", soft_wrap=True)
    out.print(_view(loaded.name, found))


def promote(
    pipeline: PipelineArgument,
    name: ShadowArgument,
    by: ByOption = None,
    lake: LakeOption = None,
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Serve what a shadow holds in place of all that is served, in one commit of each table.

    PIPELINE is the file that the shadow has run with: it is the one to schedule from then on.

    Example: `tidemark promote flights_weather wide`
    """
    _move(promote_shadow, "promote", pipeline, name, by, lake, as_json=as_json)


def rollback(
    pipeline: PipelineArgument,
    name: ShadowArgument,
    by: ByOption = None,
    lake: LakeOption = None,
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Serve again what was served before a shadow was promoted, in one commit of each table.

    PIPELINE is the file as it was before: it is the one to schedule from then on.

    Example: `tidemark rollback flights_weather wide`
    """
    _move(roll_back, "rollback", pipeline, name, by, lake, as_json=as_json)


def _move(
    move: Callable[..., Moved],
    command: str,
    pipeline: str,
    name: str,
    by: str | None,
    lake: str | None,
    *,
    as_json: bool,
) -> None:
    loaded = load_pipeline(pipeline)
    spark = deferred(partial(spark_session, f"tidemark {command}", cluster=loaded.cluster))
    moved = move(spark, loaded, lake_root(lake), name, by or getuser())
    if as_json:
        print_json(moved.describe())
        return
    before = "" if command == "promote" else "before "
    files = f"{counted(moved.files, 'file')}, {filesize.decimal(moved.bytes)}"
    out.print(
        f"{moved.pipeline}: {moved.start} to {moved.end} (exclusive) is served as {before}shadow {name}: "
        f"{counted(moved.slices, 'slice')}, {files}",
        soft_wrap=True,
    )
    for start, end in moved.again:
        out.print(
            f"slices from {start} to {end} do not follow from it: the next run has them run again", soft_wrap=True
        )


def _view(pipeline: str, found: list[Shadow]) -> RenderableType:
    if not found:
        return f"{pipeline}: there is no shadow; tidemark run {pipeline} --shadow NAME fills one"
    table = Table("shadow", "from", "to (exclusive)", title=f"{pipeline}: shadows", title_justify="left")
    for title in ("slices", "files", "bytes"):
        table.add_column(title, justify="right")
    for one in found:
        table.add_row(one.name, one.start, one.end, f"{one.slices:,}", f"{one.files:,}", filesize.decimal(one.bytes))
    return Group(table, *(f"{one.name}: {one.settings}" for one in found if one.settings))
