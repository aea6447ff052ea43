"""Inject eleven faults into a stream's table of January's flights, and check that each is found: `make faults`.

Seven are in one table; an evicted and a padded row, a re-fired pane and other settings need joins of their own. The
expected numbers of rows are computed from the tables, without `tidemark.comparison`.
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
from tidemark.comparison import ComparisonRequest, compare
from tidemark.comparison.compared_columns import NOT_COMPARED
from tidemark.config import Pipeline, load_pipeline, with_overrides
from tidemark.execution.run import execute
from tidemark.ledger.ledger import Ledger
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.spark.session import get_spark_session

SQL = Path(__file__).parents[2] / "benchmarks" / "flights_weather_sql.yaml"
CLOCKS = {"left.arrival": "departed_at", "right.arrival": "received_at"}
COMMITTED_TO = datetime(2013, 1, 25, tzinfo=UTC)
LATE_ARRIVING = "carrier = 'UA' AND month = 1 AND day = 10 AND hour = 8 AND departed_at IS NOT NULL"
FLIGHT = ["left_carrier", "left_flight", "left_origin", "left_scheduled_departure"]


@dataclass
class Lake:
    """A lake with January's flights, and the pipelines that ran over it."""

    spark: SparkSession
    root: str
    counts: list[tuple[str, str, int, int]] = field(default_factory=list)
    """Comparison, cause, number of injected rows, and number of rows found."""

    def run(self, pipeline: Pipeline, end: datetime | None = None) -> DataFrame:
        """Run a pipeline up to a slice or to the end, and return its emissions as a stream would have written them."""
        plan = create_plan(self.spark, pipeline, self.root, Request(end=end, drain=end is None))
        list(execute(self.spark, plan, lambda *_: None))
        return self.read(pipeline, "emissions").drop(*NOT_COMPARED)

    def read(self, pipeline: Pipeline, table: str) -> DataFrame:
        """Read the committed rows of one of a pipeline's tables."""
        tables = Ledger.from_pipeline(pipeline, self.root).tables
        return self.spark.read.format("delta").load(getattr(tables, table))

    def compare(
        self, name: str, batch: Pipeline, stream: DataFrame, reference: Pipeline | None, injected: Counter[str]
    ) -> None:
        """Compare a pipeline with a stream's table, and record injected and found rows."""
        stream.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(f"{self.root}/stream")
        result = compare(
            self.spark,
            batch,
            self.root,
            ComparisonRequest("stream", key_columns=(*FLIGHT, "right_observed_at")),
            reference,
        )
        detected = Counter[str]()
        for cause in result.causes:
            detected[cause.cause] += cause.rows
        self.counts += [(name, cause, injected[cause], detected[cause]) for cause in sorted(injected | detected)]


def inject_seven_faults(lake: Lake) -> None:
    """Compare an inner join on the event-time clock with a damaged stream that read rows as they arrived."""
    by_time = with_overrides(load_pipeline("flights_weather_event_time"), {"on_late_arriving_rows": "reprocess"})
    by_arrival = load_pipeline("flights_weather")
    flights = f"{lake.root}/flights"
    late_arriving = lake.spark.read.format("delta").load(flights).where(LATE_ARRIVING).localCheckpoint()
    DeltaTable.forPath(lake.spark, flights).delete(LATE_ARRIVING)
    batch = lake.run(by_time, end=COMMITTED_TO).localCheckpoint()
    late_arriving.write.format("delta").mode("append").save(flights)
    stream = lake.run(by_arrival).localCheckpoint()

    lost = lake.read(by_arrival, "late").where("side = 'left'")
    only_batch = batch.exceptAll(stream).join(_select_flights(lost, "left."), FLIGHT, "left")
    reasons = Counter({row["reason"]: row["count"] for row in only_batch.groupBy("reason").count().collect()})
    only_stream = stream.exceptAll(batch)
    late_arriving_emissions = only_stream.join(_select_flights(late_arriving), FLIGHT, "semi")
    injected = Counter(
        {
            "late in the stream": reasons["late"],
            "rejected in the stream": reasons["null_arrival"],
            "late-arriving row": late_arriving_emissions.count(),
            "pending": only_stream.count() - late_arriving_emissions.count(),
        }
    )
    both = stream.intersectAll(batch).orderBy(*FLIGHT).limit(18).localCheckpoint()
    doubled, altered, foreign = (both.offset(n).limit(6).localCheckpoint() for n in (0, 6, 12))
    stream = stream.exceptAll(altered).unionByName(altered.withColumn("left_dest", F.lit("???")))
    stream = stream.unionByName(doubled).unionByName(foreign.withColumn("left_flight", F.lit(-1)))
    injected |= Counter({"emitted twice": 6, "changed value": 2 * 6, "missing in an input": 6})
    lake.compare("inner, by event time and by arrival", by_time, stream, by_arrival, injected)


