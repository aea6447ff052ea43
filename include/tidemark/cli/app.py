"""Assemble the command `tidemark` and map errors to exit codes."""

from __future__ import annotations

import json
import logging
import os
import sys
from dataclasses import asdict, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated, Literal

import typer
from rich.progress import track

from tidemark import json_logging
from tidemark.cli.checkpoints import app as checkpoints
from tidemark.cli.common import (
    CandidateOption,
    JsonOption,
    LakeOption,
    PipelineArgument,
    PipelinesArgument,
    err,
    naming_option,
    out,
    print_json,
)
from tidemark.cli.compact import compact
from tidemark.cli.compare import compare
from tidemark.cli.erase import erase
from tidemark.cli.progress import create_progress_bar, run_with_progress
from tidemark.cli.quality import app as quality
from tidemark.cli.quarantine import app as quarantine
from tidemark.cli.quarantine import release, waive
from tidemark.cli.read_only_session import read_only_session
from tidemark.cli.render import (
    describe_changes,
    render_changed_rows,
    render_dialects,
    render_live_query,
    render_plan,
    render_reprocess_changes,
    render_row_histories,
    render_setting_diff,
    render_status,
    render_what_if,
)
from tidemark.cli.status import summarize_status
from tidemark.cli.vacuum import vacuum
from tidemark.cli.verify import verify
from tidemark.cli.versions import promote, rollback, versions
from tidemark.comparison import compare_dialects as run_dialects
from tidemark.comparison.config_impact import count_changed_rows
from tidemark.comparison.row_history import explain_rows
from tidemark.comparison.row_lookup import parse_row
from tidemark.comparison.what_if import VARIABLE_SETTINGS, select_slices, vary_setting
from tidemark.config import Pipeline, build_json_schema, load_pipeline
from tidemark.config.candidate_version import to_candidate
from tidemark.config.diff import diff_pipelines
from tidemark.config.sides import SIDES
from tidemark.config.types import parse_duration, parse_instant
from tidemark.delta.paths import resolve_lake_root
from tidemark.errors import FaultError, StoppedError, TidemarkError, UserError, missing_extra_error
from tidemark.formatting import to_single_line
from tidemark.maintenance.recovery_horizon import find_oldest_readable_versions
from tidemark.planning.plan import Plan
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.quality.gx.project import import_gx_in_background
from tidemark.spark.error_redaction import format_safe_message
from tidemark.spark.lazy_session import create_lazy_session, start_in_background
from tidemark.spark.session import get_spark_session
from tidemark.streaming.live_query import LiveQueryPaths
from tidemark.streaming.live_query import run_live_query as run_twin
from tidemark.streaming.replay_source import parse_rate

