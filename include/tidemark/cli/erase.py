"""The command `tidemark forget`."""

from __future__ import annotations

from collections.abc import Iterator
from getpass import getuser
from typing import Annotated

import typer
from rich import filesize

from tidemark.cli.common import ByOption, JsonOption, LakeOption, PipelineArgument, out, print_json
from tidemark.config import load_pipeline
from tidemark.config.sides import SIDES
from tidemark.delta.paths import lake_root
from tidemark.erasure.workflow import Forgot
from tidemark.erasure.workflow import forget as forget_rows
from tidemark.errors import UserError
from tidemark.formatting import counted
from tidemark.spark.session import spark_session


def forget(
    pipeline: PipelineArgument,
    left: Annotated[
        str | None, typer.Option("--left", metavar="SQL", help="Which left rows, by a predicate over their columns.")
    ] = None,
    right: Annotated[str | None, typer.Option("--right", metavar="SQL", help="Which right rows.")] = None,
    by: ByOption = None,
    leave_files: Annotated[  # noqa: FBT002
        bool,
        typer.Option(
            "--leave-files", help="Leave their bytes, so that change feeds tell of them; the same again ends it."
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would go.")] = False,  # noqa: FBT002
    lake: LakeOption = None,
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Take all rows that stem from some input rows, such as a person's, out of all that a pipeline has.

    The predicate stays in the ledger, since no run may read such rows again: write it with an id, not with a name.
    Neither time travel nor change feeds reach back behind it.

    Example: `tidemark forget flights_weather --left "tailnum = 'N14228'" --dry-run`
    """
    where = {side: text for side, text in zip(SIDES, (left, right), strict=True) if text is not None}
    if not where:
        raise UserError("say which rows: --left or --right, with a predicate such as 'id = 7'")
    loaded = load_pipeline(pipeline)
    spark = spark_session("tidemark forget", cluster=loaded.cluster)
    found = forget_rows(
        spark, loaded, lake_root(lake), where, by or getuser(), dry_run=dry_run, leave_files=leave_files
    )
    if as_json:
        print_json([one.describe() for one in found])
        return
    for one in found:
        for line in _lines(one):
            out.print(line, soft_wrap=True, highlight=False)


def _lines(found: Forgot) -> Iterator[str]:
    rows = ", ".join(f"{counted(count, 'row')} of {name}" for name, count in found.rows.items())
    where = ", ".join(f"{start} to {end}" for start, end in found.slices)
    done = "would be forgotten" if found.dry_run else "forgotten"
    yield f"{found.pipeline}: {done}: {rows or 'no row'}{f', in slices {where}' if where else ''}"
    gone = "would go" if found.dry_run else "gone"
    if (erased := found.erased).files:
        yield f"{counted(len(erased.files), 'file')} of before, {filesize.decimal(erased.bytes)}, {gone}"
    if found.docs.files:
        yield f"{counted(len(found.docs.files), 'file')} of results and Data Docs {gone}"
    if found.left:
        yield f"{counted(found.left, 'file')} with such rows left on disk; the same without --leave-files ends it"
