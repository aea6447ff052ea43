"""The command `tidemark`."""

from __future__ import annotations

import json
import logging
import os
import sys
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.progress import track

import tidemark_conformance as vectors
from tidemark import json_logging
from tidemark.cli.checkpoints import app as state
from tidemark.cli.common import (
    JsonOption,
    LakeOption,
    PipelineArgument,
    PipelinesArgument,
    ShadowOption,
    err,
    naming,
    out,
    print_json,
)
from tidemark.cli.compact import compact
from tidemark.cli.compare import compare
from tidemark.cli.erase import forget
from tidemark.cli.progress import bar, run_with_progress
from tidemark.cli.quality import app as quality
from tidemark.cli.quarantine import app as quarantine
from tidemark.cli.quarantine import release, waive
from tidemark.cli.read_only_session import session_over
from tidemark.cli.render import (
    changed_rows_view,
    changes_view,
    describe_changes,
    dialects_view,
    differences_view,
    lives_view,
    plan_view,
    status_view,
    twin_view,
    what_if_view,
)
from tidemark.cli.status import status_of
from tidemark.cli.vacuum import vacuum
from tidemark.cli.verify import verify
from tidemark.cli.versions import promote, rollback, shadows
from tidemark.comparison import dialects as run_dialects
from tidemark.comparison.config_impact import changed_rows
from tidemark.comparison.row_history import explain, parse_row
from tidemark.comparison.what_if import SETTINGS, span, what_if
from tidemark.config import Pipeline, load_pipeline, pipeline_schema
from tidemark.config.candidate_version import shadow_of
from tidemark.config.diff import differences
from tidemark.config.sides import SIDES
from tidemark.config.types import parse_duration, parse_instant
from tidemark.delta.paths import lake_root
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.errors import FaultError, OlderFormatError, StoppedError, TidemarkError, UserError, lacking
from tidemark.formatting import in_one_line
from tidemark.ledger.upgrade import is_of_older_format
from tidemark.ledger.upgrade import upgrade as upgrade_tables
from tidemark.maintenance.preview import gain_of, oldest_versions
from tidemark.planning.plan import Plan, Request, make_plan
from tidemark.quality.gx import project
from tidemark.spark.error_redaction import told
from tidemark.spark.lazy_session import begin, deferred
from tidemark.spark.session import spark_session
from tidemark.streaming.live_query import TwinPaths
from tidemark.streaming.live_query import stream as run_twin
from tidemark.streaming.replay_source import parse_rate

