"""What the commands share: where they print, arguments that they all take, and how a mistake in one is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from tidemark.errors import UserError

out, err = Console(), Console(stderr=True)

PipelineArgument = Annotated[str, typer.Argument(metavar="PIPELINE", help="A pipeline file, or the name of one.")]
LakeOption = Annotated[
    str | None, typer.Option("--lake", help="Lake root. [default: $TIDEMARK_LAKE, or ./lake]", show_default=False)
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


def need_folder(option: str, path: Path) -> None:
    """See that a file can be written, before the work is done that ends in it.

    Raises:
        UserError: its folder does not exist.
    """
    if not path.parent.is_dir():
        raise UserError(f"{option} {path}: there is no folder {path.parent}; make it first")


def print_json(value: Any) -> None:
    """Print for scripts."""
    print(json.dumps(value, indent=1))  # noqa: T201


def counted(number: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "slice"), counted(2, "batch")
    ('1 slice', '2 batches')
    """
    return f"{number:,} {noun}{'' if number == 1 else 'es' if noun.endswith('ch') else 's'}"
