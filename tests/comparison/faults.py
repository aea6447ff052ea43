"""Eleven faults put into what a stream wrote of January's flights, each to be found under its name: `make faults`.

Seven are in one table; an evicted and a padded row, a pane that fired again and other settings need joins of their own.
How many rows there are of each is told from the tables, without `tidemark.comparison`.
"""

import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

from jobs.land_flights import land
from tidemark.comparison import Asked, compare
from tidemark.comparison.compare import NOT_COMPARED
from tidemark.config import Pipeline, changed, load_pipeline
from tidemark.execution.run import execute
from tidemark.ledger.ledger import Ledger
from tidemark.planning.plan import Request, make_plan
from tidemark.spark.session import spark_session

SQL = Path(__file__).parents[2] / "benchmarks" / "flights_weather_sql.yaml"
CLOCKS = {"left.arrival": "departed_at", "right.arrival": "received_at"}
COMMITTED_TO = datetime(2013, 1, 25, tzinfo=UTC)
LANDS_LATE = "carrier = 'UA' AND month = 1 AND day = 10 AND hour = 8 AND departed_at IS NOT NULL"
FLIGHT = ["left_carrier", "left_flight", "left_origin", "left_scheduled_departure"]


@dataclass
class Lake:
    """January landed in a lake, and pipelines run over it."""

    spark: SparkSession
    root: str
    found: list[tuple[str, str, int, int]] = field(default_factory=list)
    """By comparison and cause: rows put in, and rows found."""

    def run(self, pipeline: Pipeline, end: datetime | None = None) -> DataFrame:
        """Run a pipeline to a slice, or to the end of its inputs; its emissions as a stream would have written them."""
        plan = make_plan(self.spark, pipeline, self.root, Request(end=end, drain=end is None))
        list(execute(self.spark, plan, lambda *_: None))
        return self.of(pipeline, "emissions").drop(*NOT_COMPARED)

    def of(self, pipeline: Pipeline, table: str) -> DataFrame:
        """The committed rows of one of a pipeline's tables."""
        tables = Ledger.of(pipeline, self.root).tables
        return self.spark.read.format("delta").load(getattr(tables, table))

    def compare(self, name: str, batch: Pipeline, stream: DataFrame, story: Pipeline | None, put: Counter[str]) -> None:
        """Compare a pipeline with a stream's table, and note what was put into it beside what was found."""
        stream.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(f"{self.root}/stream")
        told = compare(self.spark, batch, self.root, Asked("stream", identity=(*FLIGHT, "right_observed_at")), story)
        found = Counter[str]()
        for cause in told.causes:
            found[cause.cause] += cause.rows
        self.found += [(name, cause, put[cause], found[cause]) for cause in sorted(put | found)]


def seven_faults(lake: Lake) -> None:
    """The inner join on the event-time clock, and a stream that took the rows as they arrived and was then damaged."""
    by_time = changed(load_pipeline("flights_weather_event_time"), {"late_landing": "reprocess"})
    by_arrival = load_pipeline("flights_weather")
    flights = f"{lake.root}/flights"
    landing = lake.spark.read.format("delta").load(flights).where(LANDS_LATE).localCheckpoint()
    DeltaTable.forPath(lake.spark, flights).delete(LANDS_LATE)
    batch = lake.run(by_time, end=COMMITTED_TO).localCheckpoint()
    landing.write.format("delta").mode("append").save(flights)
    stream = lake.run(by_arrival).localCheckpoint()

    lost = lake.of(by_arrival, "late").where("side = 'left'")
    only_batch = batch.exceptAll(stream).join(_of(lost, "left."), FLIGHT, "left")
    reasons = Counter({row["reason"]: row["count"] for row in only_batch.groupBy("reason").count().collect()})
    only_stream = stream.exceptAll(batch)
    landed = only_stream.join(_of(landing), FLIGHT, "semi")
    put = Counter(
        {
            "late in the stream": reasons["late"],
            "rejected in the stream": reasons["null_arrival"],
            "landed after the slice": landed.count(),
            "pending": only_stream.count() - landed.count(),
        }
    )
    both = stream.intersectAll(batch).orderBy(*FLIGHT).limit(18).localCheckpoint()
    twice, altered, strange = (both.offset(n).limit(6).localCheckpoint() for n in (0, 6, 12))
    stream = stream.exceptAll(altered).unionByName(altered.withColumn("left_dest", F.lit("???")))
    stream = stream.unionByName(twice).unionByName(strange.withColumn("left_flight", F.lit(-1)))
    put |= Counter({"emitted twice": 6, "changed value": 2 * 6, "missing in an input": 6})
    lake.compare("inner, by event time and by arrival", by_time, stream, by_arrival, put)


