"""Read inputs whose rows, columns and types change between runs."""

import re
import shutil
from datetime import UTC, date, datetime
from decimal import Decimal

import polars as pl
import pytest
from deltalake import DeltaTable
from numpy import float32
from pyspark.sql import types as T

from tidemark.delta.table import DeltaTableHandle, create_table
from tidemark.errors import InputError, UserError
from tidemark.execution.run import execute
from tidemark.ledger.emission_diff import EmissionChange
from tidemark.planning.deleted_inputs import find_deleted_inputs
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request
from tidemark.tables.rejected_rows import append_rejected_rows
from tidemark.tables.run_files import parse_run
from tidemark.tables.schema_evolution import evolve_schema

INTERNAL_NAMES = (
    "_hash",
    "_copy",
    "_file",
    "_clock",
    "hash",
    "copy",
    "row",
    "lane",
    "side",
    "bucket",
    "start",
    "key_0",
)
"""Names of internal columns, now or earlier."""
TIMES = "happened timestamp, arrived timestamp"


def at(hour, minute):
    return datetime(2024, 1, 1, hour, minute, tzinfo=UTC)


@pytest.fixture
def run_until(spark, lake):
    def execute_plan(settings, hour, *, drain=False):
        plan = create_plan(spark, settings, str(lake), Request(end=at(hour, 0), drain=drain))
        list(execute(spark, plan, lambda *_: None))
        return plan

    return execute_plan


def test_input_columns_with_internal_names_are_preserved(spark, lake, pipeline, write, run_until):
    schema = f"k string, {TIMES}, {', '.join(f'{name} int' for name in INTERNAL_NAMES)}, nested struct<a: int>"
    never_null = schema.replace("a: int", "a: int NOT NULL")
    spark.sql(f"CREATE TABLE delta.`{lake}/left` ({never_null}) USING delta")

    def row(key, hour, minute):
        return (key, at(hour, minute), at(hour, minute), *range(len(INTERNAL_NAMES)), (1,))

    for side in ("left", "right"):
        write(side, [row("read", 0, 10), row("ahead", 1, 10)], schema)
    settings = pipeline(
        join={"keys": ["k", "_hash"], "window": {"tumbling": "30 minutes"}, "condition": "left_start = right_start"}
    )
    run_until(settings, 1)
    spark.sql(f"UPDATE delta.`{lake}/left` SET _copy = 77 WHERE k = 'ahead'")
    for side in ("left", "right"):
        write(side, [row("landed", 0, 40)], schema)
    plan = run_until(settings, 2, drain=True)
    emitted = spark.read.format("delta").load(plan.tables.emissions)
    columns = [f"{side}_{name}" for side in ("left", "right") for name in INTERNAL_NAMES]
    values = {row["left_k"]: [row[name] for name in columns] for row in emitted.collect()}
    changed = [77 if name == "_copy" else number for number, name in enumerate(INTERNAL_NAMES)]
    same = [*range(len(INTERNAL_NAMES))]
    assert values == {"read": same + same, "ahead": changed + same, "landed": same + same}


