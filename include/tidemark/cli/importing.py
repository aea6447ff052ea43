"""Implement the command `tidemark import`, which writes a pipeline file for a streaming job's join."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml
from rich.text import Text

from tidemark.cli.common import get_lake_root, print_result
from tidemark.errors import UserError
from tidemark.importing.draft import Draft
from tidemark.importing.draft_completion import ImportOptions, create_draft, get_checkpoint
from tidemark.importing.pipeline_writer import format_pipeline_file
from tidemark.importing.sources import import_join
from tidemark.importing.spark_checkpoint import read_checkpoint_start

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
        int | None, typer.Option("--join", metavar="N", help="Number of the join, from 1. [default: the only join]")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name", metavar="NAME", help="Name of the pipeline. [default: the job's output table, or SOURCE]"
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
    start: Annotated[str | None, typer.Option(metavar="T", help="Start of the first slice, ISO 8601.")] = None,
    every: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Length of a slice. [default: 1 hour for Flink]")
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
    checkpoint = get_checkpoint(arrival)
    first_batch = read_checkpoint_start(checkpoint, get_lake_root()) if checkpoint else None
    job_settings = dict(_split_option("--conf", text) for text in conf or ())
    if first_batch:
        job_settings = {**first_batch.settings, **job_settings}
    stream_join = import_join(source, join, job_settings, _start_session)
    overrides = {key: _parse_value(value) for key, value in (_split_option("--set", text) for text in settings or ())}
    options = ImportOptions(
        name=name or "",
        lake=get_lake_root(),
        left_table=left_table,
        right_table=right_table,
        arrival=arrival,
        start=start,
        every=every,
        first_batch=first_batch.time if first_batch else None,
        overrides=overrides,
    )
    draft = create_draft(stream_join, options)
    path = output or Path(f"{draft.get_content()['name']}.yaml")
    _write_new_file(path, format_pipeline_file(draft, source))
    value = {
        "file": str(path),
        "join": draft.title,
        "open_settings": draft.list_open_settings(),
        "omissions": [{"subject": omission.subject, "reason": omission.reason} for omission in draft.omissions],
    }
    print_result(value, lambda: _render(draft, path), soft_wrap=True)


def _start_session() -> SparkSession:
    # Imported only here, because Flink's plans need no Spark.
    from tidemark.spark.session import get_spark_session  # noqa: PLC0415

    return get_spark_session("tidemark import")


def _split_option(option: str, text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise UserError(f"{option} {text} has no value. Write NAME=VALUE.")
    return name, value


def _parse_value(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _write_new_file(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UserError(f"{path} exists already. Remove it, or choose another file with --output.") from None
    except OSError as error:
        raise UserError(
            f"{path} cannot be written: {os.strerror(error.errno or 0)}. Choose a file with --output."
        ) from None


def _render(draft: Draft, path: Path) -> Text:
    lines = [f"{path}: written. {draft.title}"]
    if names := draft.list_open_settings():
        lines.append(f"Fill in: {', '.join(names)}")
    if draft.omissions:
        lines += ["Not taken over:", *(f"- {omission.subject}: {omission.reason}" for omission in draft.omissions)]
    return Text("\n".join(lines))
