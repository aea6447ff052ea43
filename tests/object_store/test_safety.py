"""Tests of object stores that could let two drivers overwrite each other's commits."""

import pyarrow as pa
import pytest

from tests.object_store.s3_servers import BUCKET, create_variables, run_small_store
from tidemark.delta.filesystem import open_filesystem, write_text
from tidemark.delta.pipeline_tables import PipelineTables
from tidemark.delta.staging import stage_arrow_table
from tidemark.delta.table import CommitConflictError, DeltaTableHandle, create_table
from tidemark.errors import ForbiddenPathError, UserError
from tidemark.spark.classic_engine import ClassicEngine
from tidemark.spark.s3_settings import get_s3_settings

ROOT = f"s3a://{BUCKET}/orders"


@pytest.fixture
def store(monkeypatch):
    """Run a store with conditional puts and set the variables by which it is accessed."""
    with run_small_store(conditional=True) as address:
        for name, value in create_variables(address).items():
            monkeypatch.setenv(name, value)
        yield


@pytest.mark.parametrize("is_local", [False, True], ids=["s3", "local"])
def test_delta_table_and_text_file_are_written_and_read(store, tmp_path, is_local):
    root = str(tmp_path) if is_local else ROOT
    for number in range(2):
        staged = stage_arrow_table(pa.table({"n": [number]}), f"{root}/table", f"run={number}")
        table = DeltaTableHandle.open(f"{root}/table")
        table = table or create_table(f"{root}/table", staged.schema, change_feed=False)
        table.commit(staged.files, txn_version=number + 1)

    table = DeltaTableHandle.open(f"{root}/table")
    assert sorted(table.read(["n"])["n"].to_pylist()) == [0, 1]

    first, second = (DeltaTableHandle.open(f"{root}/table") for _ in range(2))
    removed = list(table.files["path"])[:1]
    first.commit((), removed=removed, txn_version=3)
    with pytest.raises(CommitConflictError):
        second.commit((), removed=removed, txn_version=3)

    write_text(f"{root}/page.html", "für")
    assert bytes(open_filesystem(root).open_input_file("page.html").read()).decode() == "für"


@pytest.mark.parametrize(
    ("root", "variables", "expected_message"),
    [
        ("s3://lake/orders", {}, "s3:// is unknown to Spark, which accesses S3 by s3a://"),
        ("hdfs://lake/orders", {}, "hdfs:// does not prevent conflicting commits"),
        (ROOT, {"AWS_S3_ALLOW_UNSAFE_RENAME": "true"}, "AWS_S3_ALLOW_UNSAFE_RENAME=true lets two drivers overwrite"),
        (ROOT, {"AWS_CONDITIONAL_PUT": "disabled"}, "AWS_CONDITIONAL_PUT=disabled lets two drivers overwrite"),
    ],
)
def test_check_writable_store_without_conflict_prevention_is_rejected(monkeypatch, root, variables, expected_message):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(ForbiddenPathError, match=expected_message):
        PipelineTables(root).check_writable()


def test_load_replaceable_snapshot_on_s3_raises():
    with pytest.raises(UserError, match="S3SingleDriverLogStore can overwrite another driver's commit. Choose a new"):
        ClassicEngine(None).load_replaceable_snapshot(f"{ROOT}/emissions")


def test_get_s3_settings_follow_environment_variables(monkeypatch):
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    assert get_s3_settings() == {}

    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:7070")
    assert get_s3_settings() == {
        "spark.hadoop.fs.s3a.endpoint": "http://127.0.0.1:7070",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
        "spark.hadoop.fs.s3a.path.style.access": "true",
    }


def test_check_writable_folder_or_store_by_default_is_accepted():
    for root in ("/lake/orders", ROOT, "gs://lake/orders", "abfss://lake@account.dfs.core.windows.net/orders"):
        PipelineTables(root).check_writable()
