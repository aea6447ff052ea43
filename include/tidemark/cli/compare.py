"""The command `tidemark compare`."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from tidemark import report as reports
from tidemark.cli.common import JsonOption, LakeOption, PipelineArgument, err, naming, out, print_json
from tidemark.cli.read_only_session import session_over
from tidemark.cli.render import comparison_view
from tidemark.comparison.compare import Asked
from tidemark.comparison.compare import compare as run_compare
from tidemark.comparison.agreement import due as due_slices
from tidemark.comparison.agreement import record
from tidemark.comparison.minimal_example import reproduce
from tidemark.config import CompareSettings, Pipeline, changed, load_pipeline, load_reference
from tidemark.config.candidate_version import shadow_of
from tidemark.config.types import parse_allowance, parse_instant
from tidemark.delta.paths import lake_root
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.errors import CheckFailedError, UserError
from tidemark.versions.candidates import as_served


def compare(
    context: typer.Context,
    pipeline: PipelineArgument,
    table: Annotated[
        str | None, typer.Option("--with", metavar="TABLE", help="What the stream wrote: a Delta table.")
    ] = None,
    told_by: Annotated[
        str | None, typer.Option("--told-by", metavar="PIPELINE", help="One that has replayed how the stream ran.")
    ] = None,
    lake: LakeOption = None,
    shadow: Annotated[
        str | None,
        typer.Option("--shadow", metavar="NAME", help="Compare this version beside the one that is served, with that."),
    ] = None,
    start: Annotated[str | None, typer.Option("--from", metavar="T", help="First slice. [default: the first]")] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="T", help="End, exclusive. [default: the last]")] = None,
    due: Annotated[  # noqa: FBT002
        bool,
        typer.Option("--due", help="From the oldest slice that has no record, or an old one; or from --from."),
    ] = False,
    until: Annotated[
        str | None, typer.Option("--until", metavar="T", help="How far the stream has come, on the pipeline's clock.")
    ] = None,
    on: Annotated[
        str | None, typer.Option("--on", metavar="COLUMNS", help="What tells rows apart, but for values.")
    ] = None,
    ignore: Annotated[str | None, typer.Option("--ignore", metavar="COLUMNS", help="What is not compared.")] = None,
    within: Annotated[float | None, typer.Option("--within", min=0, help="By how much fractions may differ.")] = None,
    max_unexplained: Annotated[
        str | None,
        typer.Option("--max-unexplained", metavar="N|SHARE", help="Budget of rows without a cause. [default: 0]"),
    ] = None,
    max_differing: Annotated[
        str | None,
        typer.Option("--max-differing", metavar="N|SHARE", help="Budget of all that differ. [default: any]"),
    ] = None,
    examples: Annotated[
        int | None,
        typer.Option(
            "--examples", min=0, help="Rows to show for each cause. [default: 3, with --record those of show_rows]"
        ),
    ] = None,
    try_settings: Annotated[  # noqa: FBT002
        bool, typer.Option(help="Try other settings for what has no cause: replays of all slices.")
    ] = True,
    recorded: Annotated[  # noqa: FBT002
        bool, typer.Option("--record", help="Write the slices' agreement to OUTPUT/agreement.")
    ] = False,
    report: Annotated[
        list[str] | None,
        typer.Option("--report", metavar="FILE", help="Write a report: .html, .md, .json; repeatable."),
    ] = None,
    report_what_if: Annotated[  # noqa: FBT002
        bool, typer.Option("--what-if/--no-what-if", help="Ask for the report what other delays give: a replay each.")
    ] = True,
    number: Annotated[
        int | None, typer.Option("--reproduce", metavar="N", help="The example whose rows to write --into a file.")
    ] = None,
    into: Annotated[
        Path | None, typer.Option("--into", metavar="FILE", help="A vector file, for tidemark conformance.")
    ] = None,
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Compare committed slices with what a stream wrote, and say why each row differs.

    What is not given here the pipeline file's `compare` says. No table is written but for `--record`. Ends with exit
    code 1 if a budget is exceeded: by default, if a difference has no cause. `--reproduce N --into FILE` writes the
    fewest rows that still show one difference, as a vector on which `tidemark conformance` fails.

    With `--shadow NAME` the other table is what is served, unless `--with` names one, and the settings under which that
    has run are what tells of it: `batch` is the shadow, `stream` what is served.

    Example: `tidemark compare flights_weather_event_time --with streamed/flights --told-by flights_weather`
    """
    served, root = load_pipeline(pipeline), lake_root(lake)
    loaded = shadow_of(served, shadow)
    beside = shadow is not None and table is None
    lists = {name: _names(text) for name, text in (("on", on), ("ignore", ignore)) if text is not None}
    budget = {"unexplained": max_unexplained, "differing": max_differing}
    other = f"{served.output}/emissions" if beside else table
    settings = _settings(loaded, {"with": other, "within": within, **lists}, budget)
    if told_by is None:
        reference = as_served(served, root) if beside else load_reference(pipeline)
    else:
        reference = load_pipeline(told_by) if told_by else None
    whole = Asked(
        settings.table,
        _instant("--from", start),
        _instant("--to", end),
        _instant("--until", until) or (datetime.now(UTC) - settings.lag if settings.lag else None),
        tuple(settings.on),
        tuple(settings.ignore),
        settings.within,
        _examples(loaded, recorded=recorded) if examples is None else examples,
        try_settings,
        settings.budget,
    )
    if (number is None) != (into is None):
        raise UserError("--reproduce N and --into FILE go together")
    if into is not None:
        reports.need_folder("--into", into)
    files = reports.check_paths(report or ())
    asked = _due(loaded, root, whole, reference) if due else whole
    if asked is None:
        print_json(None) if as_json else out.print("Nothing to compare: no slice is due.")
        return
    pipelines = [loaded, *([reference] if reference else [])]
    with session_over(root, "tidemark compare", *pipelines) as spark:
        comparison = run_compare(spark, loaded, root, asked, reference)
        if recorded:
            record(spark, PipelineTables.of(loaded, root), comparison, asked)
        print_json(comparison.describe()) if as_json else out.print(comparison_view(comparison))
        if files:
            called = reports.Called(context.obj, pipeline, told_by, lake)
            facts = reports.gather(
                spark, comparison, asked, (loaded, reference), root, called, ask_what_if=report_what_if
            )
            reports.write(facts, files)
        if number is not None and into is not None:
            vector = reproduce(spark, loaded, root, comparison, number, into)
            err.print(f"{into}: {len(vector['events'])} input rows show difference {number}", soft_wrap=True)
    if comparison.over_budget:
        raise CheckFailedError(f"over budget: {'; '.join(comparison.over_budget)}")


def _settings(pipeline: Pipeline, options: dict[str, Any], budget: dict[str, str | None]) -> CompareSettings:
    """The pipeline file's, with the options that are given."""
    if options["with"] is None and pipeline.compare is None:
        raise UserError("there is no table to compare with; pass --with TABLE, or name it in the file's compare.with")
    given = {f"compare.{name}": value for name, value in options.items() if value is not None}
    for name, text in budget.items():
        if text is not None:
            with naming(f"--max-{name}"):
                given[f"compare.budget.{name}"] = str(parse_allowance(text))
    settings = changed(pipeline, given).compare
    assert settings, "one of both has named the table"
    return settings


def _examples(pipeline: Pipeline, *, recorded: bool) -> int:
    """How many rows are shown for each cause; none in the logs of jobs, unless the file lets them be."""
    return 3 if pipeline.show_rows or not recorded else 0


def _due(pipeline: Pipeline, root: str, asked: Asked, reference: Pipeline | None) -> Asked | None:
    slices = due_slices(pipeline, root, asked, reference)
    return replace(asked, start=slices[0], end=slices[1]) if slices else None


def _instant(option: str, text: str | None) -> datetime | None:
    with naming(option):
        return parse_instant(text) if text else None


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
