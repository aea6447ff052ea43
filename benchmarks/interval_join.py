"""Label + join + publish of an interval join, as a ratio to the cost of moving the same data.

Both are measured in one run and in turns, because machines are shared and noisy:

- floor: scan both inputs, shuffle them by key, write them as Delta tables;
- tidemark: `run` over the same tables, 24 hourly slices in one Spark job: watermarks, join, late rows, checkpoint,
  quality gate, ledger.

Usage: python benchmarks/interval_join.py [--rows 4000000] [--rounds 3]
"""

import argparse
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import yaml
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemark.cli.status import Status, status_of
from tidemark.execution import quality
from tidemark.execution.run import execute
from tidemark.planning.plan import Request, make_plan
from tidemark.settings import load_pipeline
from tidemark.spark.session import spark_session

KEYS = 50_000
DAY = 24 * 3600
LATE_SHARE = 0.01
PIPELINE = {
    "name": "bench",
    "dialect": "flink-datastream",
    "left": {"table": "left", "event_time": "at", "arrival": "seen", "watermark_delay": "1 minute"},
    "right": {"table": "right", "event_time": "at", "arrival": "seen", "watermark_delay": "1 minute"},
    "join": {"keys": ["key"], "interval": {"lower": "-5 minutes", "upper": "10 minutes"}},
    "slices": {"every": "1 hour", "start": "2024-01-01T00:00:00Z"},
}


def generate(spark: SparkSession, rows: int, seed: int, late_share: float = LATE_SHARE) -> DataFrame:
    """Rows over a day and all keys, in disorder within the delay; a share of them is ten minutes to an hour late."""
    second = F.rand(seed) * DAY
    straggles = F.rand(seed + 1) < late_share
    delay = F.when(straggles, 600 + F.rand(seed + 2) * 3000).otherwise(F.rand(seed + 3) * 50)
    start = F.lit("2024-01-01T00:00:00Z").cast("timestamp")
    return (
        spark.range(0, rows, numPartitions=8)
        .select(
            (F.rand(seed + 4) * KEYS).cast("long").alias("key"),
            F.timestamp_micros(F.unix_micros(start) + (second * 1e6).cast("long")).alias("at"),
            delay.alias("delay"),
            F.rand(seed + 5).alias("value"),
            F.col("id"),
        )
        .withColumn("seen", F.timestamp_micros(F.unix_micros("at") + (F.col("delay") * 1e6).cast("long")))
        .drop("delay")
        .where(F.col("seen") < F.timestamp_micros(F.unix_micros(start) + DAY * 1_000_000))
    )


def floor(spark: SparkSession, lake: Path) -> None:
    """Scan, shuffle by key, write."""
    for side in ("left", "right"):
        rows = spark.read.format("delta").load(f"{lake}/{side}")
        rows.repartition("key").write.format("delta").mode("overwrite").save(f"{lake}/floor_{side}")


def tidemark(spark: SparkSession, lake: Path, output: str, **changes: object) -> Status:
    """Run the pipeline over the whole day into a new output."""
    path = lake / "bench.yaml"
    path.write_text(yaml.safe_dump({**PIPELINE, **changes, "output": output}))
    pipeline = load_pipeline(path)
    plan = make_plan(spark, pipeline, str(lake), Request())
    results = list(execute(spark, plan, lambda *_: None))
    gate = sum(result.verdict.seconds for result in results)
    print(f"  of which the quality gate: {gate:.1f} s of {sum(result.seconds for result in results):.1f} s")
    return status_of(pipeline, str(lake))


def timed(name: str, work: Callable[[], object]) -> float:
    """Seconds that some work takes, printed."""
    began = time.monotonic()
    work()
    seconds = time.monotonic() - began
    print(f"{name:10} {seconds:6.1f} s", flush=True)
    return seconds


def peak_memory() -> str:
    """Peak resident memory of this process's Spark (driver and executors in one JVM)."""
    for status in Path("/proc").glob("[0-9]*/status"):
        text = status.read_text() if status.exists() else ""
        if re.search(r"^Name:\s+java$", text, re.MULTILINE) and (peak := re.search(r"VmHWM:\s+(\d+) kB", text)):
            return f"{int(peak[1]) / 1e6:.1f} GB"
    return "unknown"


def main() -> None:
    """Generate, warm up, measure in turns, print the ratio of the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4_000_000, help="rows a side")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    spark = spark_session("tidemark bench")
    quality.import_early()
    with tempfile.TemporaryDirectory() as folder:
        lake = Path(folder)
        for seed, side in enumerate(("left", "right")):
            generate(spark, arguments.rows, 10 * seed).write.format("delta").save(f"{lake}/{side}")
        floor(spark, lake)
        status = tidemark(spark, lake, "warm_up")
        print(f"{status.emissions:,} pairs, {status.left.late + status.right.late:,} late rows, warmed up")
        rounds = [
            (
                timed("floor", lambda: floor(spark, lake)),
                timed("tidemark", lambda n=n: tidemark(spark, lake, f"round_{n}")),
            )
            for n in range(arguments.rounds)
        ]
    ratios = sorted(own / least for least, own in rounds)
    print(f"ratio of tidemark to floor, per round: {', '.join(f'{ratio:.2f}' for ratio in ratios)}")
    print(f"median {ratios[len(ratios) // 2]:.2f}; peak memory of Spark {peak_memory()}")


if __name__ == "__main__":
    main()