def evicted_and_padded(lake: Lake) -> None:
    """The full join of flink-sql, which drops no row: by event time, and as the rows arrived."""
    by_time = load_pipeline(SQL)
    by_arrival = changed(by_time, {"output": "sql_by_arrival", **CLOCKS})
    batch, stream = (lake.run(pipeline).localCheckpoint() for pipeline in (by_time, by_arrival))
    told = lake.of(by_arrival, "late").where("side = 'left'")
    only_batch = batch.exceptAll(stream).join(_of(told, "left."), FLIGHT, "left")
    evicted = only_batch.where("_emission = 'matched' AND reason = 'behind_watermark'").count()
    rejected = only_batch.where("reason = 'null_arrival'").count()
    padded = stream.exceptAll(batch).where("_emission <> 'matched'").count()
    put = Counter(
        {
            "evicted before its partner": evicted,
            "padded before its partner came": padded,
            "rejected in the stream": rejected,
        }
    )
    lake.compare("full, by event time and by arrival", by_time, stream, by_arrival, put)


def fired_again(lake: Lake) -> None:
    """Windows that take late rows: the last firing of each, and all of them."""
    join = {"join.interval": None, "join.window": {"tumbling": "1 hour"}, "join.allowed_lateness": "2 hours"}
    every = changed(load_pipeline("flights_weather"), {"output": "every_pane", **join})
    latest = changed(every, {"output": "latest_pane", "join.emit": "latest"})
    stream, batch = (lake.run(pipeline) for pipeline in (every, latest))
    put = Counter({"re-fired pane": stream.count() - batch.count()})
    lake.compare("windows, last firing and every one", latest, stream, None, put)


def other_settings(lake: Lake) -> None:
    """A stream that waited longer for flights than the pipeline does."""
    pipeline = load_pipeline("flights_weather")
    longer = changed(pipeline, {"output": "longer_delay", "left.watermark_delay": "45 minutes"})
    stream, batch = (lake.run(one) for one in (longer, pipeline))
    put = Counter({"other settings": stream.exceptAll(batch).count() + batch.exceptAll(stream).count()})
    lake.compare("inner, delays of 30 and 45 minutes", pipeline, stream, None, put)


def _of(rows: DataFrame, prefix: str = "") -> DataFrame:
    """`FLIGHT` of rows that have it under other names, with why a row is in the side output."""
    names = [F.col(f"{prefix}{name.removeprefix('left_')}").alias(name) for name in FLIGHT]
    return rows.select(*names, *(["reason"] if "reason" in rows.columns else []))


def main() -> None:
    spark, console = spark_session("faults"), Console()
    with tempfile.TemporaryDirectory() as root:
        lake = Lake(spark, root)
        land(spark, root)
        for fault in (seven_faults, evicted_and_padded, fired_again, other_settings):
            fault(lake)
    table = Table("comparison", "cause", "rows put in", "rows found")
    for number, (name, cause, put, found) in enumerate(lake.found):
        first = name not in {one for one, *_ in lake.found[:number]}
        table.add_row(name if first else "", cause, f"{put:,}", f"{found:,}", style="red" if put != found else None)
    console.print(table)
    wrong = sum(put != found for *_, put, found in lake.found)
    names = {cause for _, cause, *_ in lake.found}
    console.print(f"faults: {len(names)} causes, {wrong} of them wrong")
    sys.exit(1 if wrong or len(names) != 11 or "unexplained" in names else 0)


if __name__ == "__main__":
    main()