def test_missing_input_column_stops_run_unless_select_names_output(spark, lake, pipeline, write, run_until):
    for side in ("left", "right"):
        write(
            side, [("a", at(hour, 10), at(hour, 10), 7, hour) for hour in range(2)], f"k string, {TIMES}, w int, v int"
        )
    settings = pipeline()
    run_until(settings, 1)
    path = f"delta.`{lake}/left`"
    spark.sql(f"ALTER TABLE {path} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    spark.sql(f"ALTER TABLE {path} RENAME COLUMN w TO weight")
    message = r"input left no longer has w \(renamed to weight\), which slices up to 2024-01-01T01:00Z have emitted. "

    with pytest.raises(InputError, match=message):
        run_until(settings, 2)

    with_select = pipeline(select=["left_k", "left_v", "left_weight", "right_w"])
    plan = run_until(with_select, 2)
    rows = spark.read.format("delta").load(plan.tables.emissions)
    values = {row["_slice"].hour: (row["left_w"], row["left_weight"]) for row in rows.collect()}

    assert values == {0: (7, None), 1: (None, 7)}

    path = f"delta.`{lake}/right`"
    spark.sql(f"ALTER TABLE {path} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    spark.sql(f"ALTER TABLE {path} DROP COLUMN w")
    spark.sql(f"ALTER TABLE {path} ADD COLUMN w int")
    is_null = "where slices up to 2024-01-01T02:00Z run again, it is null in rows that were written earlier"
    plans = [
        create_plan(spark, with_select, str(lake), request)
        for request in (Request(), Request(reprocess=True, start=at(0, 0), end=at(1, 0)))
    ]
    for plan in plans:
        assert f"input right: w is another column of this name since version 3: {is_null}" in plan.notes

    results = list(execute(spark, plans[1], lambda *_: None))
    assert list(results[0].slices) == [0]
    rows = spark.read.format("delta").load(plan.tables.emissions).where("_slice = '2024-01-01T00:00:00Z'")
    assert [row["right_w"] for row in rows.collect()] == [None], "as the note said"

    spark.sql(f"ALTER TABLE {path} DROP COLUMN k")
    spark.sql(f"ALTER TABLE {path} ADD COLUMN k string")
    with pytest.raises(InputError, match="input right: key k is another column of this name since version 5"):
        create_plan(spark, with_select, str(lake), Request(reprocess=True, start=at(0, 0)))


WIDENED_TYPES = {
    "n": ("int", "bigint"),
    "small": ("tinyint", "int"),
    "whole": ("int", "double"),
    "counted": ("smallint", "decimal(12, 2)"),
    "single": ("float", "double"),
    "amount": ("decimal(5, 2)", "decimal(10, 4)"),
    "day": ("date", "timestamp_ntz"),
    "s.a": ("int", "bigint"),
    "l.element": ("int", "bigint"),
}
"""Types before and after each widening that Delta supports."""
TABLE_PROPERTIES = "'delta.enableTypeWidening' = 'true', 'delta.feature.timestampNtz' = 'supported'"
COLUMNS = "n int, small tinyint, whole int, counted smallint, single float, amount decimal(5, 2), day date"


def test_reprocess_after_wider_types_continues_a_slice_that_was_reprocessed_before(
    spark, lake, pipeline, write, run_until
):
    """The checkpoint of the other slices is then one file, whose statistics also cover the slice between them."""

    def reprocess(hour):
        request = Request(start=at(hour, 0), end=at(hour + 1, 0), reprocess=True)
        plan = create_plan(spark, settings, str(lake), request)
        return [list(result.slices) for result in execute(spark, plan, lambda *_: None)]

    for side in ("left", "right"):
        write(side, [("a", hour, at(hour, 50), at(hour, 50)) for hour in range(5)], f"k string, v int, {TIMES}")
    settings = pipeline()
    run_until(settings, 4)
    assert reprocess(1) == [[1]]
    spark.sql(f"ALTER TABLE delta.`{lake}/left` SET TBLPROPERTIES ({TABLE_PROPERTIES})")
    spark.sql(f"ALTER TABLE delta.`{lake}/left` ALTER COLUMN v TYPE bigint")
    run_until(settings, 5)

    assert reprocess(2)[0] == [2]


def test_widened_input_types_are_adopted_in_all_tables(spark, lake, pipeline, write, run_until):
    """Also test a changed row that no slice had read, and other readers of the widened tables."""
    schema = f"{COLUMNS}, s struct<a: int>, l array<int>, {TIMES}"

    def row(n, arrived, happened=None):
        values = (n, n, n, n, 0.1, Decimal("1.25"), date(2024, 1, n), (n,), [n])
        return (*values, happened or arrived, arrived)

    rows = [row(1, at(0, 10)), row(2, at(0, 55)), row(4, at(0, 57), at(0, 1)), row(3, at(1, 10))]
    write("left", rows, schema)
    write("right", [rows[0], row(2, at(1, 5), at(0, 50))], schema)
    settings = pipeline(join__keys=["n"])
    run_until(settings, 1)
    path = f"delta.`{lake}/left`"
    spark.sql(f"ALTER TABLE {path} SET TBLPROPERTIES ({TABLE_PROPERTIES})")
    for name, (_, wider) in WIDENED_TYPES.items():
        spark.sql(f"ALTER TABLE {path} ALTER COLUMN {name} TYPE {wider}")
    spark.sql(f"UPDATE {path} SET n = 2147483648, whole = 7 WHERE n = 3")
    plan = run_until(settings, 2)
    log = DeltaTableHandle.open(plan.tables.emissions)
    expected_types = {
        f"left_{name}": wider.replace(" ", "") for name, (_, wider) in WIDENED_TYPES.items() if "." not in name
    }
    types = {field.name: field.dataType.simpleString() for field in log.schema}
    assert {name: types[name] for name in expected_types} == expected_types
    assert types["left_s"] == "struct<a:bigint>"
    assert types["left_l"] == "array<bigint>"
    assert types["right_n"] == "int"
    for name in ("emissions", "late", "checkpoint"):
        table = getattr(plan.tables, name)
        readers = (
            spark.read.format("delta").load(table).count(),
            pl.read_delta(table).height,
            DeltaTable(table).to_pyarrow_table().num_rows,
        )
        assert len({*readers}) == 1, name
    reprocess = create_plan(spark, settings, str(lake), Request(start=at(0, 0), end=at(1, 0), reprocess=True))
    [repaired, *_] = execute(spark, reprocess, lambda *_: None)
    assert repaired.changes[0] == EmissionChange(added=0, removed=0, same=1)
    emitted = {row["left_n"]: row for row in spark.read.format("delta").load(plan.tables.emissions).collect()}
    assert {
        n: (emitted_row["left_single"] == float32(0.1), emitted_row["left_l"], emitted_row["_slice"].hour)
        for n, emitted_row in emitted.items()
    } == {n: (True, [n], hour) for n, hour in ((1, 0), (2, 1))}
    rejected_output = f"{lake}/aside"
    for dtype, name in (("int", "run"), ("bigint", "run"), ("int", "a value")):
        append_rejected_rows(spark.range(1).selectExpr(f"CAST(id AS {dtype}) AS `{name}`"), rejected_output, dtype)
    assert pl.read_delta(rejected_output).to_dict(as_series=False) == {"run": [None, 0, 0], "a value": [0, None, None]}
    assert set(map(parse_run, DeltaTableHandle.open(rejected_output).files["path"])) == {"int", "bigint"}
    with pytest.raises(UserError, match=r"cannot take the wider types .* Give the pipeline a new `output`"):
        append_rejected_rows(spark.range(1).withColumnRenamed("id", "a value"), rejected_output, "bigint")
    spark.sql(f"CREATE TABLE delta.`{lake}/untyped` USING delta AS SELECT 1L AS run, NULL AS note")
    append_rejected_rows(spark.range(1).selectExpr("id AS run", "'typed' AS note"), f"{lake}/untyped", "typed")
    assert sorted(pl.read_delta(f"{lake}/untyped").rows()) == [(0, "typed"), (1, None)]
    refused = pipeline(join__keys=["n"], select={"left_n": "CAST(left_n AS STRING)"})
    with pytest.raises(UserError, match=r"column left_n as bigint, and now it would be string: .* new `output`"):
        run_until(refused, 3)
    refused = pipeline(join__keys=["n"], select={"left_n": "concat('n', left_n)"})
    again = create_plan(spark, refused, str(lake), Request(start=at(0, 0), reprocess=True))
    with pytest.raises(UserError, match=r"column left_n as bigint, and now it would be string: .* new `output`"):
        list(execute(spark, again, lambda *_: None))
    refused = pipeline(join__keys=["n"], select={"LEFT_N": "left_n"})
    with pytest.raises(UserError, match=r"column left_n, and now it would be LEFT_N: Delta tables do not distinguish"):
        create_plan(spark, refused, str(lake), Request(end=at(3, 0)))


def test_evolve_schema_with_name_of_other_case_is_refused(tmp_path):
    def create_schema(column, field):
        row = T.StructType().add("k", "string").add("rows", T.ArrayType(T.StructType().add(field, "long")))
        return T.StructType().add("side", "string").add(column, row)

    log = create_table(str(tmp_path / "late"), create_schema("left", "v"), change_feed=False)
    unchanged = create_schema("left", "v").add("reason", "string")
    assert evolve_schema(None, log, log.path, unchanged, change_feed=False).schema.names == ["side", "left", "reason"]

    for column, field, names in (("Left", "v", "left, .* be Left:"), ("left", "V", "left.rows.v, .* be left.rows.V:")):
        log = DeltaTableHandle.open(log.path)
        with pytest.raises(UserError, match=names):
            evolve_schema(None, log, log.path, create_schema(column, field), change_feed=False)
        assert DeltaTableHandle.open(log.path).version == log.version


REPLACEMENTS = {
    "copy": "replaced or restored from a copy. Restore the table, or reprocess from",
    "new table": r"left was deleted and created again: .* reprocess .* --from 2024-01-01T00:00Z",
}


@pytest.mark.parametrize("replacement", REPLACEMENTS)
def test_replaced_input_is_refused_unless_all_slices_run_again(
    spark, lake, pipeline, write, run_until, tmp_path, replacement
):
    schema = f"k string, {TIMES}"
    for side in ("left", "right"):
        write(side, [("a", at(0, 10), at(0, 10))], schema)
    shutil.copytree(lake / "left", tmp_path / "copy")
    write("left", [("b", at(0, 20), at(0, 20))], schema)
    settings = pipeline(on_late_arriving_rows="reprocess")
    run_until(settings, 2)
    shutil.rmtree(lake / "left")
    if replacement == "copy":
        shutil.copytree(tmp_path / "copy", lake / "left")
    else:
        write("left", [("a", at(0, 10), at(0, 10))], schema)
        for _ in range(2):  # its version is higher than the one that was read
            write("left", [("b", at(0, 30), at(0, 30))], schema)

    for request in (Request(), Request(start=at(1, 0), reprocess=True), Request(outdated=True, reprocess=True)):
        with pytest.raises(InputError, match=REPLACEMENTS[replacement]):
            create_plan(spark, settings, str(lake), request)
    assert re.search(REPLACEMENTS[replacement], find_deleted_inputs(settings, str(lake)).description)

    plan = create_plan(spark, settings, str(lake), Request(start=at(0, 0), reprocess=True))
    list(execute(spark, plan, lambda *_: None))
    emitted = spark.read.format("delta").load(plan.tables.emissions)
    assert [row["left_k"] for row in emitted.collect()] == ["a"]
    assert not create_plan(spark, settings, str(lake), Request()).slices_to_reprocess
