"""Implement the command `tidemark import`, which writes a pipeline file for a streaming job's join."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.cli.common import get_lake_root
from tidemark.errors import UserError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def import_(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="Compiled plan (.json) or script (.sql) of Flink SQL, or MODULE:FUNCTION of a Spark query.",
        ),
    ],
    join: Annotated[
        int | None,
        typer.Option(
            "--join", metavar="N", help="Number of the join, from 1. [default: the only one, or a whole chain]"
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="NAME",
            help="Name of the pipeline. [default: the output table, else the file or function]",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="File to write. [default: NAME.yaml]")
    ] = None,
    left_table: Annotated[
        str | None, typer.Option("--left-table", metavar="TABLE", help="Delta table with the rows of the left input.")
    ] = None,
    right_table: Annotated[
        str | None, typer.Option("--right-table", metavar="TABLE", help="Delta table with the rows of the right input.")
    ] = None,
    arrival: Annotated[
        str | None,
        typer.Option(
            metavar="ARRIVAL",
            help="Arrival on both sides: a column, `commit`, `kafka:COLUMN`, `checkpoint:PATH` or `event-time`.",
        ),
    ] = None,
    start: Annotated[
        str | None, typer.Option(metavar="T", help="Start of the first slice, ISO 8601, UTC without an offset.")
    ] = None,
    every: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="Length of a slice. [default: 1 hour; TODO for Spark without `checkpoint:`]"
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Setting of the pipeline file, such as left.event_time=ts."),
    ] = None,
    conf: Annotated[
        list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="Setting of the job that its plan lacks.")
    ] = None,
) -> None:
    """Write a pipeline file for a join of a Flink SQL job or a Spark query.

    Each setting has a comment with its origin. A join that a pipeline cannot express is refused. What the plan lacks is
    TODO in the file, and `tidemark validate` names it. An existing file is not replaced.

    Example: `tidemark import plan.json --left-table orders --right-table shipments --arrival received_at`
    """
    # Imported only here, so that other commands start sooner.
    from tidemark.cli.draft_output import parse_settings, split_option, write_drafts  # noqa: PLC0415
    from tidemark.importing.draft_completion import ImportOptions, create_draft, get_checkpoint  # noqa: PLC0415
    from tidemark.importing.sources import import_joins, list_unread_settings  # noqa: PLC0415
    from tidemark.importing.spark_checkpoint import read_checkpoint_start  # noqa: PLC0415

    checkpoint = get_checkpoint(arrival)
    checkpoint_start = read_checkpoint_start(checkpoint, get_lake_root()) if checkpoint else None
    job_settings = dict(split_option("--conf", text) for text in conf or ())
    if checkpoint_start:
        job_settings = {**checkpoint_start.settings, **job_settings}
    stream_joins = import_joins(source, join, job_settings, _start_session)
    options = ImportOptions(
        name=name or "",
        lake=get_lake_root(),
        left_table=left_table,
        right_table=right_table,
        arrival=arrival,
        start=start,
        every=every,
        first_batch=checkpoint_start.time if checkpoint_start else None,
        overrides=parse_settings(settings),
    )
    if len(stream_joins) > 1 and (options.left_table or options.right_table or options.overrides or output):
        raise UserError(
            f"{source} is a chain of {len(stream_joins)} joins, each with a file. Pass --join N with --left-table, "
            "--right-table, --set or --output."
        )
    *upstreams, last = stream_joins
    unread = list_unread_settings(source, (split_option("--conf", text)[0] for text in conf or ()))
    last = replace(last, omissions=(*last.omissions, *unread))
    drafts = [create_draft(upstream, replace(options, name="")) for upstream in upstreams]
    write_drafts([*drafts, create_draft(last, options)], f"tidemark import {source}", output)


def _start_session() -> SparkSession:
    # Imported only here, because Flink's plans need no Spark.
    from tidemark.spark.session import get_spark_session  # noqa: PLC0415

    return get_spark_session("tidemark import")
