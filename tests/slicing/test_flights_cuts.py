"""Real data, both clocks: however the month is cut, the same rows, and finer cuts the same rows per slice."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import functions as F

from jobs.land_flights import land
from tests.conftest import PROJECT
from tidemark.lake import PipelineTables
from tidemark.ledger import committed
from tidemark.plan import Request, make_plan
from tidemark.run import execute
from tidemark.spec import load_pipeline

START = datetime(2013, 1, 1, tzinfo=UTC)
MONTH_END = datetime(2013, 2, 2, tzinfo=UTC)
FEW_DAYS = START + timedelta(days=2)


@dataclass(frozen=True)
class Cut:
    name: str
    every: timedelta
    end: datetime
    per_job: int | str


CUTS = (
    Cut("one_slice", timedelta(days=32), MONTH_END, "auto"),
    Cut("hourly_in_one_job", timedelta(hours=1), MONTH_END, "auto"),
    Cut("daily_one_by_one", timedelta(days=1), MONTH_END, 1),
    Cut("a_few_days_hour_by_hour", timedelta(hours=1), FEW_DAYS, 1),
)


@pytest.fixture(scope="module")
def answers(spark, tmp_path_factory):
    """Rows by clock and cut: Counters of (result time, row identity, slice)."""
    lake = str(tmp_path_factory.mktemp("flights"))
    land(spark, lake)

    def run(clock_name):
        session = spark.newSession()
        base = load_pipeline(PROJECT / "include" / "pipelines" / f"{clock_name}.yaml")
        return {cut.name: answer_of(session, lake, base, cut) for cut in CUTS}

    # The clocks do not share a table, so they may as well share the machine.
    with ThreadPoolExecutor(max_workers=2) as pool:
        return dict(zip(CLOCKS, pool.map(run, CLOCKS), strict=True))


CLOCKS = ("flights_weather", "flights_weather_event_time")


def answer_of(spark, lake, base, cut):
    slices = base.slices.model_copy(update={"every": cut.every})
    pipeline = base.model_copy(update={"slices": slices, "output": f"{base.name}_{cut.name}"})
    plan = make_plan(spark, pipeline, lake, Request(end=cut.end, slices_per_job=cut.per_job))
    list(execute(spark, plan, lambda *_: None))
    tables = PipelineTables(f"{lake}/{pipeline.output}")
    rows = committed(spark, tables, tables.emissions)
    columns = [c for c in rows.columns if c not in ("_slice", "_run")]
    identity = F.xxhash64(*columns)
    pairs = rows.select("_slice", "_result_time", identity.alias("row")).collect()
    late = committed(spark, tables, tables.late)
    late = late.select(
        "_slice", "event_time", F.xxhash64("reason", "watermark", "held_by", "left", "right").alias("row")
    )
    return {
        "pairs": Counter((r["_slice"], r["_result_time"], r["row"]) for r in pairs),
        "late": Counter((r["_slice"], r["event_time"], r["row"]) for r in late.collect()),
    }


def unsliced(rows):
    return sum((Counter({row[1:]: count}) for row, count in rows.items()), Counter())


def by_day(rows):
    days = Counter()
    for (start, *row), count in rows.items():
        days[(start.replace(hour=0), *row)] += count
    return days


@pytest.mark.parametrize("table", ["pairs", "late"])
@pytest.mark.parametrize("clock", CLOCKS)
def test_every_cut_of_the_month_gives_the_same_rows(answers, clock, table):
    whole = unsliced(answers[clock]["one_slice"][table])
    assert unsliced(answers[clock]["hourly_in_one_job"][table]) == whole
    assert unsliced(answers[clock]["daily_one_by_one"][table]) == whole


@pytest.mark.parametrize("table", ["pairs", "late"])
@pytest.mark.parametrize("clock", CLOCKS)
def test_finer_cuts_give_the_same_rows_per_slice(answers, clock, table):
    hourly = answers[clock]["hourly_in_one_job"][table]
    assert by_day(hourly) == answers[clock]["daily_one_by_one"][table]
    first_days = Counter({row: count for row, count in hourly.items() if row[0] < FEW_DAYS.replace(tzinfo=None)})
    assert answers[clock]["a_few_days_hour_by_hour"][table] == first_days


def test_the_month_is_not_empty_and_lateness_costs_pairs(answers):
    arrival, event_time = (answers[clock]["one_slice"] for clock in CLOCKS)
    assert sum(event_time["pairs"].values()) == 32_165
    assert sum(arrival["pairs"].values()) == 28_496
    assert sum(arrival["late"].values()) == 2_800 + 521
    assert not event_time["late"]
