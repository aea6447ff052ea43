"""Implement the commands `tidemark compare ...`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from pyspark.sql import SparkSession

from tidemark import report as reports
from tidemark.cli.common import (
    FirstSliceOption,
    LastSliceOption,
    PipelineArgument,
    err,
    get_global_options,
    get_lake_root,
    parse_instant_option,
    print_result,
)
from tidemark.cli.progress import describe_spark_tasks, show_activity
from tidemark.cli.read_only_session import read_only_session
from tidemark.cli.render_comparison import render_comparison, render_dialects
from tidemark.comparison import compare_dialects
from tidemark.comparison.agreement import find_due_slices, save_agreement
from tidemark.comparison.compare import compare
from tidemark.comparison.result import Comparison, ComparisonRequest
from tidemark.comparison.what_if import select_slices
from tidemark.config import CompareSettings, Pipeline, load_pipeline, load_reference, with_overrides
from tidemark.config.candidate_version import to_candidate
from tidemark.config.loader import find_pipeline_file
from tidemark.config.safe_yaml import parse_value
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.errors import CheckFailedError, UserError, prefix_errors
from tidemark.formatting import format_count
from tidemark.versions.candidates import with_live_settings

app = typer.Typer(
    help="Compare a pipeline with the table that a stream wrote, and explain each row that differs.\n\n"
    "Defaults are in `compare` of the pipeline file; `--set` overrides them.\n\n"
    "Example: `tidemark compare run flights_weather_event_time --with flights_weather/emissions`",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

TableOption = Annotated[
    str | None,
    typer.Option("--with", metavar="TABLE", help="Delta table that the stream wrote. [default: compare.table]"),
]
ReferenceOption = Annotated[
    str | None,
    typer.Option(
        "--reference",
        metavar="PIPELINE",
        help="Pipeline with the settings of the stream; '' for none. [default: compare.reference]",
    ),
]
CandidateOption = Annotated[
    str | None,
    typer.Option("--candidate", metavar="NAME", help="Compare candidate version NAME, by default with the live one."),
]
UntilOption = Annotated[
    str | None,
    typer.Option(
        "--until",
        metavar="T",
        help="Time up to which the stream has read its inputs, by the pipeline's clock, ISO 8601. Rows after it are "
        "pending. [default: now - compare.stream_lag]",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Override a setting under `compare`, such as ignore_columns=a,b or budget.unexplained=5. Repeatable.",
    ),
]
ExamplesOption = Annotated[
    int | None,
    typer.Option(
        "--examples",
        min=0,
        metavar="N",
        help="Number of rows to show for each cause. [default: 3; with --save 0, unless expose_row_values is on]",
    ),
]
_LIST_SETTINGS = ("key_columns", "ignore_columns")
_OTHER_WAYS = {
    "table": "Pass --with TABLE.",
    "reference": "Pass --reference PIPELINE.",
    "every": "It is the interval of comparisons in Airflow. Set it in the pipeline file.",
}
"""Settings under `compare` that `--set` cannot override, with what to do instead."""


@app.command()
def run(
    pipeline: PipelineArgument,
    table: TableOption = None,
    reference: ReferenceOption = None,
    candidate: CandidateOption = None,
    start: FirstSliceOption = None,
    end: LastSliceOption = None,
    until: UntilOption = None,
    overrides: SetOption = None,
    examples: ExamplesOption = None,
    save: Annotated[  # noqa: FBT002
        bool, typer.Option("--save", help="Save the result of each slice to table OUTPUT/agreement.")
    ] = False,
    only_due: Annotated[  # noqa: FBT002
        bool, typer.Option("--only-due", help="Compare only slices without an up-to-date record in OUTPUT/agreement.")
    ] = False,
) -> None:
    """Compare committed slices with the table that a stream wrote, and explain each row that differs.

    Tables are written only with `--save`. The exit code is 1 if a budget is exceeded, by default if a difference has
    no cause. With `--candidate NAME` the candidate version is compared with the live version, unless `--with` names
    another table.

    Example: `tidemark compare run flights_weather_event_time --with flights_weather/emissions --save`
    """
    selection = _Selection.from_options(pipeline, table, reference, candidate, (start, end, until), overrides or ())
    # Saved comparisons run in the background, and their logs have many readers.
    has_examples = selection.pipeline.expose_row_values or not save
    request = replace(selection.request, examples=examples if examples is not None else 3 * has_examples)
    if only_due:
        slices = find_due_slices(selection.pipeline, get_lake_root(), request, selection.reference)
        if not slices:
            print_result(None, lambda: "Nothing to compare: each slice has an up-to-date record.")
            return
        request = replace(request, start=slices[0], end=slices[1])
    with replace(selection, request=request).compare() as (spark, comparison):
        if save:
            tables = PipelineTables.from_config(selection.pipeline, get_lake_root())
            save_agreement(spark, tables, comparison, request)
        print_result(comparison, lambda: render_comparison(comparison))


@app.command()
def report(
    pipeline: PipelineArgument,
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Files to write, by their endings .html, .md or .json.")
    ],
    table: TableOption = None,
    reference: ReferenceOption = None,
    candidate: CandidateOption = None,
    start: FirstSliceOption = None,
    end: LastSliceOption = None,
    until: UntilOption = None,
    overrides: SetOption = None,
    include_what_if: Annotated[  # noqa: FBT002
        bool,
        typer.Option("--what-if/--no-what-if", help="Add the effect of other delays. Each value replays all slices."),
    ] = True,
) -> None:
    """Compare, and write a report of the differences and their causes to files.

    Example: `tidemark compare report flights_weather_event_time report.html --with flights_weather/emissions`
    """
    paths = reports.check_paths(files)
    selection = _Selection.from_options(pipeline, table, reference, candidate, (start, end, until), overrides or ())
    options = get_global_options()
    invocation = reports.Invocation(options.arguments, pipeline, reference, options.lake)
    with selection.compare() as (spark, comparison):
        print_result(comparison, lambda: render_comparison(comparison))
        pipelines = selection.pipeline, selection.reference
        with show_activity("collecting the report", partial(describe_spark_tasks, spark)):
            data = reports.collect_report_data(
                spark,
                comparison,
                selection.request,
                pipelines,
                get_lake_root(),
                invocation,
                include_what_if=include_what_if,
            )
        reports.write_report(data, paths)


@app.command()
def minimize(
    pipeline: PipelineArgument,
    number: Annotated[int, typer.Argument(metavar="N", min=1, help="Number of an example, as `compare run` shows it.")],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            metavar="FILE",
            help="Vector file to write, for tidemark conformance; or tests/NAME.yaml, for a case of tidemark test.",
        ),
    ],
    table: TableOption = None,
    reference: ReferenceOption = None,
    candidate: CandidateOption = None,
    start: FirstSliceOption = None,
    end: LastSliceOption = None,
    until: UntilOption = None,
    overrides: SetOption = None,
    examples: ExamplesOption = None,
) -> None:
    """Write the fewest input rows that still show one difference.

    FILE.jsonl or FILE.jsonl.gz becomes a vector, on which `tidemark conformance` fails. In tests/NAME.yaml, the test
    file of the pipeline, they become a test case, which expects the pipeline's own output.

    Example: `tidemark compare minimize flights_weather 1 --output late.jsonl --with streamed/flights_weather`
    """
    from tidemark.comparison import minimal_output  # noqa: PLC0415 - other commands need no test cases

    pipeline_file = find_pipeline_file(pipeline)
    if output.suffix != ".yaml":
        reports.check_folder("--output", output)
    selection = _Selection.from_options(pipeline, table, reference, candidate, (start, end, until), overrides or ())
    minimal_output.check_output(selection.pipeline, pipeline_file, output, number)
    if examples is not None:
        selection = replace(selection, request=replace(selection.request, examples=examples))
    with selection.compare() as (spark, comparison):
        print_result(comparison, lambda: render_comparison(comparison))
        rows = minimal_output.write_minimal_example(
            spark, selection.pipeline, get_lake_root(), comparison, number, pipeline_file, output
        )
        err.print(f"{output}: difference {number} in {format_count(rows, 'input row')}", soft_wrap=True)


@app.command()
def dialects(pipeline: PipelineArgument, start: FirstSliceOption = None, end: LastSliceOption = None) -> None:
    """Run the same inputs through each dialect, and show the rules by which their results differ. Read-only.

    Example: `tidemark compare dialects flights_weather --to 2013-01-08T00:00Z`
    """
    settings, root = load_pipeline(pipeline), get_lake_root()
    start_instant, end_instant = parse_instant_option("--from", start), parse_instant_option("--to", end)
    with read_only_session(root, "tidemark compare dialects", settings) as spark:
        slices = select_slices(spark, settings, root, start_instant, end_instant)
        result = compare_dialects(spark, settings, root, slices)
    print_result(result, lambda: render_dialects(result))


@dataclass(frozen=True)
class _Selection:
    """The pipeline to compare, and the table to compare it with."""

    pipeline: Pipeline
    reference: Pipeline | None
    request: ComparisonRequest

    @classmethod
    def from_options(
        cls,
        name: str,
        table: str | None,
        reference_name: str | None,
        candidate: str | None,
        instants: Sequence[str | None],
        overrides: Sequence[str],
    ) -> _Selection:
        """Create the selection from the options of a command; `instants` are those of --from, --to and --until."""
        live, root = load_pipeline(name), get_lake_root()
        pipeline, is_with_live = to_candidate(live, candidate), candidate is not None and table is None
        settings = _override_settings(pipeline, f"{live.output}/emissions" if is_with_live else table, overrides)
        if reference_name is None:
            reference = with_live_settings(live, root) if is_with_live else load_reference(name)
        else:
            with prefix_errors("--reference"):
                reference = load_pipeline(reference_name) if reference_name else None
        start, end, until = map(parse_instant_option, ("--from", "--to", "--until"), instants)
        request = ComparisonRequest(
            table=settings.table,
            start=start,
            end=end,
            until=until or (datetime.now(UTC) - settings.stream_lag if settings.stream_lag else None),
            key_columns=tuple(settings.key_columns),
            ignore_columns=tuple(settings.ignore_columns),
            float_tolerance=settings.float_tolerance,
            try_settings=settings.try_settings,
            budget=settings.budget,
            origin="--with" if table else "--candidate" if is_with_live else f"{live.command_argument}: compare.table",
        )
        return cls(pipeline, reference, request)

    @contextmanager
    def compare(self) -> Iterator[tuple[SparkSession, Comparison]]:
        """Compare, and provide the session and the result; afterwards check the budget.

        Raises:
            CheckFailedError: A budget is exceeded.
        """
        pipelines = [self.pipeline, *([self.reference] if self.reference else [])]
        with read_only_session(get_lake_root(), "tidemark compare", *pipelines) as spark:
            with show_activity("comparing", partial(describe_spark_tasks, spark)):
                comparison = compare(spark, self.pipeline, get_lake_root(), self.request, self.reference)
            yield spark, comparison
        if comparison.over_budget:
            problems = "; ".join(comparison.over_budget)
            raise CheckFailedError(f"over budget: {problems}. Fix their causes, or raise compare.budget.")


def _override_settings(pipeline: Pipeline, table: str | None, overrides: Sequence[str]) -> CompareSettings:
    """Return the `compare` settings of the pipeline file with a table and settings that were passed."""
    if table is None and pipeline.compare is None:
        raise UserError(
            "there is no table to compare with. Pass --with TABLE, or set compare.table in the pipeline file."
        )
    changes: dict[str, Any] = {} if table is None else {"compare.table": table}
    for text in overrides:
        name, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"--set {text}: the value is missing. Write NAME=VALUE, such as ignore_columns=a,b.")
        if advice := _OTHER_WAYS.get(name.strip()):
            raise UserError(f"--set {text}: this setting has no effect here. {advice}")
        changes[f"compare.{name.strip()}"] = _parse_value(name.strip(), value)
    settings = with_overrides(pipeline, changes).compare
    assert settings, "the table is named"
    return settings


def _parse_value(name: str, text: str) -> Any:
    """Parse the value of a setting as in a pipeline file; a list may be written as a,b."""
    try:
        value = parse_value(text)
    except ValueError as error:
        raise UserError(f"--set {name}={text}: the value {error}") from None
    if name in _LIST_SETTINGS and not isinstance(value, list):
        return [part.strip() for part in text.split(",") if part.strip()]
    return value
