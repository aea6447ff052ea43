"""A year of hourly slices over a few million rows: what planning and committing 8,760 slices costs.

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
from tidemark.planning.plan import Plan, Request, make_plan
from tidemark.quality.gx import project
from tidemark.spark.session import spark_session

START = "2023-01-01T00:00:00Z"
HOURS = 365 * 24
T = TypeVar("T")
KEYS = 500
EACH, TURNS = 100, 20
PIPELINE = {
    "dialect": "flink-datastream",
    "left": {"table": "left", "event_time": "at", "arrival": "seen", "watermark_delay": "5 minutes"},
    "right": {"table": "right", "event_time": "at", "arrival": "seen", "watermark_delay": "5 minutes"},
    "join": {"keys": ["key"], "interval": {"lower": "-30 minutes", "upper": "30 minutes"}},
}


def generate(spark: SparkSession, rows: int, hours: int, seed: int) -> DataFrame:
    """Rows spread over the hours and all keys, up to five minutes out of order, and 1 % up to two hours late."""
    delay = F.when(F.rand(seed + 1) < 0.01, F.rand(seed + 2) * 7200).otherwise(F.rand(seed + 3) * 290)  # noqa: PLR2004
    seen = (F.col("id") * (hours * 3_600_000_000 / rows)).cast("long")
    start = F.unix_micros(F.lit(START).cast("timestamp"))
    return spark.range(rows, numPartitions=8).select(
        (F.rand(seed) * KEYS).cast("long").alias("key"),
        F.timestamp_micros(F.greatest(start, start + seen - (delay * 1e6).cast("long"))).alias("at"),
        F.timestamp_micros(start + seen).alias("seen"),
        "id",
    )


def pipeline(lake: Path, name: str, every: str) -> Pipeline:
    """The pipeline with slices of this length, and an output of its own."""
    path = lake / f"{name}.yaml"
    path.write_text(yaml.safe_dump({"name": name, **PIPELINE, "slices": {"every": every, "start": START}}))
    return load_pipeline(path)


def timed(name: str, work: Callable[[], T]) -> T:
    """What some work gives; its seconds are printed."""
    began = time.monotonic()
    done = work()
    print(f"{name:38} {time.monotonic() - began:7.1f} s", flush=True)
    return done


def told(tables: PipelineTables, slices: int) -> None:
    """Files and log of each table."""
    for path in (tables.emissions, tables.late, tables.checkpoint, tables.ledger):
        log = list(Path(path, "_delta_log").iterdir())
        data = [file for file in Path(path).rglob("*.parquet") if "_delta_log" not in file.parts]
        size = sum(file.stat().st_size for file in log)
        print(f"{Path(path).name:12} {len(data):5} files ({len(data) / slices:.4f} a slice), log {size / 1e6:.2f} MB")


def run(plan: Plan) -> float:
    """Run a plan; seconds of its jobs."""
    return sum(result.seconds for result in execute(plan.spark, plan, lambda *_: None))


def year(spark: SparkSession, lake: Path, rows: int) -> None:
    """The year at hourly slices."""
    for seed, side in enumerate(("left", "right")):
        generate(spark, rows, HOURS, 10 * seed).write.format("delta").save(f"{lake}/{side}")
    coarse, hourly = pipeline(lake, "coarse", "730 hours"), pipeline(lake, "hourly", "1 hour")
    end, first = parse_instant(START) + timedelta(hours=HOURS), parse_instant(START) + timedelta(hours=1000)

    def plan(settings: Pipeline, **request: Any) -> Plan:
        made = make_plan(spark, settings, str(lake), Request(**request))
        made.describe()
        return made

    warm = plan(pipeline(lake, "warm_up", "730 hours"), end=end)
    run(warm)
    timed("the year in a dozen slices", lambda: run(plan(coarse, end=end)))
    made = timed("plan of 8,760 slices, auto", lambda: plan(hourly))
    print(f"  {made.slices:,} slices in {len(made.jobs)} jobs: {made.describe()['sizing']}")
    timed("plan of 8,760 slices, a job each", lambda: plan(hourly, slices_per_job=1))
    timed("the first 1,000 slices", lambda: run(plan(hourly, end=first)))
    timed("plan after 1,000 slices", lambda: plan(hourly))
    timed("the other 7,760 slices", lambda: run(plan(hourly, end=end)))
    timed("plan after 8,760 slices", lambda: plan(hourly))
    told(made.tables, HOURS)


def one_by_one(spark: SparkSession, lake: Path, slices: int) -> None:
    """A job a slice; the last of them in turns with the first of another pipeline.

    The machine is not the same all the time: neighbours in time are compared, not the end with the start.
    """
    for seed, side in enumerate(("left", "right")):
        generate(spark, 20 * slices, slices, 10 * seed).write.format("delta").save(f"{lake}/{side}")

    def jobs(name: str, count: int) -> Iterator[float]:
        end = parse_instant(START) + timedelta(hours=count)
        made = make_plan(spark, pipeline(lake, name, "1 hour"), str(lake), Request(end=end, slices_per_job=1))
        return durations(execute(spark, made, lambda *_: None))

    running = jobs("single", slices)
    for before in range(0, slices - TURNS, EACH):
        done = min(before + EACH, slices - TURNS)
        took = median(islice(running, done - before))
        print(
            f"slice {done:5}: {took:5.2f} s a slice; {resident():,.0f} MB resident, "
            f"{live(spark):,.0f} MB of the JVM's heap in use",
            flush=True,
        )
    last, first = zip(*zip(running, jobs("fresh", TURNS), strict=True), strict=True)
    print(
        f"in turns: the last {TURNS} of {slices:,} slices {median(last):.2f} s, the first {TURNS} of a fresh pipeline "
        f"{median(first):.2f} s, ratio {median(last) / median(first):.2f}"
    )
    timed(
        "plan after all", lambda: make_plan(spark, pipeline(lake, "single", "1 hour"), str(lake), Request()).describe()
    )
    told(PipelineTables(f"{lake}/single"), slices)


def durations(steps: Iterable[object]) -> Iterator[float]:
    """Seconds of each step of an iterator, measured from its being asked for."""
    remaining = iter(steps)
    while True:
        began = time.monotonic()
        if next(remaining, None) is None:
            return
        yield time.monotonic() - began


def resident() -> float:
    """Resident memory in MB of this process and the JVM."""
    own = psutil.Process()
    return float(sum(one.memory_info().rss for one in (own, *own.children(recursive=True)))) / 1e6


def live(spark: SparkSession) -> float:
    """MB of the JVM's heap that are in use once its garbage is collected."""
    jvm = spark.sparkContext._jvm  # noqa: SLF001
    assert jvm is not None, "a classic session has a JVM"
    runtime = jvm.java.lang.Runtime.getRuntime()
    runtime.gc()
    return float(runtime.totalMemory() - runtime.freeMemory()) / 1e6


def main() -> None:
    """Measure one of both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows a side")
    parser.add_argument("--one-by-one", type=int, metavar="N", help="run N slices over a few rows, a job each")
    arguments = parser.parse_args()
    if arguments.one_by_one is not None and arguments.one_by_one <= TURNS:
        parser.error(f"--one-by-one {arguments.one_by_one}: give more than {TURNS}")
    spark = spark_session("tidemark year")
    project.import_early()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.one_by_one:
            one_by_one(spark, Path(folder), arguments.one_by_one)
        else:
            year(spark, Path(folder), arguments.rows)


if __name__ == "__main__":
    main()