_LOG = logging.getLogger(__name__)
app = typer.Typer(
    help="Recompute a streaming join over Delta tables, slice by slice, with the semantics of Flink or Spark.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
app.add_typer(quality, name="quality")
app.add_typer(checkpoints, name="checkpoint")
app.add_typer(quarantine, name="quarantine")
app.command()(compact)
app.command()(compare)
app.command()(erase)
app.command()(promote)
app.command()(release)
app.command()(rollback)
app.command()(versions)
app.command()(waive)
app.command()(vacuum)
app.command()(verify)


def _parse_slices_per_job(value: str) -> int | Literal["auto"]:
    if value == "auto":
        return "auto"
    if value.isdigit() and int(value) > 0:
        return int(value)
    raise ValueError(f"{value!r} is not a number of slices. Write a number above 0, or auto.")


FromOption = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="T", help="Start of the first slice, ISO 8601. [default: end of the last committed slice]"
    ),
]
ToOption = Annotated[
    str | None,
    typer.Option(
        "--to", metavar="T", help="End of the last slice, exclusive, ISO 8601. [default: after the last input row]"
    ),
]
SlicesPerJobOption = Annotated[
    str,
    typer.Option("--slices-per-job", metavar="N|auto", help="Slices per Spark job. auto: as many as fit in memory."),
]
DrainOption = Annotated[
    bool,
    typer.Option("--drain", help="End the inputs after the last slice: advance watermarks to infinity, emit the rest."),
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
        help="Start of the first slice to recompute. [default: each slice with late-arriving rows]",
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
SkipAssetCheckOption = Annotated[
    bool, typer.Option("--skip-asset-check", help="Assume that the assets of `complete` had an event. Set by the DAGs.")
]


@app.command()
def plan(
    pipeline: PipelineArgument,
    lake: LakeOption = None,
    candidate: CandidateOption = None,
    start: FromOption = None,
    end: ToOption = None,
    slices_per_job: SlicesPerJobOption = "auto",
    drain: DrainOption = False,  # noqa: FBT002
    from_empty_state: EmptyStateOption = False,  # noqa: FBT002
    ignore_completeness: IncompleteOption = False,  # noqa: FBT002
    skip_asset_check: SkipAssetCheckOption = False,  # noqa: FBT002
    diff: Annotated[
        str | None,
        typer.Option(
            "--diff", metavar="OLD", help="Show the settings that differ from pipeline file OLD. Needs no lake."
        ),
    ] = None,
    rows: Annotated[  # noqa: FBT002
        bool, typer.Option("--rows", help="With --diff, replay both files and count the rows that would change.")
    ] = False,
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Check a pipeline and show which slices would run, and why. Runs nothing.

    `--diff OLD` shows the settings that differ instead, and the effect of each. `--diff OLD --rows` also replays the
    slices --from to --to under both files from empty state, and counts the rows that would change.

    Example: `tidemark plan flights_weather --to 2013-01-08T00:00Z`
    """
    if diff is not None:
        row_request = _create_request(start, end, "auto") if rows else None
        _show_diff(load_pipeline(diff), load_pipeline(pipeline), row_request, lake, as_json=as_json)
        return
    if rows:
        raise UserError("--rows needs --diff. Add --diff OLD, or leave --rows out.")
    request = _create_request(
        start, end, slices_per_job,
        drain=drain, from_empty_state=from_empty_state,
        ignore_completeness=ignore_completeness, skip_asset_check=skip_asset_check,
    )  # fmt: skip
    plan_ = _plan(pipeline, lake, request, candidate)
    if as_json:
        print_json(plan_.to_dict())
    else:
        out.print(render_plan(plan_))


@app.command()
def run(
    pipeline: PipelineArgument,
    lake: LakeOption = None,
    candidate: CandidateOption = None,
    start: FromOption = None,
    end: ToOption = None,
    slices_per_job: SlicesPerJobOption = "auto",
    drain: DrainOption = False,  # noqa: FBT002
    from_empty_state: EmptyStateOption = False,  # noqa: FBT002
    atomic: AtomicOption = False,  # noqa: FBT002
    ignore_completeness: IncompleteOption = False,  # noqa: FBT002
    skip_asset_check: SkipAssetCheckOption = False,  # noqa: FBT002
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Run slices in order and commit them. Committed slices are skipped.

    Example: `tidemark run flights_weather --to 2013-01-08T00:00Z --slices-per-job 24`
    """
    request = _create_request(
        start, end, slices_per_job,
        drain=drain, from_empty_state=from_empty_state, atomic=atomic,
        ignore_completeness=ignore_completeness, skip_asset_check=skip_asset_check,
    )  # fmt: skip
    plan_ = _plan_and_start_session(pipeline, lake, request, candidate)
    if not as_json:
        out.print(render_plan(plan_))
    for _ in run_with_progress(plan_, lines=not as_json):
        pass
    status = summarize_status(plan_.pipeline, resolve_lake_root(lake))
    if as_json:
        print_json({"plan": plan_.to_dict(), "status": status.to_dict()})
    else:
        out.print(render_status(status))
        out.print(f"Tables: {plan_.tables.root}/{{emissions,late,checkpoint,ledger}}", soft_wrap=True)


@app.command("what-if")
def what_if_command(
    pipeline: PipelineArgument,
    max_value: Annotated[str, typer.Option("--max", metavar="DURATION", help="Largest value to try.")],
    vary: Annotated[
        str, typer.Option("--vary", metavar="SETTING", help=f"One of {', '.join(VARIABLE_SETTINGS)}.")
    ] = VARIABLE_SETTINGS[0],
    min_value: Annotated[str, typer.Option("--min", metavar="DURATION", help="Smallest value to try.")] = "0 s",
    steps: Annotated[int, typer.Option("--steps", min=1, max=60, help="Number of steps from --min to --max.")] = 8,
    lake: LakeOption = None,
    start: FromOption = None,
    end: ToOption = None,
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Show how late rows, lost pairs and state would change with another delay, lateness or bound. Read-only.

    Example: `tidemark what-if flights_weather --vary left.watermark_delay --max "2 hours" --steps 12`
    """
    settings = load_pipeline(pipeline)
    with naming_option("--min"):
        minimum = parse_duration(min_value)
    with naming_option("--max"):
        maximum = parse_duration(max_value)
    if maximum <= minimum:
        raise UserError(f"--max {max_value} is not above --min {min_value}")
    request, root = _create_request(start, end, "auto", drain=False, from_empty_state=False), resolve_lake_root(lake)
    values = [minimum + (maximum - minimum) * n / steps for n in range(steps + 1)]
    with read_only_session(root, "tidemark what-if", settings) as spark:
        slices = select_slices(spark, settings, root, request.start, request.end)
        result = vary_setting(spark, settings, root, vary, values, slices)
    if as_json:
        print_json(result.to_dict())
    else:
        out.print(render_what_if(result))


@app.command()
def dialects(
    pipeline: PipelineArgument,
    lake: LakeOption = None,
    start: Annotated[
        str | None, typer.Option("--from", metavar="T", help="Start of the first slice, ISO 8601. [default: the first]")
    ] = None,
    end: ToOption = None,
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Run the same data through each dialect and show the rules by which results differ. Read-only.

    Example: `tidemark dialects flights_weather --to 2013-01-08T00:00Z`
    """
    settings, root = load_pipeline(pipeline), resolve_lake_root(lake)
    request = _create_request(start, end, "auto")
    with read_only_session(root, "tidemark dialects", settings) as spark:
        result = run_dialects(spark, settings, root, select_slices(spark, settings, root, request.start, request.end))
    if as_json:
        print_json(result.to_dict())
    else:
        out.print(render_dialects(result))


@app.command()
def reprocess(
    pipeline: PipelineArgument,
    lake: LakeOption = None,
    candidate: CandidateOption = None,
    start: ReprocessFromOption = None,
    end: ReprocessToOption = None,
    slices_per_job: SlicesPerJobOption = "auto",
    atomic: AtomicOption = False,  # noqa: FBT002
    dry_run: DryRunOption = False,  # noqa: FBT002
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Recompute committed slices from the current inputs, then later slices until their state no longer changes.

    Readers see the old rows of a slice until its new rows are committed.

    Example: `tidemark reprocess flights_weather --from 2013-01-10T00:00Z --to 2013-01-11T00:00Z`
    """
    request = _create_request(start, end, slices_per_job, reprocess=True, atomic=atomic)
    if dry_run:
        plan_ = _plan(pipeline, lake, request, candidate)
        if as_json:
            print_json(plan_.to_dict())
        else:
            out.print(render_plan(plan_))
        return
    plan_ = _plan_and_start_session(pipeline, lake, request, candidate)
    if not as_json:
        out.print(render_plan(plan_))
    results = list(run_with_progress(plan_, lines=not as_json))
    if as_json:
        print_json({"plan": plan_.to_dict(), "changes": describe_changes(plan_.grid, results)})
    elif results:
        out.print(render_reprocess_changes(plan_.grid, results))


@app.command()
def stream(
    pipeline: PipelineArgument,
    lake: LakeOption = None,
    rate: Annotated[
        str, typer.Option(metavar="slice|N rows|now", help="Rows per micro-batch: a slice, N rows, or all of them.")
    ] = "slice",
    output: Annotated[
        str | None,
        typer.Option(metavar="TABLE", help="A Delta path for its output. [default: OUTPUT/live_query/emissions]"),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="The query's checkpoint. [default: OUTPUT/live_query/_checkpoint]"),
    ] = None,
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Run the join as a real Structured Streaming query (dialect spark).

    Example: `tidemark stream benchmarks/flights_weather_spark.yaml --rate "500 rows"`
    """
    loaded, root = load_pipeline(pipeline), resolve_lake_root(lake)
    with naming_option("--rate"):
        size = parse_rate(rate)
    with create_progress_bar("batches") as progress_bar:
        task = progress_bar.add_task(f"{loaded.name}: writing the feed", total=None)

        def progress(done: int, total: int | None) -> None:
            progress_bar.update(task, description=f"{loaded.name}: streaming", completed=done, total=total)

        spark = get_spark_session("tidemark stream")
        result = run_twin(
            spark, loaded, root, LiveQueryPaths.from_pipeline(loaded, root, output, checkpoint), size, progress
        )
    if as_json:
        print_json(result.to_dict())
    else:
        out.print(render_live_query(result), soft_wrap=True)


@app.command("explain")
def explain_command(
    pipeline: PipelineArgument,
    left: Annotated[str, typer.Option("--left", metavar="ROW", help="Column values of a left row: a=1,b=2.")] = "",
    right: Annotated[str, typer.Option("--right", metavar="ROW", help="Column values of a right row: a=1,b=2.")] = "",
    lake: LakeOption = None,
    candidate: CandidateOption = None,
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Explain what happened to an input row: arrival, lateness, matches and eviction. Read-only.

    Example: `tidemark explain flights_weather --left "carrier=UA,flight=1545,scheduled_departure=2013-01-01T10:15Z"`
    """
    settings = to_candidate(load_pipeline(pipeline), candidate)
    rows_by_side = {}
    for side, values in zip(SIDES, (left, right), strict=True):
        if values:
            with naming_option(f"--{side}"):
                rows_by_side[side] = parse_row(values)
    if not rows_by_side:
        raise UserError("no row is named. Pass --left or --right with column values, such as 'carrier=UA,flight=1545'.")
    root = resolve_lake_root(lake)
    with read_only_session(root, "tidemark explain", settings) as spark:
        histories = [
            history for side, row in rows_by_side.items() for history in explain_rows(spark, settings, root, side, row)
        ]
    if as_json:
        print_json([history.to_dict() for history in histories])
    else:
        out.print(render_row_histories(histories), soft_wrap=True)


@app.command()
def status(
    pipelines: PipelinesArgument,
    lake: LakeOption = None,
    candidate: CandidateOption = None,
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Show what pipelines have committed, one column per pipeline.

    Example: `tidemark status flights_weather flights_weather_event_time`
    """
    loaded, root = [to_candidate(load_pipeline(name), candidate) for name in pipelines], resolve_lake_root(lake)
    statuses = [
        replace(
            summarize_status(pipeline, root),
            oldest_versions=find_oldest_readable_versions(pipeline, root),
        )
        for pipeline in loaded
    ]
    if as_json:
        print_json([status_.to_dict() for status_ in statuses])
    else:
        out.print(render_status(*statuses))


def _import_conformance() -> ModuleType:
    """Import the conformance tests, which only the repository contains, not the wheel.

    Raises:
        UserError: they are not installed.
    """
    try:
        return import_module("tidemark_conformance")
    except ModuleNotFoundError as error:
        if error.name != "tidemark_conformance":
            raise
        raise UserError(
            "the conformance tests are not installed: they come with the repository, not with the wheel. "
            "Clone it with git clone and run make setup"
        ) from None


@app.command()
def conformance(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Vector files: JSON lines, plain or gzipped.")],
    cuts: Annotated[
        str,
        typer.Option(help="Numbers of slices to cut a vector into, `random:SEED`, or `each` for a slice per event."),
    ] = "1,2,7,random:1",
    report: Annotated[Path | None, typer.Option("--json", help="Write every result to this JSON file.")] = None,
) -> None:
    """Replay recorded vectors of the real engines and compare each row and slice.

    Example: `tidemark conformance tests/semantics/vectors/*.jsonl.gz --cuts 1,7,random:5`
    """
    check_files = _import_conformance().check_files
    spark = get_spark_session("tidemark conformance")
    progress = partial(track, description="replaying", console=err, transient=True)
    results = list(check_files(spark, files, cuts, progress))
    for result in results:
        if not result.passed:
            out.print(
                f"{result.vector} cut {result.cut}: missing {list(result.missing)}, "
                f"unexpected {list(result.unexpected)}"
            )
    if report:
        report.write_text(json.dumps([result.to_dict() for result in results], indent=1))
    failed = sum(not result.passed for result in results)
    print(f"conformance: {len(results) - failed} passed, {failed} failed")  # noqa: T201
    if failed:
        raise typer.Exit(1)


@app.command()
def schema() -> None:
    """Print the JSON Schema of pipeline files, for editors.

    Example: `tidemark schema > docs/pipeline.schema.json`
    """
    print_json(build_json_schema())


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
        app(arguments, obj=tuple(sys.argv[1:] if arguments is None else arguments))
    except SystemExit as exited:
        return int(exited.code or 0)
    except TidemarkError as error:
        _report_error(
            error, "" if isinstance(error, StoppedError) else "error", to_single_line(str(error)), error.exit_code
        )
        return error.exit_code
    except Exception as error:  # a user gets one line for any fault
        if isinstance(error, ModuleNotFoundError) and (install_error := missing_extra_error(error)):
            _report_error(error, "error", str(install_error), install_error.exit_code)
            return install_error.exit_code
        if os.environ.get("TIDEMARK_DEBUG"):
            raise
        line = f"{type(error).__name__}: {to_single_line(format_safe_message(error))}"
        hint = "(Set TIDEMARK_DEBUG=1 and run again for the traceback.)"
        _report_error(error, "fault", f"{line} {hint}", FaultError.exit_code)
        return FaultError.exit_code
    return 0


def _report_error(error: Exception, label: str, line: str, exit_code: int) -> None:
    """Print or log in one line why the command ends."""
    if json_logging.is_json_enabled():
        level = logging.ERROR if label else logging.WARNING
        _LOG.log(level, "%s", line, extra={**json_logging.error_context(error), "exit_code": exit_code})
        return
    err.print(f"{label and f'[bold red]{label}:[/] '}{_escape_markup(line)}", soft_wrap=True, highlight=False)


def _show_diff(old: Pipeline, new: Pipeline, row_request: Request | None, lake: str | None, *, as_json: bool) -> None:
    """Print the settings that differ and, on request, how many rows would change."""
    differing_settings, rows = diff_pipelines(old, new), None
    if row_request is not None:
        root = resolve_lake_root(lake)
        with read_only_session(root, "tidemark plan", new, old) as spark:
            rows = count_changed_rows(
                spark, old, new, root, select_slices(spark, new, root, row_request.start, row_request.end)
            )
    if not as_json:
        out.print(render_setting_diff(differing_settings))
        if rows:
            out.print(render_changed_rows(rows), soft_wrap=True)
        return
    settings = [asdict(difference) for difference in differing_settings]
    print_json({"settings": settings, "rows": rows.to_dict()} if rows else settings)


def _plan(name: str, lake: str | None, request: Request, candidate: str | None) -> Plan:
    pipeline = to_candidate(load_pipeline(name), candidate)
    session = create_lazy_session(partial(get_spark_session, "tidemark", cluster=pipeline.cluster))
    return create_plan(session, pipeline, resolve_lake_root(lake), request)


def _plan_and_start_session(name: str, lake: str | None, request: Request, candidate: str | None) -> Plan:
    plan_ = _plan(name, lake, request, candidate)
    if plan_.jobs:
        if plan_.pipeline.quality:
            import_gx_in_background()
        start_in_background(plan_.spark, brief=plan_.is_brief)
    return plan_


def _create_request(start: str | None, end: str | None, slices_per_job: str, **options: bool) -> Request:
    with naming_option("--from"):
        start_instant = parse_instant(start) if start else None
    with naming_option("--to"):
        end_instant = parse_instant(end) if end else None
    with naming_option("--slices-per-job"):
        size = _parse_slices_per_job(slices_per_job)
    return Request(start_instant, end_instant, size, **options)


def _escape_markup(text: str) -> str:
    return text.replace("[", r"\[")
