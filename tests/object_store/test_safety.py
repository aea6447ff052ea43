"""Where two drivers would overwrite each other's commits, nothing is written."""

import pyarrow as pa
import pytest

from tests.object_store.serving import BUCKET, small_store, variables
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
    with small_store(conditional=True) as address:
        for name, value in variables(address).items():
            monkeypatch.setenv(name, value)
        yield


def test_a_table_and_a_file_are_written_and_read_as_on_this_machine(store, tmp_path):
    for root in (ROOT, str(tmp_path)):
        for number in range(2):
            staged = stage_arrow_table(pa.table({"n": [number]}), f"{root}/table", f"run={number}")
            log = DeltaTableHandle.open(f"{root}/table") or create_table(
                f"{root}/table", staged.schema, change_feed=False
            )
            log.commit(staged.files, txn_version=number + 1)
        log = DeltaTableHandle.open(f"{root}/table")
        assert sorted(log.read(["n"])["n"].to_pylist()) == [0, 1]
        first, second = (DeltaTableHandle.open(f"{root}/table") for _ in range(2))
        gone = list(log.files["path"])[:1]
        first.commit((), removed=gone, txn_version=3)
        with pytest.raises(CommitConflictError):
            second.commit((), removed=gone, txn_version=3)
        write_text(f"{root}/told.html", "für")
        assert bytes(open_filesystem(root).open_input_file("told.html").read()).decode() == "für"


@pytest.mark.parametrize(
    ("root", "variables", "told"),
    [
        ("s3://lake/orders", {}, "s3:// is unknown to Spark, which accesses S3 by s3a://"),
        ("hdfs://lake/orders", {}, "hdfs:// does not prevent conflicting commits"),
        (ROOT, {"AWS_S3_ALLOW_UNSAFE_RENAME": "true"}, "AWS_S3_ALLOW_UNSAFE_RENAME=true lets two drivers overwrite"),
        (ROOT, {"AWS_CONDITIONAL_PUT": "disabled"}, "AWS_CONDITIONAL_PUT=disabled lets two drivers overwrite"),
    ],
)
def test_check_writable_store_without_conflict_prevention_is_rejected(monkeypatch, root, variables, told):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ForbiddenPathError, match=told):
        PipelineTables(root).check_writable()


def test_spark_s_own_commits_are_refused_on_s3():
    with pytest.raises(UserError, match="S3SingleDriverLogStore, can overwrite another driver's commit: name a new"):
        ClassicEngine(None).load_replaceable_snapshot(f"{ROOT}/emissions")


def test_the_session_s_store_is_that_of_the_variables(monkeypatch):
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    assert get_s3_settings() == {}
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:7070")
    assert get_s3_settings() == {
        "spark.hadoop.fs.s3a.endpoint": "http://127.0.0.1:7070",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
        "spark.hadoop.fs.s3a.path.style.access": "true",
    }


def test_a_path_and_a_store_that_was_told_nothing_are_taken():
    for root in ("/lake/orders", ROOT, "gs://lake/orders", "abfss://lake@account.dfs.core.windows.net/orders"):
        PipelineTables(root).check_writable()
