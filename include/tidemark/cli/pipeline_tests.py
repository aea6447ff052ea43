"""Implement the command `tidemark test`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer

from tidemark.cli.common import print_result
from tidemark.cli.progress import show_activity
from tidemark.cli.render_tests import render_results
from tidemark.config import get_pipelines_folder
from tidemark.config.loader import find_pipeline_file
from tidemark.errors import UserError, suggest_name
from tidemark.formatting import format_count
from tidemark.pipeline_tests.case_file import CaseFile, list_tested_pipelines, read_case_file
from tidemark.pipeline_tests.runner import run_case_files
from tidemark.spark.session import get_spark_session


def test(
    pipelines: Annotated[
        list[str] | None,
        typer.Argument(metavar="PIPELINE...", help="Pipeline files or names. [default: all pipelines with test files]"),
    ] = None,
    case: Annotated[
        list[str] | None, typer.Option("--case", metavar="NAME", help="Run the case of this name only. Repeatable.")
    ] = None,
) -> None:
    """Run the test cases of pipelines, in `tests/NAME.yaml` of the folder of NAME.yaml. Needs no lake.

    Each case also runs cut into other slices, which must not change a row. The exit code is 1 if a case fails.

    Example: `tidemark test flights_weather --case "a delayed flight is late"`
    """
    started = time.monotonic()
    files = _read_case_files(pipelines or (), case or ())
    count = sum(len(file.cases) for file in files)
    with show_activity(f"running {format_count(count, 'case')}"):
        spark = get_spark_session("tidemark test", brief=True)
        runs = run_case_files(spark, files)
    results = [run.result for run in runs]
    seconds = time.monotonic() - started
    failed = sum(result.status != "passed" for result in results)
    print_result(
        {"cases": [result.to_dict() for result in results], "passed": count - failed, "failed": failed},
        lambda: render_results(results, seconds),
        soft_wrap=True,
    )
    if failed:
        raise typer.Exit(1)


def _read_case_files(names: Sequence[str], cases: Sequence[str]) -> list[CaseFile]:
    """Read the test files of pipelines, with the chosen cases only.

    Raises:
        UserError: There is no test file, or no such case.
    """
    paths = [find_pipeline_file(name) for name in names] or list_tested_pipelines()
    if not paths:
        raise UserError(
            f"there is no test file in {get_pipelines_folder() / 'tests'}. Write one, such as tests/NAME.yaml for the "
            "pipeline NAME.yaml."
        )
    files = [read_case_file(path) for path in paths]
    existing = [case.name for file in files for case in file.cases]
    for name in cases:
        if name not in existing:
            raise UserError(f"--case: there is no case {name!r}. {suggest_name(name, existing)}")
    if not cases:
        return files
    chosen = [replace(file, cases=tuple(case for case in file.cases if case.name in cases)) for file in files]
    return [file for file in chosen if file.cases]
