"""Implement the commands `tidemark versions`, `promote` and `rollback` for candidate versions of a pipeline."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from getpass import getuser
from typing import Annotated

import typer
from rich import filesize
from rich.console import Group, RenderableType
from rich.table import Table

from tidemark.cli.common import JsonOption, LakeOption, PipelineArgument, UserOption, out, print_json
from tidemark.config import load_pipeline
from tidemark.delta.paths import resolve_lake_root
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


def versions(
    pipeline: PipelineArgument,
    drop_name: Annotated[
        str | None, typer.Option("--drop", metavar="NAME", help="Delete candidate version NAME and its files.")
    ] = None,
    lake: LakeOption = None,
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """List the candidate versions of a pipeline, or delete one.

    Example: `tidemark versions flights_weather --drop wide`
    """
    loaded, root = load_pipeline(pipeline), resolve_lake_root(lake)
    freed_bytes = None if drop_name is None else drop_candidate(loaded, root, drop_name)
    candidates = list_candidates(loaded, root)
    if as_json:
        print_json([candidate.to_dict() for candidate in candidates])
        return
    if freed_bytes is not None:
        out.print(f"{loaded.name}: candidate {drop_name} is deleted, {filesize.decimal(freed_bytes)}", soft_wrap=True)
    out.print(_render(loaded.name, candidates))


def promote(
    pipeline: PipelineArgument,
    name: CandidateArgument,
    user: UserOption = None,
    lake: LakeOption = None,
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Make a candidate version live. Each table switches in one commit.

    PIPELINE is the file with which the candidate ran. Schedule this file from then on.

    Example: `tidemark promote flights_weather wide`
    """
    _switch(promote_candidate, "promote", pipeline, name, user, lake, as_json=as_json)


def rollback(
    pipeline: PipelineArgument,
    name: CandidateArgument,
    user: UserOption = None,
    lake: LakeOption = None,
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Return to the version that was live before a promotion. Each table switches in one commit.

    PIPELINE is the file as it was before. Schedule this file from then on.

    Example: `tidemark rollback flights_weather wide`
    """
    _switch(roll_back, "rollback", pipeline, name, user, lake, as_json=as_json)


def _switch(
    switch: Callable[..., PromotionResult],
    command: str,
    pipeline: str,
    name: str,
    user: str | None,
    lake: str | None,
    *,
    as_json: bool,
) -> None:
    loaded = load_pipeline(pipeline)
    spark = create_lazy_session(partial(get_spark_session, f"tidemark {command}", cluster=loaded.cluster))
    result = switch(spark, loaded, resolve_lake_root(lake), name, user or getuser())
    if as_json:
        print_json(result.to_dict())
        return
    before = "" if command == "promote" else "before "
    files = f"{format_count(result.files, 'file')}, {filesize.decimal(result.bytes)}"
    out.print(
        f"{result.pipeline}: {result.start} to {result.end} (exclusive) is live as {before}candidate {name}: "
        f"{format_count(result.slices, 'slice')}, {files}",
        soft_wrap=True,
    )
    for start, end in result.slices_to_rerun:
        out.print(
            f"slices from {start} to {end} do not follow from it: the next run has them run again", soft_wrap=True
        )


def _render(pipeline: str, candidates: list[CandidateVersion]) -> RenderableType:
    if not candidates:
        return f"{pipeline}: there is no candidate version. Create one with tidemark run {pipeline} --candidate NAME."
    table = Table("candidate", "from", "to (exclusive)", title=f"{pipeline}: candidate versions", title_justify="left")
    for title in ("slices", "files", "bytes"):
        table.add_column(title, justify="right")
    for candidate in candidates:
        table.add_row(
            candidate.name,
            candidate.start,
            candidate.end,
            f"{candidate.slices:,}",
            f"{candidate.files:,}",
            filesize.decimal(candidate.bytes),
        )
    return Group(
        table,
        *(
            f"{candidate.name}: {candidate.differing_settings}"
            for candidate in candidates
            if candidate.differing_settings
        ),
    )
