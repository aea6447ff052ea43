"""Where the paths of pipeline files may lie. The lake has a link to a place outside, and one to a place inside."""

import json
from pathlib import Path

import pytest

from tests.conftest import write_pipeline
from tidemark.config import Pipeline
from tidemark.delta.paths import resolve_path
from tidemark.delta.pipeline_tables import DeltaInput, PipelineTables
from tidemark.delta.table import create_internal_table
from tidemark.errors import ForbiddenPathError, UserError
from tidemark.ledger.ledger import SCHEMA, Entry, Ledger
from tidemark.tables.table_changes import TableChanges
from tidemark.watermarks.watermarks import Watermarks


@pytest.fixture
def lake(tmp_path):
    (tmp_path / "lake" / "deep" / "er").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "lake" / "out").symlink_to(tmp_path / "outside")
    (tmp_path / "lake" / "in").symlink_to(tmp_path / "lake" / "deep" / "er")
    return str(tmp_path / "lake")


@pytest.mark.parametrize(
    ("name", "under"),
    [
        ("flights", "flights"),
        ("a/b c/d", "a/b c/d"),
        ("deep/../flights", "flights"),
        ("in/table", "deep/er/table"),
        ("in/../table", "deep/table"),
        ("db.table", "db.table"),
        ("a//b/", "a/b"),
        ("{{ ds }}", "{{ ds }}"),
    ],
)
def test_a_name_stands_for_a_place_under_the_lake_root(lake, name, under):
    assert resolve_path(lake, name) == f"{lake}/{under}"
    assert resolve_path(lake, f"{lake}/{name}") == f"{lake}/{under}"
    assert resolve_path(lake, f"file://{lake}/{name}") == f"{lake}/{under}"


OUTSIDE = {
    "parent": "../evil_out",
    "parents": "deep/../../evil_out",
    "absolute": "/etc/hostname",
    "file uri": "file:///etc/hostname",
    "short file uri": "file:/etc/hostname",
    "link": "out/table",
    "link and parent": "in/../../../evil_out",
    "neighbour": "../lake2",
    "bucket": "s3://other/table",
    "hdfs": "hdfs://name:9000/table",
    "http": "http://169.254.169.254/latest",
}


@pytest.mark.parametrize("name", OUTSIDE.values(), ids=OUTSIDE)
def test_resolve_path_outside_allowed_roots_is_rejected_with_remedy(lake, name):
    with pytest.raises(ForbiddenPathError) as raised:
        resolve_path(lake, name)
    assert str(raised.value) == (
        f"{name} lies outside the lake root {lake}. Move it there, or let the operator allow its root in "
        "TIDEMARK_ALLOWED_ROOTS."
    )


@pytest.mark.parametrize("name", ["", "a\nb", "a\x00b", "\x7f"])
def test_resolve_path_empty_or_control_character_is_rejected(lake, name):
    with pytest.raises(ForbiddenPathError, match="is not a valid path. Write a path relative to the lake root"):
        resolve_path(lake, name)


def test_the_operator_allows_further_roots(lake, tmp_path, monkeypatch):
    monkeypatch.setenv("TIDEMARK_ALLOWED_ROOTS", f"{tmp_path}/outside, s3://streams/raw/ ,")
    assert (
        resolve_path(lake, "out/table")
        == resolve_path(lake, f"{tmp_path}/outside/table")
        == f"{tmp_path}/outside/table"
    )
    assert resolve_path(lake, "S3://streams/raw/x/../y") == "s3://streams/raw/y"
    for name in ("s3://streams/raw/../x", "s3://streams/rawer", "s3://stream/raw/x", "/etc", f"{tmp_path}/outsider"):
        with pytest.raises(ForbiddenPathError, match="lies outside the lake root"):
            resolve_path(lake, name)
    for name in ("s3://streams/raw/%2e%2e/x", "s3://streams/raw/..\\x", "s3://streams/raw/x?y", "s3://streams/raw/#"):
        with pytest.raises(ForbiddenPathError, match=r"has one of the characters %, \?, # and \\. Rename"):
            resolve_path(lake, name)


def test_a_lake_in_a_bucket_has_its_names_under_it():
    assert resolve_path("s3://bucket/lake", "a/../b") == "s3://bucket/lake/b"
    assert resolve_path("s3://bucket", "b") == "s3://bucket/b"
    for name in ("../b", "/lake/b", "s3://bucket/lake2", "file:///etc"):
        with pytest.raises(ForbiddenPathError):
            resolve_path("s3://bucket/lake", name)


