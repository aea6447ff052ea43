"""Tests of the folders that paths of pipeline files and table logs may lead to."""

import json
import os
from pathlib import Path

import pytest

from tests.conftest import write_pipeline
from tidemark.config import Pipeline
from tidemark.delta.paths import resolve_path
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.table import create_internal_table
from tidemark.delta.table_reader import DeltaInput
from tidemark.errors import ForbiddenPathError, UserError
from tidemark.ledger.config_fingerprint import serialize_settings
from tidemark.ledger.entry import Entry
from tidemark.ledger.ledger import Ledger
from tidemark.ledger.ledger_table import SCHEMA
from tidemark.tables.table_changes import TableChanges
from tidemark.watermarks.values import Watermarks


@pytest.fixture
def lake(tmp_path):
    """Create a lake with a link to a folder outside, `out`, and a link to a folder inside, `in`."""
    (tmp_path / "lake" / "deep" / "er").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "lake" / "out").symlink_to(tmp_path / "outside")
    (tmp_path / "lake" / "in").symlink_to(tmp_path / "lake" / "deep" / "er")
    return str(tmp_path / "lake")


@pytest.mark.parametrize(
    ("name", "expected"),
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
def test_resolve_path_relative_absolute_or_uri_is_under_the_lake_root(lake, name, expected):
    assert resolve_path(lake, name) == f"{lake}/{expected}"
    assert resolve_path(lake, f"{lake}/{name}") == f"{lake}/{expected}"
    assert resolve_path(lake, f"file://{lake}/{name}") == f"{lake}/{expected}"


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


def test_resolve_path_under_allowed_roots_is_accepted(lake, tmp_path, monkeypatch):
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


def test_resolve_path_of_a_lake_in_a_bucket_is_under_its_root():
    assert resolve_path("s3://bucket/lake", "a/../b") == "s3://bucket/lake/b"
    assert resolve_path("s3://bucket", "b") == "s3://bucket/b"

    for name in ("../b", "/lake/b", "s3://bucket/lake2", "file:///etc"):
        with pytest.raises(ForbiddenPathError):
            resolve_path("s3://bucket/lake", name)


def create_pipeline(output):
    return Pipeline.model_construct(name="orders", output=output)


def test_pipeline_tables_output_in_a_table_or_outside_is_rejected(lake, tmp_path):
    nested = "orders/live_query/replay"
    assert PipelineTables.from_config(create_pipeline("orders"), lake).emissions == f"{lake}/orders/emissions"
    assert PipelineTables.from_config(create_pipeline(nested), lake).root == f"{lake}/{nested}"

    create_internal_table(f"{lake}/flights", SCHEMA)
    for name in ("flights", "flights/deeper"):
        with pytest.raises(
            ForbiddenPathError, match=rf"output: {name} is or lies in the table {lake}/flights. Name a folder"
        ):
            PipelineTables.from_config(create_pipeline(name), lake)
    for name in (".", "deep/..", lake):
        with pytest.raises(ForbiddenPathError, match="contains the lake root. Name a folder under"):
            PipelineTables.from_config(create_pipeline(name), lake)
    with pytest.raises(ForbiddenPathError, match="lies outside"):
        PipelineTables.from_config(create_pipeline("../evil_out"), lake)


def test_ledger_output_of_another_pipeline_is_rejected(lake, tmp_path):
    owner = write_pipeline(tmp_path / "p.yaml", output="shared")
    ledger = Ledger.from_pipeline(owner, lake)
    settings = serialize_settings(owner)
    entry = Entry(0, "run", 1, 1, settings, (0, 0), Watermarks(), (0, 0), (0, 0), drained=False)
    counts = dict.fromkeys(("read", "carried_in", "late", "rejected", "evicted", "carried_out"), 0)
    row = {**entry.to_row(ledger.grid), "left": counts, "right": counts, "pipeline": owner.name}
    create_internal_table(ledger.tables.ledger, SCHEMA)
    ledger.commit([row], 1, TableChanges({}), {}, {})
    assert Ledger.from_pipeline(owner, lake).last.run == "run"

    with pytest.raises(UserError) as raised:
        Ledger.from_pipeline(write_pipeline(tmp_path / "q.yaml", output="shared", name="thief"), lake)
    assert str(raised.value) == (
        "output shared belongs to pipeline orders, according to its ledger. Set another `output` for thief, or rename "
        "the pipeline to orders."
    )


class NoSpark:
    """A session that fails on any SQL."""

    def sql(self, statement):
        raise AssertionError(statement)


@pytest.mark.parametrize("name", ["x; DROP TABLE y", "delta.`/etc`", "a.b.c.d", "x WHERE", "text.`/etc/hostname`"])
def test_find_input_invalid_table_name_is_rejected_before_sql(lake, name):
    with pytest.raises(UserError, match="there is no Delta table|lies outside"):
        DeltaInput.find(NoSpark(), lake, name)


OUTSIDE_FILES = ["/etc/secret.parquet", "file:///etc/secret.parquet", "../../secret.parquet", "a/%2e%2e/../../../x"]


@pytest.mark.parametrize("path", OUTSIDE_FILES)
def test_find_input_with_file_outside_allowed_roots_is_rejected(lake, path):
    table = create_internal_table(f"{lake}/flights", SCHEMA)
    add_file(table, path)

    with pytest.raises(ForbiddenPathError, match="^input flights has a file elsewhere: .* lies outside the lake root"):
        DeltaInput.find(NoSpark(), lake, "flights")


def test_read_input_earlier_version_with_file_outside_is_rejected(lake):
    table = create_internal_table(f"{lake}/flights", SCHEMA)
    add_file(table, "/etc/secret.parquet")
    write_action(table, 2, "remove", path="/etc/secret.parquet", deletionTimestamp=0, dataChange=True)

    delta_input = DeltaInput.find(NoSpark(), lake, "flights")

    assert delta_input.version == 2
    with pytest.raises(ForbiddenPathError, match="^input flights has a file elsewhere: .* lies outside the lake root"):
        delta_input.read(1)


def test_find_input_with_file_of_another_table_of_the_lake_is_accepted(lake):
    """A shallow clone refers to files of its source table."""
    table = create_internal_table(f"{lake}/flights", SCHEMA)
    add_file(table, f"file://{lake}/other/x.parquet")

    delta_input = DeltaInput.find(NoSpark(), lake, "flights")

    assert not delta_input.table.is_plain_parquet


@pytest.mark.parametrize(
    ("output", "denied"),
    [
        ("orders", "lake/orders/ledger/_delta_log"),
        ("orders", "lake/orders"),
        ("new/orders", "lake"),
        ("a_file/x", None),
    ],
)
def test_output_that_cannot_be_written_is_refused(lake, tmp_path, monkeypatch, output, denied):
    (tmp_path / "lake" / "orders" / "ledger" / "_delta_log").mkdir(parents=True)
    (tmp_path / "lake" / "a_file").touch()
    tables, access = PipelineTables(f"{lake}/{output}"), os.access
    unwritable = tmp_path / (denied or "lake/a_file")

    def access_as_other_user(path, mode):
        return access(path, mode) and (mode == os.F_OK or Path(path) != unwritable)

    if denied:
        tables.require_permission()
        monkeypatch.setattr(os, "access", access_as_other_user)

    reason = f"this user has no permission to write to {unwritable}" if denied else f"{unwritable} is not a folder"
    with pytest.raises(ForbiddenPathError, match=rf"{reason}\. .*, or name another folder"):
        tables.require_permission()


def test_output_in_an_object_store_needs_no_check_of_permissions():
    PipelineTables("s3a://bucket/orders").require_permission()


def add_file(table, path):
    action = {"path": path, "partitionValues": {}, "size": 1, "modificationTime": 0, "dataChange": True}
    write_action(table, table.version + 1, "add", **action)


def write_action(table, version, name, **action):
    (Path(table.path) / "_delta_log" / f"{version:020d}.json").write_text(json.dumps({name: action}))
