"""What a table's log tells of its files."""

import json

from pyspark.sql import types as T

from tidemark.delta import log
from tidemark.delta.log import DataFile, create_table

AT = "2024-01-01T01:00:00.000000Z"
STATS = json.dumps({"numRecords": 1, "minValues": {"_slice": AT}, "maxValues": {"_slice": AT}, "nullCount": {}})
WIDE = T.StructType([T.StructField(f"c{n}", T.IntegerType()) for n in range(40)]).add("_slice", T.TimestampType())


def test_the_slices_of_files_are_read_where_they_come_after_many_columns(tmp_path, monkeypatch):
    def committed(name):
        table = create_table(str(tmp_path / name), WIDE, change_feed=False)
        return table.commit([DataFile("part-0.parquet", 1, 1, 0, STATS)])

    assert committed("now").least("_slice")[0].hour == 1
    monkeypatch.setattr(log, "CONFIGURATION", {})
    before = committed("before")
    assert before.least("_slice") == [None]
    after = before.widened(WIDE)
    assert after.least("_slice")[0].hour == 1
    assert after.widened(WIDE).version == after.version, "once is enough"
