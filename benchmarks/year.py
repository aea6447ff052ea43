"""Measure planning and committing a year of hourly slices over a few million rows.

- plan time with an empty ledger, after 1,000 slices and after all;
- the time of the year in jobs as large as `--slices-per-job auto` makes them, against the same join in a dozen slices;
- files and log of each table.

With --one-by-one N instead: N slices over a few rows, a job each; how memory develops, and the time of the last twenty
against that of a fresh pipeline's first twenty, in turns.

Usage: python -m benchmarks.year [--rows 2000000] [--one-by-one N]
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import psutil
import yaml
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemark.config import Pipeline, load_pipeline
from tidemark.config.types import parse_instant
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.execution.run import execute
from tidemark.planning.plan import Plan
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.quality.gx.project import import_gx_in_background
from tidemark.spark.session import get_spark_session

START = "2023-01-01T00:00:00Z"
HOURS = 365 * 24
T = TypeVar("T")
KEYS = 500
SLICES_PER_REPORT, TURNS = 100, 20
PIPELINE = {
    "dialect": "flink-datastream",
    "left": {"table": "left", "event_time": "at", "arrival": "seen", "watermark_delay": "5 minutes"},
    "right": {"table": "right", "event_time": "at", "arrival": "seen", "watermark_delay": "5 minutes"},
    "join": {"keys": ["key"], "interval": {"lower": "-30 minutes", "upper": "30 minutes"}},
}


def generate_rows(spark: SparkSession, rows: int, hours: int, seed: int) -> DataFrame:
    """Generate rows over the hours and all keys, up to five minutes out of order, 1 % up to two hours late."""
    delay = F.when(F.rand(seed + 1) < 0.01, F.rand(seed + 2) * 7200).otherwise(F.rand(seed + 3) * 290)  # noqa: PLR2004
    arrival = (F.col("id") * (hours * 3_600_000_000 / rows)).cast("long")
    start = F.unix_micros(F.lit(START).cast("timestamp"))
    return spark.range(rows, numPartitions=8).select(
        (F.rand(seed) * KEYS).cast("long").alias("key"),
        F.timestamp_micros(F.greatest(start, start + arrival - (delay * 1e6).cast("long"))).alias("at"),
        F.timestamp_micros(start + arrival).alias("seen"),
        "id",
    )


def create_pipeline(lake: Path, name: str, every: str) -> Pipeline:
    """Create the pipeline with slices of a length and its own output."""
    path = lake / f"{name}.yaml"
    path.write_text(yaml.safe_dump({"name": name, **PIPELINE, "slices": {"every": every, "start": START}}))
    return load_pipeline(path)


def time_call(name: str, work: Callable[[], T]) -> T:
    """Call a function, print its seconds, and return its result."""
    began = time.monotonic()
    result = work()
    print(f"{name:38} {time.monotonic() - began:7.1f} s", flush=True)
    return result


def print_table_sizes(tables: PipelineTables, slices: int) -> None:
    """Print the number of files and the log size of each table."""
    for path in (tables.emissions, tables.late, tables.checkpoint, tables.ledger):
        log = list(Path(path, "_delta_log").iterdir())
        data = [file for file in Path(path).rglob("*.parquet") if "_delta_log" not in file.parts]
        size = sum(file.stat().st_size for file in log)
        print(f"{Path(path).name:12} {len(data):5} files ({len(data) / slices:.4f} a slice), log {size / 1e6:.2f} MB")


def run_plan(plan: Plan) -> float:
    """Run a plan, and return the seconds of its jobs."""
    return sum(result.seconds for result in execute(plan.spark, plan, lambda *_: None))


def measure_year(spark: SparkSession, lake: Path, rows: int) -> None:
    """Measure the year at hourly slices."""
    for seed, side in enumerate(("left", "right")):
        generate_rows(spark, rows, HOURS, 10 * seed).write.format("delta").save(f"{lake}/{side}")
    coarse, hourly = create_pipeline(lake, "coarse", "730 hours"), create_pipeline(lake, "hourly", "1 hour")
    end, first = parse_instant(START) + timedelta(hours=HOURS), parse_instant(START) + timedelta(hours=1000)

    def plan(settings: Pipeline, **request: Any) -> Plan:
        planned = create_plan(spark, settings, str(lake), Request(**request))
        planned.to_dict()
        return planned

    warm = plan(create_pipeline(lake, "warm_up", "730 hours"), end=end)
    run_plan(warm)
    time_call("the year in a dozen slices", lambda: run_plan(plan(coarse, end=end)))
    planned = time_call("plan of 8,760 slices, auto", lambda: plan(hourly))
    print(f"  {planned.slice_count:,} slices in {len(planned.jobs)} jobs: {planned.to_dict()['job_size_reason']}")
    time_call("plan of 8,760 slices, a job each", lambda: plan(hourly, slices_per_job=1))
    time_call("the first 1,000 slices", lambda: run_plan(plan(hourly, end=first)))
    time_call("plan after 1,000 slices", lambda: plan(hourly))
    time_call("the other 7,760 slices", lambda: run_plan(plan(hourly, end=end)))
    time_call("plan after 8,760 slices", lambda: plan(hourly))
    print_table_sizes(planned.tables, HOURS)


def measure_single_slices(spark: SparkSession, lake: Path, slices: int) -> None:
    """Measure a job per slice; the last ones in turns with the first ones of another pipeline.

    The machine's speed varies, so runs close in time are compared, not the end with the start.
    """
    for seed, side in enumerate(("left", "right")):
        generate_rows(spark, 20 * slices, slices, 10 * seed).write.format("delta").save(f"{lake}/{side}")

    def run_jobs(name: str, count: int) -> Iterator[float]:
        end = parse_instant(START) + timedelta(hours=count)
        planned = create_plan(
            spark, create_pipeline(lake, name, "1 hour"), str(lake), Request(end=end, slices_per_job=1)
        )
        return iterate_durations(execute(spark, planned, lambda *_: None))

    durations = run_jobs("single", slices)
    for first_slice in range(0, slices - TURNS, SLICES_PER_REPORT):
        end_slice = min(first_slice + SLICES_PER_REPORT, slices - TURNS)
        seconds = median(islice(durations, end_slice - first_slice))
        print(
            f"slice {end_slice:5}: {seconds:5.2f} s a slice; {measure_resident_memory():,.0f} MB resident, "
            f"{measure_heap(spark):,.0f} MB of the JVM's heap in use",
            flush=True,
        )
    last, first = zip(*zip(durations, run_jobs("fresh", TURNS), strict=True), strict=True)
    print(
        f"in turns: the last {TURNS} of {slices:,} slices {median(last):.2f} s, the first {TURNS} of a fresh pipeline "
        f"{median(first):.2f} s, ratio {median(last) / median(first):.2f}"
    )
    time_call(
        "plan after all",
        lambda: create_plan(spark, create_pipeline(lake, "single", "1 hour"), str(lake), Request()).to_dict(),
    )
    print_table_sizes(PipelineTables(f"{lake}/single"), slices)


def iterate_durations(steps: Iterable[object]) -> Iterator[float]:
    """Yield the seconds that each step of an iterator takes."""
    remaining = iter(steps)
    while True:
        began = time.monotonic()
        if next(remaining, None) is None:
            return
        yield time.monotonic() - began


def measure_resident_memory() -> float:
    """Return the resident memory in MB of this process and the JVM."""
    own = psutil.Process()
    return float(sum(process.memory_info().rss for process in (own, *own.children(recursive=True)))) / 1e6


def measure_heap(spark: SparkSession) -> float:
    """Return the used heap of the JVM in MB, after a garbage collection."""
    jvm = spark.sparkContext._jvm  # noqa: SLF001
    assert jvm is not None, "a classic session has a JVM"
    runtime = jvm.java.lang.Runtime.getRuntime()
    runtime.gc()
    return float(runtime.totalMemory() - runtime.freeMemory()) / 1e6


def main() -> None:
    """Measure the year, or single slices."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows per side")
    parser.add_argument("--one-by-one", type=int, metavar="N", help="run N slices over a few rows, a job each")
    arguments = parser.parse_args()
    if arguments.one_by_one is not None and arguments.one_by_one <= TURNS:
        parser.error(f"--one-by-one {arguments.one_by_one}: must be greater than {TURNS}.")
    spark = get_spark_session("tidemark year")
    import_gx_in_background()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.one_by_one:
            measure_single_slices(spark, Path(folder), arguments.one_by_one)
        else:
            measure_year(spark, Path(folder), arguments.rows)


if __name__ == "__main__":
    main()