def output(name):
    return Pipeline.model_construct(name="orders", output=name)


def test_an_output_is_a_folder_of_its_own(lake, tmp_path):
    assert PipelineTables.from_config(output("orders"), lake).emissions == f"{lake}/orders/emissions"
    assert (
        PipelineTables.from_config(output("orders/live_query/replay"), lake).root == f"{lake}/orders/live_query/replay"
    )
    create_internal_table(f"{lake}/flights", SCHEMA)
    for name in ("flights", "flights/deeper"):
        with pytest.raises(
            ForbiddenPathError, match=rf"output {name} is or lies in the table {lake}/flights. Name a folder"
        ):
            PipelineTables.from_config(output(name), lake)
    for name in (".", "deep/..", lake):
        with pytest.raises(ForbiddenPathError, match="contains the lake root. Name a folder under"):
            PipelineTables.from_config(output(name), lake)
    with pytest.raises(ForbiddenPathError, match="lies outside"):
        PipelineTables.from_config(output("../evil_out"), lake)


def test_an_output_is_that_of_the_pipeline_that_has_claimed_it_in_its_ledger(lake, tmp_path):
    mine = write_pipeline(tmp_path / "p.yaml", output="shared")
    ledger = Ledger.from_pipeline(mine, lake)
    entry = Entry(0, "run", 1, 1, "{}", (0, 0), Watermarks(), (0, 0), (0, 0), drained=False)
    counts = dict.fromkeys(("read", "carried_in", "late", "rejected", "evicted", "carried_out"), 0)
    row = {**ledger.row(entry), "left": counts, "right": counts, "pipeline": mine.name}
    create_internal_table(ledger.tables.ledger, SCHEMA)
    ledger.commit([row], 1, TableChanges({}), {}, {})
    assert Ledger.from_pipeline(mine, lake).last.run == "run"
    with pytest.raises(UserError) as raised:
        Ledger.from_pipeline(write_pipeline(tmp_path / "q.yaml", output="shared", name="thief"), lake)
    assert str(raised.value) == (
        "output shared is that of pipeline orders, as its ledger says; give thief an output of its own, "
        "or its old name back"
    )


class NoSpark:
    def sql(self, text):
        raise AssertionError(text)


@pytest.mark.parametrize("name", ["x; DROP TABLE y", "delta.`/etc`", "a.b.c.d", "x WHERE", "text.`/etc/hostname`"])
def test_what_is_no_name_of_a_catalog_never_reaches_sql(lake, name):
    with pytest.raises(UserError, match="there is no Delta table|lies outside"):
        DeltaInput.find(NoSpark(), lake, name)


ELSEWHERE = ["/etc/secret.parquet", "file:///etc/secret.parquet", "../../secret.parquet", "a/%2e%2e/../../../x"]


@pytest.mark.parametrize("path", ELSEWHERE)
def test_whoever_writes_a_log_may_not_name_any_file(lake, path):
    table = f"{lake}/flights"
    log = create_internal_table(table, SCHEMA)
    add_file(log, path)
    with pytest.raises(ForbiddenPathError, match="^input flights has a file elsewhere: .* lies outside the lake root"):
        DeltaInput.find(NoSpark(), lake, "flights")


def test_nor_by_a_version_that_is_no_longer_the_newest(lake):
    log = create_internal_table(f"{lake}/flights", SCHEMA)
    add_file(log, "/etc/secret.parquet")
    write_action(log, 2, "remove", path="/etc/secret.parquet", deletionTimestamp=0, dataChange=True)
    found = DeltaInput.find(NoSpark(), lake, "flights")
    assert found.version == 2
    with pytest.raises(ForbiddenPathError, match="^input flights has a file elsewhere: .* lies outside the lake root"):
        found.read(1)


def test_a_log_may_name_files_of_the_lake_as_a_clone_does(lake):
    log = create_internal_table(f"{lake}/flights", SCHEMA)
    add_file(log, f"file://{lake}/other/x.parquet")
    found = DeltaInput.find(NoSpark(), lake, "flights")
    assert not found.table.is_plain_parquet


def add_file(log, path):
    added = {"path": path, "partitionValues": {}, "size": 1, "modificationTime": 0, "dataChange": True}
    write_action(log, log.version + 1, "add", **added)


def write_action(log, version, kind, **action):
    (Path(log.path) / "_delta_log" / f"{version:020d}.json").write_text(json.dumps({kind: action}))
