"""Compare keys of type CHAR and its relatives with a join of Spark itself."""

from datetime import UTC, datetime, timedelta

import pytest

from tidemark.execution.run import execute
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request

START = datetime(2024, 1, 1, tzinfo=UTC)
KEYS = {
    "whole columns": ["char_key", "struct_key", "array_key", "varchar_key", "binary_key"],
    "field of a struct": ["struct_key.k"],
    "char and varchar": [{"left": "char_key", "right": "varchar_key"}],
    "expression": ["upper(char_key)"],
}


@pytest.fixture(scope="module")
def char_lake(spark, tmp_path_factory):
    """Create a lake with one row per table, whose keys differ in declared length."""
    lake = tmp_path_factory.mktemp("lake")
    for side, length in (("left", 3), ("right", 5)):
        char = f"CHAR({length})"
        spark.sql(
            f"CREATE TABLE delta.`{lake}/{side}` (char_key {char}, struct_key STRUCT<k: {char}>, "
            f"array_key ARRAY<{char}>, varchar_key VARCHAR({length}), binary_key BINARY, "
            "happened TIMESTAMP, arrived TIMESTAMP) USING delta"
        )
        spark.sql(
            f"INSERT INTO delta.`{lake}/{side}` SELECT 'ab', named_struct('k', 'ab'), array('ab'), 'ab', "
            "CAST('ab' AS BINARY), timestamp'2024-01-01 00:01:00Z', timestamp'2024-01-01 00:02:00Z'"
        )
    return lake


@pytest.mark.parametrize("keys", KEYS)
def test_keys_match_as_in_a_join_of_spark(spark, char_lake, pipeline, keys):
    left, right = (spark.read.format("delta").load(f"{char_lake}/{side}").alias(side) for side in ("left", "right"))
    conditions = [" = ".join(qualify(key, side) for side in ("left", "right")) for key in KEYS[keys]]
    expected = left.join(right).where(" AND ".join(conditions)).count()
    settings = pipeline(dialect="spark", join__keys=KEYS[keys], output=f"output_{keys.replace(' ', '_')}")
    plan = create_plan(spark, settings, str(char_lake), Request())

    list(execute(spark, plan, lambda *_: None))

    assert spark.read.format("delta").load(plan.tables.emissions).count() == expected
    assert expected == (keys == "whole columns")


@pytest.mark.parametrize("dialect", ["flink-datastream", "flink-sql"])
def test_char_keys_of_different_lengths_differ_in_flink(spark, char_lake, pipeline, dialect):
    settings = pipeline(dialect=dialect, join__keys=["char_key"], output=f"output_{dialect.replace('-', '_')}")
    plan = create_plan(spark, settings, str(char_lake), Request(end=START + timedelta(hours=1)))

    list(execute(spark, plan, lambda *_: None))

    assert spark.read.format("delta").load(plan.tables.emissions).count() == 0


def qualify(key, side):
    key = key[side] if isinstance(key, dict) else key
    return key.replace("char_key", f"{side}.char_key") if "(" in key else f"{side}.{key}"
