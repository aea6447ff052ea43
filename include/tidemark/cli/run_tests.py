"""Run the test cases of pipelines, and report, update or write the results: the command `tidemark test`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import typer

from tidemark.cli.common import err, print_result
from tidemark.cli.progress import show_activity
from tidemark.cli.render_tests import render_results
from tidemark.config import get_pipelines_folder, load_pipeline
from tidemark.config.loader import find_pipeline_file
from tidemark.errors import UserError, suggest_name
from tidemark.formatting import format_count
from tidemark.pipeline_tests.case_file import CaseFile, list_tested_pipelines, read_case_file
from tidemark.pipeline_tests.junit import write_junit
from tidemark.pipeline_tests.runner import CaseRun, run_case_files
from tidemark.pipeline_tests.update import update_case_file
from tidemark.spark.session import get_spark_session
from tidemark.timegrid.slices import Grid


def run_tests(pipelines: Sequence[str], cases: Sequence[str], junit: Path | None, *, updates_files: bool) -> None:
    """Run test cases, and print their results.

    Args:
        pipelines: Pipeline files or names; empty for all with test files.
        cases: Names of the cases to run; empty for all.
        junit: File to write as JUnit XML; None for none.
        updates_files: True to write the output of failed cases into their files.

    Raises:
        typer.Exit: A case failed, and was not updated.
    """
    started = time.monotonic()
    files = _read_case_files(pipelines, cases)
    count = sum(len(file.selected_cases) for file in files)
    with show_activity(f"running {format_count(count, 'case')}"):
        spark = get_spark_session("tidemark test", brief=True)
        runs = run_case_files(spark, files)
    results = [run.result for run in runs]
    seconds = time.monotonic() - started
    failed = sum(result.status != "passed" for result in results)
    if junit:
        write_junit(results, junit)
    updated = _update_files(files, runs) if updates_files else 0
    print_result(
        {"cases": [result.to_dict() for result in results], "passed": count - failed, "failed": failed},
        lambda: render_results(results, seconds),
        soft_wrap=True,
    )
    if updated:
        err.print(f"{format_count(updated, 'case')} updated. Review the changes of the files.", soft_wrap=True)
    if failed > updated:
        raise typer.Exit(1)


def _update_files(files: Sequence[CaseFile], runs: Sequence[CaseRun]) -> int:
    """Write the output of failed cases into their files, and return the number of updated cases."""
    updated = 0
    for file in files:
        own_runs = [run for run in runs if run.result.pipeline == file.pipeline and run.case in file.cases]
        grid = Grid.from_config(load_pipeline(file.pipeline_file).slices)
        updated += update_case_file(file, own_runs, grid)
    return updated


def _read_case_files(names: Sequence[str], cases: Sequence[str]) -> list[CaseFile]:
    """Read the test files of pipelines, and select cases if any are named.

    Raises:
        UserError: There is no test file, or no such case.
    """
    paths = [find_pipeline_file(name) for name in dict.fromkeys(names)] or list_tested_pipelines()
    if not paths:
        raise UserError(
            f"there is no test file in {get_pipelines_folder() / 'tests'}. Write one with the name of a pipeline."
        )
    files = [read_case_file(path) for path in paths]
    existing = [case.name for file in files for case in file.cases]
    for name in cases:
        if name not in existing:
            raise UserError(f"--case: there is no case {name!r}. {suggest_name(name, existing)}")
    if not cases:
        return files
    chosen = [replace(file, selection=frozenset(cases)) for file in files]
    return [file for file in chosen if file.selected_cases]
