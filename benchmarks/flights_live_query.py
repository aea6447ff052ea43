"""Run January's flights as a live query, replay it, and print seconds and differing rows.

There are two live queries: one reads a number of rows per batch, and is replayed by its trace; the other reads an hour
per batch, which the pipeline replays itself.

Usage: python -m benchmarks.flights_live_query [--rows 500] [--hourly]
"""

import argparse
import json
import tempfile
import time
from collections import Counter
from pathlib import Path

from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from jobs.land_flights import FIRST_DAY, land
from tidemark.config import Pipeline, load_pipeline
from tidemark.config.types import parse_instant
from tidemark.execution.run import execute
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.spark.session import get_spark_session
from tidemark.streaming.live_query import LiveQueryPaths, LiveQueryResult, run_live_query

PIPELINE = Path(__file__).with_name("flights_weather_spark.yaml")


def run_replay(spark: SparkSession, pipeline: Pipeline, lake: str, request: Request) -> tuple[Counter[int], float]:
    """Run a pipeline, and return its rows by hash and the seconds."""
    began = time.monotonic()
    for _ in execute(spark, create_plan(spark, pipeline, lake, request), lambda *_: None):
        pass
    return count_row_hashes(spark, f"{lake}/{pipeline.output}/emissions"), time.monotonic() - began


def count_row_hashes(spark: SparkSession, path: str) -> Counter[int]:
    """Count the rows of a table of emissions by hash, over columns that engines can provide."""
    rows = spark.read.format("delta").load(path).drop("_slice", "_pane", "_result_time", "_run")
    return Counter(row[0] for row in rows.select(F.xxhash64(*sorted(rows.columns))).collect())


def summarize(live: LiveQueryResult, expected: Counter[int], actual: Counter[int], seconds: float) -> dict[str, object]:
    """Return one line of the report."""
    return {
        "rate": live.rate,
        "batches": live.batches,
        "rows": live.rows,
        "dropped": live.dropped,
        "only_stream": (expected - actual).total(),
        "only_replay": (actual - expected).total(),
        "stream_seconds": live.seconds,
        "replay_seconds": round(seconds, 1),
    }


def main() -> None:
    """Run the live queries in a temporary lake."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=500, help="rows per micro-batch")
    parser.add_argument("--days", type=int, default=31, help="days of January")
    parser.add_argument(
        "--hourly", action="store_true", help="run the query with an hour per batch too: some 1,500 batches"
    )
    arguments = parser.parse_args()
    spark, pipeline = get_spark_session("flights live query"), load_pipeline(PIPELINE)
    with tempfile.TemporaryDirectory() as lake:
        land(spark, lake)
        for table, column in (("flights", "scheduled_departure"), ("weather", "observed_at")):
            later = F.col(column) >= F.date_add(F.lit(FIRST_DAY), arguments.days)
            DeltaTable.forPath(spark, f"{lake}/{table}").delete(later)
        for rate in (arguments.rows, *(["slice"] if arguments.hourly else [])):
            own = pipeline.model_copy(update={"output": f"live_by_{rate}"})
            live = run_live_query(
                spark, own, lake, LiveQueryPaths.from_pipeline(own, lake, None, None), rate, lambda *_: None
            )
            request = Request() if rate == "slice" else Request(end=parse_instant(live.replay_to))
            replayed = own if rate == "slice" else load_pipeline(live.replay)
            actual, seconds = run_replay(spark, replayed, lake, request)
            print(json.dumps(summarize(live, count_row_hashes(spark, live.table), actual, seconds)))


if __name__ == "__main__":
    main()
