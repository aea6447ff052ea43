"""Use folders whose names have characters with a meaning in patterns and URIs, and files of the same name."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.errors import InputError, UserError
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


def append_partitions(path, hours):
    """Append a row of each key, in a partition of its own, to a table. The files have the same name.

    Args:
        path: The table.
        hours: Hour and minute of the row by key, which is the partition.
    """
    log = DeltaTable(path)
    name, actions = f"{log.version()}.parquet", []
    for key, (hour, minute) in hours.items():
        time = at(hour, minute)
        rows = pa.table({name: pa.array([time], pa.timestamp("us", "UTC")) for name in ("happened", "arrived")})
        file = Path(path, f"k={key}", name)
        file.parent.mkdir(exist_ok=True)
        pq.write_table(rows, file)
        bounds = {"happened": time.isoformat(), "arrived": time.isoformat()}
        stats = {"numRecords": 1, "minValues": bounds, "maxValues": bounds, "nullCount": dict.fromkeys(bounds, 0)}
        relative = str(file.relative_to(path))
        actions.append(AddAction(relative, file.stat().st_size, {"k": key}, 0, True, json.dumps(stats)))
    log.create_write_transaction(actions, "append", log.schema())


def test_files_of_one_name_in_several_partitions_are_told_apart(spark, lake, pipeline, write):
    left = str(lake / "left")
    spark.sql(f"CREATE TABLE delta.`{left}` ({ROW}) USING delta PARTITIONED BY (k)")
    append_partitions(left, {"e\u3000u": (0, 10), "us": (2, 10)})
    write("right", [(key, at(hour, 10), at(hour, 10)) for key in ("e\u3000u", "us") for hour in range(4)], ROW)
    settings = pipeline(join={"keys": ["k"], "interval": {"lower": "-2 hours", "upper": "2 hours"}}, output="out")

    def run(end, **options):
        plan = create_plan(spark, settings, str(lake), Request(end=end, **options))
        list(execute(spark, plan, lambda *_: None))
        emitted = spark.read.format("delta").load(plan.tables.emissions)
        return sorted({(row["left_k"], row["left_happened"].replace(tzinfo=UTC)) for row in emitted.collect()})

    assert run(at(1, 0)) == [("e\u3000u", at(0, 10))]
    append_partitions(left, {"e\u3000u": (0, 40), "us": (2, 40)})
    late_and_new = [("e\u3000u", at(0, 10)), ("e\u3000u", at(0, 40)), ("us", at(2, 10)), ("us", at(2, 40))]
    assert run(at(3, 0)) == late_and_new

    DeltaTable(left).delete("k = 'us' AND arrived >= '2024-01-01T02:40:00Z'")
    with pytest.raises(InputError, match="left: version 3 deleted or changed rows that slices from 2024-01-01T02:00Z"):
        create_plan(spark, settings, str(lake), Request(end=at(4, 0)))
    assert run(at(3, 0), reprocess=True, start=at(2, 0)) == late_and_new[:-1]
