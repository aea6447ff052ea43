"""A lake in a real S3 server, by Spark over s3a:// and by delta-rs: the same tables as on a disk, whoever races."""

import json
import multiprocessing
import os
import random
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime, timedelta

import pyarrow.fs as pafs
import pytest
import yaml
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.conftest import PROJECT
from tests.e2e.orders import HOUR, SIDES, START, Feed, pipeline
from tests.object_store.serving import BUCKET, real_store, small_store, variables, versity
from tests.spark.lakes import read
from tidemark.config import load_pipeline
from tidemark.delta.filesystem import list_file_sizes, open_filesystem
from tidemark.errors import SliceOrderError
from tidemark.execution.run import execute
from tidemark.maintenance.vacuum import vacuum
from tidemark.planning.plan import Request, create_plan
from tidemark.spark.session import get_spark_session

RACES = int(os.environ.get("TIDEMARK_S3_RACES", "4"))
JARS = PROJECT / ".cache/s3/jars"
LAKE = f"s3a://{BUCKET}/lake"
TABLES = ("emissions", "late")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(versity() is None or not JARS.is_dir(), reason="make s3 has not installed versitygw and jars"),
]


@pytest.fixture
def store(tmp_path, monkeypatch):
    with real_store(tmp_path / "store") as address:
        given = variables(address) | {"TIDEMARK_JARS": str(JARS), "TIDEMARK_MASTER": "local[1]"}
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        yield


def land(lake, hours):
    """All rows of both inputs."""
    feed = Feed(lake, hours)
    for hour in range(hours):
        for side in SIDES:
            feed.land(side, hour)


def tidemark(*arguments, cwd, code=0):
    """Run a command to its end; what it said."""
    script = "import sys; from tidemark.cli import main; sys.exit(main(sys.argv[1:]))"
    env = os.environ | {"PYTHONPATH": str(PROJECT / "include")}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done.stderr if code else done.stdout


def test_a_lake_its_data_docs_and_reports_are_there_as_on_a_disk(store, tmp_path):
    file, disk = tmp_path / "orders.yaml", tmp_path / "lake"
    file.write_text(pipeline("orders", 3))
    for lake in (LAKE, disk):
        land(lake, 3)
        tidemark("run", file, "--lake", lake, "--slices-per-job", 2, cwd=tmp_path)
        tidemark("reprocess", file, "--lake", lake, "--from", START + HOUR, "--to", START + 2 * HOUR, cwd=tmp_path)
    for table in TABLES:
        assert read(f"{LAKE}/orders/{table}") == read(disk / "orders" / table)
        assert read(f"{LAKE}/orders/{table}").total() > 10

    report = f"{LAKE}/reports/quality.html"
    tidemark("quality", file, "--lake", LAKE, "--report", report, cwd=tmp_path)
    files = open_filesystem(LAKE)
    assert b"<html" in bytes(files.open_input_file("reports/quality.html").read())
    docs = files.get_file_info(pafs.FileSelector("orders/gx/uncommitted/data_docs/local_site", recursive=True))
    pages = {info.path for info in docs if info.path.endswith(".html")}
    assert {path.rpartition("/")[2] for path in pages} >= {"index.html", "slices-invariants.html"}
    index = bytes(files.open_input_file("orders/gx/uncommitted/data_docs/local_site/index.html").read())
    assert b"slices-invariants.html" in index
    assert "s3a:" not in {path.name for path in tmp_path.iterdir()}

    with files.open_output_stream("orders/emissions/run=left_behind/part-0.parquet") as left:
        left.write(b"left")
    time.sleep(1.1)  # a store's times are whole seconds
    told = tidemark("vacuum", file, "--lake", LAKE, "--older-than", "0 seconds", "--json", cwd=tmp_path)
    [vacuumed] = json.loads(told)
    assert vacuumed["uncommitted_files"] == {"files": ["emissions/run=left_behind/part-0.parquet"], "bytes": 4}
    assert vacuumed["recovery_horizon"]["readable_from"]["emissions"] == 0
    assert read(f"{LAKE}/orders/emissions").total() > 10


def test_upkeep_and_new_versions_are_there_as_on_a_disk(store, tmp_path):
    """Compaction, a shadow that is promoted, taken back and dropped, and logs made shorter."""
    narrow, wide, disk, hours = tmp_path / "orders.yaml", tmp_path / "wide.yaml", tmp_path / "lake", 4
    settings = yaml.safe_load(pipeline("orders", hours)) | {
        "compact": {"settled_after": "0 seconds", "period": "2 hours"}
    }
    narrow.write_text(yaml.safe_dump(settings))
    settings["join"]["interval"]["upper"] = "20 minutes"
    wide.write_text(yaml.safe_dump(settings))
    steps = [
        ("run", narrow, "--slices-per-job", 1),
        ("compact", narrow),
        ("run", wide, "--candidate", "wide"),
        ("promote", wide, "wide"),
        ("rollback", narrow, "wide"),
        ("promote", wide, "wide"),
        ("shadows", wide, "--drop", "wide"),
        ("verify", wide, "--deep"),
    ]
    for lake in (LAKE, disk):
        land(lake, hours)
    served = []
    for step in steps:
        for lake in (LAKE, disk):
            tidemark(*step, "--lake", lake, cwd=tmp_path)
        there, here = ({table: read(f"{lake}/orders/{table}") for table in TABLES} for lake in (LAKE, disk))
        assert there == here, step
        served.append(there["emissions"].total())
    assert served[0] == served[1] == served[2] == served[4] < served[3] == served[5] == served[7]
    assert not any(list_file_sizes(open_filesystem(LAKE), "orders/candidates").values())

    loaded, at_once = load_pipeline(wide), timedelta(0)
    kept = loaded.retention.model_copy(
        update=dict.fromkeys(("replaced_files", "uncommitted_files", "log_files"), at_once)
    )
    time.sleep(1.1)  # a store's times are whole seconds
    removed = vacuum(loaded.model_copy(update={"retention": kept}), LAKE)
    assert removed.log_files.files
    assert removed.replaced_files.files
    assert read(f"{LAKE}/orders/emissions").total() == served[-1]
    assert "sound" in tidemark("verify", wide, "--lake", LAKE, "--deep", cwd=tmp_path)


