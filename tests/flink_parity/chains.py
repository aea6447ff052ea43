"""Compare chains of two joins with a real Flink on January's flights, row by row: `make flink-parity`.

Each flight is joined with the weather at its departure, and the result with later departures of the same aircraft.
Flink reads the rows one at a time, in the order of arrival, so that late rows are late in both.

Usage: python -m tests.flink_parity.chains [CHAIN...]
"""

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

import yaml
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

from jobs.land_flights import land
from tests.flink_parity.recorder import Answer, record_streams
from tidemark.comparison import ComparisonRequest, compare
from tidemark.comparison.result import Comparison
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
PREFIXES = {"flights": "left_left_", "weather": "left_right_", "departures": "right_"}
"""Names of the inputs' columns in the output of the second join begin with these."""
HOUR_BEFORE = {"lower": "-1 hour", "upper": "0 seconds"}
NEXT_HOURS = {"lower": "1 minute", "upper": "6 hours"}
HOUR = {"tumbling": "1 hour"}


@dataclass(frozen=True)
class Chain:
    """Two joins, as Tidemark and as Flink know them."""

    first: Mapping[str, Any]
    second: Mapping[str, Any]
    query: tuple[str | int, ...]
    """Join of the recorder; a query selects the ids of the three rows, and the bounds of the second join's window."""
    views: Mapping[str, str] = field(default_factory=dict)

    @property
    def dialect(self) -> str:
        return "flink-datastream" if self.query[0] == "chain" else "flink-sql"


ROWS_AND_WEATHER = """
SELECT f.id AS flight, w.id AS report, f.k2 AS tailnum, f.ts AS ts
FROM flights_rows f {how} JOIN weather_rows w
ON f.k = w.k AND w.ts BETWEEN f.ts - INTERVAL '1' HOUR AND f.ts
"""
WITH_NEXT_DEPARTURES = """
SELECT l.flight, l.report, d.id FROM joined l {how} JOIN departures_rows d
ON l.tailnum = d.k AND d.ts BETWEEN l.ts + INTERVAL '1' MINUTE AND l.ts + INTERVAL '6' HOUR
"""
WITH_DEPARTURES_IN_HOUR = """
SELECT l.flight, l.report, d.id, COALESCE(l.window_start, d.window_start), COALESCE(l.window_end, d.window_end)
FROM (SELECT * FROM TABLE(TUMBLE(TABLE joined, DESCRIPTOR(ts), INTERVAL '1' HOUR))) l
{how} JOIN (SELECT * FROM TABLE(TUMBLE(TABLE departures_rows, DESCRIPTOR(ts), INTERVAL '1' HOUR))) d
ON l.tailnum = d.k AND l.window_start = d.window_start AND l.window_end = d.window_end
"""
FLIGHTS_AND_WEATHER_IN_HOUR = """
SELECT f.id AS flight, w.id AS report, f.k2 AS tailnum, f.window_time AS ts
FROM (SELECT * FROM TABLE(TUMBLE(TABLE flights_rows, DESCRIPTOR(ts), INTERVAL '1' HOUR))) f
{how} JOIN (SELECT * FROM TABLE(TUMBLE(TABLE weather_rows, DESCRIPTOR(ts), INTERVAL '1' HOUR))) w
ON f.k = w.k AND f.window_start = w.window_start AND f.window_end = w.window_end
"""
CHAINS = {
    "sql_left_interval_left_interval": Chain(
        {"type": "left", "interval": HOUR_BEFORE},
        {"type": "left", "interval": NEXT_HOURS},
        ("query", WITH_NEXT_DEPARTURES.format(how="LEFT")),
        {"joined": ROWS_AND_WEATHER.format(how="LEFT")},
    ),
    "sql_inner_interval_full_window": Chain(
        {"type": "inner", "interval": HOUR_BEFORE},
        {"type": "full", "window": HOUR},
        ("query", WITH_DEPARTURES_IN_HOUR.format(how="FULL")),
        {"joined": ROWS_AND_WEATHER.format(how="")},
    ),
    "sql_left_window_full_interval": Chain(
        {"type": "left", "window": HOUR},
        {"type": "full", "interval": NEXT_HOURS},
        ("query", WITH_NEXT_DEPARTURES.format(how="FULL")),
        {"joined": FLIGHTS_AND_WEATHER_IN_HOUR.format(how="LEFT")},
    ),
    "datastream_interval_interval": Chain(
        {"interval": HOUR_BEFORE},
        {"interval": NEXT_HOURS},
        ("chain", -60 * MINUTE, 0, MINUTE, 360 * MINUTE),
    ),
}


def main() -> None:
    spark, console = get_spark_session("flink parity"), Console()
    table = Table("chain", "rows of Flink 2.3", "the same in Tidemark", "different", "late in Tidemark")
    names, total = sys.argv[1:] or list(CHAINS), 0
    with tempfile.TemporaryDirectory() as lake:
        os.environ["TIDEMARK_PIPELINES"] = lake
        write_inputs(spark, lake)
        events = list(list_events(spark, lake))
        console.print(f"{len(events):,} rows, one at a time, through {len(names)} chains")
        answers = record_streams([(*describe_flink_job(name), create_vector(name, events)) for name in names])
        for name, answer in zip(names, answers, strict=True):
            write_answer(spark, lake, name, answer)
            comparison, late = run_and_compare(spark, lake, name)
            differing = sum(cause.rows for cause in comparison.causes)
            counts = len(answer.rows), comparison.same, differing, late
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


