"""What a table's log tells of its files."""

import json

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from tidemark.delta import table
from tidemark.delta.log_files import LogFiles, find_oldest_readable_version
from tidemark.delta.table import DataFile, DeltaTableHandle, create_internal_table, create_table

AT = "2024-01-01T01:00:00.000000Z"
STATS = json.dumps({"numRecords": 1, "minValues": {"_slice": AT}, "maxValues": {"_slice": AT}, "nullCount": {}})
WIDE = T.StructType([T.StructField(f"c{n}", T.IntegerType()) for n in range(40)]).add("_slice", T.TimestampType())


def test_the_slices_of_files_are_read_where_they_come_after_many_columns(tmp_path, monkeypatch):
    def committed(name):
        table = create_table(str(tmp_path / name), WIDE, change_feed=False)
        return table.commit([DataFile("part-0.parquet", 1, 1, 0, STATS)])

    assert committed("now").get_min_values("_slice")[0].hour == 1
    monkeypatch.setattr(table, "TABLE_PROPERTIES", {})
    before = committed("before")
    assert before.get_min_values("_slice") == [None]
    after = before.add_missing_columns(WIDE)
    assert after.get_min_values("_slice")[0].hour == 1
    assert after.add_missing_columns(WIDE).version == after.version, "once is enough"


@pytest.fixture
def six(tmp_path):
    """A table of six versions; from the fourth on it has no longer the file of the second."""
    log = create_internal_table(str(tmp_path / "six"), pa.schema({"v": pa.int64()}))
    for number in range(1, 3):
        log = log.append(pa.table({"v": [number]}))
    log = log.commit([], [log.files["path"].iloc[-1]])
    for number in range(4, 6):
        log = log.append(pa.table({"v": [number]}))
    return log


def test_the_oldest_version_is_the_first_from_which_on_all_files_are_there(six, tmp_path):
    assert (six.version, find_oldest_readable_version(six), find_oldest_readable_version(six, 4)) == (5, 0, 4)
    [gone] = set(DeltaTableHandle.open(six.path, 2).files["path"]) - set(six.files["path"])
    (tmp_path / "six" / gone).unlink()
    assert [find_oldest_readable_version(six, since) for since in (0, 2, 3, 4)] == [3, 3, 3, 4]


def test_a_log_reaches_back_to_a_checkpoint_behind_which_it_has_no_gap(six, tmp_path):
    def without(*versions):
        for version in versions:
            (tmp_path / f"six/_delta_log/{version:020}.json").unlink()
        found = LogFiles.from_table(six)
        return found.oldest_version, found.commit_versions

    assert without() == (0, range(6))
    DeltaTableHandle.open(six.path, 1).table.create_checkpoint()
    DeltaTableHandle.open(six.path, 4).table.create_checkpoint()
    assert without(0) == (1, range(1, 6))
    assert without(3) == (4, range(4, 6)), "version 2 could be told, and not those up to 4"
    assert [info.base_name[:22] for info in LogFiles.from_table(six).list_files_before(2)] == [
        f"{1:020}.c",
        f"{1:020}.j",
    ]
    assert find_oldest_readable_version(DeltaTableHandle.open(six.path)) == 4
