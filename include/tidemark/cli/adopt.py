"""Implement the command `tidemark adopt`, which takes over a table that a stream or a batch has written."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Annotated

import typer

from tidemark.adoption.adopt import AdoptionResult, commit_adoption, compare_last_slices
from tidemark.adoption.plan import WARM_UP, AdoptionPlan, create_adoption_plan, require_same_state
from tidemark.cli.common import (
    PipelineArgument,
    get_global_options,
    get_lake_root,
    naming_option,
    out,
    parse_instant_option,
    print_json,
    print_result,
)
from tidemark.cli.progress import describe_spark_tasks, run_with_progress, show_activity
from tidemark.cli.render_comparison import render_comparison
from tidemark.comparison.result import Comparison
from tidemark.config import Pipeline, load_pipeline, load_reference
from tidemark.config.candidate_version import format_cli_arguments
from tidemark.config.sides import SIDES
from tidemark.config.types import parse_duration, parse_instant
from tidemark.errors import CheckFailedError, UserError, prefix_errors
from tidemark.formatting import format_count
from tidemark.planning.plan import Plan
from tidemark.quality.gx.project import import_gx_in_background
from tidemark.spark.lazy_session import create_lazy_session, resolve_session, start_in_background
from tidemark.spark.session import get_spark_session


def adopt(
    pipeline: PipelineArgument,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="Delta table with the output before --until.")],
    until: Annotated[str, typer.Option("--until", metavar="T", help="Start of the first slice to publish, ISO 8601.")],
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="T",
            help="Start of the first slice to run for the state. [default: the pipeline's first slice]",
        ),
    ] = None,
    compared: Annotated[
        str,
        typer.Option("--compare", metavar="DURATION", help="Time before --until to compare with TABLE. 0: none."),
    ] = "1 day",
    accept_differences: Annotated[  # noqa: FBT002
        bool, typer.Option("--accept-differences", help="Adopt although the compared rows differ.")
    ] = False,
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference",
            metavar="PIPELINE",
            help="Pipeline with the settings of the stream; '' for none. [default: compare.reference]",
        ),
    ] = None,
) -> None:
    """Begin a pipeline where a table ends that a stream or an older batch has written.

    Slices before `--until` run to compute the state with which the pipeline continues. Their rows are not published.
    First, the rows of the last day (`--compare`) are compared with TABLE. If they differ, nothing is adopted and the
    exit code is 1.

    Example: `tidemark adopt flights_weather streamed/flights_weather --until 2013-01-20T00:00Z`
    """
    loaded, lake = load_pipeline(pipeline), get_lake_root()
    with naming_option("--until"):
        until_instant = parse_instant(until)
    start_instant = parse_instant_option("--from", start)
    period = _parse_period(compared)
    compared_with = load_reference(pipeline)
    if reference is not None:
        with prefix_errors("--reference"):
            compared_with = load_pipeline(reference) if reference else None
    session = create_lazy_session(partial(get_spark_session, "tidemark adopt", cluster=loaded.cluster))
    plan = create_adoption_plan(session, loaded, lake, table, until_instant, start_instant)
    _run(plan.warm_up)
    if plan.shorter_warm_up:
        _run(plan.shorter_warm_up)
        require_same_state(plan)
    spark = resolve_session(session)
    comparison = None
    if period:
        with show_activity("comparing", partial(describe_spark_tasks, spark)):
            comparison = compare_last_slices(spark, plan, period, compared_with)
        _show_comparison(comparison, will_adopt=accept_differences or not comparison.over_budget)
        if comparison.over_budget and not accept_differences:
            raise CheckFailedError(_describe_refusal(plan, comparison))
    result = commit_adoption(spark, plan, comparison)
    plan.drop_warm_up()
    print_result(result, lambda: "\n".join(_describe_adoption(result, loaded)), soft_wrap=True)


def _parse_period(text: str) -> timedelta:
    with naming_option("--compare"):
        period = parse_duration(0 if text == "0" else text)
    if period < timedelta():
        raise UserError(f"--compare {text}: the duration is negative. Pass 0 to skip the comparison.")
    return period


def _run(plan: Plan) -> None:
    """Run the slices of a warm-up that have not run yet."""
    if not plan.jobs:
        return
    if plan.pipeline.quality:
        import_gx_in_background()
    start_in_background(plan.spark, brief=plan.is_brief)
    if not get_global_options().as_json:
        first, end = plan.grid.label(plan.jobs[0][0]), plan.grid.label(plan.jobs[-1].stop)
        out.print(
            f"Running {format_count(plan.slice_count, 'slice')} for their state, {first} to {end} (exclusive)",
            soft_wrap=True,
        )
    for _ in run_with_progress(plan, lines=not get_global_options().as_json):
        pass


def _show_comparison(comparison: Comparison, *, will_adopt: bool) -> None:
    if not get_global_options().as_json:
        out.print(render_comparison(comparison))
    elif not will_adopt:  # otherwise it is part of the result
        print_json({"pipeline": comparison.pipeline, "commit": None, "comparison": comparison.to_dict()})


def _describe_refusal(plan: AdoptionPlan, comparison: Comparison) -> str:
    table = plan.source.table
    command = f"tidemark compare run {format_cli_arguments(plan.pipeline)} --candidate {WARM_UP}"
    return (
        f"the last slices before {comparison.end} differ from {table}, so nothing is adopted: "
        f"{'; '.join(comparison.over_budget)}. See more with {command} --with {shlex.quote(table)}, correct "
        "the settings, or pass --accept-differences"
    )


def _describe_adoption(result: AdoptionResult, pipeline: Pipeline) -> Iterator[str]:
    yield (
        f"{result.pipeline}: {result.table}, version {result.version}, is adopted before {result.until}: "
        f"{format_count(result.slices, 'slice')} from {result.start} on ran for their state"
    )
    for side in SIDES:
        rows = format_count(result.carried[side], "row")
        yield f"{side}: {rows} carried, watermark {result.watermarks[side] or 'none yet'}"
    if result.shorter_start:
        yield f"The state is the same if the slices begin at {result.shorter_start}."
    yield f"Rows from {result.until} on are those of {result.pipeline}."
    yield f"Continue with tidemark run {format_cli_arguments(pipeline)}."
