"""Real Flink SQL against Tidemark on January's flights, in event-time order, row for row: `make flink-parity`.

Usage: python -m tests.flink_parity FLINK_PYTHON [JOIN...]
"""

import csv
import subprocess
import sys
import tempfile
from collections import Counter
from functools import reduce
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

from jobs.land_flights import FLIGHTS, WEATHER, january, with_departure, with_observation
from tidemark.plan import Request, make_plan
from tidemark.run import execute
from tidemark.session import spark_session
from tidemark.spec import Pipeline

INTERVAL = {"interval": {"lower": "-1 hour", "upper": "0 seconds"}}
TUMBLE = {"window": {"tumbling": "1 hour"}}
SHOWN = 5
"""Rows to show of those that differ."""
JOINS = {
    "interval_inner": {"type": "inner", **INTERVAL},
    "interval_full": {"type": "full", **INTERVAL},
    "tumble_full": {"type": "full", **TUMBLE},
    "hop_left": {"type": "left", "window": {"sliding": {"size": "1 hour", "slide": "30 minutes"}}},
    "tumble_semi": {"type": "semi", **TUMBLE},
    "tumble_anti": {"type": "anti", **TUMBLE},
}


def main() -> None:
    spark = spark_session("flink parity")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        flights = with_departure(january(spark, "flights.csv.zip", FLIGHTS))
        weather = with_observation(january(spark, "weather.csv", WEATHER))
        flight = "concat_ws(' ', scheduled_departure, origin, carrier, flight, uuid()) AS id"
        inputs = {
            "flights": flights.selectExpr(flight, "origin AS k", "scheduled_departure AS ts"),
            "weather": weather.selectExpr(
                "concat_ws(' ', observed_at, origin, uuid()) AS id", "origin AS k", "observed_at AS ts"
            ),
        }
        export(inputs, folder)
        joins = sys.argv[2:] or list(JOINS)
        job = str(Path(__file__).with_name("flink_job.py"))
        flink = subprocess.run([sys.argv[1], job, name, *joins], check=False)
        if flink.returncode:
            sys.exit(3)
        different = report({join: (read(folder / join), run(spark, folder, join)) for join in joins})
    sys.exit(1 if different else 0)


def export(inputs: dict[str, DataFrame], folder: Path) -> None:
    """Write the inputs as Delta tables for Tidemark, and as one CSV file in event-time order for Flink."""
    stored = []
    for name, rows in inputs.items():
        path = str(folder / "lake" / name)
        rows.write.format("delta").save(path)
        stored.append(rows.sparkSession.read.format("delta").load(path).withColumn("side", F.lit(name)))
    both = reduce(DataFrame.unionByName, stored).orderBy("ts", "side", "id")
    text = both.select("side", "id", "k", F.date_format("ts", "yyyy-MM-dd HH:mm:ss.SSS").alias("ts")).toPandas()
    text.to_csv(folder / "rows.csv", header=False, index=False)


def run(spark: SparkSession, folder: Path, join: str) -> Counter[tuple[str, ...]]:
    """Tidemark's answer: (left id, right id, window start), each with how often; "" where there is none."""
    side = {"event_time": "ts", "watermark_delay": "1 ms"}
    pipeline = Pipeline.model_validate(
        {
            "name": join,
            "dialect": "flink-sql",
            "left": {"table": "flights", **side},
            "right": {"table": "weather", **side},
            "join": {"keys": ["k"], **JOINS[join]},
            "slices": {"every": "1 hour", "start": "2013-01-01T00:00:00Z"},
        }
    )
    plan = make_plan(spark, pipeline, str(folder / "lake"), Request(drain=True))
    list(execute(spark, plan, lambda *_: None))
    rows = spark.read.format("delta").load(f"{plan.tables.emissions}")
    ids = [F.col(name) if name in rows.columns else F.lit(None) for name in ("left_id", "right_id")]
    start = F.col("_window_start") if "_window_start" in rows.columns else F.lit(None).cast("timestamp")
    chosen = rows.select(*ids, F.date_format(start, "yyyy-MM-dd HH:mm:ss"))
    return Counter(tuple(value or "" for value in row) for row in chosen.collect())


def read(folder: Path) -> Counter[tuple[str, ...]]:
    """Flink's answer, in the same form."""
    found: Counter[tuple[str, ...]] = Counter()
    for file in folder.iterdir():
        if file.is_file() and not file.name.startswith((".", "_")):
            with file.open() as lines:
                found.update(tuple(row) for row in csv.reader(lines))
    return found


def report(answers: dict[str, tuple[Counter[tuple[str, ...]], Counter[tuple[str, ...]]]]) -> int:
    """Show the comparison; gives how many rows differ."""
    table = Table("join", "rows of Flink 2.3", "rows of Tidemark", "only Flink", "only Tidemark")
    different = 0
    for join, (flink, ours) in answers.items():
        missing, unexpected = flink - ours, ours - flink
        different += missing.total() + unexpected.total()
        counts = flink.total(), ours.total(), missing.total(), unexpected.total()
        table.add_row(join, *(f"{count:,}" for count in counts))
    Console().print(table)
    for join, (flink, ours) in answers.items():
        for who, rows in (("Flink", flink - ours), ("Tidemark", ours - flink)):
            for row in list(rows)[:SHOWN]:
                Console().print(f"{join}: only {who} has {row}", highlight=False)
    Console().print(f"flink-parity: {different} rows differ")
    return different


if __name__ == "__main__":
    main()
