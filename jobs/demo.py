"""The main job on real data: January's flights from New York joined with the weather they left in.

Lands the rows in the lake, runs the join on the arrival clock and on the event-time clock (most slices as one Spark
job, the last six as jobs of their own), and shows what the stream lost to lateness.
"""

import sys
import time

from rich.console import Console

from jobs.land_flights import land
from tidemark.cli.progress import run_with_progress
from tidemark.cli.render import render_status, summarize_losses
from tidemark.cli.status import summarize_status
from tidemark.config import Pipeline, load_pipeline
from tidemark.delta.paths import resolve_lake_root
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.errors import TidemarkError
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.quality.gx.data_docs import get_docs_index
from tidemark.quality.gx.project import import_gx_in_background
from tidemark.spark.session import get_spark_session

STREAM, BATCH = "flights_weather", "flights_weather_event_time"
ONE_BY_ONE = 6


def demo(lake: str, console: Console) -> None:
    """Run the demo on a lake; what is committed already is not run again."""
    began = time.monotonic()
    import_gx_in_background()
    console.print("[bold]1. Landing[/bold] January 2013's flights and weather as Delta tables")
    landed = land(get_spark_session("tidemark demo"), lake)
    console.print(
        f"   {landed.flights.rows:,} flights ({landed.cancelled:,} cancelled, which never departed) in "
        f"{landed.flights.commits} commits, {landed.weather.rows:,} hourly weather reports in {landed.weather.commits}"
    )
    pipelines = [load_pipeline(name) for name in (STREAM, BATCH)]
    for number, pipeline in enumerate(pipelines, start=2):
        console.print(f"[bold]{number}. {pipeline.name}[/bold]: slices in order of {pipeline.clock}")
        _run(pipeline, lake, console)
    stream, batch = (summarize_status(pipeline, lake) for pipeline in pipelines)
    console.print(render_status(stream, batch))
    for sentence in summarize_losses(stream, batch):
        console.print(sentence, soft_wrap=True)
    _where_to_look(lake, console)
    console.print(f"[dim]The demo took {time.monotonic() - began:.0f} s.[/dim]")


def _run(pipeline: Pipeline, lake: str, console: Console) -> None:
    spark = get_spark_session("tidemark demo")
    everything = create_plan(spark, pipeline, lake, Request())
    if not everything.jobs:
        console.print("   all slices are committed already")
        return
    ahead = everything.jobs[0]
    if len(ahead) > ONE_BY_ONE:
        bulk = Request(end=everything.grid.datetime_of(ahead[-ONE_BY_ONE]))
        for result in run_with_progress(create_plan(spark, pipeline, lake, bulk)):
            console.print(f"   {len(result.slices):,} slices as one Spark job: {result.seconds:.1f} s")
    singly = create_plan(spark, pipeline, lake, Request(slices_per_job=1))
    seconds = [result.seconds for result in run_with_progress(singly)]
    console.print(
        f"   {len(seconds)} slices as Spark jobs of their own: {sum(seconds):.1f} s, state carried through Delta"
    )


def _where_to_look(lake: str, console: Console) -> None:
    tables = PipelineTables(f"{lake}/{STREAM}")
    console.print()
    console.print(f"Tables:     {tables.root}/emissions, late, checkpoint, ledger (Delta)", soft_wrap=True)
    console.print(f"Data Docs:  {get_docs_index(tables)}", soft_wrap=True)
    console.print("Try next:   tidemark plan flights_weather       what would run now, and why")
    console.print("            tidemark status flights_weather     what is committed")
    console.print("            make airflow                        the same in a local Airflow, hour by hour")


def main() -> None:
    """Run the demo on `TIDEMARK_LAKE`, or `./lake`."""
    try:
        demo(resolve_lake_root(), Console())
    except TidemarkError as error:
        print(f"demo: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
