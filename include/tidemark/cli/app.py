"""Assemble the command `tidemark` and map errors to exit codes."""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import replace
from importlib.metadata import version
from itertools import islice, pairwise
from pkgutil import resolve_name
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typing_extensions import override

from tidemark import json_logging
from tidemark.cli.common import GlobalOptions, get_global_options, out, report_error, set_global_options
from tidemark.config.cluster import MASTER_VARIABLE, WARM_MASTER, WARM_SERVER_IDLE_MINUTES
from tidemark.errors import FaultError, StoppedError, TidemarkError, UserError, missing_extra_error
from tidemark.formatting import to_single_line
from tidemark.spark.error_redaction import find_row_error, format_safe_message

_CAN_BE_EMPTY = ("--reference",)
"""Options whose empty value has a meaning: no reference, although the pipeline file names one."""
GLOBAL_FLAGS = ("--json", "--warm", "--verbose", "-v")
"""Global options without a value."""
_EPILOG = "Global options, before or after the command: --lake PATH, --json, --warm, --verbose (tidemark --help)."
_COMMANDS = {
    "Develop": {
        "import": "importing:import_",
        "init": "init:init",
        "validate": "develop:validate",
        "test": "pipeline_tests:test",
        "diff": "develop:diff",
        "schema": "develop:schema",
    },
    "Run": {
        "plan": "run:plan",
        "run": "run:run",
        "reprocess": "run:reprocess",
        "adopt": "adopt:adopt",
        "status": "overview:status",
        "list": "overview:list_",
    },
    "Analyse": {"compare": "compare:app", "explain": "analyse:explain", "what-if": "analyse:what_if"},
    "Quality": {"quality": "quality:app", "quarantine": "quarantine:app"},
    "State and versions": {"checkpoint": "checkpoints:app", "version": "versions:app"},
    "Maintain": {"tables": "tables:app", "server": "server:app"},
    "Check semantics": {"conformance": "semantics:conformance", "stream": "semantics:stream"},
}
"""Commands and groups of commands, by the panel of `tidemark --help`: module of this package and name in it."""


class _RootCommand(TyperGroup):
    """Command whose global options may also stand after a subcommand."""

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, move_global_options_first(args))


def move_global_options_first(arguments: list[str]) -> list[str]:
    """Move the global options of a command line before the command; what follows `--` stays.

    >>> move_global_options_first(["plan", "p", "--lake", "l", "--json"])
    ['--lake', 'l', '--json', 'plan', 'p']
    """
    first, rest, remaining = list[str](), list[str](), iter(arguments)
    for argument in remaining:
        if argument == "--":
            rest += [argument, *remaining]
        elif argument in GLOBAL_FLAGS or argument.startswith("--lake="):
            first.append(argument)
        elif argument == "--lake":
            first += [argument, *islice(remaining, 1)]
        else:
            rest.append(argument)
    return [*first, *rest]


def check_values(arguments: list[str]) -> None:
    """Check that no option of a command line has an empty value, such as that of an unset shell variable.

    As no value it would stand for the default: `--to ""` for all slices.

    Raises:
        UserError: Names the option.

    >>> check_values(["run", "p", "--to="])
    Traceback (most recent call last):
    ...
    tidemark.errors.UserError: the value of --to is empty. Write a value, or leave the option out.
    """
    for argument, following in pairwise([*arguments, None]):
        if argument == "--":
            return
        option, separator, value = str(argument).partition("=")
        if option.startswith("-") and option not in _CAN_BE_EMPTY and (following == "" or (separator and not value)):
            raise UserError(f"the value of {option} is empty. Write a value, or leave the option out.")


def create_app(arguments: list[str] | None = None) -> typer.Typer:
    """Create the command `tidemark`.

    Args:
        arguments: A command line. If it begins with a command, only the module of this command is imported, because
            the imports of all commands take seconds. None stands for all commands.
    """
    app = typer.Typer(
        help="Recompute a streaming join over Delta tables, slice by slice, with the semantics of Flink or Spark.",
        cls=_RootCommand,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
    )
    app.callback()(read_global_options)
    typed = _find_command(arguments or [])
    is_known = any(typed in commands for commands in _COMMANDS.values())
    for panel, commands in _COMMANDS.items():
        for name, location in commands.items():
            if name == typed or not is_known:
                _add_command(app, name, resolve_name(f"tidemark.cli.{location}"), panel)
    return app


