"""Implement the commands `tidemark conformance` and `tidemark stream`, which check results against real engines."""

from __future__ import annotations

import json
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer
from rich.progress import track

from tidemark.cli.common import PipelineArgument, err, get_lake_root, naming_option, out, print_result
from tidemark.cli.progress import create_progress_bar
from tidemark.config import load_pipeline
from tidemark.errors import UserError
from tidemark.formatting import format_count
from tidemark.spark.session import get_spark_session
from tidemark.streaming.live_query import LiveQueryPaths, LiveQueryResult, run_live_query
from tidemark.streaming.replay_source import parse_rate


def conformance(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Vector files: JSON lines, plain or gzipped.")],
    cuts: Annotated[
        str,
        typer.Option(help="Numbers of slices to cut a vector into, `random:SEED`, or `each` for a slice per event."),
    ] = "1,2,7,random:1",
    report: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Write every result to this JSON file.")
    ] = None,
) -> None:
    """Replay recorded vectors of the real engines and compare each row and slice.

    Example: `tidemark conformance tests/semantics/vectors/*.jsonl.gz --cuts 1,7,random:5`
    """
    check_files = _import_conformance().check_files
    if missing := [str(file) for file in files if not file.is_file()]:
        raise UserError(f"there is no vector file {', '.join(missing)}. Check the path.")
    spark = get_spark_session("tidemark conformance")
    progress = partial(track, description="replaying", console=err, transient=True)
    results = list(check_files(spark, files, cuts, progress))
    for result in results:
        if not result.passed:
            out.print(
                f"{result.vector} cut {result.cut}: missing {list(result.missing)}, "
                f"unexpected {list(result.unexpected)}",
                markup=False,
            )
    if report:
        report.write_text(json.dumps([result.to_dict() for result in results], indent=1))
    failed = sum(not result.passed for result in results)
    print(f"conformance: {len(results) - failed} passed, {failed} failed")  # noqa: T201
    if failed:
        raise typer.Exit(1)


def stream(
    pipeline: PipelineArgument,
    rate: Annotated[
        str,
        typer.Option(
            metavar="slice|N rows|now", help="Rows per micro-batch: a slice, N rows, or (now) as Spark chooses."
        ),
    ] = "slice",
    output: Annotated[
        str | None,
        typer.Option(metavar="TABLE", help="A Delta path for its output. [default: OUTPUT/live_query/emissions]"),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="The query's checkpoint. [default: OUTPUT/live_query/_checkpoint]"),
    ] = None,
) -> None:
    """Run the join as a real Structured Streaming query (dialect spark).

    Example: `tidemark stream benchmarks/flights_weather_spark.yaml --rate "500 rows"`
    """
    loaded, root = load_pipeline(pipeline), get_lake_root()
    with naming_option("--rate"):
        size = parse_rate(rate)
    with create_progress_bar("batches") as progress_bar:
        task = progress_bar.add_task(f"{loaded.name}: writing the feed", total=None)

        def progress(done: int, total: int | None) -> None:
            progress_bar.update(task, description=f"{loaded.name}: streaming", completed=done, total=total)

        spark = get_spark_session("tidemark stream")
        result = run_live_query(
            spark, loaded, root, LiveQueryPaths.from_pipeline(loaded, root, output, checkpoint), size, progress
        )
    print_result(result, lambda: _render_live_query(result), soft_wrap=True)


def _import_conformance() -> ModuleType:
    """Import the conformance tests, which only the repository contains, not the wheel.

    Raises:
        UserError: They are not installed.
    """
    try:
        return import_module("tidemark_conformance")
    except ModuleNotFoundError as error:
        if error.name != "tidemark_conformance":
            raise
        raise UserError(
            "the conformance tests are not installed: they come with the repository, not with the wheel. "
            "Clone the repository, run make setup, and use .venv/bin/tidemark there"
        ) from None


def _render_live_query(result: LiveQueryResult) -> str:
    """Show what a live query wrote, and how to replay it."""
    line = (
        f"{result.pipeline} streamed by {result.rate}: {format_count(result.rows, 'row')} from "
        f"{format_count(result.batches, 'micro-batch')} in {result.seconds:,.1f} s, "
        f"{result.dropped:,} dropped behind the watermark\nTable: {result.table}"
    )
    return f"{line}\nReplay: tidemark run {result.replay} --to {result.replay_to}" if result.replay else line