def list_events(spark: SparkSession, lake: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of all inputs in the order of arrival, in the form of vectors."""
    frames = []
    for name, key in KEYS.items():
        second_key = F.col("tailnum") if name == "flights" else F.lit(None).cast("string")
        columns = F.lit(name).alias("side"), F.col(key).alias("key"), F.unix_millis(EVENT_TIMES[name]).alias("ts")
        frame = spark.read.format("delta").load(f"{lake}/{name}_in_order")
        frames.append(frame.select(*columns, "id", second_key.alias("key2"), "position"))
    for row in reduce(DataFrame.unionByName, frames).orderBy("position").toLocalIterator():
        event = row.asDict()
        yield {field: value for field, value in event.items() if value is not None}


def create_vector(name: str, events: list[dict[str, Any]]) -> dict[str, Any]:
    kind = "datastream" if CHAINS[name].dialect == "flink-datastream" else "sql"
    delays = {f"delay_ms_{source}": delay for source, delay in DELAYS.items()}
    views = {view: " ".join(query.split()) for view, query in CHAINS[name].views.items()}
    return {"inputs": list(DELAYS), "views": views, "watermark": {"kind": kind, **delays}, "events": events}


def describe_flink_job(name: str) -> tuple[dict[str, str], tuple[str | int, ...]]:
    """Return the settings and the join of a chain's job."""
    kind, *arguments = CHAINS[name].query
    compact = [" ".join(argument.split()) if isinstance(argument, str) else argument for argument in arguments]
    return {"table.local-time-zone": "UTC"}, (kind, *compact)


def write_answer(spark: SparkSession, lake: str, name: str, answer: Answer) -> None:
    """Write Flink's output with the columns of the rows that it names, as a table to compare with."""
    rows = [list_fields(name, fields) for _, _, fields in answer.rows]
    ids = [f"{source}_id" for source in PREFIXES]
    frame = spark.createDataFrame(rows, ", ".join(f"{column} string" for column in [*ids, "start", "end"]))
    for source, prefix in PREFIXES.items():
        table = spark.read.format("delta").load(f"{lake}/{source}_in_order")
        table = table.select(*(F.col(column).alias(prefix + column) for column in table.columns))
        frame = frame.join(table, F.col(f"{source}_id") == F.col(f"{prefix}id"), "left")
    padded = F.when(F.col("right_id").isNull(), "padded_left").when(F.col("left_left_id").isNull(), "padded_right")
    frame = frame.withColumn("_emission", padded.otherwise("matched"))
    if "window" in CHAINS[name].second:
        bounds = {f"_window_{end}": F.timestamp_millis(F.col(end).cast("long")) for end in ("start", "end")}
        frame = frame.withColumns(bounds)
    frame.drop(*ids, "start", "end").write.format("delta").save(f"{lake}/{name}_flink")


def list_fields(name: str, fields: list[str | None]) -> list[str | None]:
    """Return the ids of the three rows, and the bounds of the window or None."""
    if CHAINS[name].dialect == "flink-datastream":
        pair, departure = fields
        fields = [*str(pair).split(","), departure]
    return [*fields, None, None] if len(fields) == len(PREFIXES) else fields


def run_and_compare(spark: SparkSession, lake: str, name: str) -> tuple[Comparison, int]:
    """Run both pipelines of a chain, and compare; also return the number of late rows of both joins."""
    pipelines = write_pipelines(lake, name)
    for pipeline in pipelines:
        list(execute(spark, create_plan(spark, pipeline, lake, Request(drain=True)), lambda *_: None))
    late = sum(spark.read.format("delta").load(f"{lake}/{pipeline.output}/late").count() for pipeline in pipelines)
    request = ComparisonRequest(f"{name}_flink", try_settings=False)
    return compare(spark, pipelines[-1], lake, request, None), late


def write_pipelines(lake: str, name: str) -> list[Pipeline]:
    """Write the pipeline files of both joins, the second of which reads the output of the first, and load them."""
    chain = CHAINS[name]
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
    pair = {"pipeline": f"{name}_pairs", **({"event_time": "left"} if chain.dialect == "flink-sql" else {})}
    first = {
        "name": f"{name}_pairs",
        "left": sources["flights"],
        "right": sources["weather"],
        "join": {"keys": ["origin"], **chain.first},
        "output_stream": True,
    }
    second = {
        "name": name,
        "left": pair,
        "right": sources["departures"],
        "join": {"keys": [{"left": "left_tailnum", "right": "tailnum"}], **chain.second},
    }
    return [write_pipeline(Path(lake), {"dialect": chain.dialect, **content}) for content in (first, second)]


def write_pipeline(folder: Path, content: Mapping[str, Any]) -> Pipeline:
    file = folder / f"{content['name']}.yaml"
    slices = {"every": "1 hour", "start": "2013-01-01T00:00:00Z"}
    file.write_text(yaml.safe_dump({**content, "slices": slices, "quality_defaults": False}, sort_keys=False))
    return load_pipeline(file)


if __name__ == "__main__":
    main()
