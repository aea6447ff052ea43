"""What the commands share: where they print, arguments that they all take, and how a mistake in one is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console

from tidemark.errors import UserError

out, err = Console(), Console(stderr=True)

PipelineArgument = Annotated[str, typer.Argument(metavar="PIPELINE", help="A pipeline file, or the name of one.")]
PipelinesArgument = Annotated[list[str], typer.Argument(metavar="PIPELINE...", help="Pipeline files, or names.")]
LakeOption = Annotated[
    str | None, typer.Option("--lake", help="Lake root. [default: $TIDEMARK_LAKE, or ./lake]", show_default=False)
]
ByOption = Annotated[
    str | None,
    typer.Option("--by", metavar="USER", help="Who says so. [default: who is logged in]", show_default=False),
]
ShadowOption = Annotated[
    str | None,
    typer.Option("--shadow", metavar="NAME", help="Of a version beside the one that is served, in its own tables."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


@contextmanager
def naming(option: str) -> Iterator[None]:
    """Tell a value that does not parse as a mistake in this option.

    Raises:
        UserError: in place of the ValueError.
    """
    try:
        yield
    except ValueError as error:
        raise UserError(f"{option}: {error}") from None


def print_json(value: Any) -> None:
    """Print for scripts."""
    print(json.dumps(value, indent=1))  # noqa: T201
