"""Implement the commands `tidemark plan`, `run` and `reprocess`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from tidemark.cli.common import (
    CandidateOption,
    PipelineArgument,
    get_global_options,
    get_lake_root,
    naming_option,
    out,
    parse_instant_option,
    print_json,
    print_result,
)
from tidemark.cli.progress import run_with_progress
from tidemark.cli.render_plan import describe_changes, render_plan, render_reprocess_changes
from tidemark.cli.render_status import render_status
from tidemark.cli.status_summary import summarize_status
from tidemark.config import Pipeline, load_pipeline
from tidemark.config.candidate_version import to_candidate
from tidemark.config.chain_files import list_upstreams
from tidemark.errors import UserError
from tidemark.planning.approved_plan import ApprovedPlan, write_plan
from tidemark.planning.plan import Plan
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.quality.gx.project import import_gx_in_background
from tidemark.spark.lazy_session import create_lazy_session, start_in_background
from tidemark.spark.session import get_spark_session

FromOption = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="T", help="Start of the first slice, ISO 8601. [default: end of the last committed slice]"
    ),
]
ToOption = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="T",
        help="End of the last slice, exclusive, ISO 8601. [default: the last slice that is over and has input rows]",
    ),
]
SlicesPerJobOption = Annotated[
    str,
    typer.Option("--slices-per-job", metavar="N|auto", help="Slices per Spark job. auto: as many as fit in memory."),
]
DrainOption = Annotated[
    bool,
    typer.Option(
        "--drain",
        help="End the inputs after the last slice. Watermarks become infinite; in dialect spark, a no-data batch runs.",
    ),
]
EmptyStateOption = Annotated[
    bool,
    typer.Option(
        "--from-empty-state",
        help="Start with empty state, without an earlier slice. Matches with earlier rows are lost.",
    ),
]
ReprocessFromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="T",
        help="Start of the first slice to recompute. [default: all stale slices, and those with changed or late rows]",
    ),
]
ReprocessToOption = Annotated[
    str | None,
    typer.Option(
        "--to", metavar="T", help="End of the last slice to recompute, exclusive. [default: end of the last committed]"
    ),
]
AtomicOption = Annotated[bool, typer.Option("--atomic", help="Commit all slices in one commit at the end.")]
IncompleteOption = Annotated[
    bool,
    typer.Option("--ignore-completeness/--no-ignore-completeness", help="Do not wait until inputs are complete."),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run/--no-dry-run", help="Show which slices would run again, and why, without running.")
]
OutdatedOption = Annotated[
    bool,
    typer.Option(
        "--outdated",
        help="Recompute outdated slices, as NAME__repair does. With `append`, late-arriving rows make no slice "
        "outdated.",
    ),
]
PlanFileOption = Annotated[
    Path | None,
    typer.Option(
        "--plan-file",
        metavar="FILE",
        help="With --dry-run: write the plan as JSON. Otherwise: refuse to run more than the plan in FILE.",
    ),
]
UpstreamOption = Annotated[
    bool,
    typer.Option(
        "--upstream",
        help="First run the pipelines whose output this one reads, with the same options except --candidate.",
    ),
]
SkipAssetCheckOption = Annotated[
    bool, typer.Option("--skip-asset-check", help="Assume that the assets of `complete` had an event. Set by the DAGs.")
]


def plan(
    pipeline: PipelineArgument,
    candidate: CandidateOption = None,
    start: FromOption = None,
    end: ToOption = None,
    slices_per_job: SlicesPerJobOption = "auto",
    drain: DrainOption = False,  # noqa: FBT002
    from_empty_state: EmptyStateOption = False,  # noqa: FBT002
    ignore_completeness: IncompleteOption = False,  # noqa: FBT002
    skip_asset_check: SkipAssetCheckOption = False,  # noqa: FBT002
) -> None:
    """Check a pipeline and show which slices would run, and why. Runs nothing.

    Example: `tidemark plan flights_weather --to 2013-01-08T00:00Z`
    """
    request = _create_request(
        start, end, slices_per_job,
        drain=drain, from_empty_state=from_empty_state,
        ignore_completeness=ignore_completeness, skip_asset_check=skip_asset_check,
    )  # fmt: skip
    plan_ = _plan(to_candidate(load_pipeline(pipeline), candidate), request)
    print_result(plan_, lambda: render_plan(plan_))


def run(
    pipeline: PipelineArgument,
    candidate: CandidateOption = None,
    start: FromOption = None,
    end: ToOption = None,
    slices_per_job: SlicesPerJobOption = "auto",
    drain: DrainOption = False,  # noqa: FBT002
    from_empty_state: EmptyStateOption = False,  # noqa: FBT002
    atomic: AtomicOption = False,  # noqa: FBT002
    upstream: UpstreamOption = False,  # noqa: FBT002
    ignore_completeness: IncompleteOption = False,  # noqa: FBT002
    skip_asset_check: SkipAssetCheckOption = False,  # noqa: FBT002
) -> None:
    """Run slices in order and commit them. Committed slices are skipped.

    Example: `tidemark run flights_weather --to 2013-01-08T00:00Z --slices-per-job 24`
    """
    request = _create_request(
        start, end, slices_per_job,
        drain=drain, from_empty_state=from_empty_state, atomic=atomic,
        ignore_completeness=ignore_completeness, skip_asset_check=skip_asset_check,
    )  # fmt: skip
    if upstream and drain and end is None:
        raise UserError("--upstream --drain needs --to: the inputs of all joins end after the same slice.")
    last = to_candidate(load_pipeline(pipeline), candidate)
    results = [_run_slices(source, request) for source in (list_upstreams(last) if upstream else [])]
    result = _run_slices(last, request)
    if get_global_options().as_json:
        print_json({**result, "upstream": results} if upstream else result)


def _run_slices(pipeline: Pipeline, request: Request) -> dict[str, Any]:
    """Run the slices of one pipeline, and return plan and status as JSON."""
    plan_ = _plan_and_start_session(pipeline, request)
    as_json = get_global_options().as_json
    if not as_json:
        out.print(render_plan(plan_))
    for _ in run_with_progress(plan_, lines=not as_json):
        pass
    status = summarize_status(plan_.pipeline, get_lake_root())
    if not as_json:
        out.print(render_status(status))
        names = ",".join(status.tables)
        out.print(f"Tables: {plan_.tables.root}/{{{names}}}", soft_wrap=True, markup=False)
    return {"plan": plan_.to_dict(), "status": status.to_dict()}


def reprocess(
    pipeline: PipelineArgument,
    candidate: CandidateOption = None,
    start: ReprocessFromOption = None,
    end: ReprocessToOption = None,
    slices_per_job: SlicesPerJobOption = "auto",
    atomic: AtomicOption = False,  # noqa: FBT002
    outdated: OutdatedOption = False,  # noqa: FBT002
    dry_run: DryRunOption = False,  # noqa: FBT002
    plan_file: PlanFileOption = None,
) -> None:
    """Recompute committed slices from the current inputs, then later slices until their state no longer changes.

    Readers see the old rows of a slice until its new rows are committed.

    Example: `tidemark reprocess flights_weather --from 2013-01-10T00:00Z --to 2013-01-11T00:00Z`
    """
    if outdated and (start or end):
        raise UserError("--outdated finds the slices itself. Leave out --from and --to, or --outdated.")
    request = _create_request(start, end, slices_per_job, reprocess=True, outdated=outdated, atomic=atomic)
    selected = to_candidate(load_pipeline(pipeline), candidate)
    if dry_run:
        plan_ = _plan(selected, request)
        if plan_file:
            write_plan(plan_, plan_file)
        print_result(plan_, lambda: render_plan(plan_))
        return
    approved = ApprovedPlan.read(plan_file) if plan_file else None
    plan_ = _plan_and_start_session(selected, request, approved)
    as_json = get_global_options().as_json
    if not as_json:
        out.print(render_plan(plan_))
    results = list(run_with_progress(plan_, lines=not as_json))
    if as_json:
        print_json({"plan": plan_.to_dict(), "changes": describe_changes(plan_.grid, results)})
    elif results:
        out.print(render_reprocess_changes(plan_.grid, results))


def _plan(pipeline: Pipeline, request: Request) -> Plan:
    session = create_lazy_session(partial(get_spark_session, "tidemark", cluster=pipeline.cluster))
    return create_plan(session, pipeline, get_lake_root(), request)


def _plan_and_start_session(pipeline: Pipeline, request: Request, approved: ApprovedPlan | None = None) -> Plan:
    plan_ = _plan(pipeline, request)
    if approved:
        approved.require_covers(plan_)
    if plan_.jobs:
        if plan_.pipeline.quality:
            import_gx_in_background()
        start_in_background(plan_.spark, brief=plan_.is_brief)
    return plan_


def _create_request(start: str | None, end: str | None, slices_per_job: str, **options: bool) -> Request:
    """Create the request of a plan from the options of a command."""
    with naming_option("--slices-per-job"):
        size = _parse_slices_per_job(slices_per_job)
    return Request(parse_instant_option("--from", start), parse_instant_option("--to", end), size, **options)


def _parse_slices_per_job(value: str) -> int | Literal["auto"]:
    if value == "auto":
        return "auto"
    if value.isdigit() and int(value) > 0:
        return int(value)
    raise ValueError(f"{value!r} is not a number of slices. Write a number above 0, or auto.")
