"""Implement the command `tidemark init`, which proposes a pipeline file for two tables."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, cast, get_args

import typer

from tidemark.cli.common import get_global_options, get_lake_root
from tidemark.config.join import JoinTypeName
from tidemark.config.pipeline import Dialect
from tidemark.config.sides import SIDES
from tidemark.errors import UserError

_DIALECTS, _TYPES = get_args(Dialect), get_args(JoinTypeName)


def init(
    left: Annotated[str, typer.Argument(metavar="LEFT", help="Delta table with the rows of the left input.")],
    right: Annotated[str, typer.Argument(metavar="RIGHT", help="Delta table with the rows of the right input.")],
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="File to write. [default: LEFT_RIGHT.yaml]")
    ] = None,
    replaces_file: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,  # noqa: FBT002
    dialect: Annotated[
        str, typer.Option(metavar="DIALECT", help=f"Engine whose rules apply: {', '.join(_DIALECTS)}.")
    ] = "flink-sql",
    join_type: Annotated[
        str, typer.Option("--type", metavar="TYPE", help=f"Join type: {', '.join(_TYPES)}.")
    ] = "inner",
    lower: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Lower bound of right event time - left event time, such as '-5 m'."),
    ] = None,
    upper: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Upper bound of right event time - left event time.")
    ] = None,
    window: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Size of tumbling windows, instead of bounds.")
    ] = None,
    keys: Annotated[
        list[str] | None,
        typer.Option("--key", metavar="KEY", help="Column of both tables, or LEFT=RIGHT. Repeat it for more keys."),
    ] = None,
    arrival: Annotated[
        str | None,
        typer.Option(
            metavar="ARRIVAL",
            help="Arrival on both sides: a column, `commit`, `kafka:COLUMN` or `event-time`.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Setting of the pipeline file, such as left.event_time=ts."),
    ] = None,
) -> None:
    """Propose a pipeline file for the join of two Delta tables, without a streaming job and without Spark.

    It reads the logs of the tables and a sample of their newest rows. It proposes keys, event times, arrival and
    watermark delays, and writes their figures as comments. At a terminal you confirm them. Elsewhere an option is
    required for what is not clear, and always for the bounds or the window.

    Example: `tidemark init orders shipments --lower '0 s' --upper '4 hours'`
    """
    # Imported only here, so that other commands start sooner.
    from tidemark.cli.draft_output import explain_existing_file, parse_settings, write_drafts  # noqa: PLC0415
    from tidemark.cli.terminal_decisions import TerminalDecisions, is_terminal  # noqa: PLC0415
    from tidemark.importing.choice import Defaults  # noqa: PLC0415
    from tidemark.importing.table_join import TableJoinOptions, propose_draft  # noqa: PLC0415
    from tidemark.importing.table_sample import SampleLimits, read_sample  # noqa: PLC0415

    if dialect not in _DIALECTS:
        raise UserError(f"--dialect: {dialect} is no dialect. Use {', '.join(_DIALECTS)}.")
    if join_type not in _TYPES:
        raise UserError(f"--type: {join_type} is no join type. Use {', '.join(_TYPES)}.")
    if output and output.exists() and not replaces_file:
        raise explain_existing_file(output, has_force=True)
    options = TableJoinOptions(
        dialect=cast("Dialect", dialect),
        join_type=cast("JoinTypeName", join_type),
        keys=tuple(keys or ()),
        arrival=arrival,
        lower=lower,
        upper=upper,
        window=window,
        overrides=parse_settings(settings),
    )
    lake, limits = get_lake_root(), SampleLimits()
    samples = {side: read_sample(lake, table, limits) for side, table in zip(SIDES, (left, right), strict=True)}
    has_terminal = is_terminal() and not get_global_options().as_json
    draft = propose_draft(samples, options, TerminalDecisions() if has_terminal else Defaults())
    write_drafts(
        [draft], f"tidemark init {shlex.quote(left)} {shlex.quote(right)}", output, replaces_file=replaces_file
    )
