"""Run the main job on real data: January's flights from New York, joined with the weather at their departure.

Writes the inputs as Delta tables, runs the join on the arrival clock and on the event-time clock (most slices as one
Spark job, the last six as jobs of their own), and shows which pairs the stream lost because rows were late. A third
pipeline joins the result with the next departures of each aircraft.
"""

import sys
import time
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from jobs.land_flights import land
from tidemark.cli.progress import run_with_progress
from tidemark.cli.status_summary import Status, summarize_status
from tidemark.config import Pipeline, load_pipeline
from tidemark.delta.paths import resolve_lake_root
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.errors import TidemarkError
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.quality.gx.project import import_gx_in_background
from tidemark.spark.session import get_spark_session

STREAM, BATCH, CHAIN = "flights_weather", "flights_weather_event_time", "flights_turnarounds"
SINGLE_SLICES = 6
"""Number of slices that run as Spark jobs of their own."""
MS_PER_HOUR = 3_600_000
NEXT_COMMANDS = {
    f"tidemark compare run {BATCH} --with {STREAM}/emissions --reference {STREAM}": "a cause for each row that differs",
    f"tidemark status {STREAM} {CHAIN}": "slices, late rows, watermarks",
    f"tidemark quality show {STREAM}": "results of the quality gate",
    "make airflow": "the same in a local Airflow",
}


def run_demo(lake: str, console: Console) -> None:
    """Run the demo on a lake. Committed slices do not run again."""
    started = time.monotonic()
    import_gx_in_background()
    console.print("[bold]1. Write January 2013's flights and weather as Delta tables[/bold]")
    landed = land(get_spark_session("tidemark demo"), lake)
    console.print(
        f"   {landed.flights.rows:,} flights and {landed.weather.rows:,} weather reports, in "
        f"{landed.flights.commits} and {landed.weather.commits} commits"
    )
    pipelines = [load_pipeline(name) for name in (STREAM, BATCH, CHAIN)]
    for number, pipeline in enumerate(pipelines, start=2):
        console.print(f"[bold]{number}. Run {pipeline.name}[/bold], slices in order of {pipeline.clock}")
        _run(pipeline, lake, console)
    stream, batch, chain = (summarize_status(pipeline, lake) for pipeline in pipelines)
    console.print()
    console.print(_render_result(stream, batch))
    next_steps = _describe_next_steps(lake, time.monotonic() - started)
    for line in (_describe_losses(stream, batch), _describe_chain(chain), *next_steps):
        console.print(line, soft_wrap=True, highlight=False)


def _run(pipeline: Pipeline, lake: str, console: Console) -> None:
    spark = get_spark_session("tidemark demo")
    full_plan = create_plan(spark, pipeline, lake, Request())
    if not full_plan.jobs:
        console.print("   all slices are committed already")
        return
    first_job = full_plan.jobs[0]
    if len(first_job) > SINGLE_SLICES:
        request = Request(end=full_plan.grid.datetime_of(first_job[-SINGLE_SLICES]))
        for result in run_with_progress(create_plan(spark, pipeline, lake, request)):
            console.print(f"   {len(result.slices):,} slices as one Spark job: {result.seconds:.1f} s")
    plan = create_plan(spark, pipeline, lake, Request(slices_per_job=1))
    seconds = [result.seconds for result in run_with_progress(plan)]
    console.print(f"   {len(seconds)} slices as jobs of their own: {sum(seconds):.1f} s")


def _render_result(stream: Status, batch: Status) -> Table:
    table = Table("January 2013, New York", "as the stream saw it", "every row on time")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, values in {
        "pairs emitted": [f"{status.emissions:,}" for status in (stream, batch)],
        "flight rows later than the watermark allows (dropped)": [
            _describe_late_rows(status) for status in (stream, batch)
        ],
        "flight rows without a departure time (cancelled), rejected": [
            f"{status.left.rejected:,}" for status in (stream, batch)
        ],
        "hourly slices": [f"{status.slices:,}" for status in (stream, batch)],
    }.items():
        table.add_row(name, *values)
    return table


def _describe_late_rows(status: Status) -> str:
    longest = status.left.lateness.get("max")
    return f"{status.left.late:,}" + (f", at most {longest / MS_PER_HOUR:.0f} h" if longest else "")


def _describe_losses(stream: Status, batch: Status) -> str:
    lost = batch.emissions - stream.emissions
    share = f"{lost:,} pairs ({lost / max(1, batch.emissions):.1%})"
    return f"The stream lost {share}, because flight rows were late or had no departure time."


def _describe_chain(chain: Status) -> str:
    late = f"{chain.right.late:,} departures were late there"
    return f"{CHAIN} reads its output: {chain.emissions:,} pairs with the aircraft's next departures; {late}.\n"


def _describe_next_steps(lake: str, seconds: float) -> Iterator[str]:
    width = max(map(len, NEXT_COMMANDS))
    yield "Try next:"
    for command, description in NEXT_COMMANDS.items():
        yield f"  {command:<{width}}  {description}"
    tables = PipelineTables(f"{lake}/{STREAM}")
    yield f"[dim]Tables: {tables.root}. The demo took {seconds:.0f} s.[/dim]"


def main() -> None:
    """Run the demo on `TIDEMARK_LAKE`, or `./lake`."""
    try:
        run_demo(resolve_lake_root(), Console())
    except TidemarkError as error:
        print(f"demo: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
