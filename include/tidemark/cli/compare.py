"""Implement the command `tidemark compare`."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from tidemark import report as reports
from tidemark.cli.common import JsonOption, LakeOption, PipelineArgument, err, naming_option, out, print_json
from tidemark.cli.read_only_session import read_only_session
from tidemark.cli.render import render_comparison
from tidemark.comparison.agreement import find_due_slices as due_slices
from tidemark.comparison.agreement import save_agreement
from tidemark.comparison.compare import compare as run_compare
from tidemark.comparison.minimal_example import write_minimal_example
from tidemark.comparison.result import ComparisonRequest
from tidemark.config import CompareSettings, Pipeline, load_pipeline, load_reference, with_overrides
from tidemark.config.candidate_version import to_candidate
from tidemark.config.types import parse_allowance, parse_instant
from tidemark.delta.paths import resolve_lake_root
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.errors import CheckFailedError, UserError
from tidemark.versions.candidates import with_live_settings


def compare(
    context: typer.Context,
    pipeline: PipelineArgument,
    table: Annotated[
        str | None, typer.Option("--with", metavar="TABLE", help="Delta table that the stream wrote.")
    ] = None,
    reference_name: Annotated[
        str | None, typer.Option("--reference", metavar="PIPELINE", help="Pipeline with the settings of the stream.")
    ] = None,
    lake: LakeOption = None,
    candidate: Annotated[
        str | None,
        typer.Option("--candidate", metavar="NAME", help="Compare candidate version NAME with the live version."),
    ] = None,
    start: Annotated[
        str | None, typer.Option("--from", metavar="T", help="Start of the first slice, ISO 8601. [default: the first]")
    ] = None,
    end: Annotated[
        str | None,
        typer.Option("--to", metavar="T", help="End of the last slice, exclusive, ISO 8601. [default: the last]"),
    ] = None,
    only_due: Annotated[  # noqa: FBT002
        bool,
        typer.Option("--only-due", help="Compare only slices without an up-to-date record in OUTPUT/agreement."),
    ] = False,
    until: Annotated[
        str | None,
        typer.Option(
            "--until",
            metavar="T",
            help="Progress of the stream on the pipeline's clock, ISO 8601. [default: now - compare.stream_lag]",
        ),
    ] = None,
    key_columns: Annotated[
        str | None,
        typer.Option(
            "--key-columns",
            metavar="COLUMNS",
            help="Columns that identify a row. Used to report changed values instead of missing rows.",
        ),
    ] = None,
    ignore_columns: Annotated[
        str | None, typer.Option("--ignore-columns", metavar="COLUMNS", help="Columns to ignore.")
    ] = None,
    float_tolerance: Annotated[
        float | None,
        typer.Option("--float-tolerance", min=0, help="Largest difference of equal fractional numbers. [default: 0]"),
    ] = None,
    max_unexplained: Annotated[
        str | None,
        typer.Option(
            "--max-unexplained",
            metavar="N|SHARE",
            help="Allowed rows without a cause: a number, or a share such as 0.1 %. [default: 0]",
        ),
    ] = None,
    max_differing: Annotated[
        str | None,
        typer.Option(
            "--max-differing",
            metavar="N|SHARE",
            help="Allowed rows that differ: a number, or a share such as 0.1 %. [default: any]",
        ),
    ] = None,
    examples: Annotated[
        int | None,
        typer.Option(
            "--examples",
            min=0,
            help="Rows to show for each cause. [default: 3, with --save those of expose_row_values]",
        ),
    ] = None,
    try_settings: Annotated[  # noqa: FBT002
        bool, typer.Option(help="Try other settings to explain rows without a cause. Each trial replays all slices.")
    ] = True,
    save: Annotated[  # noqa: FBT002
        bool, typer.Option("--save", help="Save the result of each slice to table OUTPUT/agreement.")
    ] = False,
    report: Annotated[
        list[str] | None,
        typer.Option(
            "--report", metavar="FILE", help="Write a report to FILE, by its ending .html, .md or .json. Repeatable."
        ),
    ] = None,
    report_what_if: Annotated[  # noqa: FBT002
        bool,
        typer.Option(
            "--what-if/--no-what-if",
            help="Add the effect of other delays to the report. Each value replays all slices.",
        ),
    ] = True,
    reproduce_number: Annotated[
        int | None,
        typer.Option(
            "--reproduce", metavar="N", help="Write the fewest input rows that show example N to the file --output."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Vector file to write, for tidemark conformance.")
    ] = None,
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Compare committed slices with the table that a stream wrote, and explain each row that differs.

    Defaults are in `compare` of the pipeline file. Tables are written only with `--save`. The exit code is 1 if a
    budget is exceeded, by default if a difference has no cause. `--reproduce N --output FILE` writes the fewest rows
    that still show difference N, as a vector on which `tidemark conformance` fails.

    With `--candidate NAME` the candidate version (`batch`) is compared with the live version (`stream`), unless
    `--with` names another table. The settings of the live version then are the reference.

    Example: `tidemark compare flights_weather_event_time --with streamed/flights --reference flights_weather`
    """
    live, root = load_pipeline(pipeline), resolve_lake_root(lake)
    loaded = to_candidate(live, candidate)
    with_live = candidate is not None and table is None
    columns = {
        name: _parse_names(text)
        for name, text in (("key_columns", key_columns), ("ignore_columns", ignore_columns))
        if text is not None
    }
    budget = {"unexplained": max_unexplained, "differing": max_differing}
    table_name = f"{live.output}/emissions" if with_live else table
    settings = _merge_settings(loaded, {"table": table_name, "float_tolerance": float_tolerance, **columns}, budget)
    if reference_name is None:
        reference = with_live_settings(live, root) if with_live else load_reference(pipeline)
    else:
        reference = load_pipeline(reference_name) if reference_name else None
    full_request = ComparisonRequest(
        settings.table,
        _parse_instant_option("--from", start),
        _parse_instant_option("--to", end),
        _parse_instant_option("--until", until)
        or (datetime.now(UTC) - settings.stream_lag if settings.stream_lag else None),
        tuple(settings.key_columns),
        tuple(settings.ignore_columns),
        settings.float_tolerance,
        _default_examples(loaded, save=save) if examples is None else examples,
        try_settings,
        settings.budget,
    )
    if (reproduce_number is None) != (output is None):
        raise UserError("--reproduce N and --output FILE need each other. Pass both, or neither.")
    if output is not None:
        reports.check_folder("--output", output)
    files = reports.check_paths(report or ())
    request = _restrict_to_due(loaded, root, full_request, reference) if only_due else full_request
    if request is None:
        print_json(None) if as_json else out.print("Nothing to compare: each slice has an up-to-date record.")
        return
    pipelines = [loaded, *([reference] if reference else [])]
    with read_only_session(root, "tidemark compare", *pipelines) as spark:
        comparison = run_compare(spark, loaded, root, request, reference)
        if save:
            save_agreement(spark, PipelineTables.from_config(loaded, root), comparison, request)
        print_json(comparison.to_dict()) if as_json else out.print(render_comparison(comparison))
        if files:
            invocation = reports.Invocation(context.obj, pipeline, reference_name, lake)
            data = reports.collect_report_data(
                spark, comparison, request, (loaded, reference), root, invocation, include_what_if=report_what_if
            )
            reports.write_report(data, files)
        if reproduce_number is not None and output is not None:
            vector = write_minimal_example(spark, loaded, root, comparison, reproduce_number, output)
            err.print(
                f"{output}: {len(vector['events'])} input rows show difference {reproduce_number}", soft_wrap=True
            )
    if comparison.over_budget:
        raise CheckFailedError(f"over budget: {'; '.join(comparison.over_budget)}")


