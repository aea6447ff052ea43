"""Assemble the commands `tidemark tables ...`, which check, repair and maintain a pipeline's tables."""

from __future__ import annotations

import typer

from tidemark.cli.compact import compact
from tidemark.cli.erase import erase
from tidemark.cli.integrity import repair, verify
from tidemark.cli.vacuum import vacuum

app = typer.Typer(
    help="Verify, repair, compact or vacuum a pipeline's tables, or erase rows.\n\n"
    "Example: `tidemark tables verify flights_weather`",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
for command in (verify, repair, compact, vacuum, erase):
    app.command()(command)
