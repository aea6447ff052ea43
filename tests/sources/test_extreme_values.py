"""Use keys and times at the limits of their types."""

from datetime import UTC, date, datetime

import pytest
from pyspark.sql import functions as F

from tidemark.errors import InputError
from tidemark.execution.run import execute
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.streaming.spark_query import create_spark_query
from tidemark.timegrid.time_columns import ResolvedTimeColumn

NAN = float("nan")


def at(hour, minute=0, *, day=1, month=1, year=2024):
    return datetime(year, month, day, hour, minute, tzinfo=UTC)


@pytest.fixture
def run_pipeline(spark, lake, pipeline):
    """Run a pipeline, by default drained, and return its plan, emissions and late rows."""

    def execute_plan(end=None, *, drain=True, **changes):
        times = {"event_time": "happened", "watermark_delay": "0 seconds"}
        defaults = {
            "dialect": "flink-sql",
            "left": {"table": "left", **times},
            "right": {"table": "right", **times},
            "join": {"keys": ["k"], "interval": {"lower": "0 seconds", "upper": "0 seconds"}},
        }
        request = Request(end=end, drain=drain, slices_per_job=5000)
        plan = create_plan(spark, pipeline(**{**defaults, **changes}), str(lake), request)
        list(execute(spark, plan, lambda *_: None))
        read = spark.read.format("delta").load
        return plan, read(plan.tables.emissions).collect(), read(plan.tables.late).collect()

    return execute_plan


@pytest.mark.parametrize("dialect", ["flink-sql", "flink-datastream", "spark"])
def test_signed_zeros_match_as_in_the_engine(spark, write, run_pipeline, dialect):
    """Java's `Double.equals` and binary keys distinguish -0.0 from 0.0; Spark does not. NaN equals NaN."""
    for side in ("left", "right"):
        rows = [(key, at(0, 10), (flag, day)) for key, flag, day in ((0.0, True, 1), (-0.0, True, 1), (NAN, False, 2))]
        rows = [(key, when, (flag, date(2024, 1, day))) for key, when, (flag, day) in rows]
        write(side, rows, "k double, happened timestamp, s struct<flag: boolean, day: date>")
    plan, emitted, _ = run_pipeline(
        dialect=dialect,
        join={"keys": ["k", "s.flag", "s.day"], "interval": {"lower": "0 seconds", "upper": "0 seconds"}},
    )
    matched_keys = sorted((str(row["left_k"]), str(row["right_k"])) for row in emitted)
    crossed = [("-0.0", "0.0"), ("0.0", "-0.0")] if dialect == "spark" else []
    condition = create_spark_query(plan.pipeline, plan.inputs).on

    assert (
        "(`left_k` = `right_k`) AND (`left_s`.`flag` = `right_s`.`flag`) AND (`left_s`.`day` = `right_s`.`day`)"
        in condition
    )
    assert matched_keys == sorted([("-0.0", "-0.0"), ("0.0", "0.0"), ("nan", "nan"), *crossed])


def test_clock_overflowing_long_is_null(spark):
    clock = ResolvedTimeColumn("t", 1)
    rows = spark.createDataFrame([(10.0**power,) for power in range(9, 40)] + [(NAN,)], "t double")
    converted = rows.select(
        "t", clock.micros.alias("micros"), F.unix_micros(F.expr(clock.sql_timestamp)).alias("sql")
    ).collect()

    assert [row["micros"] for row in converted if row["t"] < 1e12] == [10 ** (power + 6) for power in (9, 10, 11)]
    assert {row["micros"] for row in converted if not row["t"] < 1e13} == {None}
    assert all(row["micros"] == row["sql"] for row in converted)


def test_gap_of_months_is_skipped_and_out_of_range_times_are_rejected(spark, write, run_pipeline):
    """Also test times that overflow a long of microseconds."""
    seconds = [when.timestamp() for when in (at(0, 10), at(0, 10, month=4), at(0, 10, year=2150))]
    for side in ("left", "right"):
        rows = [(n, float(second)) for n, second in enumerate([*seconds, 1e26, 1e28, 1e29, -1e27])]
        write(side, rows, "k int, happened double")
    times = {"event_time": {"column": "happened", "unit": "s"}, "watermark_delay": "0 seconds"}
    plan, emitted, late = run_pipeline(**{side: {"table": side, **times} for side in ("left", "right")})

    assert plan.slice_count == 91 * 24 + 1
    assert {row["left_k"]: row["_slice"].month for row in emitted} == {0: 1, 1: 4}
    assert [row["reason"] for row in late] == ["event_time_out_of_range"] * 10


def test_time_bounds_off_accepts_times_before_1970_and_after_2100(spark, write, run_pipeline):
    event_times = [at(0, 10, year=year).replace(microsecond=1) for year in (1601, 1965, 2150, 9999)]
    for side in ("left", "right"):
        write(side, [(n, when) for n, when in enumerate(event_times)], "k int, happened timestamp")
    slices = {"every": "36500 days", "start": "1600-01-01T00:00:00Z"}
    _, emitted, late = run_pipeline(
        end=at(0, year=2199, month=8, day=8), time_bounds="off", slices=slices, dialect="flink-datastream"
    )

    assert sorted(row["left_k"] for row in emitted) == [0, 1, 2]
    assert late == []


def test_run_overwritten_input_with_fewer_rows_is_rejected(spark, lake, run_pipeline):
    """The first overwrite adds a row, the second one removes a row that was read."""
    columns = "k int, happened timestamp, day date GENERATED ALWAYS AS (CAST(happened AS date))"
    rows = [(1, at(0, 10)), (2, at(1, 10))]
    for side in ("left", "right"):
        spark.sql(
            f"CREATE TABLE delta.`{lake}/{side}` ({columns}) USING delta "
            "TBLPROPERTIES ('delta.dataSkippingNumIndexedCols' = '0')"
        )

    def overwrite(rows):
        frame = spark.createDataFrame(rows, "k int, happened timestamp")
        for side in ("left", "right"):
            frame.write.format("delta").mode("overwrite").save(f"{lake}/{side}")

    overwrite(rows)
    run_pipeline(end=at(1), drain=False)
    overwrite([*rows, (3, at(0, 40))])
    _, emitted, _ = run_pipeline(end=at(2), drain=False)
    assert {row["left_k"]: (row["_slice"].hour, row["left_day"]) for row in emitted} == {
        1: (0, date(2024, 1, 1)),
        3: (1, date(2024, 1, 1)),
        2: (1, date(2024, 1, 1)),
    }
    overwrite(rows[1:])
    with pytest.raises(InputError, match="input left: version 3 deleted or changed rows"):
        run_pipeline(end=at(3))
