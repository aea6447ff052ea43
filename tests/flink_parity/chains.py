"""Compare chains of two joins with a real Flink on January's flights, row by row: `make flink-parity`.

Each flight is joined with the weather at its departure, and the result with later departures of the same aircraft.
Flink reads the rows one at a time, in the order of arrival, so rows are late in both.

Usage: python -m tests.flink_parity.chains [CHAIN...]
"""

import os
import sys
import tempfile
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import yaml
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

from jobs.flink_reference import run_flink_reference
from jobs.land_flights import land
from tidemark.comparison import ComparisonRequest, compare
from tidemark.config import Pipeline, load_pipeline
from tidemark.execution.run import execute
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.spark.session import get_spark_session

UNTIL = "2013-01-03"
"""Flights and reports before this day are joined."""
MINUTE = 60_000
DELAYS = {"flights": 30 * MINUTE, "weather": 0, "departures": 10 * MINUTE}
"""Watermark delay of each input, ms."""
EVENT_TIMES = {"flights": "scheduled_departure", "weather": "observed_at", "departures": "scheduled_departure"}
KEYS = {"flights": "origin", "weather": "origin", "departures": "tailnum"}
HOUR_BEFORE = {"lower": "-1 hour", "upper": "0 seconds"}
NEXT_HOURS = {"lower": "1 minute", "upper": "6 hours"}
HOUR = {"tumbling": "1 hour"}


CHAINS = {
    "sql_left_interval_left_interval": (
        "flink-sql",
        {"type": "left", "interval": HOUR_BEFORE},
        {"type": "left", "interval": NEXT_HOURS},
    ),
    "sql_inner_interval_full_window": (
        "flink-sql",
        {"type": "inner", "interval": HOUR_BEFORE},
        {"type": "full", "window": HOUR},
    ),
    "sql_left_window_full_interval": (
        "flink-sql",
        {"type": "left", "window": HOUR},
        {"type": "full", "interval": NEXT_HOURS},
    ),
    "datastream_interval_interval": ("flink-datastream", {"interval": HOUR_BEFORE}, {"interval": NEXT_HOURS}),
}
"""Dialect, first join and second join of each chain."""


def main() -> None:
    spark, console = get_spark_session("flink parity"), Console()
    table = Table("chain", "rows of Flink 2.3", "the same in Tidemark", "different", "late in Tidemark")
    total = 0
    with tempfile.TemporaryDirectory() as lake:
        os.environ["TIDEMARK_PIPELINES"] = lake
        write_inputs(spark, lake)
        for name in sys.argv[1:] or CHAINS:
            pipelines = write_pipelines(lake, name)
            for pipeline in pipelines:
                list(execute(spark, create_plan(spark, pipeline, lake, Request(drain=True)), lambda *_: None))
            reference = run_flink_reference(spark, pipelines[-1], lake)
            request = ComparisonRequest(reference.table, try_settings=False)
            comparison = compare(spark, pipelines[-1], lake, request, None)
            differing = sum(cause.rows for cause in comparison.causes)
            counts = reference.rows, comparison.same, differing, count_late_rows(spark, lake, pipelines)
            table.add_row(name, *(f"{count:,}" for count in counts))
            for cause in comparison.causes:
                console.print(f"{name}: missing in the {cause.missing_in}: {cause.examples}", highlight=False)
            total += differing
    console.print(table)
    console.print(f"flink-parity: {total} rows differ")
    sys.exit(1 if total else 0)


def write_inputs(spark: SparkSession, lake: str) -> None:
    """Write the three inputs, with one order of arrival over all of them as the column `position`."""
    land(spark, lake)
    arrivals = {"flights": "departed_at", "weather": "received_at", "departures": "departed_at"}
    sources = {"flights": "flights", "weather": "weather", "departures": "flights"}
    rows = {
        name: spark.read.format("delta")
        .load(f"{lake}/{sources[name]}")
        .withColumn("arrived", F.expr(arrival))
        .where(F.col("arrived").isNotNull() & F.col(KEYS[name]).isNotNull() & (F.col("arrived") < UNTIL))
        .withColumn("id", F.concat(F.lit(name), F.xxhash64(F.struct("*"))))
        for name, arrival in arrivals.items()
    }
    order = reduce(DataFrame.unionByName, (frame.select("id", "arrived") for frame in rows.values()))
    order = order.withColumn("position", F.row_number().over(Window.orderBy("arrived", "id"))).drop("arrived")
    for name, frame in rows.items():
        frame.join(order, "id").write.format("delta").save(f"{lake}/{name}_in_order")


def count_late_rows(spark: SparkSession, lake: str, pipelines: list[Pipeline]) -> int:
    return sum(spark.read.format("delta").load(f"{lake}/{pipeline.output}/late").count() for pipeline in pipelines)


def write_pipelines(lake: str, name: str) -> list[Pipeline]:
    """Write the pipeline files of both joins, the second of which reads the output of the first, and load them."""
    dialect, first_join, second_join = CHAINS[name]
    sources = {
        source: {
            "table": f"{source}_in_order",
            "event_time": EVENT_TIMES[source],
            "arrival": "arrived",
            "tiebreak": "position",
            "watermark_delay": f"{delay} ms",
        }
        for source, delay in DELAYS.items()
    }
    pair = {"pipeline": f"{name}_pairs", **({"event_time": "left"} if dialect == "flink-sql" else {})}
    first = {
        "name": f"{name}_pairs",
        "left": sources["flights"],
        "right": sources["weather"],
        "join": {"keys": ["origin"], **first_join},
        "output_stream": True,
    }
    second = {
        "name": name,
        "left": pair,
        "right": sources["departures"],
        "join": {"keys": [{"left": "left_tailnum", "right": "tailnum"}], **second_join},
    }
    return [write_pipeline(Path(lake), {"dialect": dialect, **content}) for content in (first, second)]


def write_pipeline(folder: Path, content: Mapping[str, Any]) -> Pipeline:
    file = folder / f"{content['name']}.yaml"
    slices = {"every": "1 hour", "start": "2013-01-01T00:00:00Z"}
    file.write_text(yaml.safe_dump({**content, "slices": slices, "quality_defaults": False}, sort_keys=False))
    return load_pipeline(file)


if __name__ == "__main__":
    main()