def _merge_settings(pipeline: Pipeline, options: dict[str, Any], budget: dict[str, str | None]) -> CompareSettings:
    """Return the `compare` settings of the pipeline file with the options that were passed."""
    if options["table"] is None and pipeline.compare is None:
        raise UserError(
            "there is no table to compare with. Pass --with TABLE, or set compare.table in the pipeline file."
        )
    overrides = {f"compare.{name}": value for name, value in options.items() if value is not None}
    for name, value in budget.items():
        if value is not None:
            with naming_option(f"--max-{name}"):
                overrides[f"compare.budget.{name}"] = str(parse_allowance(value))
    settings = with_overrides(pipeline, overrides).compare
    assert settings, "one of both has named the table"
    return settings


def _default_examples(pipeline: Pipeline, *, save: bool) -> int:
    """Return the rows to show per cause: none in the logs of saved comparisons, unless `expose_row_values` is on."""
    return 3 if pipeline.expose_row_values or not save else 0


def _restrict_to_due(
    pipeline: Pipeline, root: str, request: ComparisonRequest, reference: Pipeline | None
) -> ComparisonRequest | None:
    slices = due_slices(pipeline, root, request, reference)
    return replace(request, start=slices[0], end=slices[1]) if slices else None


def _parse_instant_option(option: str, text: str | None) -> datetime | None:
    with naming_option(option):
        return parse_instant(text) if text else None


def _parse_names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
