"""A live query that goes on from an exported state: with the rows that follow it gives what the uncut join gives."""

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
from tidemark.planning.plan import Request, create_plan
from tidemark.spark.temporary_settings import tuned_for_tiny_queries
from tidemark.streaming.export import export_checkpoint
from tidemark.watermarks.watermarks import Watermarks

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


def rows_of(chance, count, first):
    """Rows over seven hours, some hours late, some without key or time."""
    for number in range(first, first + count):
        arrived = START + timedelta(minutes=chance.randrange(HOURS * 60))
        happened = arrived - timedelta(microseconds=chance.randrange(chance.choice([1, 4]) * 3_600_000_000))
        when = None if chance.random() < 0.05 else happened
        yield number, chance.choice(["a", "b", None]), when, arrived, chance.randrange(5)


@pytest.fixture
def settings(write, pipeline):
    def make(name):
        chance = random.Random(name)
        for side, first in (("left", 0), ("right", 500)):
            write(side, list(rows_of(chance, 160, first)), ROW)
        join, spark = JOINS[name]
        return pipeline(dialect="spark", left__watermark_delay="20 minutes", join={"keys": ["k"], **join}, spark=spark)

    return make


@pytest.fixture
def run(spark, lake):
    def go(pipeline, hours):
        plan = create_plan(spark, pipeline, str(lake), Request(end=START + hours * HOUR, slices_per_job=2))
        return list(execute(spark, plan, lambda *_: None))

    return go


def told(rows):
    """Rows as ids, with how often."""
    names = ("left_id", "right_id", "_emission", "_window_start")
    ids = [F.col(name) if name in rows.columns else F.lit(None) for name in names]
    return Counter(tuple(row) for row in rows.select(*ids).collect())


def live(spark, lake, folder, exported, *, waiting):
    """What the exported query emits, fed an hour a batch; the first hour is waiting when it starts, or comes then."""
    spec = importlib.util.spec_from_file_location("resume_query", exported.query)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder.mkdir()
    schema = spark.read.format("delta").load(str(lake / "left")).schema
    events = spark.readStream.schema(schema.add("side", "string").add("hour", "integer")).parquet(str(folder))
    sides = (events.where(F.col("side") == side).drop("side", "hour") for side in ("left", "right"))
    both = None
    for side in ("left", "right"):
        rows = spark.read.format("delta").load(str(lake / side)).withColumn("side", F.lit(side))
        both = rows if both is None else both.unionByName(rows)
    hour = F.floor((F.unix_seconds("arrived") - int(START.timestamp())) / 3600).cast("int")
    after = both.withColumn("hour", hour).where(F.col("hour") >= CUT).cache()

    def feed(number):
        after.where(F.col("hour") == number).coalesce(1).write.mode("append").parquet(str(folder))

    if waiting:
        feed(CUT)
    query = module.resume(spark, *sides).writeStream.format("memory").queryName("live").start()
    try:
        query.processAllAvailable()
        if not waiting:
            times = [progress["eventTime"] for progress in query.recentProgress]
            mark = [time["watermark"] for time in times if "watermark" in time][-1]
            assert to_micros(parse_instant(mark)) == exported.watermarks_ms["combined"] * 1000
        for number in range(CUT + waiting, HOURS):
            feed(number)
            query.processAllAvailable()
        return told(spark.table("live"))
    finally:
        query.stop()
        after.unpersist()


def test_windows_that_are_compared_are_not_handed_on(pipeline, tmp_path):
    windows = {"left": SLIDING, "right": SLIDING, "comparison": "left < right"}
    compared = pipeline(dialect="spark", join={"keys": ["k"], "window_inequality": windows})
    state = SimpleNamespace(pipeline=compared, entry=SimpleNamespace(watermarks=Watermarks()))
    with pytest.raises(UserError, match="orders compares windows: a row may be in the state for some of its windows"):
        export_checkpoint(state, str(tmp_path / "export"))


@pytest.mark.parametrize(
    ("name", "waiting"),
    [
        ("left, max", False),
        pytest.param("inner", True, marks=pytest.mark.slow),
        pytest.param("full", True, marks=pytest.mark.slow),
        pytest.param("right, sliding", False, marks=pytest.mark.slow),
        pytest.param("semi, sliding", True, marks=pytest.mark.slow),
    ],
)
def test_a_query_goes_on_from_the_state(spark, lake, tmp_path, settings, run, name, waiting):
    pipeline = settings(name)
    run(pipeline, CUT)
    exported = export_checkpoint(CheckpointRef.from_ledger(spark, pipeline, str(lake)), str(tmp_path / "export"))
    assert min(exported.left, exported.right) > 0
    run(pipeline, HOURS)
    emissions = spark.read.format("delta").load(str(lake / "orders" / "emissions"))
    expected = told(emissions.where(F.col("_slice") >= F.lit(START + CUT * HOUR)))
    assert expected.total() > 20
    # The query sets what it needs in its session.
    with tuned_for_tiny_queries(spark.newSession()) as session:
        assert live(session, lake, tmp_path / "live", exported, waiting=waiting) == expected
