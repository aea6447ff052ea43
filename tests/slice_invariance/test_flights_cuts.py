"""Real data gives the same rows for every slice size and both clocks, and finer slices the same rows per slice."""

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import functions as F

from jobs.land_flights import land
from tests.conftest import PROJECT
from tidemark.config import load_pipeline
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.execution.run import execute
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request

START = datetime(2013, 1, 1, tzinfo=UTC)
MONTH_END = datetime(2013, 2, 2, tzinfo=UTC)
# A Spark job per slice is slow. TIDEMARK_DAYS=32 TIDEMARK_HOURS=72 tests the month by day, and three days by hour.
DAYS = START + timedelta(days=int(os.environ.get("TIDEMARK_DAYS", "3")))
HOURS = START + timedelta(hours=int(os.environ.get("TIDEMARK_HOURS", "3")))


pytestmark = pytest.mark.grid


@dataclass(frozen=True)
class Cut:
    name: str
    every: timedelta
    end: datetime
    per_job: int | str


CUTS = (
    Cut("one_slice", timedelta(days=32), MONTH_END, "auto"),
    Cut("hourly_in_one_job", timedelta(hours=1), MONTH_END, "auto"),
    Cut("daily_one_by_one", timedelta(days=1), DAYS, 1),
    Cut("hour_by_hour", timedelta(hours=1), HOURS, 1),
)


@pytest.fixture(scope="module")
def outputs(spark, tmp_path_factory):
    """Run each cut for each clock; return counters of (slice, result time, row identity) by clock, cut and table."""
    lake = str(tmp_path_factory.mktemp("flights"))
    land(spark, lake)

    def run(clock_name):
        session = spark.newSession()
        session.conf.set("spark.sql.shuffle.partitions", "2")
        base = load_pipeline(PROJECT / "include" / "pipelines" / f"{clock_name}.yaml")
        return {cut.name: run_cut(session, lake, base, cut) for cut in CUTS}

    # The clocks share no table, so they run concurrently.
    with ThreadPoolExecutor(max_workers=2) as pool:
        return dict(zip(CLOCKS, pool.map(run, CLOCKS), strict=True))


CLOCKS = ("flights_weather", "flights_weather_event_time")


def run_cut(spark, lake, base, cut):
    slices = base.slices.model_copy(update={"every": cut.every})
    pipeline = base.model_copy(update={"slices": slices, "output": f"{base.name}_{cut.name}"})
    plan = create_plan(spark, pipeline, lake, Request(end=cut.end, slices_per_job=cut.per_job))
    list(execute(spark, plan, lambda *_: None))
    tables = PipelineTables(f"{lake}/{pipeline.output}")
    rows = spark.read.format("delta").load(tables.emissions)
    columns = [c for c in rows.columns if c != "_slice"]
    identity = F.xxhash64(*columns)
    pairs = rows.select("_slice", "_result_time", identity.alias("row")).collect()
    late = spark.read.format("delta").load(tables.late)
    late = late.select(
        "_slice", "event_time", F.xxhash64("reason", "watermark", "limiting_side", "left", "right").alias("row")
    )
    return {
        "pairs": Counter((r["_slice"], r["_result_time"], r["row"]) for r in pairs),
        "late": Counter((r["_slice"], r["event_time"], r["row"]) for r in late.collect()),
    }


def count_without_slice(rows):
    counts = Counter()
    for (_, *row), count in rows.items():
        counts[tuple(row)] += count
    return counts


def select_before(end, rows):
    return Counter({row: count for row, count in rows.items() if row[0] < end.replace(tzinfo=None)})


def group_by_day(rows):
    days = Counter()
    for (start, *row), count in rows.items():
        days[(start.replace(hour=0), *row)] += count
    return days


@pytest.mark.parametrize("table", ["pairs", "late"])
@pytest.mark.parametrize("clock", CLOCKS)
def test_month_in_single_slice_or_hourly_gives_same_rows(outputs, clock, table):
    single_slice = count_without_slice(outputs[clock]["one_slice"][table])
    assert count_without_slice(outputs[clock]["hourly_in_one_job"][table]) == single_slice


@pytest.mark.parametrize("table", ["pairs", "late"])
@pytest.mark.parametrize("clock", CLOCKS)
def test_finer_slices_give_same_rows_per_slice(outputs, clock, table):
    hourly = outputs[clock]["hourly_in_one_job"][table]
    assert outputs[clock]["daily_one_by_one"][table] == group_by_day(select_before(DAYS, hourly))
    assert outputs[clock]["hour_by_hour"][table] == select_before(HOURS, hourly)


def test_month_output_has_expected_counts(outputs):
    arrival, event_time = (outputs[clock]["one_slice"] for clock in CLOCKS)
    assert sum(event_time["pairs"].values()) == 32_165
    assert sum(arrival["pairs"].values()) == 28_496
    assert sum(arrival["late"].values()) == 2_800 + 521
    assert not event_time["late"]
