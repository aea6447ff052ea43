"""The command `tidemark vacuum`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated

import typer
from rich import filesize
from rich.console import Group, RenderableType
from rich.table import Table

from tidemark.cli.common import JsonOption, LakeOption, PipelinesArgument, naming, out, print_json
from tidemark.config import load_pipeline
from tidemark.config.types import parse_duration
from tidemark.delta.log_files import Removed
from tidemark.delta.paths import lake_root
from tidemark.formatting import counted
from tidemark.maintenance.recovery_horizon import Reach
from tidemark.maintenance.vacuum import Cleared
from tidemark.maintenance.vacuum import vacuum as clear
from tidemark.spark.lazy_session import deferred
from tidemark.spark.session import spark_session


def vacuum(
    pipelines: PipelinesArgument,
    lake: LakeOption = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            metavar="DURATION",
            help="Leave files that no commit has and that were written since. [default: retention.garbage, 7 days]",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would go.")] = False,  # noqa: FBT002
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Remove files that were written and never committed, and what `retention` in the pipeline file gives up.

    By default nothing goes that a version of a table has. It tells how far back one can go then: to old versions, by
    `reprocess`, and by `state verify`.

    Example: `tidemark vacuum flights_weather --older-than "1 day" --dry-run`
    """
    with naming("--older-than"):
        span = None if older_than is None else parse_duration(older_than)
    loaded, root = [load_pipeline(name) for name in pipelines], lake_root(lake)
    spark = deferred(partial(spark_session, "tidemark vacuum", cluster=loaded[0].cluster))
    found = [clear(one, root, span, spark=spark, dry_run=dry_run) for one in loaded]
    if as_json:
        print_json([one.describe() for one in found])
        return
    for one in found:
        out.print(cleared_view(one), soft_wrap=True)


def cleared_view(found: Cleared) -> RenderableType:
    """What goes, kind by kind, and how far back one can go then."""
    done = "would go" if found.dry_run else "gone"
    table = Table(f"{found.pipeline}: {done}", "files", "bytes", title_justify="left")
    for name, kind in _kinds(found):
        table.add_row(name, f"{len(kind.files):,}", filesize.decimal(kind.bytes))
    return Group(table, *_notes(found), *_reaches(found.reach))


def _kinds(found: Cleared) -> Iterator[tuple[str, Removed]]:
    yield "never committed", found.garbage
    others = {"superseded": found.superseded, "logs": found.logs, "Data Docs": found.docs}
    yield from ((name, kind) for name, kind in others.items() if kind.files)


def _notes(found: Cleared) -> Iterator[str]:
    if found.recent:
        yield f"{counted(found.recent, 'other file')} may be of a run that goes on"
    if found.states.files:
        files = f"{counted(len(found.states.files), 'file')} ({filesize.decimal(found.states.bytes)})"
        yield f"states that expire: {files} of the checkpoint, superseded from then on"


def _reaches(reach: Reach) -> Iterator[str]:
    versions = ", ".join(f"{name} {version}" for name, version in reach.readable_from.items())
    if versions:
        yield f"oldest versions that can then be read: {versions}"
    if reach.rebuilt_from is None:
        return
    yield _reprocessed(reach)
    unknown = f", as far as {' and '.join(reach.inputs_unknown)} can be read" if reach.inputs_unknown else ""
    yield (
        f"state verify replays from {reach.verify_from} on{unknown}"
        if reach.verify_from
        else "state verify can replay no slice: versions of the inputs that they have read are gone"
    )


def _reprocessed(reach: Reach) -> str:
    first, start = reach.reprocess_from, reach.rebuilt_from
    if first is None:
        return f"reprocess of any slice begins with {start}"
    before = "" if first == start else f", and for those before it with {start}"
    return f"reprocess can begin with any slice from {first} on{before}"
