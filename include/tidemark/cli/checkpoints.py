"""Implement the commands `tidemark checkpoint ...`."""

from __future__ import annotations

import shlex
from functools import partial
from typing import Annotated

import typer

from tidemark.checkpoints.checkpoint_ref import CheckpointRef
from tidemark.checkpoints.copy import copy_checkpoint
from tidemark.checkpoints.expiry import expire_checkpoints
from tidemark.checkpoints.summary import summarize_checkpoint
from tidemark.checkpoints.verification import verify_checkpoint
from tidemark.cli import render_checkpoints as views
from tidemark.cli.common import PipelineArgument, get_lake_root, naming_option, parse_instant_option, print_result
from tidemark.config import load_pipeline
from tidemark.config.types import check_not_negative, parse_duration
from tidemark.errors import CheckFailedError, UserError
from tidemark.spark.lazy_session import create_lazy_session
from tidemark.spark.session import get_spark_session
from tidemark.streaming.export import export_checkpoint as export_state

app = typer.Typer(
    help="Inspect, verify, copy, expire or export checkpoints.\n\n"
    "Example: `tidemark checkpoint show flights_weather --rows 5`",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

AtOption = Annotated[
    str | None,
    typer.Option(
        "--at", metavar="T", help="End of the slice with the checkpoint, ISO 8601. [default: the last committed slice]"
    ),
]


@app.command()
def show(
    pipeline: PipelineArgument,
    at: AtOption = None,
    rows: Annotated[int, typer.Option("--rows", min=0, metavar="N", help="Number of buffered rows to print.")] = 0,
) -> None:
    """Show the buffered rows and the watermarks at the end of a slice.

    Example: `tidemark checkpoint show flights_weather --at 2013-01-08T00:00Z --rows 5`
    """
    shown = summarize_checkpoint(_open_checkpoint(pipeline, at), rows)
    print_result(shown, lambda: views.render_summary(shown))


@app.command()
def verify(
    pipeline: PipelineArgument,
    at: AtOption = None,
    trusted: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="T",
            help="End of a slice whose checkpoint to trust and start from. [default: empty state]",
        ),
    ] = None,
    rows: Annotated[int, typer.Option("--rows", min=0, metavar="N", help="Number of differing rows to print.")] = 10,
) -> None:
    """Rebuild a checkpoint from the input versions that were read, and compare it. Read-only.

    Example: `tidemark checkpoint verify flights_weather --from 2013-01-07T00:00Z --at 2013-01-08T00:00Z`
    """
    verified = verify_checkpoint(_open_checkpoint(pipeline, at), parse_instant_option("--from", trusted), rows)
    print_result(verified, lambda: views.render_verification(verified), soft_wrap=True)
    if not verified.is_equal:
        command = f"tidemark reprocess {shlex.quote(pipeline)}"
        raise CheckFailedError(
            f"the checkpoint of {pipeline} differs from the rebuilt one. "
            f"Run {command} --from T, where T is the start of an earlier slice."
        )


@app.command()
def copy(
    pipeline: PipelineArgument,
    to: Annotated[str, typer.Option("--to", metavar="TABLE", help="Path of a new Delta table in the lake.")],
    at: AtOption = None,
) -> None:
    """Copy the buffered rows at the end of a slice to a new table. The pipeline does not change.

    An expired checkpoint is rebuilt from the inputs. To rerun slices from a checkpoint, use `tidemark reprocess`.

    Example: `tidemark checkpoint copy flights_weather --at 2013-01-08T00:00Z --to buffers_of_8_january`
    """
    restored = copy_checkpoint(_open_checkpoint(pipeline, at), to)
    print_result(restored, lambda: views.render_copy(restored), soft_wrap=True)


@app.command()
def expire(
    pipeline: PipelineArgument,
    keep: Annotated[
        int | None, typer.Option("--keep", min=1, metavar="N", help="Keep the checkpoints of the last N slices.")
    ] = None,
    older_than: Annotated[
        str | None, typer.Option("--older-than", metavar="DURATION", help="Minimum age of checkpoints to remove.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show which would be removed without removing.")] = False,  # noqa: FBT002
) -> None:
    """Remove old checkpoints, except those that a plan could need.

    Example: `tidemark checkpoint expire flights_weather --keep 48 --older-than "7 days" --dry-run`
    """
    if keep is None and older_than is None:
        raise UserError("no checkpoints are selected. Pass --keep N, --older-than DURATION, or both.")
    with naming_option("--older-than"):
        span = None if older_than is None else check_not_negative(parse_duration(older_than))
    loaded = load_pipeline(pipeline)
    spark = create_lazy_session(partial(get_spark_session, "tidemark checkpoint", cluster=loaded.cluster))
    expired = expire_checkpoints(spark, loaded, get_lake_root(), keep, span, dry_run=dry_run)
    print_result(expired, lambda: views.render_expiry(expired), soft_wrap=True)


@app.command()
def export(
    pipeline: PipelineArgument,
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="Path of a new folder.")],
    at: AtOption = None,
) -> None:
    """Export the files with which a live query continues where the backfill ended; their README explains how.

    Example: `tidemark checkpoint export benchmarks/flights_weather_spark.yaml --to exports/flights_weather`
    """
    exported = export_state(_open_checkpoint(pipeline, at), to)
    print_result(exported, lambda: views.render_export(exported), soft_wrap=True)


def _open_checkpoint(pipeline: str, at: str | None) -> CheckpointRef:
    loaded, instant = load_pipeline(pipeline), parse_instant_option("--at", at)
    spark = create_lazy_session(partial(get_spark_session, "tidemark checkpoint", cluster=loaded.cluster))
    return CheckpointRef.from_ledger(spark, loaded, get_lake_root(), instant)
