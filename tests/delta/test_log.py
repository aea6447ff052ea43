"""Tests of file statistics, readable versions and log files of a Delta table."""

import json

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import types as T

from tidemark.delta import table, table_reader
from tidemark.delta.log_files import LogFiles, find_oldest_readable_version
from tidemark.delta.table import DataFile, DeltaTableHandle, create_internal_table, create_table

TIME = "2024-01-01T01:00:00.000000Z"
STATS = json.dumps({"numRecords": 1, "minValues": {"_slice": TIME}, "maxValues": {"_slice": TIME}, "nullCount": {}})
WIDE = T.StructType([T.StructField(f"c{n}", T.IntegerType()) for n in range(40)]).add("_slice", T.TimestampType())


def test_get_min_values_of_slice_after_many_columns_needs_table_property(tmp_path, monkeypatch):
    def create_with_file(name):
        created = create_table(str(tmp_path / name), WIDE, change_feed=False)
        return created.commit([DataFile("part-0.parquet", 1, 1, 0, STATS)])

    assert create_with_file("with_properties").get_min_values("_slice")[0].hour == 1

    monkeypatch.setattr(table, "TABLE_PROPERTIES", {})
    before = create_with_file("without_properties")
    assert before.get_min_values("_slice") == [None]
    after = before.add_missing_columns(WIDE)
    assert after.get_min_values("_slice")[0].hour == 1
    assert after.add_missing_columns(WIDE).version == after.version, "a second call commits nothing"


def test_add_missing_columns_adds_fields_in_nested_types(tmp_path):
    def nest(value):
        return T.StructType([T.StructField("v", T.MapType(T.StringType(), T.ArrayType(value)))])

    narrow, wide = (T.StructType([T.StructField(name, T.IntegerType()) for name in names]) for names in ("a", "ab"))
    created = create_table(str(tmp_path / "nested"), nest(narrow), change_feed=False)
    assert created.add_missing_columns(nest(narrow)).version == created.version

    assert created.add_missing_columns(nest(wide)).schema == nest(wide)


@pytest.fixture
def six_versions(tmp_path):
    """Create a table of six versions; version 3 removes the file that version 2 added."""
    handle = create_internal_table(str(tmp_path / "six"), pa.schema({"v": pa.int64()}))
    for number in range(1, 3):
        handle = handle.append(pa.table({"v": [number]}))
    handle = handle.commit([], [handle.files["path"].iloc[-1]])
    for number in range(4, 6):
        handle = handle.append(pa.table({"v": [number]}))
    return handle


def test_find_oldest_readable_version_skips_versions_with_deleted_files(six_versions, tmp_path):
    assert six_versions.version == 5
    assert [find_oldest_readable_version(six_versions, since) for since in (0, 4)] == [0, 4]

    [removed] = set(DeltaTableHandle.open(six_versions.path, 2).files["path"]) - set(six_versions.files["path"])
    (tmp_path / "six" / removed).unlink()

    assert [find_oldest_readable_version(six_versions, since) for since in (0, 2, 3, 4)] == [3, 3, 3, 4]


@pytest.mark.parametrize("is_readable_by_delta_rs", [True, False])
def test_table_id_is_that_of_each_version(tmp_path, monkeypatch, is_readable_by_delta_rs):
    path = str(tmp_path / "replaced")
    for number in range(2):
        write_deltalake(path, pa.table({"v": [number]}), mode="append")
    old_id = DeltaTableHandle.open(path).table.metadata().id
    log = tmp_path / "replaced/_delta_log"
    [metadata] = [line for line in (log / f"{0:020}.json").read_text().splitlines() if "metaData" in line]
    (log / f"{2:020}.json").write_text(metadata.replace(old_id, "new"))
    if not is_readable_by_delta_rs:
        monkeypatch.setattr(table_reader, "_open_table", lambda *_: None)

    replaced = table_reader.DeltaInput(None, "replaced", path)

    assert [replaced.find_table_id_at(version) for version in range(3)] == [old_id, old_id, "new"]


def test_log_files_oldest_version_is_a_checkpoint_followed_by_no_gap(six_versions, tmp_path):
    def delete_log_files(*versions):
        for version in versions:
            (tmp_path / f"six/_delta_log/{version:020}.json").unlink()
        log_files = LogFiles.from_table(six_versions)
        return log_files.oldest_version, log_files.commit_versions

    assert delete_log_files() == (0, range(6))

    DeltaTableHandle.open(six_versions.path, 1).table.create_checkpoint()
    DeltaTableHandle.open(six_versions.path, 4).table.create_checkpoint()
    assert delete_log_files(0) == (1, range(1, 6))
    assert delete_log_files(3) == (4, range(4, 6)), "version 2 is readable, but not version 3"
    assert [info.base_name[:22] for info in LogFiles.from_table(six_versions).list_files_before(2)] == [
        f"{1:020}.c",
        f"{1:020}.j",
    ]
    assert find_oldest_readable_version(DeltaTableHandle.open(six_versions.path)) == 4
