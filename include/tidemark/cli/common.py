"""Consoles, global options, arguments and option errors that the commands share."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.text import Text

from tidemark import json_logging
from tidemark.config.types import parse_instant
from tidemark.delta.paths import resolve_lake_root
from tidemark.errors import UserError

out, err = Console(), Console(stderr=True)
_LOG = logging.getLogger(__name__)

PipelineArgument = Annotated[str, typer.Argument(metavar="PIPELINE", help="Pipeline file, or a pipeline's name.")]
PipelinesArgument = Annotated[list[str], typer.Argument(metavar="PIPELINE...", help="Pipeline files or names.")]
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
SliceOption = Annotated[str, typer.Option("--slice", metavar="T", help="Start of the slice, ISO 8601.")]
EXPECTATION_HELP = "Name of the expectation as shown, or a part of it."
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
FirstSliceOption = Annotated[
    str | None,
    typer.Option("--from", metavar="T", help="Start of the first slice, ISO 8601. [default: the first committed]"),
]
LastSliceOption = Annotated[
    str | None,
    typer.Option("--to", metavar="T", help="End of the last slice, exclusive, ISO 8601. [default: the last committed]"),
]


@dataclass(frozen=True)
class GlobalOptions:
    """Options that all commands have, before or after the command."""

    arguments: tuple[str, ...] = ()
    """Arguments of `tidemark` as typed."""
    lake: str | None = None
    """Lake root as typed; None without the option."""
    as_json: bool = False
    is_verbose: bool = False

    @property
    def lake_root(self) -> str:
        """Path or URI of the lake root: the option, `TIDEMARK_LAKE`, or `./lake`."""
        return resolve_lake_root(self.lake)


_global_options: ContextVar[GlobalOptions] = ContextVar("global_options")


def get_global_options() -> GlobalOptions:
    """Return the global options of the running command."""
    return _global_options.get()


def set_global_options(options: GlobalOptions) -> None:
    """Set the global options of the running command."""
    _global_options.set(options)


def get_lake_root() -> str:
    """Return the lake root of the running command."""
    return get_global_options().lake_root


def print_result(value: Any, render: Callable[[], RenderableType], *, soft_wrap: bool = False) -> None:
    """Print the result of a command: a value as JSON with `--json`, else its rendering for people.

    Args:
        value: The JSON-ready value, or an object with `to_dict`.
        render: Creates the rendering.
        soft_wrap: Leave long lines to the terminal, so that they can be copied.
    """
    if get_global_options().as_json:
        print_json(value.to_dict() if hasattr(value, "to_dict") else value)
    else:
        shown = render()
        # crop would cut unwrapped lines. A string may quote SQL, which may look like markup.
        out.print(Text(shown) if isinstance(shown, str) else shown, soft_wrap=soft_wrap, crop=False)


def require_confirmation(question: str, *, is_confirmed: bool) -> None:
    """Ask before something that cannot be undone; on no terminal, require `--yes`.

    Raises:
        UserError: The answer is no, or nobody can be asked.
    """
    if is_confirmed:
        return
    if not sys.stdin.isatty():
        raise UserError(f"{question} This cannot be undone. Pass --yes to confirm.")
    if not typer.confirm(f"{question} This cannot be undone. Continue?", err=True):
        raise UserError("nothing was done, because it was not confirmed.")


def parse_instant_option(option: str, text: str | None) -> datetime | None:
    """Parse the instant of an option; None if the option is missing.

    Raises:
        UserError: The text is not an instant.
    """
    with naming_option(option):
        return parse_instant(text) if text else None


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


def report_error(error: Exception, label: str, line: str, exit_code: int) -> None:
    """Print or log in one line why the command ends."""
    if json_logging.is_json_enabled():
        level = logging.ERROR if label else logging.WARNING
        _LOG.log(level, "%s", line, extra={**json_logging.error_context(error), "exit_code": exit_code})
        return
    err.print(f"{label and f'[bold red]{label}:[/] '}{_escape_markup(line)}", soft_wrap=True, highlight=False)


def _escape_markup(text: str) -> str:
    return text.replace("[", r"\[")
