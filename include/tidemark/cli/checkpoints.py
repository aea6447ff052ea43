"""The command `tidemark state`."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Annotated

import typer

from tidemark.checkpoints.checkpoint_ref import SavedState
from tidemark.checkpoints.copy import restore as restore_state
from tidemark.checkpoints.expiry import expire as expire_checkpoints
from tidemark.checkpoints.summary import show as show_state
from tidemark.checkpoints.verification import verify as verify_state
from tidemark.cli import render_checkpoints as views
from tidemark.cli.common import JsonOption, LakeOption, PipelineArgument, naming, out, print_json
from tidemark.config import load_pipeline
from tidemark.config.types import parse_duration, parse_instant
from tidemark.delta.paths import lake_root
from tidemark.errors import UserError
from tidemark.spark.lazy_session import deferred
from tidemark.spark.session import spark_session
from tidemark.streaming.export import export as export_state

app = typer.Typer(
    help="Look at the state that slices carry on, prove it, copy it, give it up, or hand it to a live query.\n\n"
    "Example: `tidemark state show flights_weather --rows 5`",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

AtOption = Annotated[
    str | None, typer.Option("--at", metavar="T", help="End of a slice (ISO 8601). [default: of the last committed]")
]


@app.command()
def show(
    pipeline: PipelineArgument,
    lake: LakeOption = None,
    at: AtOption = None,
    rows: Annotated[int, typer.Option("--rows", min=0, metavar="N", help="How many buffered rows to print.")] = 0,
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Show what is in the buffers, and where the watermarks stand.

    Example: `tidemark state show flights_weather --at 2013-01-08T00:00Z --rows 5`
    """
    shown = show_state(_state(pipeline, lake, at), rows)
    if as_json:
        print_json(shown.describe())
    else:
        out.print(views.shown_view(shown))


@app.command()
def verify(
    pipeline: PipelineArgument,
    lake: LakeOption = None,
    at: AtOption = None,
    since: Annotated[
        str | None,
        typer.Option("--from", metavar="T", help="End of a slice whose checkpoint is trusted. [default: none is]"),
    ] = None,
    rows: Annotated[int, typer.Option("--rows", min=0, metavar="N", help="How many rows that differ to print.")] = 10,
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Rebuild a checkpoint from the inputs, at the versions that were read, and compare; nothing is published.

    Example: `tidemark state verify flights_weather --from 2013-01-07T00:00Z --at 2013-01-08T00:00Z`
    """
    verified = verify_state(_state(pipeline, lake, at), _instant(since, "--from"), rows)
    if as_json:
        print_json(verified.describe())
    else:
        out.print(views.verified_view(verified), soft_wrap=True)
    if not verified.same:
        raise typer.Exit(1)


@app.command()
def restore(
    pipeline: PipelineArgument,
    to: Annotated[str, typer.Option("--to", metavar="TABLE", help="A new Delta table, by its path in the lake.")],
    lake: LakeOption = None,
    at: AtOption = None,
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Write the buffers at the end of a slice as a table of their own; the pipeline is left as it is.

    An expired checkpoint is rebuilt from the inputs. To run slices again from a checkpoint: `tidemark reprocess`.

    Example: `tidemark state restore flights_weather --at 2013-01-08T00:00Z --to buffers_of_8_january`
    """
    restored = restore_state(_state(pipeline, lake, at), to)
    if as_json:
        print_json(restored.describe())
    else:
        out.print(views.restored_view(restored), soft_wrap=True)


@app.command()
def expire(
    pipeline: PipelineArgument,
    lake: LakeOption = None,
    keep: Annotated[
        int | None, typer.Option("--keep", min=1, metavar="N", help="Keep those of the last N slices.")
    ] = None,
    older_than: Annotated[
        str | None, typer.Option("--older-than", metavar="DURATION", help="Keep those committed since.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell which would go.")] = False,  # noqa: FBT002
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Remove checkpoints, but never one that a plan could need.

    Example: `tidemark state expire flights_weather --keep 48 --older-than "7 days" --dry-run`
    """
    if keep is None and older_than is None:
        raise UserError("say what to keep: --keep N, --older-than DURATION, or both")
    with naming("--older-than"):
        span = parse_duration(older_than) if older_than else None
    spark = deferred(partial(spark_session, "tidemark state"))
    expired = expire_checkpoints(spark, load_pipeline(pipeline), lake_root(lake), keep, span, dry_run=dry_run)
    if as_json:
        print_json(expired.describe())
    else:
        out.print(views.expired_view(expired), soft_wrap=True)


@app.command()
def export(
    pipeline: PipelineArgument,
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="A new folder.")],
    lake: LakeOption = None,
    at: AtOption = None,
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Write what a live query needs to go on where the backfill ended; its README says how.

    Example: `tidemark state export flights_weather_spark --to exports/flights_weather`
    """
    exported = export_state(_state(pipeline, lake, at), to)
    if as_json:
        print_json(exported.describe())
    else:
        out.print(views.exported_view(exported), soft_wrap=True)


def _state(pipeline: str, lake: str | None, at: str | None) -> SavedState:
    loaded, instant = load_pipeline(pipeline), _instant(at, "--at")
    return SavedState.at(deferred(partial(spark_session, "tidemark state")), loaded, lake_root(lake), instant)


def _instant(text: str | None, option: str) -> datetime | None:
    with naming(option):
        return parse_instant(text) if text else None
