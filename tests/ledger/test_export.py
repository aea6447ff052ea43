"""Export a checkpoint and resume it as a live query: the query emits the same rows as the join of all slices."""

import importlib.util
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from pyspark.sql import functions as F

from tidemark.checkpoints.checkpoint_ref import CheckpointRef
from tidemark.config.types import parse_instant, to_micros
from tidemark.errors import UserError
from tidemark.execution.run import execute
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.spark.temporary_settings import tuned_for_tiny_queries
from tidemark.streaming.export import export_checkpoint
from tidemark.watermarks.values import Watermarks

START = datetime(2024, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
ROW = "id int, k string, happened timestamp, arrived timestamp, v int"
CUT, HOURS = 4, 7
INTERVAL = {"lower": "-30 minutes", "upper": "1 hour", "upper_inclusive": False}
SLIDING = {"sliding": {"size": "1 hour", "slide": "30 minutes"}}
CONDITION = "left_v <= 3 AND left_v <> right_v"
JOINS = {
    "inner": ({"interval": INTERVAL, "condition": CONDITION}, {}),
    "left, max": ({"interval": INTERVAL, "condition": CONDITION, "type": "left"}, {"multiple_watermark_policy": "max"}),
    "full": ({"interval": INTERVAL, "type": "full"}, {}),
    "right, sliding": ({"window": SLIDING, "type": "right"}, {}),
    "semi, sliding": ({"window": SLIDING, "type": "semi"}, {}),
}


def create_rows(rng, count, first):
    """Create rows over seven hours, some of them hours late, without key or without event time."""
    for number in range(first, first + count):
        arrived = START + timedelta(minutes=rng.randrange(HOURS * 60))
        happened = arrived - timedelta(microseconds=rng.randrange(rng.choice([1, 4]) * 3_600_000_000))
        event_time = None if rng.random() < 0.05 else happened
        yield number, rng.choice(["a", "b", None]), event_time, arrived, rng.randrange(5)


@pytest.fixture
def create_pipeline(write, pipeline):
    def create(name):
        rng = random.Random(name)
        for side, first in (("left", 0), ("right", 500)):
            write(side, list(create_rows(rng, 160, first)), ROW)
        join, spark = JOINS[name]
        return pipeline(dialect="spark", left__watermark_delay="20 minutes", join={"keys": ["k"], **join}, spark=spark)

    return create


@pytest.fixture
def run_until(spark, lake):
    def execute_plan(pipeline, hours):
        plan = create_plan(spark, pipeline, str(lake), Request(end=START + hours * HOUR, slices_per_job=2))
        return list(execute(spark, plan, lambda *_: None))

    return execute_plan


def count_ids(rows):
    """Count rows by ids, emission and window."""
    names = ("left_id", "right_id", "_emission", "_window_start")
    ids = [F.col(name) if name in rows.columns else F.lit(None) for name in names]
    return Counter(tuple(row) for row in rows.select(*ids).collect())


def run_resumed_query(spark, lake, folder, export_result, *, first_hour_exists):
    """Feed the exported query one hour per batch and return its rows; the first hour may exist before it starts."""
    spec = importlib.util.spec_from_file_location("resume_query", export_result.query)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder.mkdir()
    schema = spark.read.format("delta").load(str(lake / "left")).schema
    events = spark.readStream.schema(schema.add("side", "string").add("hour", "integer")).parquet(str(folder))
    sides = (events.where(F.col("side") == side).drop("side", "hour") for side in ("left", "right"))
    rows = None
    for side in ("left", "right"):
        side_rows = spark.read.format("delta").load(str(lake / side)).withColumn("side", F.lit(side))
        rows = side_rows if rows is None else rows.unionByName(side_rows)
    hour = F.floor((F.unix_seconds("arrived") - int(START.timestamp())) / 3600).cast("int")
    pending = rows.withColumn("hour", hour).where(F.col("hour") >= CUT).cache()

    def feed(number):
        pending.where(F.col("hour") == number).coalesce(1).write.mode("append").parquet(str(folder))

    if first_hour_exists:
        feed(CUT)
    query = module.resume(spark, *sides).writeStream.format("memory").queryName("live").start()
    try:
        query.processAllAvailable()
        if not first_hour_exists:
            times = [progress["eventTime"] for progress in query.recentProgress]
            watermark = [time["watermark"] for time in times if "watermark" in time][-1]
            assert to_micros(parse_instant(watermark)) == export_result.watermarks_ms["combined"] * 1000
        for number in range(CUT + first_hour_exists, HOURS):
            feed(number)
            query.processAllAvailable()
        return count_ids(spark.table("live"))
    finally:
        query.stop()
        pending.unpersist()


def test_export_with_window_inequality_is_rejected(pipeline, tmp_path):
    windows = {"left": SLIDING, "right": SLIDING, "comparison": "left < right"}
    windowed = pipeline(dialect="spark", join={"keys": ["k"], "window_inequality": windows})
    checkpoint = SimpleNamespace(pipeline=windowed, entry=SimpleNamespace(watermarks=Watermarks()))
    with pytest.raises(UserError, match="orders compares windows: a row may be in the state for some of its windows"):
        export_checkpoint(checkpoint, str(tmp_path / "export"))


@pytest.mark.parametrize(
    ("name", "first_hour_exists"),
    [
        ("left, max", False),
        pytest.param("inner", True, marks=pytest.mark.slow),
        pytest.param("full", True, marks=pytest.mark.slow),
        pytest.param("right, sliding", False, marks=pytest.mark.slow),
        pytest.param("semi, sliding", True, marks=pytest.mark.slow),
    ],
)
def test_resumed_query_emits_same_rows_as_join(
    spark, lake, tmp_path, create_pipeline, run_until, name, first_hour_exists
):
    pipeline = create_pipeline(name)
    run_until(pipeline, CUT)
    export_result = export_checkpoint(CheckpointRef.from_ledger(spark, pipeline, str(lake)), str(tmp_path / "export"))
    assert min(export_result.left, export_result.right) > 0

    run_until(pipeline, HOURS)
    emissions = spark.read.format("delta").load(str(lake / "orders" / "emissions"))
    expected = count_ids(emissions.where(F.col("_slice") >= F.lit(START + CUT * HOUR)))
    assert expected.total() > 20

    # The query sets the options it needs in its session.
    with tuned_for_tiny_queries(spark.newSession()) as session:
        assert (
            run_resumed_query(session, lake, tmp_path / "live", export_result, first_hour_exists=first_hour_exists)
            == expected
        )