def inject_evicted_and_padded_rows(lake: Lake) -> None:
    """Compare a full join of flink-sql, which drops no row, by event time with one by arrival."""
    by_time = load_pipeline(SQL)
    by_arrival = with_overrides(by_time, {"output": "sql_by_arrival", **CLOCKS})
    batch, stream = (lake.run(pipeline).localCheckpoint() for pipeline in (by_time, by_arrival))
    late = lake.read(by_arrival, "late").where("side = 'left'")
    only_batch = batch.exceptAll(stream).join(_select_flights(late, "left."), FLIGHT, "left")
    evicted = only_batch.where("_emission = 'matched' AND reason = 'late_but_processed'").count()
    rejected = only_batch.where("reason = 'null_arrival'").count()
    padded = stream.exceptAll(batch).where("_emission <> 'matched'").count()
    injected = Counter(
        {
            "partner already evicted": evicted,
            "padded before its partner arrived": padded,
            "rejected in the stream": rejected,
        }
    )
    lake.compare("full, by event time and by arrival", by_time, stream, by_arrival, injected)


def inject_repeated_firings(lake: Lake) -> None:
    """Compare windows with allowed lateness: the last firing of each with every firing."""
    join = {"join.interval": None, "join.window": {"tumbling": "1 hour"}, "join.allowed_lateness": "2 hours"}
    every = with_overrides(load_pipeline("flights_weather"), {"output": "every_pane", **join})
    latest = with_overrides(every, {"output": "latest_pane", "join.emit": "latest"})
    stream, batch = (lake.run(pipeline) for pipeline in (every, latest))
    injected = Counter({"re-fired pane": stream.count() - batch.count()})
    lake.compare("windows, last firing and every one", latest, stream, None, injected)


def inject_other_settings(lake: Lake) -> None:
    """Compare with a stream that waited longer for flights."""
    pipeline = load_pipeline("flights_weather")
    longer = with_overrides(pipeline, {"output": "longer_delay", "left.watermark_delay": "45 minutes"})
    stream, batch = (lake.run(each) for each in (longer, pipeline))
    injected = Counter({"other settings": stream.exceptAll(batch).count() + batch.exceptAll(stream).count()})
    lake.compare("inner, delays of 30 and 45 minutes", pipeline, stream, None, injected)


def _select_flights(rows: DataFrame, prefix: str = "") -> DataFrame:
    """Select `FLIGHT` from columns with other names, and the reason of rows in the side output."""
    names = [F.col(f"{prefix}{name.removeprefix('left_')}").alias(name) for name in FLIGHT]
    return rows.select(*names, *(["reason"] if "reason" in rows.columns else []))


def main() -> None:
    spark, console = get_spark_session("faults"), Console()
    with tempfile.TemporaryDirectory() as root:
        lake = Lake(spark, root)
        land(spark, root)
        for fault in (
            inject_seven_faults,
            inject_evicted_and_padded_rows,
            inject_repeated_firings,
            inject_other_settings,
        ):
            fault(lake)
    table = Table("comparison", "cause", "rows injected", "rows found")
    for number, (name, cause, injected, detected) in enumerate(lake.counts):
        first = name not in {previous for previous, *_ in lake.counts[:number]}
        table.add_row(
            name if first else "",
            cause,
            f"{injected:,}",
            f"{detected:,}",
            style="red" if injected != detected else None,
        )
    console.print(table)
    wrong = sum(injected != detected for *_, injected, detected in lake.counts)
    names = {cause for _, cause, *_ in lake.counts}
    console.print(f"faults: {len(names)} causes, {wrong} of them wrong")
    sys.exit(1 if wrong or len(names) != 11 or "unexplained" in names else 0)


if __name__ == "__main__":
    main()
