"""Real Flink SQL against Tidemark on January's flights, in event-time order, row for row: `make flink-parity`.

Usage: python -m tests.flink_parity [JOIN...]
"""

import sys
import tempfile

from rich.console import Console
from rich.table import Table

from jobs.flink_twin import twin
from jobs.land_flights import land
from tidemark.comparison import Asked, compare
from tidemark.execution.run import execute
from tidemark.planning.plan import Request, make_plan
from tidemark.settings import Pipeline
from tidemark.spark.session import spark_session

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


def main() -> None:
    spark, console = spark_session("flink parity"), Console()
    table = Table("join", "rows of Flink 2.3", "the same in Tidemark", "different")
    different = 0
    with tempfile.TemporaryDirectory() as lake:
        land(spark, lake)
        for name in sys.argv[1:] or JOINS:
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


def of(name: str) -> Pipeline:
    """The pipeline of a join."""
    return Pipeline.model_validate(
        {
            "name": name,
            "dialect": "flink-sql",
            "left": {"table": "flights", "event_time": "scheduled_departure", "watermark_delay": "30 minutes"},
            "right": {"table": "weather", "event_time": "observed_at", "watermark_delay": "0 seconds"},
            "join": {"keys": ["origin"], **JOINS[name]},
            "slices": {"every": "1 hour", "start": "2013-01-01T00:00:00Z"},
        }
    )


if __name__ == "__main__":
    main()
