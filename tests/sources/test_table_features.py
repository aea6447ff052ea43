"""Read inputs with newer Delta features like plain tables, and write tables that all readers support."""

from datetime import UTC, date, datetime, timedelta

import polars as pl
import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F

from tidemark.delta.table import DeltaTableHandle
from tidemark.delta.table_reader import DeltaInput
from tidemark.execution.run import execute
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.spark.temporary_settings import override_settings

START = datetime(2024, 1, 1, tzinfo=UTC)
ROW = "k string, happened timestamp, arrived timestamp, v int"
CODEGEN = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
"""Settings without which Spark 4.1 cannot read variants."""
PROPERTIES = {
    "plain": "",
    "deletion vectors": "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
    "column mapping": "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
    "partitions": "PARTITIONED BY (v)",
    "no statistics": "TBLPROPERTIES ('delta.dataSkippingNumIndexedCols' = '0')",
}


@pytest.fixture(scope="module")
def emissions_by_feature():
    return {}


@pytest.mark.parametrize("feature", PROPERTIES)
def test_table_feature_does_not_change_emissions(spark, lake, pipeline, emissions_by_feature, feature):
    rows = [("a", START + timedelta(minutes=7 * n), START + timedelta(minutes=7 * n + n % 3), n % 5) for n in range(20)]
    for side in ("left", "right"):
        spark.sql(f"CREATE TABLE delta.`{lake}/{side}` ({ROW}) USING delta {PROPERTIES[feature]}")
        frame = spark.createDataFrame([*rows, ("b", START, START, 4)], ROW)
        frame.coalesce(1).write.format("delta").mode("append").save(str(lake / side))
        spark.sql(f"DELETE FROM delta.`{lake}/{side}` WHERE k = 'b'")
    settings = pipeline()
    plan = create_plan(spark, settings, str(lake), Request())

    assert (plan.spark_queries == ()) == (feature in {"plain", "partitions"})

    list(execute(spark, plan, lambda *_: None))
    emissions_by_feature[feature] = sorted(map(str, spark.read.format("delta").load(plan.tables.emissions).collect()))

    assert emissions_by_feature[feature] == emissions_by_feature["plain"] != []


def test_columns_of_rarely_supported_types_are_carried_and_emitted(spark, lake, pipeline):
    """Also test that a type which a reader does not support keeps it from no other column."""
    rows = spark.range(6).selectExpr(
        "'a' AS k",
        "timestamp'2024-01-01' + make_interval(0, 0, 0, 0, 0, cast(10 * id AS int)) AS happened",
        "timestamp'2024-01-01' + make_interval(0, 0, 0, 0, 0, cast(10 * id AS int)) AS arrived",
        "parse_json(concat('{\"v\": ', id, '}')) AS variant",
        "map('v', id) AS map",
        "cast('x' AS binary) AS binary",
        "timestamp_ntz'2024-01-01 10:00:00.000001' AS local",
        "cast(id AS decimal(38, 9)) AS decimal",
        "cast(if(id = 1, 'NaN', 1.5) AS double) AS double",
        "date'9999-12-31' AS day",
        "timestamp'+12024-01-01' AS far",
        "repeat('long', 20) AS text",
    )
    for side in ("left", "right"):
        rows.coalesce(1).write.format("delta").save(str(lake / side))
    settings = pipeline()
    for hours in (1, 2):
        plan = create_plan(spark, settings, str(lake), Request(end=START + timedelta(hours=hours)))
        list(execute(spark, plan, lambda *_: None))
    emitted = spark.read.format("delta").load(plan.tables.emissions)
    with override_settings(spark, CODEGEN):
        assert emitted.select(F.expr("variant_get(left_variant, '$.v', 'int')")).distinct().count() == 6
    emitted = emitted.drop("left_variant", "right_variant")

    assert emitted.where("left_far > '9999-12-31' AND right_day >= '9999-12-31'").count() == emitted.count() > 0
    assert emitted.where("isnan(left_double)").count() == emitted.where("left_map['v'] = 1").count() > 0

    log = DeltaTableHandle.open(plan.tables.emissions)
    assert log.table.count() == emitted.count()
    assert log.get_min_values("left_far") == [None] * len(log.files), "no statistics where Python has no such date"
    with pytest.raises(pl.exceptions.PolarsError):  # Polars does not support variants
        pl.scan_delta(plan.tables.emissions).collect()


