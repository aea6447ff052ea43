"""Check that no filter on time loses a row: neither ours by file statistics, nor Delta's by partitions."""

import random
from datetime import UTC, datetime, timedelta
from functools import reduce

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.errors import FaultError
from tidemark.execution.run import execute
from tidemark.ledger.staleness import ConsumedVersions
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.sources.resolution import open_inputs
from tidemark.spark.temporary_settings import override_settings
from tidemark.timegrid.slices import Grid

START = datetime(2024, 1, 1, tzinfo=UTC)
TABLES = [
    ("Pacific/Auckland", ""),
    ("Pacific/Auckland", "arrived, "),
    ("America/Los_Angeles", "arrived, "),
    ("UTC", ""),
]
"""Time zone in which a table is written, and the clock if it is a partition column."""
GENERATED = "spark.databricks.delta.generatedColumn.partitionFilterOptimization.enabled"
COLUMNS = """
    k STRING, v INT, happened TIMESTAMP, arrived TIMESTAMP, derived_day DATE, hive_hour STRING,
    day DATE GENERATED ALWAYS AS (CAST(arrived AS DATE)),
    month STRING GENERATED ALWAYS AS (date_format(arrived, 'yyyy-MM')),
    hour_of_day INT GENERATED ALWAYS AS (HOUR(arrived)),
    event_day DATE GENERATED ALWAYS AS (CAST(happened AS DATE))
"""
PARTITIONS = "day, month, hour_of_day, event_day, derived_day, hive_hour"


@pytest.fixture
def create_partitioned_table(spark, lake):
    """Create a function that writes an input table in a session of a time zone, and returns its rows."""

    def create(name, zone, arrivals, clock_partition=""):
        rows = [
            ("a", number, arrived - timedelta(minutes=number % 5), arrived) for number, arrived in enumerate(arrivals)
        ]
        with override_settings(spark, {"spark.sql.session.timeZone": zone}):
            spark.sql(
                f"CREATE TABLE delta.`{lake}/{name}` ({COLUMNS}) USING delta "
                f"PARTITIONED BY ({clock_partition}{PARTITIONS})"
            )
            frame = spark.createDataFrame(rows, "k string, v int, happened timestamp, arrived timestamp")
            frame = frame.selectExpr(
                "*", "CAST(arrived AS DATE) AS derived_day", "date_format(arrived, 'yyyy-MM-dd-HH') AS hive_hour"
            )
            frame.coalesce(1).write.format("delta").mode("append").save(f"{lake}/{name}")
        return rows

    return create


@pytest.mark.parametrize(("zone", "clock_partition"), TABLES)
def test_read_slices_of_partitioned_table_returns_rows_of_plain_scan(
    spark, lake, pipeline, create_partitioned_table, zone, clock_partition
):
    generator = random.Random(zone)
    arrivals = [START + timedelta(microseconds=generator.randrange(3 * 86_400 * 10**6)) for _ in range(12)]
    rows = create_partitioned_table("left", zone, arrivals, clock_partition)
    settings = pipeline(right__table="left", slices__every="5 hours", left__where="arrived >= '2024-01-01T12:00:00Z'")
    plan = create_plan(spark, settings, str(lake), Request())
    left = plan.inputs[0]

    ranges = [range(3), range(3, 4), range(4, 9), range(9, 16)]
    reads = [
        left.read_slices(plan.grid, slices[0], slices[-1], ConsumedVersions((), unplaced=0)).withColumn(
            "range", F.lit(number)
        )
        for number, slices in enumerate(ranges)
    ]
    read = reduce(DataFrame.unionByName, reads).collect()

    for number, slices in enumerate(ranges):
        start, end = (START + timedelta(hours=5 * slice_number) for slice_number in (slices.start, slices.stop))
        expected = {row[1]: row[3] >= START + timedelta(hours=12) for row in rows if start <= row[3] < end}
        accepted = {row["left"]["v"]: row["rejected"] is None for row in read if row["range"] == number}
        assert accepted == expected
        assert left.count_expected_rows(plan.grid, slices) <= len(expected)


@pytest.mark.parametrize("arrival", ["arrived", "commit"])
def test_count_expected_rows_with_deletion_vectors_promises_none(spark, lake, pipeline, arrival):
    """Statistics of files with deletion vectors include the deleted rows."""
    spark.sql(
        f"CREATE TABLE delta.`{lake}/left` (k STRING, happened TIMESTAMP, arrived TIMESTAMP) USING delta "
        "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    frame = spark.createDataFrame(
        [(key, START, START) for key in "ab"], "k string, happened timestamp, arrived timestamp"
    )
    frame.coalesce(1).write.format("delta").mode("append").save(f"{lake}/left")
    spark.sql(f"DELETE FROM delta.`{lake}/left` WHERE k = 'b'")
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    start = START if arrival == "arrived" else now
    settings = pipeline(
        right__table="left", left__arrival=arrival, right__arrival=arrival, slices__start=start.isoformat()
    )
    left, _ = open_inputs(spark, settings, str(lake))

    read = left.read_slices(Grid.from_config(settings.slices), 0, 1, ConsumedVersions((), unplaced=0))

    assert read.count() == 1
    assert left.count_expected_rows(Grid.from_config(settings.slices), range(2)) == 0


def test_run_that_reads_fewer_rows_than_statistics_promise_is_rejected(spark, lake, pipeline, create_partitioned_table):
    """Delta's filters by generated columns are turned on again: they lose rows written in another time zone."""
    create_partitioned_table("left", "Pacific/Auckland", [START, START + timedelta(hours=11, minutes=30)])
    settings = pipeline(right__table="left", slices__every="11 hours")
    plan = create_plan(spark, settings, str(lake), Request(slices_per_job=1))
    message = "input left: Spark read 0 rows of .* but the statistics in its Delta log promise at least 1"

    with override_settings(spark, {GENERATED: "true"}), pytest.raises(FaultError, match=message):
        list(execute(spark, plan, lambda *_: None))