def _find_command(arguments: list[str]) -> str | None:
    """Return the first word of a command line that is neither a global option nor its value; None without one."""
    remaining = iter(move_global_options_first(arguments))
    for argument in remaining:
        if argument == "--lake":
            next(remaining, None)
        elif argument not in GLOBAL_FLAGS and not argument.startswith("--lake="):
            return argument
    return None


def _add_command(app: typer.Typer, name: str, command: Any, panel: str) -> None:
    """Add a function or a group of commands to `app`."""
    if isinstance(command, typer.Typer):
        for subcommand in command.registered_commands:
            subcommand.epilog = _EPILOG
        app.add_typer(command, name=name, rich_help_panel=panel)
    else:
        app.command(name, rich_help_panel=panel, epilog=_EPILOG)(command)


def _print_version(is_requested: bool) -> None:  # noqa: FBT001 - the value of a flag
    if is_requested:
        out.print(f"tidemark {version('tidemark')}", highlight=False)
        raise typer.Exit


def read_global_options(
    lake: Annotated[
        str | None,
        typer.Option(
            "--lake",
            metavar="PATH",
            help="Path or URI of the lake root. [default: $TIDEMARK_LAKE, or ./lake]",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,  # noqa: FBT002
    is_warm: Annotated[  # noqa: FBT002
        bool,
        typer.Option(
            "--warm",
            help="Use a Spark server on this machine that stays warm between commands, and start it if it does not "
            f"run. It ends after {WARM_SERVER_IDLE_MINUTES} minutes without a command.",
        ),
    ] = False,
    is_verbose: Annotated[  # noqa: FBT002
        bool, typer.Option("--verbose", "-v", help="Log each step, and show the traceback of a fault.")
    ] = False,
    _version: Annotated[  # noqa: FBT002
        bool,
        typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Read the global options, which may stand before or after the command."""
    set_global_options(replace(get_global_options(), lake=lake, as_json=as_json, is_verbose=is_verbose))
    if is_warm:
        _select_warm_server()
    if is_verbose:
        os.environ["TIDEMARK_DEBUG"] = "1"
        if not json_logging.is_json_enabled():
            logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")


def _select_warm_server() -> None:
    """Make the command use the warm server if it needs Spark.

    Raises:
        UserError: The environment names another master.
    """
    if (master := os.environ.get(MASTER_VARIABLE, WARM_MASTER)) != WARM_MASTER:
        raise UserError(f"--warm uses a Spark server, and {MASTER_VARIABLE} names {master}. Unset it, or omit --warm.")
    os.environ[MASTER_VARIABLE] = WARM_MASTER


def main(arguments: list[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: Command and options; by default those of the process.

    Returns:
        The exit code: 0 success, 1 a check failed, 2 the user's mistake, 3 a fault, 143 stopped by a signal.
    """
    if json_logging.is_json_enabled():
        json_logging.configure_json_logging()
    try:
        arguments = sys.argv[1:] if arguments is None else arguments
        set_global_options(GlobalOptions(tuple(arguments)))
        check_values(arguments)
        create_app(arguments)(arguments)
    except SystemExit as exited:
        return int(exited.code or 0)
    except TidemarkError as error:
        report_error(
            error, "" if isinstance(error, StoppedError) else "error", to_single_line(str(error)), error.exit_code
        )
        return error.exit_code
    except Exception as error:  # a user gets one line for any fault
        if isinstance(error, ModuleNotFoundError) and (install_error := missing_extra_error(error)):
            report_error(error, "error", str(install_error), install_error.exit_code)
            return install_error.exit_code
        if os.environ.get("TIDEMARK_DEBUG"):
            raise
        if row_error := find_row_error(error):
            remedy = "Correct it in the pipeline file, such as with try_cast, try_divide or nullif."
            report_error(error, "error", to_single_line(f"{row_error}. {remedy}"), UserError.exit_code)
            return UserError.exit_code
        line = f"{type(error).__name__}: {to_single_line(format_safe_message(error))}"
        hint = "(Run the same command again; with --verbose it shows the traceback.)"
        report_error(error, "fault", f"{line} {hint}", FaultError.exit_code)
        return FaultError.exit_code
    return 0