def test_column_without_type_is_left_out_until_it_has_a_type(spark, lake, pipeline):
    """Also test rows that changed since, and other readers of the pipeline's tables. Spark reads the right input."""
    rows = "VALUES ('a', timestamp'2024-01-01 00:50:00'), ('ahead', timestamp'2024-01-01 01:10:00') AS t(k, time)"
    query = (
        f"SELECT k, time AS happened, time AS arrived, NULL AS note, named_struct('x', 1, 'y', NULL) AS s FROM {rows}"
    )
    for side, features in (("left", ""), ("right", PROPERTIES["deletion vectors"])):
        spark.sql(f"CREATE TABLE delta.`{lake}/{side}` USING delta {features} AS {query}")
    settings = pipeline()
    first = create_plan(spark, settings, str(lake), Request(end=START + timedelta(hours=1)))
    list(execute(spark, first, lambda *_: None))

    assert first.notes == tuple(
        f"columns of {side} without a type (void) are left out: note, s.y" for side in ("left", "right")
    )
    for table in (first.tables.emissions, first.tables.checkpoint):
        frame = pl.scan_delta(table).collect()
        assert frame.height == DeltaTable(table).to_pyarrow_table().num_rows > 0
        assert "Null" not in str(frame.schema)

    for side in ("left", "right"):
        table = f"delta.`{lake}/{side}`"
        for column in ("note", "s.y"):
            spark.sql(f"ALTER TABLE {table} ALTER COLUMN {column} TYPE STRING")
        spark.sql(f"UPDATE {table} SET note = 'updated' WHERE k = 'ahead'")
        for minutes in (40, 75):  # late-arriving, and new
            time = f"timestamp'2024-01-01' + INTERVAL {minutes} MINUTES"
            values = f"'n{minutes}', named_struct('x', 2, 'y', 'typed')"
            spark.sql(f"INSERT INTO {table} SELECT 'a', {time}, {time}, {values}")
    second = create_plan(spark, settings, str(lake), Request(end=START + timedelta(hours=2)))
    list(execute(spark, second, lambda *_: None))

    emitted = pl.scan_delta(second.tables.emissions).collect().rows(named=True)
    pairs = {(row["left_note"], row["right_note"], row["left_s"]["y"], row["_slice"].hour) for row in emitted}
    assert pairs == {
        (None, None, None, 0),
        (None, "n40", None, 1),
        ("n40", "n40", "typed", 1),
        ("n75", None, "typed", 1),
        ("n75", "n75", "typed", 1),
        ("updated", "updated", None, 1),
    }
    assert len(emitted) == len(pairs)
    # delta-rs cannot read the right input, so its late-arriving row is not counted.
    late_arriving = "about 1 row of committed slices arrived after the commit: slice 2024-01-01T01:00Z reads them"
    assert second.notes == (late_arriving,)


def test_delta_input_without_delta_rs_is_read_by_spark(spark, lake, write, monkeypatch):
    write("left", [("a", START, START, 1)], ROW)
    by_delta_rs = DeltaInput.find(spark, str(lake), "left")
    by_spark = DeltaInput.find(spark, str(lake), "left")
    monkeypatch.setitem(by_spark.__dict__, "log", None)
    assert (by_spark.version, by_spark.schema, by_spark.list_files() != [], by_spark.read().count()) == (
        by_delta_rs.version,
        by_delta_rs.schema,
        by_delta_rs.list_files() != [],
        by_delta_rs.read().count(),
    )


@pytest.mark.slow
def test_catalog_tables_are_read_with_late_arriving_rows(spark, lake, pipeline, write):
    """Also test tables without statistics and with a generated column."""
    row = "k string, happened timestamp, arrived timestamp"
    columns = f"{row}, day date GENERATED ALWAYS AS (CAST(happened AS date))"
    no_statistics = "TBLPROPERTIES ('delta.dataSkippingNumIndexedCols' = '0')"
    for side in ("left", "right"):
        spark.sql(f"CREATE TABLE sold_{side} ({columns}) USING delta LOCATION '{lake}/sold/{side}' {no_statistics}")
    try:
        settings = pipeline(left__table="sold_left", right__table="default.sold_right")
        for hour in (1, 2):
            for table in ("sold/left", "sold/right"):
                write(table, [(f"hour {hour}", START, START)], row)
            plan = create_plan(spark, settings, str(lake), Request(end=START + timedelta(hours=hour)))
            list(execute(spark, plan, lambda *_: None))
    finally:
        for side in ("left", "right"):
            spark.sql(f"DROP TABLE sold_{side}")
    emitted = spark.read.format("delta").load(plan.tables.emissions).collect()
    emitted_rows = [(row["left_k"], row["_slice"].hour, row["right_day"]) for row in emitted]

    assert sorted(emitted_rows) == [("hour 1", 0, date(2024, 1, 1)), ("hour 2", 1, date(2024, 1, 1))]


def test_read_files_with_column_named_metadata_selects_files(spark, lake):
    """The column hides Spark's own `_metadata`."""
    mapped = "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
    spark.sql(f"CREATE TABLE delta.`{lake}/left` (`_metadata` string, v int) USING delta {mapped}")
    for number in range(2):
        row = spark.createDataFrame([("x", number)], "`_metadata` string, v int")
        row.coalesce(1).write.format("delta").mode("append").save(f"{lake}/left")
    table = DeltaInput.find(spark, str(lake), "left")
    [first] = DeltaInput.find(spark, str(lake), "left", version=1).list_files()

    assert [row["v"] for row in table.read_files([first]).collect()] == [0]
