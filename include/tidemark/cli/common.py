"""Consoles, arguments and option errors that the commands share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console

from tidemark.errors import UserError

out, err = Console(), Console(stderr=True)

PipelineArgument = Annotated[str, typer.Argument(metavar="PIPELINE", help="Pipeline file, or a pipeline's name.")]
PipelinesArgument = Annotated[list[str], typer.Argument(metavar="PIPELINE...", help="Pipeline files or names.")]
LakeOption = Annotated[
    str | None,
    typer.Option(
        "--lake", help="Path or URI of the lake root. [default: $TIDEMARK_LAKE, or ./lake]", show_default=False
    ),
]
UserOption = Annotated[
    str | None,
    typer.Option(
        "--user", metavar="USER", help="User to record in the ledger. [default: current OS user]", show_default=False
    ),
]
CandidateOption = Annotated[
    str | None,
    typer.Option("--candidate", metavar="NAME", help="Use candidate version NAME instead of the live version."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


@contextmanager
def naming_option(option: str) -> Iterator[None]:
    """Report a ValueError of the block as the user's mistake in an option.

    Args:
        option: The option, such as `--from`.

    Raises:
        UserError: The block raised a ValueError.
    """
    try:
        yield
    except ValueError as error:
        raise UserError(f"{option}: {error}") from None


def print_json(value: Any) -> None:
    """Print a value as JSON to standard output."""
    print(json.dumps(value, indent=1))  # noqa: T201
