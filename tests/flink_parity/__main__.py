"""A real Flink against Tidemark on January's flights, row for row: `make flink-parity`.

Flink SQL in event-time order; the DataStream API's windows with triggers and evictors in order of arrival.

Usage: python -m tests.flink_parity [JOIN...]
"""

import sys
import tempfile

from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

from jobs.flink_twin import twin
from jobs.land_flights import land
from tidemark.comparison import Asked, compare
from tidemark.config import Pipeline
from tidemark.execution.run import execute
from tidemark.planning.plan import Request, make_plan
from tidemark.spark.session import spark_session

ARRIVED = {"flights": "coalesce(departed_at, scheduled_departure)", "weather": "received_at"}
"""When the rows of an input came."""
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
        "evictor": {"count": 12, "after": True},
        "allowed_lateness": "2 hours",
    },
    "hop_count_purging": {
        "window": {"sliding": {"size": "1 hour", "slide": "30 minutes"}},
        "trigger": {"count": 5, "purging": True},
        "evictor": {"time": "25 minutes"},
    },
}
"""Of dialect flink-datastream."""


def main() -> None:
    spark, console = spark_session("flink parity"), Console()
    table = Table("join", "rows of Flink 2.3", "the same in Tidemark", "different")
    different = 0
    with tempfile.TemporaryDirectory() as lake:
        land(spark, lake)
        for name, arrived in ARRIVED.items():
            in_order(spark, lake, name, arrived)
        for name in sys.argv[1:] or [*JOINS, *TRIGGERED]:
            pipeline = of(name)
            told = twin(spark, pipeline, lake)
            list(execute(spark, make_plan(spark, pipeline, lake, Request(drain=True)), lambda *_: None))
            found = compare(spark, pipeline, lake, Asked(told.table, try_settings=False), None)
            apart = sum(cause.rows for cause in found.causes)
            table.add_row(name, *(f"{count:,}" for count in (told.rows, found.same, apart)))
            for cause in found.causes:
                console.print(f"{name}: missing in the {cause.missing_in}: {cause.examples}", highlight=False)
            different += apart
    console.print(table)
    console.print(f"flink-parity: {different} rows differ")
    sys.exit(1 if different else 0)


def in_order(spark: SparkSession, lake: str, table: str, arrived: str) -> None:
    """Write an input once more, with the order of its arrival: triggers ask for that of simultaneous rows too."""
    rows = spark.read.format("delta").load(f"{lake}/{table}").withColumn("arrived", F.expr(arrived))
    place = F.row_number().over(Window.orderBy("arrived", F.xxhash64(*rows.columns)))
    rows.withColumn("place", place).write.format("delta").save(f"{lake}/{table}_in_order")


def of(name: str) -> Pipeline:
    """The pipeline of a join."""
    triggered = name in TRIGGERED
    tables = {"left": "flights", "right": "weather"}
    ordered = {"arrival": "arrived", "tiebreak": "place"} if triggered else {}
    inputs = {side: {"table": f"{table}_in_order" if triggered else table, **ordered} for side, table in tables.items()}
    return Pipeline.model_validate(
        {
            "name": name,
            "dialect": "flink-datastream" if triggered else "flink-sql",
            "left": {**inputs["left"], "event_time": "scheduled_departure", "watermark_delay": "30 minutes"},
            "right": {**inputs["right"], "event_time": "observed_at", "watermark_delay": "0 seconds"},
            "join": {"keys": ["origin"], **(TRIGGERED if triggered else JOINS)[name]},
            "slices": {"every": "1 hour", "start": "2013-01-01T00:00:00Z"},
        }
    )


if __name__ == "__main__":
    main()
