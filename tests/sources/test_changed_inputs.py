"""Inputs whose rows and columns change between runs, under names and types that are easily mistaken."""

from datetime import UTC, date, datetime
from decimal import Decimal

import polars as pl
import pytest
from deltalake import DeltaTable
from numpy import float32

from tidemark.delta.table import DeltaLog
from tidemark.errors import InputError, UserError
from tidemark.execution.run import execute
from tidemark.ledger.emission_diff import Change
from tidemark.ledger.prepare_commit import set_aside
from tidemark.planning.plan import Request, make_plan
from tidemark.tables.run_files import run_of

OURS = ("_hash", "_copy", "_file", "_clock", "hash", "copy", "row", "lane", "side", "bucket", "start", "key_0")
"""Names that Tidemark has, or had, for columns of its own."""
TIMES = "happened timestamp, arrived timestamp"


def at(hour, minute):
    return datetime(2024, 1, 1, hour, minute, tzinfo=UTC)


@pytest.fixture
def run(spark, lake):
    def go(settings, hour, *, drain=False):
        plan = make_plan(spark, settings, str(lake), Request(end=at(hour, 0), drain=drain))
        list(execute(spark, plan, lambda *_: None))
        return plan

    return go


def test_columns_may_have_names_of_our_own(spark, lake, pipeline, write, run):
    schema = f"k string, {TIMES}, {', '.join(f'{name} int' for name in OURS)}, nested struct<a: int>"
    never_null = schema.replace("a: int", "a: int NOT NULL")
    spark.sql(f"CREATE TABLE delta.`{lake}/left` ({never_null}) USING delta")

    def row(key, hour, minute):
        return (key, at(hour, minute), at(hour, minute), *range(len(OURS)), (1,))

    for side in ("left", "right"):
        write(side, [row("read", 0, 10), row("ahead", 1, 10)], schema)
    settings = pipeline(
        join={"keys": ["k", "_hash"], "window": {"tumbling": "30 minutes"}, "condition": "left_start = right_start"}
    )
    run(settings, 1)
    spark.sql(f"UPDATE delta.`{lake}/left` SET _copy = 77 WHERE k = 'ahead'")
    for side in ("left", "right"):
        write(side, [row("landed", 0, 40)], schema)
    plan = run(settings, 2, drain=True)
    emitted = spark.read.format("delta").load(plan.tables.emissions)
    columns = [f"{side}_{name}" for side in ("left", "right") for name in OURS]
    values = {row["left_k"]: [row[name] for name in columns] for row in emitted.collect()}
    changed = [77 if name == "_copy" else number for number, name in enumerate(OURS)]
    same = [*range(len(OURS))]
    assert values == {"read": same + same, "ahead": changed + same, "landed": same + same}


def test_a_column_that_is_gone_stops_the_next_slice_unless_the_file_says_which_to_emit(
    spark, lake, pipeline, write, run
):
    for side in ("left", "right"):
        write(
            side, [("a", at(hour, 10), at(hour, 10), 7, hour) for hour in range(2)], f"k string, {TIMES}, w int, v int"
        )
    settings = pipeline()
    run(settings, 1)
    path = f"delta.`{lake}/left`"
    spark.sql(f"ALTER TABLE {path} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    spark.sql(f"ALTER TABLE {path} RENAME COLUMN w TO weight")
    told = "input left no longer has w, which slices up to 2024-01-01T01:00Z have emitted; bring it back, or name the"
    with pytest.raises(InputError, match=told):
        run(settings, 2)
    named = pipeline(select=["left_k", "left_v", "left_weight", "right_w"])
    plan = run(named, 2)
    rows = spark.read.format("delta").load(plan.tables.emissions)
    read = {row["_slice"].hour: (row["left_w"], row["left_weight"]) for row in rows.collect()}
    assert read == {0: (7, None), 1: (None, 7)}


WIDER = {
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
"""What Delta lets a column become."""
ENABLED = "'delta.enableTypeWidening' = 'true', 'delta.feature.timestampNtz' = 'supported'"
BEFORE = "n int, small tinyint, whole int, counted smallint, single float, amount decimal(5, 2), day date"


def test_an_input_whose_types_become_wider_goes_on(spark, lake, pipeline, write, run):
    """Also where a row that nobody has read was changed, and every reader has all rows in the wider types."""
    schema = f"{BEFORE}, s struct<a: int>, l array<int>, {TIMES}"

    def row(n, arrived, happened=None):
        values = (n, n, n, n, 0.1, Decimal("1.25"), date(2024, 1, n), (n,), [n])
        return (*values, happened or arrived, arrived)

    rows = [row(1, at(0, 10)), row(2, at(0, 55)), row(4, at(0, 57), at(0, 1)), row(3, at(1, 10))]
    write("left", rows, schema)
    write("right", [rows[0], row(2, at(1, 5), at(0, 50))], schema)
    settings = pipeline(join__keys=["n"])
    run(settings, 1)
    path = f"delta.`{lake}/left`"
    spark.sql(f"ALTER TABLE {path} SET TBLPROPERTIES ({ENABLED})")
    for name, (_, wider) in WIDER.items():
        spark.sql(f"ALTER TABLE {path} ALTER COLUMN {name} TYPE {wider}")
    spark.sql(f"UPDATE {path} SET n = 2147483648, whole = 7 WHERE n = 3")
    plan = run(settings, 2)
    log = DeltaLog.open(plan.tables.emissions)
    kinds = {f"left_{name}": wider.replace(" ", "") for name, (_, wider) in WIDER.items() if "." not in name}
    found = {field.name: field.dataType.simpleString() for field in log.schema}
    assert {name: found[name] for name in kinds} == kinds
    assert found["left_s"] == "struct<a:bigint>"
    assert found["left_l"] == "array<bigint>"
    assert found["right_n"] == "int"
    for name in ("emissions", "late", "checkpoint"):
        table = getattr(plan.tables, name)
        readers = (
            spark.read.format("delta").load(table).count(),
            pl.read_delta(table).height,
            DeltaTable(table).to_pyarrow_table().num_rows,
        )
        assert len({*readers}) == 1, name
    again = make_plan(spark, settings, str(lake), Request(start=at(0, 0), end=at(1, 0), reprocess=True))
    [repaired, *_] = execute(spark, again, lambda *_: None)
    assert repaired.changes[0] == Change(added=0, removed=0, same=1)
    emitted = {row["left_n"]: row for row in spark.read.format("delta").load(plan.tables.emissions).collect()}
    assert {
        n: (one["left_single"] == float32(0.1), one["left_l"], one["_slice"].hour) for n, one in emitted.items()
    } == {n: (True, [n], hour) for n, hour in ((1, 0), (2, 1))}
    aside = f"{lake}/aside"
    for kind, name in (("int", "run"), ("bigint", "run"), ("int", "a value")):
        set_aside(spark.range(1).selectExpr(f"CAST(id AS {kind}) AS `{name}`"), aside, kind)
    assert pl.read_delta(aside).to_dict(as_series=False) == {"run": [None, 0, 0], "a value": [0, None, None]}
    assert set(map(run_of, DeltaLog.open(aside).files["path"])) == {"int", "bigint"}
    with pytest.raises(UserError, match=r"cannot take the wider types .* give the pipeline a new `output`"):
        set_aside(spark.range(1).withColumnRenamed("id", "a value"), aside, "bigint")
    refused = pipeline(join__keys=["n"], select={"left_n": "CAST(left_n AS STRING)"})
    with pytest.raises(UserError, match=r"column left_n as bigint, and now it would be string: .* new `output`"):
        run(refused, 3)
