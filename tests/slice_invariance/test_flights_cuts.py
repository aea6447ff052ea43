"""Real data, both clocks: however the month is cut, the same rows, and finer cuts the same rows per slice."""

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
from tidemark.planning.plan import Request, create_plan

START = datetime(2013, 1, 1, tzinfo=UTC)
MONTH_END = datetime(2013, 2, 2, tzinfo=UTC)
# A Spark job a slice takes its time: TIDEMARK_DAYS=32 TIDEMARK_HOURS=72 looks at the month, and three days by the hour.
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
def answers(spark, tmp_path_factory):
    """Rows by clock and cut: Counters of (result time, row identity, slice)."""
    lake = str(tmp_path_factory.mktemp("flights"))
    land(spark, lake)

    def run(clock_name):
        session = spark.newSession()
        session.conf.set("spark.sql.shuffle.partitions", "2")
        base = load_pipeline(PROJECT / "include" / "pipelines" / f"{clock_name}.yaml")
        return {cut.name: answer_of(session, lake, base, cut) for cut in CUTS}

    # The clocks do not share a table, so they may as well share the machine.
    with ThreadPoolExecutor(max_workers=2) as pool:
        return dict(zip(CLOCKS, pool.map(run, CLOCKS), strict=True))


CLOCKS = ("flights_weather", "flights_weather_event_time")


def answer_of(spark, lake, base, cut):
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
        "_slice", "event_time", F.xxhash64("reason", "watermark", "held_by", "left", "right").alias("row")
    )
    return {
        "pairs": Counter((r["_slice"], r["_result_time"], r["row"]) for r in pairs),
        "late": Counter((r["_slice"], r["event_time"], r["row"]) for r in late.collect()),
    }


def unsliced(rows):
    whole = Counter()
    for (_, *row), count in rows.items():
        whole[tuple(row)] += count
    return whole


def before(end, rows):
    return Counter({row: count for row, count in rows.items() if row[0] < end.replace(tzinfo=None)})


def by_day(rows):
    days = Counter()
    for (start, *row), count in rows.items():
        days[(start.replace(hour=0), *row)] += count
    return days


@pytest.mark.parametrize("table", ["pairs", "late"])
@pytest.mark.parametrize("clock", CLOCKS)
def test_the_month_as_one_slice_or_hourly_gives_the_same_rows(answers, clock, table):
    whole = unsliced(answers[clock]["one_slice"][table])
    assert unsliced(answers[clock]["hourly_in_one_job"][table]) == whole


@pytest.mark.parametrize("table", ["pairs", "late"])
@pytest.mark.parametrize("clock", CLOCKS)
def test_finer_cuts_give_the_same_rows_per_slice(answers, clock, table):
    hourly = answers[clock]["hourly_in_one_job"][table]
    assert answers[clock]["daily_one_by_one"][table] == by_day(before(DAYS, hourly))
    assert answers[clock]["hour_by_hour"][table] == before(HOURS, hourly)


def test_the_month_is_not_empty_and_lateness_costs_pairs(answers):
    arrival, event_time = (answers[clock]["one_slice"] for clock in CLOCKS)
    assert sum(event_time["pairs"].values()) == 32_165
    assert sum(arrival["pairs"].values()) == 28_496
    assert sum(arrival["late"].values()) == 2_800 + 521
    assert not event_time["late"]
