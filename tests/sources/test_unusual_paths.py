"""Use folders whose names have characters with a meaning in patterns and URIs."""

from datetime import UTC, datetime

import pytest

from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.errors import UserError
from tidemark.execution.run import execute
from tidemark.planning.planner import create_plan
from tidemark.planning.request import Request

ROW = "k string, happened timestamp, arrived timestamp"


def at(hour, minute):
    return datetime(2024, 1, 1, hour, minute, tzinfo=UTC)


def test_late_arriving_rows_in_folders_with_special_characters_are_read(spark, lake, pipeline, write):
    inputs = {f"{side}__table": f"[{side}] {{b,c}}*?#%20" for side in ("left", "right")}
    for table in inputs.values():
        write(table, [("a", at(0, 10), at(0, 10)), ("b", at(1, 10), at(1, 10))], ROW)
    settings = pipeline(**inputs, output="out {b,c}*?#%")
    for hour in (1, 2):
        plan = create_plan(spark, settings, str(lake), Request(end=at(hour, 0), drain=hour == 2))
        list(execute(spark, plan, lambda *_: None))
        if hour == 1:
            for table in inputs.values():
                write(table, [("landed", at(0, 40), at(0, 40))], ROW)
    emitted = spark.read.format("delta").load(plan.tables.emissions)

    assert sorted(row["left_k"] for row in emitted.collect()) == ["a", "b", "landed"]


@pytest.mark.parametrize("part", ["[", "]", "^", "|", "\\", "%2F"])
def test_check_writable_unsupported_character_is_rejected(part):
    with pytest.raises(
        UserError, match="delta-rs misreads .* in a path. Rename the folder in `output` or in the lake root"
    ) as raised:
        PipelineTables(f"lake/a{part}b").check_writable()
    assert f"delta-rs misreads {part} in a path" in str(raised.value)
