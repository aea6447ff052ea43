"""Define the command `tidemark test`; `run_tests` implements it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def test(
    pipelines: Annotated[
        list[str] | None,
        typer.Argument(metavar="PIPELINE...", help="Pipeline files or names. [default: all pipelines with test files]"),
    ] = None,
    case: Annotated[
        list[str] | None, typer.Option("--case", metavar="NAME", help="Run the case of this name only. Repeatable.")
    ] = None,
    update: Annotated[  # noqa: FBT002
        bool, typer.Option("--update", help="Write the output of failed cases into their files as the expected rows.")
    ] = False,
    junit: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="Write the results to this file as JUnit XML.")
    ] = None,
) -> None:
    """Run the test cases of pipelines: files of the same name in the folder `tests` next to them. Needs no lake.

    Each case also runs with other slices, which must not change a row. The exit code is 1 if a case fails.

    Example: `tidemark test flights_weather --case "a flight without an origin is rejected"`
    """
    from tidemark.cli.run_tests import run_tests  # noqa: PLC0415 - other commands need no test cases

    run_tests(pipelines or (), case or (), junit, updates_files=update)