def test_a_store_that_passes_over_conditional_puts_is_refused_before_anything_is_written(store, tmp_path, monkeypatch):
    file = tmp_path / "orders.yaml"
    file.write_text(pipeline("orders", 1))
    with small_store(conditional=False) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        land(LAKE, 1)
        told = tidemark("run", file, "--lake", LAKE, cwd=tmp_path, code=2)
        listed = open_filesystem(LAKE).get_file_info(pafs.FileSelector("", recursive=True))
    assert "its store ignores conditional puts (If-None-Match)" in told
    # Hadoop leaves an object that stands for the folder.
    written = {info.path for info in listed if info.is_file} - {"orders"}
    assert {path.partition("/")[0] for path in written} == set(SIDES)


def begin(together):
    """Start a process's own Spark, and wait until the other has its."""
    get_spark_session("races").conf.set("spark.sql.shuffle.partitions", "2")
    together.wait(timeout=300)


def drive(file, requests, wait):
    """A driver: each request again as long as the other one is first; how often that was."""
    session, settings, lost = SparkSession.active(), load_pipeline(file), 0
    time.sleep(wait)
    for request in requests:
        for _ in range(20):
            try:
                list(execute(session, create_plan(session, settings, LAKE, request), lambda *_: None))
            except SliceOrderError as error:
                if "another process has committed" not in str(error):
                    raise
                lost += 1
            else:
                break
        else:
            raise AssertionError("it never had its turn")
    return lost


def test_races_of_two_drivers_lose_nothing(store, tmp_path):
    """Both want the next slice; in every other race one first runs the last one again."""
    file, disk, hours = tmp_path / "orders.yaml", tmp_path / "lake", RACES + 1
    file.write_text(pipeline("orders", hours))
    for lake in (LAKE, disk):
        land(lake, hours)
    tidemark("run", file, "--lake", LAKE, "--to", START + HOUR, cwd=tmp_path)
    tidemark("run", file, "--lake", disk, "--slices-per-job", hours, cwd=tmp_path)
    lost, processes = 0, multiprocessing.get_context("spawn")
    begun = datetime.now(UTC)
    with ProcessPoolExecutor(2, processes, begin, [processes.Barrier(2)]) as pool:
        for race in range(1, hours):
            upto, chance = Request(end=START + (race + 1) * HOUR), random.Random(race)
            again = Request(reprocess=True, start=START + (race - 1) * HOUR, end=START + race * HOUR)
            ways = [[upto], [again, upto] if race % 2 else [upto]]
            running = [pool.submit(drive, file, way, chance.uniform(0, 0.3)) for way in ways]
            lost += sum(one.result() for one in running)
    took = (datetime.now(UTC) - begun) / timedelta(seconds=1)
    sys.stdout.write(f"{RACES} races in {took:.0f} s: a driver was overtaken {lost} times\n")
    assert lost
    for table in TABLES:
        assert read(f"{LAKE}/orders/{table}") == read(disk / "orders" / table)
    rows = DeltaTable(f"{LAKE}/orders/ledger").to_pyarrow_table(columns=["slice", "attempt", "commit"]).to_pylist()
    assert len({(row["slice"], row["attempt"]) for row in rows}) == len(rows)
    assert {row["slice"] for row in rows} == {START + hour * HOUR for hour in range(hours)}
    assert sorted({row["commit"] for row in rows}) == list(range(1, 1 + len({row["commit"] for row in rows})))


def named_by_a_catalog(file, request):
    """In a process of its own: inputs by the names that the session's catalog has for folders of the store."""
    session = get_spark_session("catalog")
    for side in SIDES:
        session.sql(f"CREATE TABLE sold_{side} USING delta LOCATION '{LAKE}/{side}'")
    list(execute(session, create_plan(session, load_pipeline(file), LAKE, request), lambda *_: None))


def test_inputs_may_be_tables_of_a_catalog_in_the_store(store, tmp_path):
    """Without `complete`, which looks into a folder's log where no Spark runs."""
    orders = yaml.safe_load(pipeline("orders", 2))
    for side in SIDES:
        del orders[side]["complete"]
    sold = orders | {"name": "sold"} | {side: orders[side] | {"table": f"sold_{side}"} for side in SIDES}
    files = [tmp_path / f"{one['name']}.yaml" for one in (orders, sold)]
    for file, one in zip(files, (orders, sold), strict=True):
        file.write_text(yaml.safe_dump(one))
    land(LAKE, 2)
    tidemark("run", files[0], "--lake", LAKE, cwd=tmp_path)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        pool.submit(named_by_a_catalog, files[1], Request(end=START + 2 * HOUR)).result()
    for table in TABLES:
        assert read(f"{LAKE}/sold/{table}") == read(f"{LAKE}/orders/{table}")
        assert read(f"{LAKE}/sold/{table}").total() > 10
