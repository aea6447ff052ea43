"""Compare chains of two and three joins with a real Flink on January's flights, row by row: `make flink-parity`.

Each flight is joined with the weather at its departure, and the result with later departures of the same aircraft. In a
tree these departures are joined with the weather, too. Flink reads the rows one at a time, in the order of arrival, so
rows are late in both.

Usage: python -m tests.flink_parity.chains [CHAIN...]
"""

import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
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
FLIGHT = {"table": "flights", "event_time": "scheduled_departure", "arrival": "departed_at"}
REPORT = {"table": "weather", "event_time": "observed_at", "arrival": "received_at"}
INPUTS = {
    "flights": {**FLIGHT, "watermark_delay": "30 minutes", "key": "origin"},
    "weather": {**REPORT, "watermark_delay": "0 seconds", "key": "origin"},
    "departures": {**FLIGHT, "watermark_delay": "10 minutes", "key": "tailnum"},
    "reports": {**REPORT, "watermark_delay": "5 minutes", "key": "origin"},
}
"""Inputs of the joins. Rows without the key or without an arrival take no part."""
HOUR_BEFORE = {"lower": "-1 hour", "upper": "0 seconds"}
NEXT_HOURS = {"lower": "1 minute", "upper": "6 hours"}
HOUR = {"tumbling": "1 hour"}


@dataclass(frozen=True)
class Joins:
    """The joins of a chain."""

    dialect: str
    first: Mapping[str, Any]
    """Join of flights and weather."""
    last: Mapping[str, Any]
    """Join of the first one's output with departures of the same aircraft."""
    of_departures: Mapping[str, Any] | None = None
    """Join of departures and weather, whose output the last join reads instead of departures."""


CHAINS = {
    "sql_left_interval_left_interval": Joins(
        "flink-sql", {"type": "left", "interval": HOUR_BEFORE}, {"type": "left", "interval": NEXT_HOURS}
    ),
    "sql_inner_interval_full_window": Joins(
        "flink-sql", {"type": "inner", "interval": HOUR_BEFORE}, {"type": "full", "window": HOUR}
    ),
    "sql_left_window_full_interval": Joins(
        "flink-sql", {"type": "left", "window": HOUR}, {"type": "full", "interval": NEXT_HOURS}
    ),
    "sql_tree": Joins(
        "flink-sql",
        {"type": "left", "interval": HOUR_BEFORE},
        {"type": "full", "interval": NEXT_HOURS},
        {"type": "inner", "interval": HOUR_BEFORE},
    ),
    "datastream_interval_interval": Joins("flink-datastream", {"interval": HOUR_BEFORE}, {"interval": NEXT_HOURS}),
    "datastream_tree": Joins(
        "flink-datastream", {"interval": HOUR_BEFORE}, {"interval": NEXT_HOURS}, {"interval": HOUR_BEFORE}
    ),
}


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
    """Write the inputs, with one order of arrival over all of them as the column `position`."""
    land(spark, lake)
    rows = {
        name: spark.read.format("delta")
        .load(f"{lake}/{source['table']}")
        .withColumn("arrived", F.col(source["arrival"]))
        .where(F.col("arrived").isNotNull() & F.col(source["key"]).isNotNull() & (F.col("arrived") < UNTIL))
        .withColumn("id", F.concat(F.lit(name), F.xxhash64(F.struct("*"))))
        for name, source in INPUTS.items()
    }
    order = reduce(DataFrame.unionByName, (frame.select("id", "arrived") for frame in rows.values()))
    order = order.withColumn("position", F.row_number().over(Window.orderBy("arrived", "id"))).drop("arrived")
    for name, frame in rows.items():
        frame.join(order, "id").write.format("delta").save(f"{lake}/{name}_in_order")


def count_late_rows(spark: SparkSession, lake: str, pipelines: list[Pipeline]) -> int:
    return sum(spark.read.format("delta").load(f"{lake}/{pipeline.output}/late").count() for pipeline in pipelines)


def write_pipelines(lake: str, name: str) -> list[Pipeline]:
    """Write the pipeline files of a chain, each after those that it reads, and load them."""
    joins = CHAINS[name]
    tables = {
        source: {
            "table": f"{source}_in_order",
            "event_time": settings["event_time"],
            "arrival": "arrived",
            "tiebreak": "position",
            "watermark_delay": settings["watermark_delay"],
        }
        for source, settings in INPUTS.items()
    }
    kept_time = {"event_time": "left"} if joins.dialect == "flink-sql" else {}
    first = {
        "name": f"{name}_pairs",
        "left": tables["flights"],
        "right": tables["weather"],
        "join": {"keys": ["origin"], **joins.first},
        "output_stream": True,
    }
    of_departures = {**first, "name": f"{name}_departures", "left": tables["departures"], "right": tables["reports"]}
    last = {
        "name": name,
        "left": {"pipeline": first["name"], **kept_time},
        "right": tables["departures"],
        "join": {"keys": [{"left": "left_tailnum", "right": "tailnum"}], **joins.last},
    }
    contents = [first, last]
    if joins.of_departures:
        last["right"] = {"pipeline": of_departures["name"], **kept_time}
        last["join"] = {**last["join"], "keys": ["left_tailnum"]}
        contents = [first, {**of_departures, "join": {"keys": ["origin"], **joins.of_departures}}, last]
    return [write_pipeline(Path(lake), {"dialect": joins.dialect, **content}) for content in contents]


def write_pipeline(folder: Path, content: Mapping[str, Any]) -> Pipeline:
    file = folder / f"{content['name']}.yaml"
    slices = {"every": "1 hour", "start": "2013-01-01T00:00:00Z"}
    file.write_text(yaml.safe_dump({**content, "slices": slices, "quality_defaults": False}, sort_keys=False))
    return load_pipeline(file)


if __name__ == "__main__":
    main()
