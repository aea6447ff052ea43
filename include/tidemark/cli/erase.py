"""Implement the command `tidemark tables erase`."""

from __future__ import annotations

from collections.abc import Iterator
from getpass import getuser
from typing import Annotated

import typer
from rich import filesize
from rich.text import Text

from tidemark.cli.common import (
    PipelineArgument,
    UserOption,
    YesOption,
    get_lake_root,
    print_result,
    require_confirmation,
)
from tidemark.config import Pipeline, load_pipeline
from tidemark.config.candidate_version import format_cli_arguments
from tidemark.config.chain_files import load_readers
from tidemark.config.sides import SIDES
from tidemark.erasure.workflow import ErasureResult
from tidemark.erasure.workflow import erase as erase_rows
from tidemark.errors import UserError
from tidemark.formatting import format_count
from tidemark.spark.session import get_spark_session


def erase(
    pipeline: PipelineArgument,
    left: Annotated[
        str | None,
        typer.Option(
            "--left", metavar="SQL", help="Predicate over left columns. Erases the output of the rows that match."
        ),
    ] = None,
    right: Annotated[
        str | None,
        typer.Option(
            "--right", metavar="SQL", help="Predicate over right columns. Erases the output of the rows that match."
        ),
    ] = None,
    user: UserOption = None,
    keep_files: Annotated[  # noqa: FBT002
        bool,
        typer.Option(
            "--keep-files",
            help="Keep old data files, so that change feeds emit the deletes. Run again without it to delete them.",
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be erased without erasing.")] = False,  # noqa: FBT002
    yes: YesOption = False,  # noqa: FBT002
) -> None:
    """Permanently erase every row derived from input rows that match a predicate, such as a person's.

    Asks first. The input tables do not change: their owner deletes the rows there.

    The predicate stays in the ledger, so that no run reads such rows again. Use an id in it, not a name. Time travel
    and change feeds no longer reach versions before the erasure.

    Example: `tidemark tables erase flights_weather --left "tailnum = 'N14228'" --dry-run`
    """
    predicates = {side: text for side, text in zip(SIDES, (left, right), strict=True) if text is not None}
    if not predicates:
        raise UserError("no rows are named. Pass --left or --right with a predicate, such as 'id = 7'.")
    loaded = load_pipeline(pipeline)
    if not dry_run:
        rows = " and ".join(f"{side} rows where {text}" for side, text in predicates.items())
        require_confirmation(f"{loaded.name}: every row derived from {rows} will be erased.", is_confirmed=yes)
    spark = get_spark_session("tidemark tables erase", cluster=loaded.cluster)
    results = erase_rows(
        spark, loaded, get_lake_root(), predicates, user or getuser(), dry_run=dry_run, keep_files=keep_files
    )
    print_result(
        [result.to_dict() for result in results],
        lambda: Text("\n".join([*(line for result in results for line in _describe(result)), *list_readers(loaded)])),
        soft_wrap=True,
    )


def list_readers(pipeline: Pipeline) -> Iterator[str]:
    """Yield the command for each pipeline of a chain that has read the rows."""
    for reader, side in load_readers(pipeline):
        command = f"tidemark tables erase {format_cli_arguments(reader)} --{side} SQL"
        yield f"{reader.name} reads this output. Erase the rows derived from them there, too: {command}"


def _describe(result: ErasureResult) -> Iterator[str]:
    rows = ", ".join(f"{format_count(count, 'row')} of {name}" for name, count in result.row_counts.items())
    where = ", ".join(f"{start} to {end}" for start, end in result.slices)
    verb = "would be erased" if result.dry_run else "erased"
    yield f"{result.pipeline}: {verb}: {rows or 'no row'}{f', in slices {where}' if where else ''}"
    files_verb = "would be deleted" if result.dry_run else "deleted"
    if (erased := result.deleted_files).files:
        yield f"{format_count(len(erased.files), 'file')} with old rows, {filesize.decimal(erased.bytes)}, {files_verb}"
    if result.deleted_docs.files:
        yield f"{format_count(len(result.deleted_docs.files), 'file')} of results and Data Docs {files_verb}"
    if result.remaining_files:
        files = format_count(result.remaining_files, "file")
        yield f"{files} with such rows are left on disk. Run again without --keep-files to delete them."
