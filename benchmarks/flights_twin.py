"""January's flights as a real Spark stream, and the stream replayed: seconds, and rows that differ.

Two twins: one takes numbers of rows, which have no regard for the hours, and is replayed by its trace; the other takes
an hour a batch, which the pipeline replays by itself.

Usage: python -m benchmarks.flights_twin [--rows 500] [--hourly]
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
from tidemark.planning.plan import Request, make_plan
from tidemark.spark.session import spark_session
from tidemark.streaming.live_query import TwinPaths, TwinResult, stream

PIPELINE = Path(__file__).with_name("flights_weather_spark.yaml")


def replay(spark: SparkSession, pipeline: Pipeline, lake: str, request: Request) -> tuple[Counter[int], float]:
    """Run a pipeline; gives its rows by their hashes, and the seconds."""
    began = time.monotonic()
    for _ in execute(spark, make_plan(spark, pipeline, lake, request), lambda *_: None):
        pass
    return hashes(spark, f"{lake}/{pipeline.output}/emissions"), time.monotonic() - began


def hashes(spark: SparkSession, path: str) -> Counter[int]:
    """The rows of a table of emissions, but for what an engine cannot tell."""
    rows = spark.read.format("delta").load(path).drop("_slice", "_pane", "_result_time", "_run")
    return Counter(row[0] for row in rows.select(F.xxhash64(*sorted(rows.columns))).collect())


def told(twin: TwinResult, expected: Counter[int], found: Counter[int], seconds: float) -> dict[str, object]:
    """One line of the report."""
    return {
        "rate": twin.rate,
        "batches": twin.batches,
        "rows": twin.rows,
        "dropped": twin.dropped,
        "only_stream": (expected - found).total(),
        "only_replay": (found - expected).total(),
        "stream_seconds": twin.seconds,
        "replay_seconds": round(seconds, 1),
    }


def main() -> None:
    """Run both twins in a lake of their own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=500, help="rows a micro-batch")
    parser.add_argument("--days", type=int, default=31, help="of January")
    parser.add_argument("--hourly", action="store_true", help="the twin of an hour a batch too: some 1,500 batches")
    arguments = parser.parse_args()
    spark, pipeline = spark_session("flights twin"), load_pipeline(PIPELINE)
    with tempfile.TemporaryDirectory() as lake:
        land(spark, lake)
        for table, column in (("flights", "scheduled_departure"), ("weather", "observed_at")):
            later = F.col(column) >= F.date_add(F.lit(FIRST_DAY), arguments.days)
            DeltaTable.forPath(spark, f"{lake}/{table}").delete(later)
        for rate in (arguments.rows, *(["slice"] if arguments.hourly else [])):
            own = pipeline.model_copy(update={"output": f"twin_by_{rate}"})
            twin = stream(spark, own, lake, TwinPaths.of(own, lake, None, None), rate, lambda *_: None)
            request = Request() if rate == "slice" else Request(end=parse_instant(twin.replay_to))
            its = own if rate == "slice" else load_pipeline(twin.replay)
            found, seconds = replay(spark, its, lake, request)
            print(json.dumps(told(twin, hashes(spark, twin.table), found, seconds)))


if __name__ == "__main__":
    main()