_LOG = logging.getLogger(__name__)
app = typer.Typer(
    help="Which rows would the streaming join have emitted, over Delta tables, slice by slice.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
app.add_typer(quality, name="quality")
app.add_typer(state, name="state")
app.add_typer(quarantine, name="quarantine")
app.command()(compact)
app.command()(compare)
app.command()(forget)
app.command()(promote)
app.command()(release)
app.command()(rollback)
app.command()(shadows)
app.command()(waive)
app.command()(vacuum)
app.command()(verify)


def _per_job(text: str) -> int | Literal["auto"]:
    if text == "auto":
        return "auto"
    if text.isdigit() and int(text) > 0:
        return int(text)
    raise ValueError(f"{text!r} is not a number of slices above 0, or auto")


FromOption = Annotated[
    str | None,
    typer.Option("--from", metavar="T", help="First slice (its start, ISO 8601). [default: after the last committed]"),
]
ToOption = Annotated[
    str | None, typer.Option("--to", metavar="T", help="End, exclusive (ISO 8601). [default: after the last row]")
]
PerJobOption = Annotated[
    str,
    typer.Option("--slices-per-job", metavar="N|auto", help="Slices of one Spark job; auto: what memory holds."),
]
DrainOption = Annotated[
    bool, typer.Option("--drain", help="End the input: watermark to infinity after the last slice.")
]
EmptyOption = Annotated[
    bool, typer.Option("--from-empty-state", help="Start without a predecessor, losing what it would have carried.")
]
AgainFromOption = Annotated[
    str | None, typer.Option("--from", metavar="T", help="First slice. [default: those that rows have landed for]")
]
AgainToOption = Annotated[
    str | None, typer.Option("--to", metavar="T", help="End, exclusive. [default: the last committed slice's]")
]
AtomicOption = Annotated[bool, typer.Option("--atomic", help="Commit all slices at once, at the end, or none.")]


IncompleteOption = Annotated[
    bool,
    typer.Option("--not-complete-yet/--no-not-complete-yet", help="Do not wait until inputs are complete."),
]
DryOption = Annotated[bool, typer.Option("--dry-run/--no-dry-run", help="Only plan: what would run again, and why.")]
AssetsOption = Annotated[
    bool, typer.Option("--assets-seen", help="Airflow has seen the assets of `complete`; its DAGs say so.")
]


@app.command()
def plan(
    pipeline: PipelineArgument,
    lake: LakeOption = None,
    shadow: ShadowOption = None,
    start: FromOption = None,
    end: ToOption = None,
    slices_per_job: PerJobOption = "auto",
    drain: DrainOption = False,  # noqa: FBT002
    from_empty_state: EmptyOption = False,  # noqa: FBT002
    not_complete_yet: IncompleteOption = False,  # noqa: FBT002
    assets_seen: AssetsOption = False,  # noqa: FBT002
    diff: Annotated[
        str | None,
        typer.Option("--diff", metavar="OLD", help="Show what differs from another pipeline file; needs no lake."),
    ] = None,
    rows: Annotated[  # noqa: FBT002
        bool, typer.Option("--rows", help="With --diff: replay both, and count the rows that would change.")
    ] = False,
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Check a pipeline and show what would run, and why; runs nothing.

    With `--diff OLD` it shows the settings that differ instead and what follows from each; with `--rows` too, how many
    rows would be others, by replays of the slices --from to --to from empty state.

    Example: `tidemark plan flights_weather --to 2013-01-08T00:00Z`
    """
    if diff is not None:
        asked = _request(start, end, "auto") if rows else None
        _show_differences(load_pipeline(diff), load_pipeline(pipeline), asked, lake, as_json=as_json)
        return
    if rows:
        raise UserError("--rows goes with --diff OLD")
    request = _request(
        start, end, slices_per_job,
        drain=drain, from_empty_state=from_empty_state, not_complete_yet=not_complete_yet, assets_seen=assets_seen,
    )  # fmt: skip
    made = _planned(pipeline, lake, request, shadow)
    if as_json:
        print_json(made.describe())
    else:
        out.print(plan_view(made))


@app.command()
def run(
    pipeline: PipelineArgument,
    lake: LakeOption = None,
    shadow: ShadowOption = None,
    start: FromOption = None,
    end: ToOption = None,
    slices_per_job: PerJobOption = "auto",
    drain: DrainOption = False,  # noqa: FBT002
    from_empty_state: EmptyOption = False,  # noqa: FBT002
    atomic: AtomicOption = False,  # noqa: FBT002
    not_complete_yet: IncompleteOption = False,  # noqa: FBT002
    assets_seen: AssetsOption = False,  # noqa: FBT002
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Run slices in order and commit them; committed ones are left alone.

    Example: `tidemark run flights_weather --to 2013-01-08T00:00Z --slices-per-job 24`
    """
    request = _request(
        start, end, slices_per_job,
        drain=drain, from_empty_state=from_empty_state, atomic=atomic,
        not_complete_yet=not_complete_yet, assets_seen=assets_seen,
    )  # fmt: skip
    made = _planned_to_run(pipeline, lake, request, shadow)
    if not as_json:
        out.print(plan_view(made))
    for _ in run_with_progress(made, lines=not as_json):
        pass
    status = status_of(made.pipeline, lake_root(lake))
    if as_json:
        print_json({"ran": made.describe(), "status": status.describe()})
    else:
        out.print(status_view(status))
        out.print(f"Tables: {made.tables.root}/{{emissions,late,checkpoint,ledger}}", soft_wrap=True)


@app.command("what-if")
def what_if_command(
    pipeline: PipelineArgument,
    up_to: Annotated[str, typer.Option("--up-to", metavar="DURATION", help="The greatest value.")],
    vary: Annotated[str, typer.Option("--vary", metavar="SETTING", help=f"One of {', '.join(SETTINGS)}.")] = SETTINGS[
        0
    ],
    since: Annotated[str, typer.Option("--since", metavar="DURATION", help="The least value.")] = "0 s",
    steps: Annotated[int, typer.Option("--steps", min=1, max=60, help="How many values above the least.")] = 8,
    lake: LakeOption = None,
    start: FromOption = None,
    end: ToOption = None,
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Show what other delays, lateness or bounds would have given: rows late, pairs lost, state; nothing is written.

    Example: `tidemark what-if flights_weather --vary left.watermark_delay --up-to "2 hours" --steps 12`
    """
    settings = load_pipeline(pipeline)
    with naming("--since"):
        least = parse_duration(since)
    with naming("--up-to"):
        greatest = parse_duration(up_to)
    if greatest <= least:
        raise UserError(f"--up-to {up_to} is not above --since {since}")
    request, root = _request(start, end, "auto", drain=False, from_empty_state=False), lake_root(lake)
    values = [least + (greatest - least) * n / steps for n in range(steps + 1)]
    with session_over(root, "tidemark what-if", settings) as spark:
        slices = span(spark, settings, root, request.start, request.end)
        result = what_if(spark, settings, root, vary, values, slices)
    if as_json:
        print_json(result.describe())
    else:
        out.print(what_if_view(result))


@app.command()
def dialects(
    pipeline: PipelineArgument,
    lake: LakeOption = None,
    start: Annotated[str | None, typer.Option("--from", metavar="T", help="First slice. [default: the first]")] = None,
    end: ToOption = None,
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Show what each dialect makes of the same data, and the rules in which they differ; nothing is written.

    Example: `tidemark dialects flights_weather --to 2013-01-08T00:00Z`
    """
    settings, root = load_pipeline(pipeline), lake_root(lake)
    request = _request(start, end, "auto")
    with session_over(root, "tidemark dialects", settings) as spark:
        result = run_dialects(spark, settings, root, span(spark, settings, root, request.start, request.end))
    if as_json:
        print_json(result.describe())
    else:
        out.print(dialects_view(result))


@app.command()
def reprocess(
    pipeline: PipelineArgument,
    lake: LakeOption = None,
    shadow: ShadowOption = None,
    start: AgainFromOption = None,
    end: AgainToOption = None,
    slices_per_job: PerJobOption = "auto",
    atomic: AtomicOption = False,  # noqa: FBT002
    dry_run: DryOption = False,  # noqa: FBT002
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Run committed slices again over the inputs as they are now, and those behind them until the state is as it was.

    Readers see the old answer of a slice until its new one is committed.

    Example: `tidemark reprocess flights_weather --from 2013-01-10T00:00Z --to 2013-01-11T00:00Z`
    """
    request = _request(start, end, slices_per_job, reprocess=True, atomic=atomic)
    if dry_run:
        made = _planned(pipeline, lake, request, shadow)
        if as_json:
            print_json(made.describe())
        else:
            out.print(plan_view(made))
        return
    made = _planned_to_run(pipeline, lake, request, shadow)
    if not as_json:
        out.print(plan_view(made))
    results = list(run_with_progress(made, lines=not as_json))
    if as_json:
        print_json({"ran": made.describe(), "changes": describe_changes(made.grid, results)})
    elif results:
        out.print(changes_view(made.grid, results))


@app.command()
def stream(
    pipeline: PipelineArgument,
    lake: LakeOption = None,
    rate: Annotated[str, typer.Option(metavar="slice|N rows|now", help="What a micro-batch takes.")] = "slice",
    into: Annotated[
        str | None, typer.Option(metavar="TABLE", help="A Delta path for its output. [default: OUTPUT/twin/emissions]")
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="PATH", help="The query's checkpoint. [default: OUTPUT/twin/_checkpoint]")
    ] = None,
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Run the pipeline's join as a real Structured Streaming query, its streaming twin (dialect spark).

    Example: `tidemark stream benchmarks/flights_weather_spark.yaml --rate "500 rows"`
    """
    loaded, root = load_pipeline(pipeline), lake_root(lake)
    with naming("--rate"):
        size = parse_rate(rate)
    with bar("batches") as shown:
        task = shown.add_task(f"{loaded.name}: writing the feed", total=None)

        def progress(done: int, total: int | None) -> None:
            shown.update(task, description=f"{loaded.name}: streaming", completed=done, total=total)

        spark = spark_session("tidemark stream")
        result = run_twin(spark, loaded, root, TwinPaths.of(loaded, root, into, checkpoint), size, progress)
    if as_json:
        print_json(result.describe())
    else:
        out.print(twin_view(result), soft_wrap=True)


@app.command("explain")
def explain_command(
    pipeline: PipelineArgument,
    left: Annotated[str, typer.Option("--left", metavar="ROW", help="Values of a left row: a=1,b=2.")] = "",
    right: Annotated[str, typer.Option("--right", metavar="ROW", help="Values of a right row.")] = "",
    lake: LakeOption = None,
    shadow: ShadowOption = None,
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Tell the life of an input row: when it came, on time or late, what it met, when it left; nothing is written.

    Example: `tidemark explain flights_weather --left "carrier=UA,flight=1545,scheduled_departure=2013-01-01T10:15Z"`
    """
    settings = shadow_of(load_pipeline(pipeline), shadow)
    asked = {}
    for side, text in zip(SIDES, (left, right), strict=True):
        if text:
            with naming(f"--{side}"):
                asked[side] = parse_row(text)
    if not asked:
        raise UserError("name a row: --left or --right, with values such as 'carrier=UA,flight=1545'")
    root = lake_root(lake)
    with session_over(root, "tidemark explain", settings) as spark:
        lives = [life for side, row in asked.items() for life in explain(spark, settings, root, side, row)]
    if as_json:
        print_json([life.describe() for life in lives])
    else:
        out.print(lives_view(lives), soft_wrap=True)


@app.command()
def status(
    pipelines: PipelinesArgument,
    lake: LakeOption = None,
    shadow: ShadowOption = None,
    upkeep: Annotated[  # noqa: FBT002
        bool, typer.Option("--upkeep", help="Tell, too, what vacuum and compact would gain; it lists all files.")
    ] = False,
    as_json: JsonOption = False,  # noqa: FBT002
) -> None:
    """Show what pipelines have committed, side by side.

    Example: `tidemark status flights_weather flights_weather_event_time`
    """
    loaded, root = [shadow_of(load_pipeline(name), shadow) for name in pipelines], lake_root(lake)
    statuses = [
        replace(status_of(one, root), oldest=oldest_versions(one, root), upkeep=gain_of(one, root) if upkeep else None)
        for one in loaded
    ]
    if as_json:
        print_json([one.describe() for one in statuses])
    else:
        out.print(status_view(*statuses))


@app.command()
def upgrade(pipelines: PipelinesArgument, lake: LakeOption = None) -> None:
    """Take over tables that an earlier version wrote, so that a plain read of them is the committed answer.

    The next `tidemark run` does so too. An earlier version refuses them from then on.

    Example: `tidemark upgrade flights_weather`
    """
    root = lake_root(lake)
    for pipeline in map(load_pipeline, pipelines):
        told = "is of the present format"
        if is_of_older_format(pipeline, root):
            upgrade_tables(spark_session("tidemark upgrade"), pipeline, root)
            told = "is taken over"
        out.print(f"{pipeline.name}: {PipelineTables.of(pipeline, root).root} {told}", soft_wrap=True)


@app.command()
def conformance(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Vector files, JSON lines, may be gzipped.")],
    cuts: Annotated[
        str, typer.Option(help="Numbers of slices, `random:SEED`, or `each` (a slice per event).")
    ] = "1,2,7,random:1",
    report: Annotated[Path | None, typer.Option("--json", help="Write every verdict to this file.")] = None,
) -> None:
    """Replay what the real engines did and compare, to the row and the slice.

    Example: `tidemark conformance tests/semantics/vectors/*.jsonl.gz --cuts 1,7,random:5`
    """
    spark = spark_session("tidemark conformance")
    shown = partial(track, description="replaying", console=err, transient=True)
    verdicts = list(vectors.check_files(spark, files, cuts, shown))
    for verdict in verdicts:
        if not verdict.passed:
            out.print(
                f"{verdict.vector} cut {verdict.cut}: missing {list(verdict.missing)}, "
                f"unexpected {list(verdict.unexpected)}"
            )
    if report:
        report.write_text(json.dumps([verdict.describe() for verdict in verdicts], indent=1))
    failed = sum(not verdict.passed for verdict in verdicts)
    print(f"conformance: {len(verdicts) - failed} passed, {failed} failed")  # noqa: T201
    if failed:
        raise typer.Exit(1)


@app.command()
def schema() -> None:
    """Print the JSON Schema of a pipeline file, for editors.

    Example: `tidemark schema > docs/pipeline.schema.json`
    """
    print_json(pipeline_schema())


def main(arguments: list[str] | None = None) -> int:
    """Run the command; its exit code: 0 done, 1 a check failed, 2 the user's mistake, 3 a fault, 143 stopped."""
    if json_logging.are_json():
        json_logging.to_json()
    try:
        app(arguments, obj=tuple(sys.argv[1:] if arguments is None else arguments))
    except SystemExit as exited:
        return int(exited.code or 0)
    except TidemarkError as error:
        _tell(error, "" if isinstance(error, StoppedError) else "error", in_one_line(str(error)), error.exit_code)
        return error.exit_code
    except Exception as error:  # whatever it is, a user gets one line of it
        if isinstance(error, ModuleNotFoundError) and (mistake := lacking(error)):
            _tell(error, "error", str(mistake), mistake.exit_code)
            return mistake.exit_code
        if os.environ.get("TIDEMARK_DEBUG"):
            raise
        line = f"{type(error).__name__}: {in_one_line(told(error))}"
        more = "(set TIDEMARK_DEBUG=1 and run again to see all of it)"
        _tell(error, "fault", f"{line} {more}", FaultError.exit_code)
        return FaultError.exit_code
    return 0


def _tell(error: Exception, kind: str, line: str, exit_code: int) -> None:
    """Say why the command ends, in a line."""
    if json_logging.are_json():
        level = logging.ERROR if kind else logging.WARNING
        _LOG.log(level, "%s", line, extra={**json_logging.told_of(error), "exit_code": exit_code})
        return
    err.print(f"{kind and f'[bold red]{kind}:[/] '}{_escaped(line)}", soft_wrap=True, highlight=False)


def _show_differences(old: Pipeline, new: Pipeline, asked: Request | None, lake: str | None, *, as_json: bool) -> None:
    """Settings that differ and, of the slices asked for, the rows."""
    found, rows = differences(old, new), None
    if asked is not None:
        root = lake_root(lake)
        with session_over(root, "tidemark plan", new, old) as spark:
            rows = changed_rows(spark, old, new, root, span(spark, new, root, asked.start, asked.end))
    if not as_json:
        out.print(differences_view(found))
        if rows:
            out.print(changed_rows_view(rows), soft_wrap=True)
        return
    told = [asdict(one) for one in found]
    print_json({"settings": told, "rows": rows.describe()} if rows else told)


def _planned(name: str, lake: str | None, request: Request, shadow: str | None) -> Plan:
    pipeline = shadow_of(load_pipeline(name), shadow)
    session = deferred(partial(spark_session, "tidemark", cluster=pipeline.cluster))
    return make_plan(session, pipeline, lake_root(lake), request)


def _planned_to_run(name: str, lake: str | None, request: Request, shadow: str | None) -> Plan:
    try:
        made = _planned(name, lake, request, shadow)
    except OlderFormatError:
        pipeline = load_pipeline(name)
        upgrade_tables(spark_session("tidemark"), pipeline, lake_root(lake))
        err.print(f"{pipeline.name}: its tables are taken over from an earlier format", soft_wrap=True)
        made = _planned(name, lake, request, shadow)
    if made.jobs:
        if made.pipeline.quality:
            project.import_early()
        begin(made.spark, brief=made.is_brief)
    return made


def _request(start: str | None, end: str | None, slices_per_job: str, **options: bool) -> Request:
    with naming("--from"):
        first = parse_instant(start) if start else None
    with naming("--to"):
        last = parse_instant(end) if end else None
    with naming("--slices-per-job"):
        size = _per_job(slices_per_job)
    return Request(first, last, size, **options)


def _escaped(text: str) -> str:
    return text.replace("[", r"\[")
