"""Inputs whose rows and columns change between runs, under names and types that are easily mistaken."""

from datetime import UTC, datetime

import pytest

from tidemark.commits.ledger import Ledger
from tidemark.errors import UserError
from tidemark.execution.run import execute
from tidemark.planning.plan import Request, make_plan

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


def test_a_wider_type_is_no_other_row_and_is_refused_before_anything_is_committed(spark, lake, pipeline, write, run):
    for side in ("left", "right"):
        write(
            side,
            [("a", at(0, 10), at(0, 10), 1), ("b", at(0, 55), at(0, 55), 2), ("c", at(1, 10), at(1, 10), 3)],
            f"k string, {TIMES}, v int",
        )
    settings = pipeline()
    run(settings, 1)
    path = f"delta.`{lake}/left`"
    spark.sql(f"ALTER TABLE {path} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
    spark.sql(f"ALTER TABLE {path} ALTER COLUMN v TYPE BIGINT")
    spark.sql(f"UPDATE {path} SET v = 2147483648 WHERE k = 'c'")
    with pytest.raises(UserError, match=r"column left_?\.?v as int, and now it would be bigint: .* new `output`"):
        run(settings, 2)
    assert Ledger.of(settings, str(lake)).last.number == 0
