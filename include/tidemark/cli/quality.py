"""Implement the commands `tidemark quality ...`: results over time, proposals, waivers, and the exported project."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from getpass import getuser
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from tidemark.cli.common import (
    EXPECTATION_HELP,
    CandidateOption,
    PipelineArgument,
    PipelinesArgument,
    SliceOption,
    UserOption,
    get_global_options,
    get_lake_root,
    naming_option,
    out,
    print_result,
)
from tidemark.cli.quality_warnings import group_failures, render_failure_lines
from tidemark.cli.read_only_session import read_only_session
from tidemark.cli.rich_table import create_unwrapped_line
from tidemark.config import Pipeline, load_pipeline
from tidemark.config.candidate_version import format_cli_arguments, to_candidate
from tidemark.config.quality import DATA_DOCS_INDEX
from tidemark.config.types import format_instant, parse_instant
from tidemark.delta.filesystem import find_unwritable_folder, has_file, write_text
from tidemark.errors import UserError
from tidemark.formatting import format_count
from tidemark.ledger.committed_snapshot import read_committed_rows
from tidemark.ledger.ledger import Ledger
from tidemark.quality.gx.data_docs import get_docs_index, update_data_docs
from tidemark.quality.gx.project_export import ExportedSuite, export_project
from tidemark.quality.profiling import format_yaml_block, profile_emissions, propose_expectations
from tidemark.quality.results_table import ExpectationHistory, read_results, summarize_results
from tidemark.quality.waivers import waive as waive_expectation
from tidemark.report import check_paths, quality_trends

app = typer.Typer(
    help="Show validation results over time, and propose, waive or export expectations.\n\n"
    "Example: `tidemark quality show flights_weather`",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@app.command()
def show(
    pipeline: PipelineArgument,
    report: Annotated[
        str | None,
        typer.Option("--report", metavar="FILE", help="Write charts of each value over time to a .html file."),
    ] = None,
    candidate: CandidateOption = None,
) -> None:
    """Show how many slices each expectation validated, the outcomes, and the worst value.

    Example: `tidemark quality show flights_weather --report quality.html`
    """
    loaded = to_candidate(load_pipeline(pipeline), candidate)
    if report:
        check_paths([report], quality_trends.FORMATS, "--report")
    ledger = Ledger.from_pipeline(loaded, get_lake_root())
    rows = read_results(ledger.tables.quality)
    histories = summarize_results(rows, read_results(ledger.tables.rejection_results))
    print_result([history.to_dict() for history in histories], lambda: render_histories(loaded, histories))
    if not get_global_options().as_json:
        failures = group_failures(ledger.rows, rows, ledger.grid) if ledger.entries else []
        for line in render_failure_lines(len(ledger.rows), failures):
            out.print(line, soft_wrap=True)
        if find_unwritable_folder(ledger.tables.root) is None:
            update_data_docs(ledger.tables)
        if has_file(ledger.tables.root, DATA_DOCS_INDEX):
            out.print(f"Data Docs: {get_docs_index(ledger.tables)}", soft_wrap=True, markup=False)
    if report:
        write_text(report, quality_trends.render_html(quality_trends.collect_trends(loaded, ledger, rows)))


@app.command()
def suggest(
    pipeline: PipelineArgument,
) -> None:
    """Propose expectations from the rows of committed slices, to paste into the pipeline file. Read-only.

    Example: `tidemark quality suggest flights_weather`
    """
    loaded, root = load_pipeline(pipeline), get_lake_root()
    ledger = Ledger.from_pipeline(loaded, root)
    if not ledger.entries:
        raise UserError(
            f"{loaded.name} has committed nothing to learn from. Run tidemark run {format_cli_arguments(loaded)} first."
        )
    with read_only_session(root, "tidemark quality suggest", loaded) as spark:
        profile_ = profile_emissions(read_committed_rows(spark, ledger, "emissions"), len(ledger.entries))
    if profile_ is None:
        raise UserError(f"{loaded.name} has committed slices, and no row in them to learn from. Run more slices.")
    block = format_yaml_block(profile_, has_quality="quality" in loaded.model_fields_set)
    print_result(propose_expectations(profile_), lambda: Text(block), soft_wrap=True)


@app.command()
def waive(
    pipeline: PipelineArgument,
    start: SliceOption,
    expectation: Annotated[str, typer.Option("--expectation", metavar="NAME", help=EXPECTATION_HELP)],
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Reason to record in the ledger.")],
    candidate: CandidateOption = None,
    user: UserOption = None,
) -> None:
    """Publish one slice at its next run even if an expectation fails.

    The ledger records user, time and reason. The waiver holds until the slice is committed: later runs
    are validated again.

    Example: `tidemark quality waive flights_weather --slice 2013-01-10T14:00Z --expectation carrier --reason storm`
    """
    loaded = to_candidate(load_pipeline(pipeline), candidate)
    with naming_option("--slice"):
        instant = parse_instant(start)
    waiver = waive_expectation(loaded, get_lake_root(), instant, expectation, reason, user or getuser())
    start_ = format_instant(waiver.slice)
    print_result(
        {"slice": start_, "attempt": waiver.attempt, **waiver.to_dict()},
        lambda: Text(
            f"{waiver.expectation} is waived for the next run of slice {start_}. "
            f"Continue with tidemark run {format_cli_arguments(loaded)}, or reprocess the slice."
        ),
        soft_wrap=True,
    )


@app.command()
def export(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="New or empty folder for the project.")],
    pipelines: PipelinesArgument,
) -> None:
    """Write expectations as a project of Great Expectations: suites, validation definitions and checkpoints.

    `gx.get_context(mode="file", project_root_dir=DIR)` opens it. Spark does not start.

    Example: `tidemark quality export quality_project flights_weather`
    """
    loaded = [load_pipeline(pipeline) for pipeline in pipelines]
    suites = export_project(folder, loaded)
    result = [suite.to_dict() for suite in suites]
    print_result(result, lambda: Text("\n".join(_describe_export(folder, loaded, suites))), soft_wrap=True)


def _describe_export(folder: str, pipelines: list[Pipeline], suites: list[ExportedSuite]) -> Iterator[str]:
    for suite in suites:
        yield f"{suite.name}: {format_count(suite.expectations, 'expectation')} on {suite.rows} per {suite.per}"
    left_out = sum(expectation.on == "history" for pipeline in pipelines for expectation in pipeline.quality)
    if left_out:
        yield f"left out: {format_count(left_out, 'expectation')} on history, whose values are in the ledger"
    yield f'Open the project: context = gx.get_context(mode="file", project_root_dir="{folder}")'
    yield 'Validate rows: context.checkpoints.get(NAME).run(batch_parameters={"dataframe": ROWS})'


def render_histories(pipeline: Pipeline, histories: list[ExpectationHistory]) -> RenderableType:
    """Show the results of each expectation: outcomes, bounds, and the worst value with its slice."""
    if not histories:
        command = f"tidemark quality suggest {shlex.quote(pipeline.command_argument)}"
        line = f"{pipeline.name}: no expectation has validated a slice. {command} proposes some."
        return Group(create_unwrapped_line(line))
    lines: list[RenderableType] = [Text(f"{pipeline.name}: quality", "italic")]
    for history in histories:
        lines.append(Text(history.expectation, "bold"))
        lines += [Padding(Text(line), (0, 0, 0, 2)) for line in _describe_history(history)]
    return Group(*lines)


def _describe_history(history: ExpectationHistory) -> Iterator[str]:
    yield ", ".join(part for part in (history.severity, _describe_bounds(history)) if part)
    outcomes = ", ".join(f"{count:,} {outcome}" for outcome, count in history.outcomes.items())
    yield f"{history.evaluated:,} evaluated: {outcomes}"
    if history.worst_slice is not None:
        yield _describe_worst(history)


def _describe_worst(history: ExpectationHistory) -> str:
    """Describe the worst value of failed slices, or else the value nearest to a bound, and its slice."""
    value = "no number" if history.worst_value is None else _format_value(history, history.worst_value)
    outcome = "nearest to a bound" if history.worst_outcome == "passed" else history.worst_outcome
    return f"worst value: {value}, {outcome}, in slice {history.worst_slice}"


def _describe_bounds(history: ExpectationHistory) -> str:
    """Describe the bounds of the measured value: of a number, or of the share of values that violate."""
    low, high = (
        None if bound is None else _format_value(history, bound) for bound in (history.min_value, history.max_value)
    )
    if history.is_share:
        return "" if high is None else f"allowed to violate: {high}"
    if low is None:
        return "" if high is None else f"at most {high}"
    return f"at least {low}" if high is None else low if low == high else f"{low} to {high}"


def _format_value(history: ExpectationHistory, value: float) -> str:
    return f"{100 * value:,.6g}% of values" if history.is_share else f"{value:,.6g}"
