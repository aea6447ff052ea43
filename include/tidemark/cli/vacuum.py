"""Implement the command `tidemark tables vacuum`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated

import typer
from rich import filesize
from rich.console import Group, RenderableType

from tidemark.cli.common import (
    PipelinesArgument,
    YesOption,
    get_lake_root,
    naming_option,
    print_result,
    require_confirmation,
)
from tidemark.cli.progress import show_activity
from tidemark.cli.rich_table import create_table
from tidemark.config import load_pipeline
from tidemark.config.maintenance import check_retention
from tidemark.config.types import parse_duration
from tidemark.delta.log_files import RemovedFiles
from tidemark.formatting import format_count
from tidemark.maintenance.recovery_horizon import RecoveryHorizon
from tidemark.maintenance.vacuum import VacuumResult
from tidemark.maintenance.vacuum import vacuum as vacuum_tables
from tidemark.spark.lazy_session import create_lazy_session
from tidemark.spark.session import get_spark_session


def vacuum(
    pipelines: PipelinesArgument,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            metavar="DURATION",
            help="Minimum age of uncommitted files to remove, at least 1 hour. "
            "[default: retention.uncommitted_files, 7 days]",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be removed without removing.")] = False,  # noqa: FBT002
    yes: YesOption = False,  # noqa: FBT002
) -> None:
    """Remove uncommitted files, and other files by `retention` in the pipeline file.

    Asks first. By default every version of a table stays readable. The output shows how far back time travel,
    `reprocess` and `checkpoint verify` reach afterwards.

    Example: `tidemark tables vacuum flights_weather --older-than "1 day" --dry-run`
    """
    with naming_option("--older-than"):
        span = None if older_than is None else check_retention(parse_duration(older_than))
    loaded, root = [load_pipeline(name) for name in pipelines], get_lake_root()
    if not dry_run:
        names = ", ".join(pipeline.name for pipeline in loaded)
        require_confirmation(f"Files of {names} will be removed; --dry-run shows which.", is_confirmed=yes)
    spark = create_lazy_session(partial(get_spark_session, "tidemark tables vacuum", cluster=loaded[0].cluster))
    with show_activity("looking for files" if dry_run else "removing files"):
        results = [vacuum_tables(pipeline, root, span, spark=spark, dry_run=dry_run) for pipeline in loaded]
    print_result([result.to_dict() for result in results], lambda: Group(*map(render_vacuum, results)), soft_wrap=True)


def render_vacuum(result: VacuumResult) -> RenderableType:
    """Show the removed files by kind, and how far back readers can go afterwards."""
    done = "would be removed" if result.dry_run else "removed"
    table = create_table((f"{result.pipeline}: {done}",), ("files", "bytes"))
    for name, kind in _removed_by_kind(result):
        table.add_row(name, f"{len(kind.files):,}", filesize.decimal(kind.bytes))
    return Group(table, *_describe_notes(result), *_describe_horizon(result.recovery_horizon))


def _removed_by_kind(result: VacuumResult) -> Iterator[tuple[str, RemovedFiles]]:
    yield "uncommitted", result.uncommitted_files
    optional = {"replaced": result.replaced_files, "logs": result.log_files, "Data Docs": result.data_docs}
    yield from ((name, kind) for name, kind in optional.items() if kind.files)


def _describe_notes(result: VacuumResult) -> Iterator[str]:
    if result.recent_files:
        yield f"{format_count(result.recent_files, 'other file')} may belong to an active run"
    if result.checkpoints.files:
        files = f"{format_count(len(result.checkpoints.files), 'file')} ({filesize.decimal(result.checkpoints.bytes)})"
        yield f"expired checkpoints: {files}, which count as replaced from then on"


def _describe_horizon(horizon: RecoveryHorizon) -> Iterator[str]:
    versions = ", ".join(f"{name} {version}" for name, version in horizon.readable_from.items())
    if versions:
        yield f"oldest versions that can then be read: {versions}"
    if horizon.full_reprocess_from is None:
        return
    yield _describe_reprocess(horizon)
    unknown = f", as far as {' and '.join(horizon.unverified_inputs)} can be read" if horizon.unverified_inputs else ""
    yield (
        f"checkpoint verify replays from {horizon.verify_from} on{unknown}"
        if horizon.verify_from
        else "checkpoint verify can replay no slice, because the input versions that slices read are gone"
    )


def _describe_reprocess(horizon: RecoveryHorizon) -> str:
    first, start = horizon.reprocess_from, horizon.full_reprocess_from
    if first is None:
        return f"reprocess of any slice begins at {start}"
    before = "" if first == start else f"; for an earlier slice it begins at {start}"
    return f"reprocess can begin at any slice from {first} on{before}"
