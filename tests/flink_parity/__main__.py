"""Compare Tidemark with a real Flink on January's flights, row by row: `make flink-parity`.

Flink SQL reads in the order of event time, windows of the DataStream API in the order of arrival.

Usage: python -m tests.flink_parity [JOIN...]
"""

import sys
import tempfile

from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

from jobs.flink_reference import run_flink_reference
from jobs.land_flights import land
from tidemark.comparison import ComparisonRequest, compare
from tidemark.config import Pipeline
from tidemark.execution.run import execute
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.spark.session import get_spark_session

ARRIVALS = {"flights": "coalesce(departed_at, scheduled_departure)", "weather": "received_at"}
"""SQL of the arrival of each input's rows."""
INTERVAL = {"interval": {"lower": "-1 hour", "upper": "0 seconds"}}
TUMBLE = {"window": {"tumbling": "1 hour"}}
JOINS = {
    "interval_inner": {"type": "inner", **INTERVAL},
    "interval_full": {"type": "full", **INTERVAL},
    "tumble_full": {"type": "full", **TUMBLE},
    "hop_left": {"type": "left", "window": {"sliding": {"size": "1 hour", "slide": "30 minutes"}}},
    "tumble_semi": {"type": "semi", **TUMBLE},
    "tumble_anti": {"type": "anti", **TUMBLE},
}
TRIGGERED = {
    "tumble_continuous": {
        **TUMBLE,
        "trigger": {"continuous_event_time": "20 minutes"},
        "evictor": {"count": 12, "evict_after": True},
        "allowed_lateness": "2 hours",
    },
    "hop_count_purging": {
        "window": {"sliding": {"size": "1 hour", "slide": "30 minutes"}},
        "trigger": {"count": 5, "purging": True},
        "evictor": {"time": "25 minutes"},
    },
}
"""Joins of dialect flink-datastream."""


def main() -> None:
    spark, console = get_spark_session("flink parity"), Console()
    table = Table("join", "rows of Flink 2.3", "the same in Tidemark", "different")
    total = 0
    with tempfile.TemporaryDirectory() as lake:
        land(spark, lake)
        for name, arrival in ARRIVALS.items():
            write_in_order(spark, lake, name, arrival)
        for name in sys.argv[1:] or [*JOINS, *TRIGGERED]:
            pipeline = create_pipeline(name)
            reference = run_flink_reference(spark, pipeline, lake)
            list(execute(spark, create_plan(spark, pipeline, lake, Request(drain=True)), lambda *_: None))
            comparison = compare(spark, pipeline, lake, ComparisonRequest(reference.table, try_settings=False), None)
            differing = sum(cause.rows for cause in comparison.causes)
            table.add_row(name, *(f"{count:,}" for count in (reference.rows, comparison.same, differing)))
            for cause in comparison.causes:
                console.print(f"{name}: missing in the {cause.missing_in}: {cause.examples}", highlight=False)
            total += differing
    console.print(table)
    console.print(f"flink-parity: {total} rows differ")
    sys.exit(1 if total else 0)


def write_in_order(spark: SparkSession, lake: str, table: str, arrival: str) -> None:
    """Write an input again with a total order by arrival, on which triggers depend even for simultaneous rows."""
    rows = spark.read.format("delta").load(f"{lake}/{table}").withColumn("arrived", F.expr(arrival))
    position = F.row_number().over(Window.orderBy("arrived", F.xxhash64(*rows.columns)))
    rows.withColumn("position", position).write.format("delta").save(f"{lake}/{table}_in_order")


def create_pipeline(name: str) -> Pipeline:
    """Create the pipeline of a join."""
    has_trigger = name in TRIGGERED
    tables = {"left": "flights", "right": "weather"}
    ordered = {"arrival": "arrived", "tiebreak": "position"} if has_trigger else {}
    inputs = {
        side: {"table": f"{table}_in_order" if has_trigger else table, **ordered} for side, table in tables.items()
    }
    return Pipeline.model_validate(
        {
            "name": name,
            "dialect": "flink-datastream" if has_trigger else "flink-sql",
            "left": {**inputs["left"], "event_time": "scheduled_departure", "watermark_delay": "30 minutes"},
            "right": {**inputs["right"], "event_time": "observed_at", "watermark_delay": "0 seconds"},
            "join": {"keys": ["origin"], **(TRIGGERED if has_trigger else JOINS)[name]},
            "slices": {"every": "1 hour", "start": "2013-01-01T00:00:00Z"},
        }
    )


if __name__ == "__main__":
    main()
